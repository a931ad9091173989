//! Protects a server without keys from pages of other sites in a browser.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

/// The host names that an open server accepts, in addition to loopback names.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// Accepted names in lowercase.
    names: Vec<String>,
    /// Whether every IP address is accepted. This is safe: an attacker can point a name at this
    /// server, but not a foreign address.
    addresses: bool,
}

impl Hosts {
    /// Accepts these names too.
    pub(super) fn add_names(&mut self, names: impl IntoIterator<Item = String>) {
        self.names
            .extend(names.into_iter().map(|host| host.to_lowercase()));
    }

    /// Accepts every IP address too.
    pub(super) fn add_addresses(&mut self) {
        self.addresses = true;
    }

    /// Refuses a request with an unknown host name. Returns the names of the request. HTTP/2
    /// requests have the name in the URI.
    pub(super) fn check_host(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Vec<String>, &'static str> {
        let in_uri = uri.authority().map(|authority| authority.as_str());
        let hosts = [in_uri, text(headers.get(header::HOST))];
        let hosts: Vec<String> = hosts.into_iter().flatten().map(str::to_lowercase).collect();
        if hosts.is_empty() || !hosts.iter().all(|host| self.knows(host_name(host))) {
            return Err(
                "this server has no API keys, so `Host` must be `localhost`, a loopback address (with `insecure`, any IP address) or a name in the setting `hosts`",
            );
        }
        Ok(hosts)
    }

    /// Refuses a request for a page of another site, and a request with an unknown host name.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let hosts = self.check_host(uri, headers)?;
        let fetched_from = text(headers.get("sec-fetch-site"));
        if !matches!(fetched_from, None | Some("same-origin" | "none")) {
            return Err(
                "this server has no API keys, so it refuses requests from pages of other sites",
            );
        }
        let origin = text(headers.get(header::ORIGIN)).map(str::to_lowercase);
        let same = |origin: &str| authority(origin).as_ref() == hosts.first();
        if !origin.as_deref().is_none_or(same) {
            return Err("this server has no API keys, so `Origin` must be the server itself");
        }
        Ok(())
    }

    fn knows(&self, name: &str) -> bool {
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let is_accepted_address = bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| self.addresses || ip.to_canonical().is_loopback());
        let matches = |known: &String| known == name || known.trim_matches(['[', ']']) == bare;
        is_accepted_address || name == "localhost" || self.names.iter().any(matches)
    }
}

/// Returns a header as text. A header that is not text becomes a value that no check accepts.
fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value.map(|value| value.to_str().unwrap_or("?"))
}

/// Returns the host name without the port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

/// Returns the `host:port` of an origin, or `None` for `null` and invalid origins.
fn authority(origin: &str) -> Option<String> {
    let uri: Uri = origin.parse().ok()?;
    uri.scheme()?;
    Some(uri.authority()?.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)]) -> bool {
        check_at("/", headers)
    }

    fn check_at(uri: &'static str, headers: &[(&'static str, &str)]) -> bool {
        let mut hosts = Hosts::default();
        hosts.add_names(["Jobs.Example".to_owned()]);
        hosts.check(&Uri::from_static(uri), &map(headers)).is_ok()
    }

    fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn loopback_names_and_added_names_are_accepted() {
        for host in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "[::ffff:127.0.0.1]:1",
            "jobs.example:80",
        ] {
            assert!(check(&[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "192.168.0.1",
            "10.0.0.1:80",
            "0.0.0.0",
            "[::]",
            "127.0.0.1.nip.example",
            "",
            "localhost:80@evil.example",
        ] {
            assert!(!check(&[("host", host)]), "{host}");
        }
        assert!(!check(&[]), "no name at all");
    }

    #[test]
    fn the_name_in_the_uri_is_checked_too() {
        let (here, evil) = ("http://localhost:8080/", "http://evil.example/");
        assert!(check_at(here, &[]));
        assert!(check_at(here, &[("origin", "http://localhost:8080")]));
        assert!(!check_at(here, &[("origin", "http://localhost:3000")]));
        assert!(!check_at(evil, &[]));
        assert!(!check_at(evil, &[("host", "localhost")]));
        assert!(!check_at(here, &[("host", "evil.example")]));
    }

    #[test]
    fn with_addresses_every_ip_address_is_accepted_but_no_unknown_name() {
        let mut hosts = Hosts::default();
        hosts.add_addresses();
        for host in ["192.0.2.7:8080", "10.0.0.1", "[2001:db8::1]:8080"] {
            assert!(
                hosts
                    .check(&Uri::from_static("/"), &map(&[("host", host)]))
                    .is_ok(),
                "{host}"
            );
        }
        for host in ["evil.example", "10.0.0.1.nip.example:80", ""] {
            let refused = hosts
                .check(&Uri::from_static("/"), &map(&[("host", host)]))
                .unwrap_err();
            assert!(refused.contains("`hosts`"), "{host}: {refused}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let host = ("host", "localhost:8080");
        assert!(check(&[host, ("origin", "http://localhost:8080")]));
        assert!(check(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(check(&[host, ("sec-fetch-site", "none")]));
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "http://localhost:3000"),
            ("origin", "null"),
            ("origin", "localhost:8080"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(!check(&[host, (name, value)]), "{name}: {value}");
        }
    }
}
