//! The job: what was asked for, what has happened to it so far, and where it stands.

mod transitions;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

pub use transitions::{Conflict, Edit, Failures, Revival};

use crate::failure::AttemptError;
use crate::new_job::TIMEOUT_DEFAULT;
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::settle::has_expired;
use crate::state::{DeadReason, State};
use crate::words::words;
use crate::{JobId, Key, Kind, Payload, QueueName, ScheduleId, Tag, Timestamp, WorkerName};

/// How often a job may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Delivery {
    /// Until it succeeds or is dead; it may run twice.
    #[default]
    AtLeastOnce,
    /// Never started again by itself once it was started.
    AtMostOnce,
}

/// How long one attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// So long.
    After(Duration),
    /// As long as it likes; this must be said.
    None,
}

impl Default for Timeout {
    /// The timeout of a job that names none.
    fn default() -> Self {
        Timeout::After(TIMEOUT_DEFAULT)
    }
}

/// While a job holds a unique key, another one with that key is not enqueued in the same queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    /// The key.
    pub key: Key,
    /// Held at least so long after the enqueue, even if the job ends before.
    pub unique_for: Option<Duration>,
    /// What becomes of the second job.
    pub on_duplicate: OnDuplicate,
}

/// What an enqueue does that meets a taken unique key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDuplicate {
    /// It answers with the first job and changes nothing.
    #[default]
    Keep,
    /// It gives a waiting first job the new payload and `run_at` (debounce).
    Replace,
}

/// A job starts only while fewer than `limit` are running with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    /// The key, over all queues and nodes.
    pub key: Key,
    /// At least 1.
    pub limit: u32,
}

/// Which occurrence of which schedule a job stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// The schedule.
    pub schedule_id: ScheduleId,
    /// The nominal instant.
    pub scheduled_for: Timestamp,
}

/// One unit of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Made at enqueue; later jobs sort after earlier ones.
    pub id: JobId,
    /// Picks the handler.
    pub kind: Kind,
    /// What the handler decodes.
    pub payload: Payload,
    /// Where it waits.
    pub queue: QueueName,
    /// Higher runs first; kept through retries.
    pub priority: i16,
    /// From when it is due; while it waits, see [`Job::due_at`].
    pub run_at: Timestamp,
    /// How often it may run.
    pub delivery: Delivery,
    /// Its own limit.
    pub max_attempts: Option<AttemptLimit>,
    /// Its own policy.
    pub retry: Option<Arc<RetryPolicy>>,
    /// How long one attempt may take.
    pub timeout: Timeout,
    /// No attempt starts after it.
    pub deadline: Option<Timestamp>,
    /// Its unique key.
    pub unique: Option<Unique>,
    /// Its concurrency key.
    pub concurrency: Option<Concurrency>,
    /// For people and search.
    pub tags: Vec<Tag>,
    /// For people and programs.
    pub meta: BTreeMap<String, Value>,
    /// The occurrence it stands for.
    pub occurrence: Option<Occurrence>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// Claims so far: counts up by one with each, never resets, and fences.
    pub attempt: u32,
    /// Attempts that failed.
    pub failures: u32,
    /// Attempts that asked to run again later.
    pub snoozes: u32,
    /// How many of the last attempts were lost.
    pub losses_in_a_row: u32,
    /// The delay before the attempt that waits or runs, if it is a retry.
    pub previous_delay: Option<Duration>,
    /// When its first attempt started.
    pub first_started_at: Option<Timestamp>,
    /// When its last attempt started.
    pub started_at: Option<Timestamp>,
    /// Who ran its last attempt.
    pub worker: Option<WorkerName>,
    /// Why the last failed attempt did.
    pub last_error: Option<AttemptError>,
    /// When the last failed attempt ended.
    pub failed_at: Option<Timestamp>,
    /// Its state, with what only that state has.
    pub standing: Standing,
}

/// The state of a job, with what only that state has.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// It waits.
    Waiting,
    /// A worker has it.
    Running(Lease),
    /// It is over.
    Finished(End),
}

/// The right to run one attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// Until when, unless it is renewed.
    pub until: Timestamp,
    /// The policy that was resolved by the claim; none means fail fast.
    pub policy: Option<Arc<RetryPolicy>>,
    /// The limit that was resolved by the claim.
    pub effective_max: AttemptLimit,
    /// Somebody called the job off.
    pub cancel_requested: bool,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When.
    pub finished_at: Timestamp,
    /// In which way.
    pub how: Ended,
}

/// In which way a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// With what the handler left.
    Succeeded(Option<Payload>),
    /// For that reason.
    Dead(DeadReason),
    /// Called off.
    Cancelled,
}

/// Fresh work and retries wait side by side, so that neither starves the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// No attempt failed yet.
    Fresh,
    /// At least one attempt failed.
    Retry,
}

impl Job {
    /// Where it is in its life.
    pub fn state(&self) -> State {
        match &self.standing {
            Standing::Waiting => State::Waiting,
            Standing::Running(_) => State::Running,
            Standing::Finished(end) => match end.how {
                Ended::Succeeded(_) => State::Succeeded,
                Ended::Dead(reason) => State::Dead(reason),
                Ended::Cancelled => State::Cancelled,
            },
        }
    }

    /// Whether it is fresh work or a retry.
    pub fn lane(&self) -> Lane {
        if self.failures == 0 {
            Lane::Fresh
        } else {
            Lane::Retry
        }
    }

    /// When it ended, if it is over.
    pub fn finished_at(&self) -> Option<Timestamp> {
        match &self.standing {
            Standing::Finished(end) => Some(end.finished_at),
            _ => None,
        }
    }

    /// The lease, if it runs.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.standing {
            Standing::Running(lease) => Some(lease),
            _ => None,
        }
    }

    /// Until when a lease of the running attempt lasts at most, where nobody can stop its worker: the timeout, and a moment
    /// in which its report may still come in. A lease that was cut there has ended by the timeout.
    pub fn lease_until_max(&self) -> Option<Timestamp> {
        Some(self.started_at?.saturating_add(self.run_time_max()?))
    }

    /// Whether nobody else may enqueue with its unique key: while it waits or runs, and for its `unique_for` after the enqueue
    /// unless it is dead.
    pub fn holds_key(&self, now: Timestamp) -> bool {
        match self.state() {
            State::Waiting | State::Running => self.unique.is_some(),
            State::Dead(_) => false,
            State::Succeeded | State::Cancelled => {
                self.key_until().is_some_and(|until| until > now)
            }
        }
    }

    /// Until when its unique key is held at least, if it may outlast the job.
    pub fn key_until(&self) -> Option<Timestamp> {
        let unique_for = self.unique.as_ref()?.unique_for?;
        Some(self.created_at.saturating_add(unique_for))
    }

    /// Whether it waits, its time has come and its deadline has not passed: an attempt may start.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.state() == State::Waiting && self.run_at <= now && !has_expired(self.deadline, now)
    }

    /// When it is due, if it waits.
    pub fn due_at(&self) -> Option<Timestamp> {
        (self.state() == State::Waiting).then_some(self.run_at)
    }

    /// The order of claims within a queue: high priority first, then the time it is due, then its age.
    pub fn claim_order(&self) -> (Reverse<i16>, Timestamp, JobId) {
        (Reverse(self.priority), self.run_at, self.id)
    }
}

words!(Delivery {
    AtLeastOnce = "at_least_once",
    AtMostOnce = "at_most_once",
});

words!(OnDuplicate {
    Keep = "keep",
    Replace = "replace",
});
