//! Login links for the dashboard.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::Timestamp;

/// A single-use login link.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoginLink {
    /// Path and query of the link on this server. It contains a secret.
    pub path: String,
    /// When the link expires.
    pub expires_at: Timestamp,
}

impl std::fmt::Debug for LoginLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoginLink(…, valid until {})", self.expires_at)
    }
}
