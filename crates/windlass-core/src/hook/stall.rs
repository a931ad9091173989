//! When a queue counts as stalled: it has ready jobs, may start them, and starts none.

use std::time::Duration;

use super::{HookEvent, HookReport, HookSubject};
use crate::{QueueName, Timestamp};

/// The most queues whose idle time is remembered.
pub const STALL_QUEUES_MAX: usize = 1000;

/// What is known about a queue and its starts at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStarts {
    /// How many jobs are ready.
    pub ready: u64,
    /// How many jobs run.
    pub running: u64,
    /// Whether someone paused the queue.
    pub is_paused: bool,
    /// When its rate allows the next start, if the rate is used up.
    pub rate_until: Option<Timestamp>,
    /// Whether a job may have started since the last look.
    pub has_started: bool,
}

impl QueueStarts {
    /// Whether the queue has ready jobs that nothing but missing or busy workers holds back.
    fn could_start(&self, now: Timestamp) -> bool {
        let waits_for_rate = self.rate_until.is_some_and(|until| until > now);
        self.ready > 0 && !self.is_paused && !waits_for_rate
    }

    /// The report of a queue that starts nothing since `idle_since`, if that is `stalled_after` ago.
    pub fn stalled(
        &self,
        queue: &QueueName,
        idle_since: Timestamp,
        stalled_after: Duration,
        now: Timestamp,
    ) -> Option<HookReport> {
        let at = idle_since.saturating_add(stalled_after);
        (at <= now).then(|| HookReport {
            event: HookEvent::QueueStalled,
            at,
            subject: HookSubject::Queue {
                queue: queue.clone(),
                ready: self.ready,
                running: self.running,
                idle_since,
            },
        })
    }
}

/// Since when a queue has ready jobs, may start them and starts none; `None` if that is not so.
/// `before` is what this returned at the last look.
///
/// A start, a pause, a used-up rate or an empty queue ends the idle time. It begins again at the
/// look that sees the next ready job, so a queue is reported late rather than early.
pub fn idle_since(
    before: Option<Timestamp>,
    queue: &QueueStarts,
    now: Timestamp,
) -> Option<Timestamp> {
    if !queue.could_start(now) {
        return None;
    }
    match before {
        Some(before) if !queue.has_started => Some(before),
        _ => Some(now),
    }
}
