//! The nodes that share a store.

use serde_json::Value;
use windlass_core::Timestamp;

/// A node, as its last heartbeat describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The name of the node.
    pub name: String,
    /// What the node says about itself: queues, kinds, version.
    pub about: Value,
    /// When the last heartbeat arrived.
    pub beat_at: Timestamp,
}
