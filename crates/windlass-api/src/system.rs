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

/// A setting of the server as it is in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerSetting {
    /// Key in the configuration file: `jobs.lease`.
    pub key: String,
    /// Value in TOML syntax. Secrets are hidden.
    pub value: String,
    /// Where the value comes from: `default`, a file, an environment variable or a flag.
    pub origin: String,
    /// Default in TOML syntax. Empty if there is none.
    pub default: String,
    /// What the setting does.
    pub doc: String,
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
