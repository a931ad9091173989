//! Conditional headers of requests that change something.
//!
//! A route checks such a header, or the server refuses the request and names the header. A
//! condition that the server ignores would let a client overwrite what it meant to protect.

use axum::http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
};
use axum::http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use windlass_core::Invalid;

use crate::problem::Problem;
use crate::routes::Route;

/// Every conditional header, as it is spelled.
const CONDITIONS: [(HeaderName, &str); 5] = [
    (IF_MATCH, "If-Match"),
    (IF_NONE_MATCH, "If-None-Match"),
    (IF_MODIFIED_SINCE, "If-Modified-Since"),
    (IF_UNMODIFIED_SINCE, "If-Unmodified-Since"),
    (IF_RANGE, "If-Range"),
];

/// The headers that a route of this method checks without saying so.
pub(crate) fn headers_of(method: &Method) -> Vec<(&'static str, Value)> {
    if *method != Method::PUT {
        return Vec::new();
    }
    let about = "Create only: if the thing exists already, nothing changes and the answer is 412.";
    let only_create = json!({"type": "string", "enum": ["*"], "description": about});
    vec![("If-None-Match", only_create)]
}

/// Refuses the conditions that the route does not check. A read ignores them: its whole answer is
/// right anyway.
pub(crate) fn check(route: &Route, headers: &HeaderMap) -> Result<(), Invalid> {
    if route.method.is_safe() {
        return Ok(());
    }
    for (name, spelled) in &CONDITIONS {
        if !headers.contains_key(name) {
            continue;
        }
        if !route.headers.iter().any(|(header, _)| header == spelled) {
            let rule = "is a condition that this route does not check: leave it out";
            return Err(Invalid::new(*spelled, rule));
        }
        if *name == IF_NONE_MATCH && headers.get_all(name).iter().any(|value| value != "*") {
            let rule = "must be `*`: the request creates, and replaces nothing";
            return Err(Invalid::new(*spelled, rule));
        }
    }
    Ok(())
}

/// The answer to a request that may only create what exists already.
pub(crate) fn exists(what: &str) -> Problem {
    let status = StatusCode::PRECONDITION_FAILED;
    let detail = format!("{what} exists already, and `If-None-Match: *` asks to replace nothing");
    Problem::new(status, "precondition_failed", detail).hint("leave the header out to replace it")
}
