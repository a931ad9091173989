//! Statistics of queues: what happened in a period, in numbers that can be added.
//!
//! Every process counts what it does itself and writes one record every 10 s. The sum of the
//! records of all processes is what happened, so records can be added in any order and any
//! grouping: 10 s to minutes, minutes to hours, processes to a total.

mod histogram;
mod period;
mod range;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use histogram::Histogram;
pub use period::{Period, RollUp, StatisticsRecord};
pub use range::{POINTS_MAX, StatisticsRange};

use crate::{Lane, Outcome, QueueName, Settlement, Verdict};

/// The most queues in one record or roll-up. What happens in more queues is counted together, as
/// [`Statistics::other`].
pub const STATISTICS_QUEUES_MAX: usize = 1000;

/// A number of attempts, split by whether an attempt of the job had failed before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct AttemptCount {
    /// Attempts of jobs that had not failed before.
    pub fresh: u64,
    /// Attempts of jobs that had failed before.
    pub retry: u64,
}

impl AttemptCount {
    /// Both together.
    pub fn total(self) -> u64 {
        self.fresh.saturating_add(self.retry)
    }

    fn add_one(&mut self, lane: Lane) {
        let count = match lane {
            Lane::Fresh => &mut self.fresh,
            Lane::Retry => &mut self.retry,
        };
        *count = count.saturating_add(1);
    }

    fn merge(&mut self, other: AttemptCount) {
        self.fresh = self.fresh.saturating_add(other.fresh);
        self.retry = self.retry.saturating_add(other.retry);
    }

    fn is_zero(&self) -> bool {
        *self == AttemptCount::default()
    }
}

impl From<(u64, u64)> for AttemptCount {
    fn from((fresh, retry): (u64, u64)) -> Self {
        AttemptCount { fresh, retry }
    }
}

impl From<AttemptCount> for (u64, u64) {
    fn from(count: AttemptCount) -> Self {
        (count.fresh, count.retry)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What happened in one queue, or in several together.
///
/// JSON leaves out what is zero: most queues have few outcomes in 10 s.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueStatistics {
    /// Jobs that were enqueued. Duplicates and revived jobs do not count.
    #[serde(skip_serializing_if = "is_zero")]
    pub enqueued: u64,
    /// Attempts that started.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub started: AttemptCount,
    /// Attempts that succeeded.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub succeeded: AttemptCount,
    /// Attempts that failed with an error.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub failed: AttemptCount,
    /// Attempts that took longer than their timeout.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub timed_out: AttemptCount,
    /// Attempts whose lease expired.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub lost: AttemptCount,
    /// Attempts that asked to run again later.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub snoozed: AttemptCount,
    /// Attempts that their worker gave back.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub released: AttemptCount,
    /// Attempts that stopped because their job was cancelled. A job that is cancelled while it
    /// waits has no attempt, and does not count.
    #[serde(skip_serializing_if = "AttemptCount::is_zero")]
    pub cancelled: AttemptCount,
    /// Failed attempts after which the job waits for a retry.
    #[serde(skip_serializing_if = "is_zero")]
    pub retried: u64,
    /// Jobs that died.
    #[serde(skip_serializing_if = "is_zero")]
    pub dead: u64,
    /// How long jobs were due before an attempt started.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub wait: Histogram,
    /// How long attempts ran that succeeded, failed or timed out.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub run: Histogram,
}

impl QueueStatistics {
    /// Counts an attempt that starts after its job was due for `waited`.
    pub fn attempt_started(&mut self, lane: Lane, waited: Duration) {
        self.started.add_one(lane);
        self.wait.record(waited);
    }

    /// Counts the end of an attempt that ran for `ran`, and what it means for the job.
    pub fn attempt_ended(&mut self, settlement: &Settlement, ran: Duration) {
        self.outcome_mut(settlement.outcome)
            .add_one(lane_before(settlement));
        if let Outcome::Succeeded | Outcome::Failed | Outcome::TimedOut = settlement.outcome {
            self.run.record(ran);
        }
        match settlement.verdict {
            Verdict::Waiting { .. } if settlement.delay.is_some() => {
                self.retried = self.retried.saturating_add(1);
            }
            Verdict::Dead(_) => self.dead = self.dead.saturating_add(1),
            Verdict::Waiting { .. } | Verdict::Succeeded | Verdict::Cancelled => {}
        }
    }

    /// The number of attempts with an outcome.
    pub fn outcome(&self, outcome: Outcome) -> AttemptCount {
        match outcome {
            Outcome::Succeeded => self.succeeded,
            Outcome::Failed => self.failed,
            Outcome::TimedOut => self.timed_out,
            Outcome::Lost => self.lost,
            Outcome::Snoozed => self.snoozed,
            Outcome::Released => self.released,
            Outcome::Cancelled => self.cancelled,
        }
    }

    fn outcome_mut(&mut self, outcome: Outcome) -> &mut AttemptCount {
        match outcome {
            Outcome::Succeeded => &mut self.succeeded,
            Outcome::Failed => &mut self.failed,
            Outcome::TimedOut => &mut self.timed_out,
            Outcome::Lost => &mut self.lost,
            Outcome::Snoozed => &mut self.snoozed,
            Outcome::Released => &mut self.released,
            Outcome::Cancelled => &mut self.cancelled,
        }
    }

    /// Adds other statistics.
    pub fn merge(&mut self, other: &QueueStatistics) {
        for outcome in Outcome::ALL {
            self.outcome_mut(outcome).merge(other.outcome(outcome));
        }
        self.started.merge(other.started);
        self.enqueued = self.enqueued.saturating_add(other.enqueued);
        self.retried = self.retried.saturating_add(other.retried);
        self.dead = self.dead.saturating_add(other.dead);
        self.wait.merge(&other.wait);
        self.run.merge(&other.run);
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        *self == QueueStatistics::default()
    }

    /// How much happened. Decides which queues keep their own numbers if there are too many.
    fn activity(&self) -> u64 {
        let outcomes = Outcome::ALL.map(|outcome| self.outcome(outcome).total());
        let other = [self.enqueued, self.started.total(), self.dead];
        let all = outcomes.into_iter().chain(other);
        all.fold(0, u64::saturating_add)
    }
}

/// The lane that the job of an ended attempt was claimed from: `failures` includes this attempt.
fn lane_before(settlement: &Settlement) -> Lane {
    match settlement.failures > u32::from(settlement.outcome.counts_as_failure()) {
        true => Lane::Retry,
        false => Lane::Fresh,
    }
}

/// What happened in all queues during one period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    /// The queues in which something happened.
    pub queues: BTreeMap<QueueName, QueueStatistics>,
    /// All queues together that do not fit in `queues`.
    #[serde(skip_serializing_if = "QueueStatistics::is_empty")]
    pub other: QueueStatistics,
}

impl Statistics {
    /// Counts something that happened in a queue; in [`other`](Self::other) if this is a new queue
    /// and there are [`STATISTICS_QUEUES_MAX`] queues.
    pub fn count(&mut self, queue: &QueueName, count: impl FnOnce(&mut QueueStatistics)) {
        // Not `entry`: it would clone the name for every event.
        if let Some(numbers) = self.queues.get_mut(queue) {
            return count(numbers);
        }
        if self.queues.len() >= STATISTICS_QUEUES_MAX {
            return count(&mut self.other);
        }
        count(self.queues.entry(queue.clone()).or_default());
    }

    /// Adds other statistics. May have any number of queues afterwards, so that the order of
    /// merging does not matter; [`Statistics::limit_queues`] limits them.
    pub fn merge(&mut self, other: &Statistics) {
        for (queue, numbers) in &other.queues {
            match self.queues.get_mut(queue) {
                Some(known) => known.merge(numbers),
                None => drop(self.queues.insert(queue.clone(), numbers.clone())),
            }
        }
        self.other.merge(&other.other);
    }

    /// Keeps the [`STATISTICS_QUEUES_MAX`] busiest queues, and adds the rest to
    /// [`other`](Self::other).
    pub fn limit_queues(&mut self) {
        if self.queues.len() <= STATISTICS_QUEUES_MAX {
            return;
        }
        let mut all: Vec<_> = std::mem::take(&mut self.queues).into_iter().collect();
        all.sort_by_key(|(_, numbers)| std::cmp::Reverse(numbers.activity()));
        for (_, numbers) in all.split_off(STATISTICS_QUEUES_MAX) {
            self.other.merge(&numbers);
        }
        self.queues = all.into_iter().collect();
    }

    /// All queues together.
    pub fn total(&self) -> QueueStatistics {
        let mut total = self.other.clone();
        for numbers in self.queues.values() {
            total.merge(numbers);
        }
        total
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.other.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests;
