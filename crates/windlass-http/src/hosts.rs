//! The hosts that a webhook secret may sign requests for.
//!
//! A caller who enqueues a job picks its URL and the secret that signs it. If a secret were not bound
//! to hosts, the caller could have any body signed, sent to a target of their own, and replay it to
//! the receiver that trusts the secret.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use url::Host;
use windlass_core::Invalid;

/// The most hosts of one secret.
pub const SECRET_HOSTS_MAX: usize = 32;

/// The hosts that a secret signs requests for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretHosts {
    /// Every host: anyone who may enqueue can have anything signed.
    Any,
    /// Hosts that match one of these patterns.
    Only(Vec<HostPattern>),
}

impl SecretHosts {
    /// Parses 1 to 32 hosts, each like `api.example.com` or `*.example.com`. With a port, only that
    /// port matches.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the host that breaks a rule, as `hosts[1]`.
    pub fn parse<T: AsRef<str>>(hosts: &[T]) -> Result<Self, Invalid> {
        if hosts.is_empty() || hosts.len() > SECRET_HOSTS_MAX {
            let rule = format!("must name 1 to {SECRET_HOSTS_MAX} hosts");
            return Err(Invalid::new("hosts", rule));
        }
        let parse = |(index, host): (usize, &T)| {
            let parsed = host.as_ref().parse();
            parsed.map_err(|invalid: Invalid| invalid.within(&format!("hosts[{index}]")))
        };
        let patterns: Result<_, Invalid> = hosts.iter().enumerate().map(parse).collect();
        Ok(SecretHosts::Only(patterns?))
    }

    /// Returns the hosts in the form that `parse` accepts, or `None` if every host is allowed.
    pub fn names(&self) -> Option<Vec<String>> {
        match self {
            SecretHosts::Any => None,
            SecretHosts::Only(patterns) => Some(patterns.iter().map(ToString::to_string).collect()),
        }
    }

    /// Whether requests to this URL may be signed.
    pub fn allow(&self, url: &Uri) -> bool {
        match self {
            SecretHosts::Any => true,
            SecretHosts::Only(patterns) => patterns.iter().any(|pattern| pattern.matches(url)),
        }
    }
}

/// One host, or all subdomains of a domain, on one port or on any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    subdomains: bool,
    host: String,
    port: Option<u16>,
}

impl HostPattern {
    fn matches(&self, url: &Uri) -> bool {
        let host = without_root(url.host().unwrap_or_default());
        let host_matches = if self.subdomains {
            host.strip_suffix(&self.host)
                .is_some_and(|labels| labels.len() > 1 && labels.ends_with('.'))
        } else {
            host == self.host
        };
        host_matches && self.port.is_none_or(|port| port_of(url) == port)
    }
}

impl FromStr for HostPattern {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refused = |rule: &str| Invalid::new("", rule);
        let (subdomains, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (host, port) = split_port(rest).ok_or_else(|| refused(RULE))?;
        let host = Host::parse(host).map_err(|_| refused(RULE))?;
        let is_domain = matches!(host, Host::Domain(_));
        let host = without_root(&host.to_string()).to_owned();
        if host.contains('*') || host.split('.').any(str::is_empty) {
            return Err(refused(RULE));
        }
        if subdomains && (!is_domain || !host.contains('.')) {
            return Err(refused(
                "must have a domain of at least two labels after `*.`, such as `*.example.com`",
            ));
        }
        Ok(HostPattern {
            subdomains,
            host,
            port,
        })
    }
}

const RULE: &str = "must be a host such as `api.example.com` or `*.example.com`, with `:port` to match only that port";

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.subdomains { "*." } else { "" };
        write!(f, "{prefix}{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let colon = text
        .rfind(':')
        .filter(|at| !text.get(*at..).is_some_and(|rest| rest.contains(']')));
    let Some(colon) = colon else {
        return Some((text, None));
    };
    let (host, port) = (text.get(..colon)?, text.get(colon + 1..)?);
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| digits && *port != 0)?;
    Some((host, Some(port)))
}

fn port_of(url: &Uri) -> u16 {
    let default = if url.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    url.port_u16().unwrap_or(default)
}

/// Removes the dot of the DNS root: `example.com.` is the same host as `example.com`.
fn without_root(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::HttpRequest;

    /// The URL as the request of a job has it.
    fn url(text: &str) -> Uri {
        let payload = serde_json::json!({ "url": text }).to_string();
        HttpRequest::from_json(&payload).expect(text).url
    }

    #[test]
    fn a_secret_signs_only_for_its_hosts() {
        for (host, fits, others) in [
            (
                "api.example.com",
                &[
                    "https://api.example.com/",
                    "http://API.example.com.:8080/x",
                    "https://api.example.com:8443",
                ][..],
                &[
                    "https://evil.example",
                    "https://example.com",
                    "https://x.api.example.com",
                    "https://api.example.com.evil.example",
                    "https://evilapi.example.com",
                ][..],
            ),
            (
                "*.Example.com",
                &["https://a.example.com", "https://a.b.example.com./"],
                &[
                    "https://example.com",
                    "https://aexample.com",
                    "https://a.example.com.evil.example",
                ],
            ),
            (
                "api.example.com:443",
                &["https://api.example.com", "https://api.example.com:443"],
                &["http://api.example.com", "https://api.example.com:8443"],
            ),
            (
                "127.0.0.1:8080",
                &["http://127.1:8080", "http://0x7f000001:8080"],
                &["http://127.0.0.1:8081", "http://127.0.0.2:8080"],
            ),
            (
                "[::1]",
                &["http://[::1]:9000", "http://[0:0::1]"],
                &["http://[::2]"],
            ),
            (
                "bücher.example",
                &["https://xn--bcher-kva.example"],
                &["https://bucher.example"],
            ),
        ] {
            let hosts = SecretHosts::parse(&[host]).expect(host);
            for one in fits {
                assert!(hosts.allow(&url(one)), "{host} matches {one}");
                assert!(SecretHosts::Any.allow(&url(one)));
            }
            for one in others {
                assert!(!hosts.allow(&url(one)), "{host} does not match {one}");
            }
            let names = hosts.names().expect("names");
            assert_eq!(
                SecretHosts::parse(&names),
                Ok(hosts),
                "read back: {names:?}"
            );
        }
    }

    #[test]
    fn invalid_hosts_are_refused() {
        for host in [
            "",
            ".",
            "*",
            "*.",
            "*.com",
            "*.*.example.com",
            "a.*.com",
            "*.127.0.0.1",
            "https://a.example",
            "a.example/x",
            "a.example:",
            "a.example:0",
            "a.example:x",
            "a.example:65536",
            "a.example:+1",
            "user@a.example",
            "a b",
            "[::1",
            "::1",
        ] {
            let refusal = SecretHosts::parse(&["ok.example", host]).expect_err(host);
            assert_eq!(refusal.field(), "hosts[1]", "{host}");
        }
        let none: [&str; 0] = [];
        assert_eq!(SecretHosts::parse(&none).unwrap_err().field(), "hosts");
        assert!(SecretHosts::parse(&["a.example"; SECRET_HOSTS_MAX]).is_ok());
        assert!(SecretHosts::parse(&["a.example"; SECRET_HOSTS_MAX + 1]).is_err());
    }
}
