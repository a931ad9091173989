//! Event counts of each queue in the last minute, as seen by this node.

use std::collections::BTreeMap;
use std::sync::Mutex;

use windlass_api::LastMinute;
use windlass_core::{QueueName, Timestamp};
use windlass_engine::{Event, JobEvent};

use crate::poison::lock;

/// The length of the window in seconds.
const SECONDS: usize = 60;
/// The most queues that are counted. Metrics cover all queues.
const QUEUES_MAX: usize = 1000;

/// The counts of all queues, one for each of the last 60 seconds.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<BTreeMap<QueueName, [(i64, LastMinute); SECONDS]>>);

impl Rates {
    /// Counts an event.
    pub(crate) fn count(&self, event: &Event) {
        let Event::Job { at, job, what } = event else {
            return;
        };
        let mut queues = lock(&self.0);
        if queues.len() >= QUEUES_MAX && !queues.contains_key(&job.queue) {
            return;
        }
        let seconds = queues
            .entry(job.queue.clone())
            .or_insert([(0, LastMinute::default()); SECONDS]);
        let second = at.as_micros() / 1_000_000;
        let index = usize::try_from(second.rem_euclid(60)).unwrap_or(0);
        let Some(slot) = seconds.get_mut(index) else {
            return;
        };
        if slot.0 != second {
            *slot = (second, LastMinute::default());
        }
        match what {
            JobEvent::Enqueued => slot.1.enqueued += 1,
            JobEvent::Succeeded { .. } => slot.1.succeeded += 1,
            JobEvent::Failed { .. } | JobEvent::TimedOut { .. } | JobEvent::Lost => {
                slot.1.failed += 1;
            }
            JobEvent::Retried { .. } => slot.1.retried += 1,
            JobEvent::Dead { .. } => slot.1.dead += 1,
            _ => {}
        }
    }

    /// Returns the counts of a queue in the last minute.
    pub(crate) fn of(&self, queue: &QueueName, now: Timestamp) -> LastMinute {
        let queues = lock(&self.0);
        let now = now.as_micros() / 1_000_000;
        let mut sum = LastMinute::default();
        let recent = queues.get(queue).into_iter().flatten();
        for (_, counts) in recent.filter(|(second, _)| (now - 59..=now).contains(second)) {
            sum.enqueued += counts.enqueued;
            sum.succeeded += counts.succeeded;
            sum.failed += counts.failed;
            sum.retried += counts.retried;
            sum.dead += counts.dead;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use windlass_core::{JobId, Kind};
    use windlass_engine::JobRef;

    #[test]
    fn events_are_forgotten_after_a_minute() {
        let rates = Rates::default();
        let at: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let event = |at| Event::Job {
            at,
            job: JobRef {
                id: JobId::from_u128(1),
                kind: Kind::new("a").unwrap(),
                queue: QueueName::default(),
                attempt: 0,
                created_at: at,
            },
            what: JobEvent::Enqueued,
        };
        rates.count(&event(at));
        rates.count(&event(at.saturating_add(Duration::from_secs(30))));
        let enqueued = |after| {
            rates
                .of(
                    &QueueName::default(),
                    at.saturating_add(Duration::from_secs(after)),
                )
                .enqueued
        };
        assert_eq!(
            (enqueued(30), enqueued(59), enqueued(60), enqueued(90)),
            (2, 2, 1, 0)
        );
    }
}
