//! What a store itself holds a queue to, over all nodes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use windlass_core::fairness::Rate;
use windlass_core::{Kind, QueueName, QueuePattern, Timestamp};

/// The bounds of a queue. Everything else about a queue (guards, policy, retention) is the engine's, in a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLimits {
    /// Nothing is claimed from it.
    pub paused: Option<Pause>,
    /// At most so many jobs wait in it.
    pub max_depth: Option<u64>,
    /// At most so many run at once.
    pub concurrency: Option<u32>,
    /// At most so many start in any period.
    pub rate: Option<Rate>,
    /// This version cannot read what is stored: the queue reads as paused, and who sets its limits
    /// replaces them.
    #[serde(skip)]
    pub unreadable: bool,
}

impl QueueLimits {
    /// The limits as a database holds them. Fields that this version does not know are ignored. A
    /// queue whose limits cannot be read reads as paused, and says why: no job starts past a limit
    /// that this version cannot read.
    pub fn from_stored(json: &str) -> Self {
        let read = serde_json::from_str(json);
        read.unwrap_or_else(|error| QueueLimits {
            paused: Some(Pause {
                by: format!("windlass, because this version cannot read the limits ({error})"),
                at: Timestamp::from_micros(0).unwrap_or(Timestamp::MIN),
            }),
            unreadable: true,
            ..QueueLimits::default()
        })
    }

    /// The pause that somebody asked for: not the one that limits read as which cannot be read.
    pub fn own_pause(&self) -> Option<Pause> {
        self.paused.clone().filter(|_| !self.unreadable)
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

/// Which queues with due jobs are looked for.
#[derive(Debug, Clone)]
pub struct DueQueues {
    /// The kinds of the jobs.
    pub kinds: BTreeSet<Kind>,
    /// The names of the queues.
    pub pattern: QueuePattern,
    /// Only queues behind this name.
    pub after: Option<QueueName>,
    /// At most this many, and at most [`PAGE_MAX`](crate::PAGE_MAX).
    pub limit: usize,
}

impl DueQueues {
    /// Whether a queue is looked for, its jobs aside.
    pub fn names(&self, queue: &QueueName) -> bool {
        self.after.as_ref().is_none_or(|after| queue > after) && self.pattern.matches(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_newer_version_hold_as_far_as_they_are_known() {
        let read = QueueLimits::from_stored(r#"{"concurrency": 3, "burst": 5}"#);
        let known = QueueLimits {
            concurrency: Some(3),
            ..QueueLimits::default()
        };
        assert_eq!(read, known);
    }

    #[test]
    fn limits_that_cannot_be_read_read_as_a_pause_that_nobody_asked_for() {
        for stored in [r#"{"concurrency": "many"}"#, "[", "7"] {
            let read = QueueLimits::from_stored(stored);
            assert!(read.paused.is_some() && read.unreadable, "{stored}");
            assert_eq!(read.own_pause(), None);
            assert_eq!(read, QueueLimits::from_stored(stored), "each time alike");
        }
    }
}
