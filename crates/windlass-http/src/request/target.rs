//! The URL of an HTTP job.
//!
//! The URL parser silently corrects some errors (tabs, backslashes, a missing slash). This module
//! refuses such URLs, so that a URL has one meaning.

use http::Uri;
use url::{Host, Url};
use windlass_core::Invalid;

/// The longest URL.
const URL_BYTES_MAX: usize = 8 * 1024;

/// Ports from 1024 up that other protocols use, such as databases.
const OTHER_PROTOCOL_PORTS: [u16; 12] = [
    1433, 1521, 2049, 3306, 3389, 5432, 5900, 6379, 9092, 11211, 26379, 27017,
];

/// Parses and checks a URL.
pub(super) fn parse(text: &str) -> Result<Uri, Invalid> {
    let refuse = |rule: &str| Err(Invalid::new("", rule));
    if text.len() > URL_BYTES_MAX {
        return refuse("must be at most 8192 bytes");
    }
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
        return refuse("must not contain spaces, control characters or backslashes");
    }
    let Some(rest) = after_scheme(text) else {
        return refuse("must begin with http:// or https://");
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    if authority.is_empty() {
        return refuse("must name a host");
    }
    if authority.contains('@') {
        return refuse("must not contain a user or password");
    }
    let url =
        Url::parse(text).map_err(|error| Invalid::new("", format!("must be a URL: {error}")))?;
    if url.fragment().is_some() {
        return refuse("must not have a fragment (`#…`): it is never sent");
    }
    if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() {
        return refuse("must begin with http:// or https://, without a user");
    }
    if matches!(url.host(), None | Some(Host::Domain(""))) {
        return refuse("must name a host");
    }
    check_port(&url)?;
    url.as_str()
        .parse()
        .map_err(|error| Invalid::new("", format!("must be a URL: {error}")))
}

fn after_scheme(text: &str) -> Option<&str> {
    ["http://", "https://"].iter().find_map(|scheme| {
        let start = text.get(..scheme.len())?;
        start
            .eq_ignore_ascii_case(scheme)
            .then(|| text.get(scheme.len()..))?
    })
}

fn check_port(url: &Url) -> Result<(), Invalid> {
    let port = url.port_or_known_default().unwrap_or(0);
    let allowed = matches!(port, 80 | 443) || port >= 1024;
    if !allowed || OTHER_PROTOCOL_PORTS.contains(&port) {
        let rule = format!(
            "must use port 80, 443, or a port from 1024 up that no other protocol commonly uses, got {port}"
        );
        return Err(Invalid::new("", rule));
    }
    Ok(())
}
