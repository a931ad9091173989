//! Health of a server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Health of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ServerStatus {
    /// Whether the server is ready.
    pub status: StatusWord,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Whether a server is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StatusWord {
    /// The server is ready.
    Ok,
    /// The server is not ready.
    NotReady,
}

impl From<Vec<String>> for ServerStatus {
    /// The status of a server with these problems.
    fn from(problems: Vec<String>) -> Self {
        let status = if problems.is_empty() {
            StatusWord::Ok
        } else {
            StatusWord::NotReady
        };
        ServerStatus { status, problems }
    }
}
