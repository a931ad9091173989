//! What a store itself holds a queue to, over all nodes.

use serde::{Deserialize, Serialize};
use windlass_core::Timestamp;
use windlass_core::fairness::Rate;

/// The bounds of a queue. Everything else about a queue (guards, policy, retention) is the engine's, in a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueLimits {
    /// Nothing is claimed from it.
    pub paused: Option<Pause>,
    /// At most so many jobs wait in it.
    pub max_depth: Option<u64>,
    /// At most so many run at once.
    pub concurrency: Option<u32>,
    /// At most so many start in any period.
    pub rate: Option<Rate>,
}

impl QueueLimits {
    /// The limits as a database holds them. A queue whose limits cannot be read, because a newer version wrote them, reads as
    /// paused, and says why: no job starts past a limit that this version does not know.
    pub fn from_stored(json: &str) -> Self {
        let read = serde_json::from_str(json);
        read.unwrap_or_else(|error| QueueLimits {
            paused: Some(Pause {
                by: format!("windlass, because this version cannot read the limits ({error})"),
                at: Timestamp::from_micros(0).unwrap_or(Timestamp::MIN),
            }),
            ..QueueLimits::default()
        })
    }
}

/// Who paused a queue, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
}
