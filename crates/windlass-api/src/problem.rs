//! What went wrong, as `application/problem+json`: a stable code for programs, a sentence and a hint for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::Invalid;

/// A refusal or failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Always `about:blank`: the code says what kind it is.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The words of the status.
    pub title: String,
    /// The HTTP status.
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// Which problem; never changes. docs/rest.md lists them.
    pub code: String,
    /// What is wrong here.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The fields that break rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// The id of the request, as in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// One field that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct FieldProblem {
    /// Where, as a JSON pointer; a parameter of the query is like a field of its name.
    pub pointer: String,
    /// Which rule.
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
