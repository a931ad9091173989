//! Rules about several settings at once.
//!
//! Each looks at the values that it needs: where one of them could not be read, that is told already, and all the other rules
//! still have their say.

use std::net::SocketAddr;

use windlass_core::{JOB_BYTES_MAX, format_duration};

use super::settings::Partial;
use super::{Config, Origin, Problem};

/// Which setting is wrong, and the rule that it breaks.
type Broken = (&'static str, String);

const RULES: [fn(&Partial) -> Option<Broken>; 8] = [
    tls_key,
    tls_certificate,
    public_without_tls,
    lease,
    lease_max,
    payload_bytes,
    connections,
    old_keys,
];

impl Partial {
    /// What does not go together.
    pub(super) fn broken_rules(&self, origin: impl Fn(&str) -> Origin) -> Vec<Problem> {
        let broken = RULES.iter().filter_map(|rule| rule(self));
        let told = broken.map(|(key, rule)| Problem {
            origin: origin(key),
            key: key.to_owned(),
            rule,
        });
        told.collect()
    }

    /// Whether the certificate and the key of TLS were said.
    fn tls(&self) -> Option<(bool, bool)> {
        let (certificate, key) = (self.tls_certificate.as_ref()?, self.tls_key.as_ref()?);
        Some((certificate.is_some(), key.is_some()))
    }
}

fn when(broken: bool, key: &'static str, rule: impl Into<String>) -> Option<Broken> {
    broken.then(|| (key, rule.into()))
}

fn tls_key(read: &Partial) -> Option<Broken> {
    let alone = read.tls()? == (true, false);
    when(alone, "tls.key", "is needed beside `tls.certificate`")
}

fn tls_certificate(read: &Partial) -> Option<Broken> {
    let alone = read.tls()? == (false, true);
    when(alone, "tls.certificate", "is needed beside `tls.key`")
}

fn public_without_tls(read: &Partial) -> Option<Broken> {
    let covered = read.tls()? == (true, true) || read.behind_proxy? || read.insecure?;
    let rule = "is reachable from other machines without TLS: set `tls.certificate` and `tls.key`, say `behind_proxy` if a proxy does it, or `insecure` (`--insecure`) if you know better";
    when(is_public(read.bind?) && !covered, "bind", rule)
}

fn lease(read: &Partial) -> Option<Broken> {
    let needed = read.sweep_every?.saturating_mul(3);
    let told = format_duration(needed);
    let rule = format!("must be at least three times `jobs.sweep_every`: {told}");
    when(read.lease? < needed, "jobs.lease", rule)
}

fn lease_max(read: &Partial) -> Option<Broken> {
    let short = read.lease_max? < read.lease?;
    when(short, "jobs.lease_max", "must be at least `jobs.lease`")
}

fn payload_bytes(read: &Partial) -> Option<Broken> {
    let rest = u64::try_from(JOB_BYTES_MAX).unwrap_or(u64::MAX);
    let needed = read.payload_bytes?.saturating_add(rest);
    let rule = format!(
        "must be at most `http.bulk_bytes` without {rest}, which the rest of a job may need"
    );
    when(needed > read.bulk_bytes?, "jobs.payload_bytes", rule)
}

fn connections(read: &Partial) -> Option<Broken> {
    let more = read.connections_per_address? > read.connections?;
    let rule = "must be at most `http.connections`";
    when(more, "http.connections_per_address", rule)
}

fn old_keys(read: &Partial) -> Option<Broken> {
    let alone = !read.old_keys.as_ref()?.is_empty() && read.master_key.as_ref()?.is_none();
    let rule = "need a new `secrets.master_key` beside them";
    when(alone, "secrets.old_keys", rule)
}

fn is_public(bind: SocketAddr) -> bool {
    !bind.ip().to_canonical().is_loopback()
}

impl Config {
    /// Whether other machines can reach it.
    pub fn is_public(&self) -> bool {
        is_public(self.bind)
    }
}
