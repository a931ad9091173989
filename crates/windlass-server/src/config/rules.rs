//! Rules about several settings at once.

use windlass_core::format_duration;

use super::{Config, Problem};

impl Config {
    /// What does not go together.
    pub(super) fn broken_rules(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut refuse = |broken: bool, key: &'static str, rule: String| {
            if broken {
                let (origin, key) = (self.origin(key), key.to_owned());
                problems.push(Problem { origin, key, rule });
            }
        };
        let tls = (self.tls_certificate.is_some(), self.tls_key.is_some());
        refuse(
            tls == (true, false),
            "tls.key",
            "is needed beside `tls.certificate`".into(),
        );
        refuse(
            tls == (false, true),
            "tls.certificate",
            "is needed beside `tls.key`".into(),
        );
        let covered = tls == (true, true) || self.behind_proxy || self.insecure;
        refuse(
            self.is_public() && !covered,
            "bind",
            "is reachable from other machines without TLS: set `tls.certificate` and `tls.key`, say `behind_proxy` if a proxy does it, or `insecure` (`--insecure`) if you know better".into(),
        );
        let needed = self.sweep_every.saturating_mul(3);
        refuse(
            self.lease < needed,
            "jobs.lease",
            format!(
                "must be at least three times `jobs.sweep_every`: {}",
                format_duration(needed)
            ),
        );
        refuse(
            self.lease_max < self.lease,
            "jobs.lease_max",
            "must be at least `jobs.lease`".into(),
        );
        refuse(
            self.payload_bytes > self.bulk_bytes,
            "jobs.payload_bytes",
            "must be at most `http.bulk_bytes`".into(),
        );
        refuse(
            self.connections_per_address > self.connections,
            "http.connections_per_address",
            "must be at most `http.connections`".into(),
        );
        refuse(
            !self.old_keys.is_empty() && self.master_key.is_none(),
            "secrets.old_keys",
            "need a new `secrets.master_key` beside them".into(),
        );
        problems
    }

    /// Whether other machines can reach it.
    pub fn is_public(&self) -> bool {
        !self.bind.ip().to_canonical().is_loopback()
    }
}
