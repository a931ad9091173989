//! Conditional headers of requests with changes.
//!
//! If a route does not support a conditional header, the server refuses the request and names the
//! header. Ignoring a condition would let a client overwrite what it meant to protect.

use axum::http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
};
use axum::http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use windlass_core::Invalid;

use crate::problem::Problem;
use crate::routes::Route;

/// All conditional headers with their usual spelling.
const CONDITIONS: [(HeaderName, &str); 5] = [
    (IF_MATCH, "If-Match"),
    (IF_NONE_MATCH, "If-None-Match"),
    (IF_MODIFIED_SINCE, "If-Modified-Since"),
    (IF_UNMODIFIED_SINCE, "If-Unmodified-Since"),
    (IF_RANGE, "If-Range"),
];

/// Returns the headers that every route with this method supports.
pub(crate) fn headers_of(method: &Method) -> Vec<(&'static str, Value)> {
    if *method != Method::PUT {
        return Vec::new();
    }
    let about =
        "Create only: if the resource already exists, the server changes nothing and returns 412.";
    let only_create = json!({"type": "string", "enum": ["*"], "description": about});
    vec![("If-None-Match", only_create)]
}

/// Refuses conditions that the route does not support. Reads ignore them: a complete response is
/// always correct.
pub(crate) fn check(route: &Route, headers: &HeaderMap) -> Result<(), Invalid> {
    if route.method.is_safe() {
        return Ok(());
    }
    for (name, spelled) in &CONDITIONS {
        if !headers.contains_key(name) {
            continue;
        }
        if !route.headers.iter().any(|(header, _)| header == spelled) {
            let rule = "is not supported by this route: remove the header";
            return Err(Invalid::new(*spelled, rule));
        }
        if *name == IF_NONE_MATCH && headers.get_all(name).iter().any(|value| value != "*") {
            let rule = "must be `*`, which creates a resource and replaces nothing";
            return Err(Invalid::new(*spelled, rule));
        }
    }
    Ok(())
}

/// Returns the problem of a create-only request for a resource that exists.
pub(crate) fn exists(what: &str) -> Problem {
    let status = StatusCode::PRECONDITION_FAILED;
    let detail = format!("{what} already exists, and the request has `If-None-Match: *`");
    Problem::new(status, "precondition_failed", detail).hint("remove the header to replace it")
}
