//! Limits of queues, which the store enforces across all nodes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use windlass_core::fairness::Rate;
use windlass_core::{Kind, QueueName, QueuePattern, Timestamp};

/// The limits of a queue. All other settings of a queue (guards, retry policy, retention) belong to
/// the engine, which keeps them in a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLimits {
    /// Who paused the queue. No job of a paused queue is claimed.
    pub paused: Option<Pause>,
    /// The most jobs that may wait in the queue.
    pub max_depth: Option<u64>,
    /// The most jobs that run at once.
    pub concurrency: Option<u32>,
    /// The most jobs that start in any period.
    pub rate: Option<Rate>,
    /// This version cannot read the stored limits. The queue counts as paused until someone sets
    /// its limits again.
    #[serde(skip)]
    pub unreadable: bool,
}

impl QueueLimits {
    /// Reads stored limits. Ignores unknown fields. If the limits cannot be read, the queue counts
    /// as paused and the pause says why, because no job may start beyond a limit that this version
    /// cannot read.
    pub fn from_stored(json: &str) -> Self {
        let read = serde_json::from_str(json);
        read.unwrap_or_else(|error| QueueLimits {
            paused: Some(Pause {
                by: format!("windlass, because this version cannot read the limits ({error})"),
                at: Timestamp::from_micros(0).unwrap_or(Timestamp::MIN),
                reason: None,
            }),
            unreadable: true,
            ..QueueLimits::default()
        })
    }

    /// The pause that someone asked for; `None` for the pause of unreadable limits.
    pub fn own_pause(&self) -> Option<Pause> {
        self.paused.clone().filter(|_| !self.unreadable)
    }
}

/// The most characters of the reason of a pause.
pub const PAUSE_REASON_CHARS_MAX: usize = 500;

/// Who paused a queue, when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The person or program that paused it.
    pub by: String,
    /// When the queue was paused.
    pub at: Timestamp,
    /// Why, in the words of that person, at most [`PAUSE_REASON_CHARS_MAX`] characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Pause {
    /// The pause of a queue that was paused already: it keeps who paused it and since when. A new
    /// reason replaces the old one.
    pub fn repeated(self, again: Pause) -> Pause {
        Pause {
            reason: again.reason.or(self.reason),
            ..self
        }
    }
}

/// Which queues with due jobs to return.
#[derive(Debug, Clone)]
pub struct DueQueues {
    /// The kinds of the due jobs.
    pub kinds: BTreeSet<Kind>,
    /// The pattern of the queue names.
    pub pattern: QueuePattern,
    /// Only queues whose name sorts after this one.
    pub after: Option<QueueName>,
    /// The most queues, at most [`PAGE_MAX`](crate::PAGE_MAX).
    pub limit: usize,
}

impl DueQueues {
    /// Whether the name of a queue is selected, whatever its jobs.
    pub fn names(&self, queue: &QueueName) -> bool {
        self.after.as_ref().is_none_or(|after| queue > after) && self.pattern.matches(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_limits_of_a_newer_version_apply() {
        let read = QueueLimits::from_stored(r#"{"concurrency": 3, "burst": 5}"#);
        let known = QueueLimits {
            concurrency: Some(3),
            ..QueueLimits::default()
        };
        assert_eq!(read, known);
    }

    #[test]
    fn a_pause_that_was_stored_without_a_reason_is_read() {
        let old = r#"{"paused":{"by":"ann","at":"2026-01-01T00:00:00Z"}}"#;
        let pause = QueueLimits::from_stored(old).own_pause().unwrap();
        assert_eq!((pause.by.as_str(), &pause.reason), ("ann", &None));
        let written = serde_json::to_string(&pause).unwrap();
        assert!(!written.contains("reason"), "{written}");
    }

    #[test]
    fn a_second_pause_changes_only_the_reason() {
        let pause = |by: &str, micros, reason: Option<&str>| Pause {
            by: by.to_owned(),
            at: Timestamp::from_micros(micros).unwrap(),
            reason: reason.map(str::to_owned),
        };
        let first = pause("ann", 1, Some("deploy"));
        let silent = first.clone().repeated(pause("bob", 2, None));
        assert_eq!(silent, first);
        let renamed = first.repeated(pause("bob", 2, Some("rollback")));
        assert_eq!(renamed, pause("ann", 1, Some("rollback")));
    }

    #[test]
    fn unreadable_limits_count_as_a_pause_that_no_one_asked_for() {
        for stored in [r#"{"concurrency": "many"}"#, "[", "7"] {
            let read = QueueLimits::from_stored(stored);
            assert!(read.paused.is_some() && read.unreadable, "{stored}");
            assert_eq!(read.own_pause(), None);
            assert_eq!(read, QueueLimits::from_stored(stored), "every time alike");
        }
    }
}
