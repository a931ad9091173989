//! How a server is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a server is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ServerStatus {
    /// The answer in a word.
    pub status: StatusWord,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Whether a server is well, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StatusWord {
    /// All is well.
    Ok,
    /// Something is not.
    NotReady,
}

impl From<Vec<String>> for ServerStatus {
    /// The status of a server with these problems.
    fn from(problems: Vec<String>) -> Self {
        let status = match problems.is_empty() {
            true => StatusWord::Ok,
            false => StatusWord::NotReady,
        };
        ServerStatus { status, problems }
    }
}
