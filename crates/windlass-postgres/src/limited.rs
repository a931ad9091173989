//! Which queues have limits that the end of an attempt can free.
//!
//! A settle wakes the claims of its own node only if a claim may get more jobs because of it. That
//! is the case where something limited the last claim of a queue: limits of the queue, concurrency
//! keys, or a cap on running retries. For all other queues, a claim after every settle would find
//! nothing.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use windlass_core::QueueName;

use crate::lock;

/// The most queues to remember. With more, settles always wake claims.
const QUEUES_MAX: usize = 10_000;

/// The queues whose last claim was limited.
#[derive(Debug, Default)]
pub(crate) struct LimitedQueues {
    queues: Mutex<BTreeSet<QueueName>>,
    /// How many settles there were. A limited claim that ran at the same time as one may have
    /// counted attempts that have ended since.
    settles: AtomicU64,
}

impl LimitedQueues {
    pub(crate) fn contains(&self, queue: &QueueName) -> bool {
        lock(&self.queues).contains(queue)
    }

    /// The number of settles so far, to be passed to [`LimitedQueues::claimed`].
    pub(crate) fn settles(&self) -> u64 {
        self.settles.load(Ordering::SeqCst)
    }

    /// Records whether a claim was limited. Returns whether to claim again, because attempts ended
    /// since the claim started at `settles`.
    pub(crate) fn claimed(&self, queue: &QueueName, limited: bool, settles: u64) -> bool {
        let mut queues = lock(&self.queues);
        if !limited {
            queues.remove(queue);
            return false;
        }
        if queues.len() < QUEUES_MAX && !queues.contains(queue) {
            queues.insert(queue.clone());
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
        assert!(!limited.claimed(&queue, true, limited.settles()));
        assert!(limited.contains(&queue));
        assert!(limited.settled());
        assert!(!limited.claimed(&queue, false, limited.settles()));
        assert!(!limited.contains(&queue));
        assert!(!limited.settled());
    }

    #[test]
    fn a_limited_claim_during_a_settle_is_repeated() {
        let (limited, queue) = (LimitedQueues::default(), QueueName::default());
        let started = limited.settles();
        assert!(!limited.settled(), "the claim is not known yet");
        assert!(limited.claimed(&queue, true, started));
    }
}
