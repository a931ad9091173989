//! Rules about several settings at once.
//!
//! A rule does not apply if a value that it needs is invalid: reading the value has already
//! reported the problem. The other rules still apply.

use std::net::SocketAddr;

use windlass_core::{JOB_BYTES_MAX, format_duration};

use super::settings::PartialConfig;
use super::{Config, Origin, Problem};

/// The key of a setting and the rule that it breaks.
type BrokenSetting = (&'static str, String);

const RULES: [fn(&PartialConfig) -> Option<BrokenSetting>; 9] = [
    tls_key,
    tls_certificate,
    public_without_tls,
    lease,
    lease_max,
    payload_bytes,
    connections,
    old_keys,
    proxy_secret,
];

impl PartialConfig {
    /// Returns the problems with combinations of settings.
    pub(super) fn broken_rules(&self, origin: impl Fn(&str) -> Origin) -> Vec<Problem> {
        let broken = RULES.iter().filter_map(|rule| rule(self));
        let problems = broken.map(|(key, rule)| Problem {
            origin: origin(key),
            key: key.to_owned(),
            rule,
        });
        problems.collect()
    }

    /// Whether the TLS certificate and the TLS key are set.
    fn has_tls_files(&self) -> Option<(bool, bool)> {
        let (certificate, key) = (self.tls_certificate.as_ref()?, self.tls_key.as_ref()?);
        Some((certificate.is_some(), key.is_some()))
    }
}

fn broken_if(is_broken: bool, key: &'static str, rule: impl Into<String>) -> Option<BrokenSetting> {
    is_broken.then(|| (key, rule.into()))
}

fn tls_key(partial: &PartialConfig) -> Option<BrokenSetting> {
    let alone = partial.has_tls_files()? == (true, false);
    broken_if(alone, "tls.key", "is required with `tls.certificate`")
}

fn tls_certificate(partial: &PartialConfig) -> Option<BrokenSetting> {
    let alone = partial.has_tls_files()? == (false, true);
    broken_if(alone, "tls.certificate", "is required with `tls.key`")
}

fn public_without_tls(partial: &PartialConfig) -> Option<BrokenSetting> {
    let covered =
        partial.has_tls_files()? == (true, true) || partial.behind_proxy? || partial.insecure?;
    let rule = "is reachable from other machines without TLS: set `tls.certificate` and `tls.key`; or set `behind_proxy` if a proxy terminates TLS; or set `insecure` (`--insecure`) to allow it anyway";
    broken_if(is_public(partial.bind?) && !covered, "bind", rule)
}

fn lease(partial: &PartialConfig) -> Option<BrokenSetting> {
    let needed = partial.sweep_every?.saturating_mul(3);
    let shown = format_duration(needed);
    let rule = format!("must be at least three times `jobs.sweep_every`: {shown}");
    broken_if(partial.lease? < needed, "jobs.lease", rule)
}

fn lease_max(partial: &PartialConfig) -> Option<BrokenSetting> {
    let short = partial.lease_max? < partial.lease?;
    broken_if(short, "jobs.lease_max", "must be at least `jobs.lease`")
}

fn payload_bytes(partial: &PartialConfig) -> Option<BrokenSetting> {
    let rest = u64::try_from(JOB_BYTES_MAX).unwrap_or(u64::MAX);
    let needed = partial.payload_bytes?.saturating_add(rest);
    let rule = format!(
        "must be at most `http.bulk_bytes` minus {rest}, the size that the other fields of a job can have"
    );
    broken_if(needed > partial.bulk_bytes?, "jobs.payload_bytes", rule)
}

fn connections(partial: &PartialConfig) -> Option<BrokenSetting> {
    let more = partial.connections_per_address? > partial.connections?;
    let rule = "must be at most `http.connections`";
    broken_if(more, "http.connections_per_address", rule)
}

fn old_keys(partial: &PartialConfig) -> Option<BrokenSetting> {
    let alone = !partial.old_keys.as_ref()?.is_empty() && partial.master_key.as_ref()?.is_none();
    let rule = "need a current `secrets.master_key` too";
    broken_if(alone, "secrets.old_keys", rule)
}

fn proxy_secret(partial: &PartialConfig) -> Option<BrokenSetting> {
    let (proxies, secret) = (
        partial.dashboard_proxies.as_ref()?,
        partial.dashboard_proxy_secret.as_ref()?,
    );
    let rule =
        "must be set together with `dashboard.proxies`, so that only the proxies can name a person";
    broken_if(
        !proxies.is_empty() && secret.is_none(),
        "dashboard.proxy_secret",
        rule,
    )
}

fn is_public(bind: SocketAddr) -> bool {
    !bind.ip().to_canonical().is_loopback()
}

impl Config {
    /// Whether other machines can reach the server.
    pub fn is_public(&self) -> bool {
        is_public(self.bind)
    }
}
