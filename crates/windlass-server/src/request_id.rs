//! The id of a request, for its response and the log: sent by the client, or generated.

use axum::http::{HeaderMap, HeaderName};
use windlass_engine::Ids;

/// The header.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const CHARS_MAX: usize = 128;

/// Returns the client's id if it is safe to log, otherwise a new one.
pub(crate) fn request_id(headers: &HeaderMap, ids: &Ids) -> String {
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let is_safe = |id: &&str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
        !id.is_empty() && id.len() <= CHARS_MAX && id.bytes().all(allowed)
    };
    match given.filter(is_safe) {
        Some(id) => id.to_owned(),
        None => format!("{:016x}", ids.bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_could_forge_a_log_is_replaced() {
        let ids = Ids::seeded(1);
        let mut headers = HeaderMap::new();
        let made = request_id(&headers, &ids);
        assert_eq!(made.len(), 16);
        for (given, kept) in [
            ("abc-1:2/3.4_5", true),
            ("a b", false),
            ("a\tb", false),
            ("", false),
            (&"x".repeat(129), false),
        ] {
            headers.insert(REQUEST_ID, given.parse().unwrap());
            assert_eq!(request_id(&headers, &ids) == given, kept, "{given}");
        }
    }
}
