//! Error responses: a stable code for programs, a sentence and a hint for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::Invalid;

/// Error response, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Always `about:blank`. Use `code` to distinguish problems.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// Text of the HTTP status.
    pub title: String,
    /// HTTP status.
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// Code of the problem, for programs. Codes never change; docs/rest.md lists them.
    pub code: String,
    /// What is wrong, for people.
    pub detail: String,
    /// What to do next, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Fields of the request that are invalid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// Id of the request, as in the log of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct FieldProblem {
    /// JSON pointer to the field in the body. For a query parameter, a slash and its name.
    pub pointer: String,
    /// Rule that the field breaks, such as `is required`.
    pub rule: String,
}

impl From<&Invalid> for FieldProblem {
    fn from(invalid: &Invalid) -> Self {
        FieldProblem {
            pointer: pointer_of(invalid.field()),
            rule: invalid.rule().to_owned(),
        }
    }
}

/// The JSON pointer of a path such as `jobs[1].retry.backoff`.
pub fn pointer_of(path: &str) -> String {
    let mut pointer = String::new();
    for part in path.split(['.', '[', ']']).filter(|part| !part.is_empty()) {
        pointer.push('/');
        pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_a_pointer() {
        for (path, pointer) in [
            ("", ""),
            ("kind", "/kind"),
            ("jobs[12].retry.backoff.max", "/jobs/12/retry/backoff/max"),
            ("meta.a/b~c", "/meta/a~1b~0c"),
        ] {
            assert_eq!(pointer_of(path), pointer);
        }
    }
}
