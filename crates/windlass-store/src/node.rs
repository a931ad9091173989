//! The nodes that share a store.

use serde_json::Value;
use windlass_core::Timestamp;

/// A node, as its heartbeat tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it says about itself: queues, kinds, version.
    pub about: Value,
    /// Its last heartbeat, by the store's clock.
    pub beat_at: Timestamp,
}
