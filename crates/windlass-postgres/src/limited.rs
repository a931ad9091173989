//! Which queues may have more jobs to claim after an attempt has ended.
//!
//! A settle wakes the claims of its own node only if something limited the last claim of a queue:
//! limits of the queue, concurrency keys, or a cap on running retries. Where nothing limits claims,
//! the end of an attempt makes no job claimable, and a claim after every settle would find nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use windlass_core::QueueName;

use crate::lock;

/// The most queues to remember. With more, settles always wake claims.
const QUEUES_MAX: usize = 10_000;

/// What limited a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Concurrency keys.
    Keys,
    /// Limits of the queue, or conditions of the claim itself.
    Queue,
}

/// The queues whose last claim was limited.
#[derive(Debug, Default)]
pub(crate) struct LimitedQueues {
    queues: Mutex<BTreeMap<QueueName, Limit>>,
    /// The number of settles so far. A limited claim that ran at the same time as a settle may have
    /// counted attempts that have ended since.
    settles: AtomicU64,
}

impl LimitedQueues {
    /// What limited the last claim of a queue.
    pub(crate) fn limit(&self, queue: &QueueName) -> Option<Limit> {
        lock(&self.queues).get(queue).copied()
    }

    /// The number of settles so far, to be passed to [`LimitedQueues::claimed`].
    pub(crate) fn settles(&self) -> u64 {
        self.settles.load(Ordering::SeqCst)
    }

    /// Records what limited a claim. Returns whether to claim again, because attempts ended since
    /// the claim started at `settles`.
    pub(crate) fn claimed(&self, queue: &QueueName, limit: Option<Limit>, settles: u64) -> bool {
        let mut queues = lock(&self.queues);
        let Some(limit) = limit else {
            queues.remove(queue);
            return false;
        };
        if let Some(known) = queues.get_mut(queue) {
            *known = limit;
        } else if queues.len() < QUEUES_MAX {
            queues.insert(queue.clone(), limit);
        }
        drop(queues);
        self.settles() != settles
    }

    /// Records that attempts ended. Returns whether a claim may get more jobs because of it.
    pub(crate) fn settled(&self) -> bool {
        self.settles.fetch_add(1, Ordering::SeqCst);
        !lock(&self.queues).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settle_wakes_claims_only_while_one_is_limited() {
        let (limited, queue) = (LimitedQueues::default(), QueueName::default());
        assert!(!limited.settled());
        assert!(!limited.claimed(&queue, Some(Limit::Queue), limited.settles()));
        assert_eq!(limited.limit(&queue), Some(Limit::Queue));
        assert!(!limited.claimed(&queue, Some(Limit::Keys), limited.settles()));
        assert_eq!(limited.limit(&queue), Some(Limit::Keys));
        assert!(limited.settled());
        assert!(!limited.claimed(&queue, None, limited.settles()));
        assert_eq!(limited.limit(&queue), None);
        assert!(!limited.settled());
    }

    #[test]
    fn a_limited_claim_during_a_settle_is_repeated() {
        let (limited, queue) = (LimitedQueues::default(), QueueName::default());
        let started = limited.settles();
        assert!(!limited.settled(), "the claim is not known yet");
        assert!(limited.claimed(&queue, Some(Limit::Keys), started));
    }
}
