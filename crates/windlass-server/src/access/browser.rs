//! Keeps pages of other sites away from a server that needs no key.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

/// The names that an open server answers to, beside those of loopback.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// These, in small letters.
    names: Vec<String>,
    /// Every address that is written out, too: another site's name can be made to point here, an address cannot.
    addresses: bool,
}

impl Hosts {
    /// Answers to these names too.
    pub(super) fn add_names(&mut self, more: impl IntoIterator<Item = String>) {
        self.names
            .extend(more.into_iter().map(|host| host.to_lowercase()));
    }

    /// Answers to every address that is written out, too.
    pub(super) fn add_addresses(&mut self) {
        self.addresses = true;
    }

    /// Refuses a request that a page of another site caused, or that came under a strange name. HTTP/2 has the name in the URI.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let in_uri = uri.authority().map(|authority| authority.as_str());
        let named = [in_uri, text(headers.get(header::HOST))];
        let named: Vec<String> = named.into_iter().flatten().map(str::to_lowercase).collect();
        if named.is_empty() || !named.iter().all(|host| self.knows(host_name(host))) {
            return Err(
                "a server without keys answers to known names only: `Host` must be `localhost`, an address of loopback (with `insecure`, any address), or among the setting `hosts`",
            );
        }
        let fetched_from = text(headers.get("sec-fetch-site"));
        if !matches!(fetched_from, None | Some("same-origin" | "none")) {
            return Err("a page of another site may not use a server without keys");
        }
        let origin = text(headers.get(header::ORIGIN)).map(str::to_lowercase);
        let same = |origin: &str| authority(origin).as_ref() == named.first();
        if !origin.as_deref().is_none_or(same) {
            return Err("`Origin` must be this server while it has no keys");
        }
        Ok(())
    }

    fn knows(&self, name: &str) -> bool {
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let address = bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| self.addresses || ip.to_canonical().is_loopback());
        let known = |known: &String| known == name || known.trim_matches(['[', ']']) == bare;
        address || name == "localhost" || self.names.iter().any(known)
    }
}

/// A header that is no text counts as given, and wrong.
fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value.map(|value| value.to_str().unwrap_or("?"))
}

/// The name without the port.
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

/// `host:port` of an origin; `null` and nonsense have none.
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
    fn the_names_of_loopback_and_those_that_were_given_are_known() {
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
    fn the_name_in_the_uri_counts_as_much() {
        let (here, evil) = ("http://localhost:8080/", "http://evil.example/");
        assert!(check_at(here, &[]));
        assert!(check_at(here, &[("origin", "http://localhost:8080")]));
        assert!(!check_at(here, &[("origin", "http://localhost:3000")]));
        assert!(!check_at(evil, &[]));
        assert!(!check_at(evil, &[("host", "localhost")]));
        assert!(!check_at(here, &[("host", "evil.example")]));
    }

    #[test]
    fn with_addresses_every_address_is_known_and_a_strange_name_is_not() {
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
