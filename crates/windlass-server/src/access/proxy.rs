//! Sign-on by a trusted proxy: it authenticates people and names them in headers.
//!
//! A request carries such headers for the server only if it comes from an address of the proxy and
//! with the secret that only the proxy knows. From any other client they are refused, so that no
//! one can name themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use windlass_http::Cidr;

use super::{Caller, Refused, Scopes};

/// The prefix of a group in the table of people.
const GROUP: &str = "group:";
/// The longest name of a person.
const NAME_CHARS_MAX: usize = 100;

/// The proxies that may name people, and what these people may do.
#[derive(Clone)]
pub struct TrustedProxies {
    /// The addresses of the proxies.
    pub addresses: Vec<Cidr>,
    /// The header with the shared secret.
    pub secret_header: HeaderName,
    /// The shared secret.
    pub secret: String,
    /// The header with the name of the person.
    pub user_header: HeaderName,
    /// The header with the groups of the person, separated by commas.
    pub groups_header: HeaderName,
    /// What people may do, by name, and by `group:` followed by the name of a group. A person who
    /// is in no row has no access.
    pub people: BTreeMap<String, Scopes>,
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustedProxies")
            .field("addresses", &self.addresses)
            .field("people", &self.people)
            .finish_non_exhaustive()
    }
}

impl TrustedProxies {
    /// Returns the person that a proxy names, or `None` if the request names no one.
    pub(crate) fn person(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Option<Caller>, Refused> {
        let names = [&self.user_header, &self.groups_header, &self.secret_header];
        if !names.iter().any(|name| headers.contains_key(*name)) {
            return Ok(None);
        }
        let peer = peer.filter(|peer| self.trusts(*peer));
        let Some(proxy) = peer.filter(|_| self.has_secret(headers)) else {
            return Err(Refused::NotFromProxy);
        };
        let Some(name) = single(headers, &self.user_header) else {
            return Err(Refused::NotFromProxy);
        };
        let is_name = !name.is_empty()
            && name.chars().count() <= NAME_CHARS_MAX
            && !name.contains(char::is_control);
        let scopes = if is_name {
            self.scopes_of(name, headers)
        } else {
            Scopes::NONE
        };
        if scopes == Scopes::NONE {
            return Err(Refused::NoAccess(
                name.chars().take(NAME_CHARS_MAX).collect(),
            ));
        }
        Ok(Some(Caller {
            id: format!("proxy {proxy}"),
            name: name.to_owned(),
            scopes,
            in_process: true,
        }))
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.addresses.iter().any(|range| range.contains(peer))
    }

    /// Compares hashes, so that the time says nothing about the secret or its length.
    fn has_secret(&self, headers: &HeaderMap) -> bool {
        let given = single(headers, &self.secret_header).unwrap_or_default();
        let (given, known) = (Sha256::digest(given), Sha256::digest(&self.secret));
        !self.secret.is_empty() && bool::from(given.ct_eq(&known))
    }

    fn scopes_of(&self, name: &str, headers: &HeaderMap) -> Scopes {
        let groups = single(headers, &self.groups_header).unwrap_or_default();
        let groups = groups
            .split(',')
            .map(str::trim)
            .filter(|group| !group.is_empty());
        let rows = groups.map(|group| format!("{GROUP}{group}"));
        let rows = rows.chain((!name.starts_with(GROUP)).then(|| name.to_owned()));
        let granted = rows.filter_map(|row| self.people.get(&row));
        granted.flat_map(|scopes| scopes.given()).collect()
    }
}

/// The value of a header that occurs exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use windlass_api::Scope;

    use super::*;

    fn proxies() -> TrustedProxies {
        let scopes = |names: &[&str]| Scopes::from_names(names).unwrap();
        TrustedProxies {
            addresses: vec!["10.0.0.0/24".parse().unwrap()],
            secret_header: HeaderName::from_static("x-secret"),
            secret: "hush".to_owned(),
            user_header: HeaderName::from_static("x-user"),
            groups_header: HeaderName::from_static("x-groups"),
            people: BTreeMap::from([
                ("mara".to_owned(), scopes(&["read"])),
                ("group:ops".to_owned(), scopes(&["operate"])),
            ]),
        }
    }

    fn person(
        peer: &str,
        headers: &[(&'static str, &'static str)],
    ) -> Result<Option<Caller>, Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        proxies().person(&map, Some(peer.parse().unwrap()))
    }

    #[test]
    fn a_proxy_names_a_person_and_the_table_gives_the_scopes() {
        let secret = ("x-secret", "hush");
        let mara = person(
            "10.0.0.7",
            &[secret, ("x-user", "mara"), ("x-groups", "dev, ops")],
        );
        let mara = mara.unwrap().unwrap();
        assert_eq!(
            (mara.name.as_str(), mara.id.as_str()),
            ("mara", "proxy 10.0.0.7")
        );
        assert!(mara.may(Scope::Read) && mara.may(Scope::Operate) && !mara.may(Scope::Admin));
        assert!(person("10.0.0.7", &[]).unwrap().is_none());
    }

    #[test]
    fn headers_from_any_other_client_are_refused() {
        let (secret, user) = (("x-secret", "hush"), ("x-user", "mara"));
        for (peer, headers) in [
            ("10.0.1.7", vec![secret, user]),
            ("127.0.0.1", vec![secret, user]),
            ("10.0.0.7", vec![user]),
            ("10.0.0.7", vec![("x-secret", "guess"), user]),
            ("10.0.0.7", vec![("x-secret", ""), user]),
            ("10.0.0.7", vec![secret]),
            ("10.0.0.7", vec![secret, user, ("x-user", "root")]),
            ("10.0.0.7", vec![secret, ("x-secret", "hush"), user]),
        ] {
            let refused = person(peer, &headers);
            assert!(
                matches!(refused, Err(Refused::NotFromProxy)),
                "{peer} {headers:?}"
            );
        }
    }

    #[test]
    fn a_person_in_no_row_has_no_access() {
        let secret = ("x-secret", "hush");
        for user in ["eve", "group:ops", ""] {
            let refused = person("10.0.0.7", &[secret, ("x-user", user)]);
            assert!(matches!(refused, Err(Refused::NoAccess(_))), "{user}");
        }
    }
}
