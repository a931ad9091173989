//! The job: what the user asked for, what happened so far, and its state.
//!
//! [`Job`] is one record with everything that Windlass knows about one unit of work. `transitions`
//! changes it when something happens to it.

mod transitions;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

pub use transitions::{Conflict, Edit, FailureCount, Revival, RevivalChanges};

use crate::failure::AttemptError;
use crate::intervention::Interventions;
use crate::new_job::TIMEOUT_DEFAULT;
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::settle::has_expired;
use crate::state::{DeadReason, State};
use crate::words::string_enum;
use crate::{
    Fingerprint, JobId, Key, Kind, Payload, QueueName, ScheduleId, Tag, Timestamp, WorkerName,
};

/// Whether a job may start more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Delivery {
    /// Retried until it succeeds or is dead; the same work may run twice.
    #[default]
    AtLeastOnce,
    /// Never retried automatically once started.
    AtMostOnce,
}

/// How long one attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// At most this long.
    After(Duration),
    /// Without limit. Never the default: the user has to ask for it.
    None,
}

impl Default for Timeout {
    /// The timeout of a job that sets none: [`TIMEOUT_DEFAULT`].
    fn default() -> Self {
        Timeout::After(TIMEOUT_DEFAULT)
    }
}

/// A unique key: while one job holds it, no other job with this key can be enqueued in the same
/// queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    /// The key.
    pub key: Key,
    /// How long after the enqueue the job holds the key at least, even if it finishes earlier. A
    /// dead job does not hold it.
    pub unique_for: Option<Duration>,
    /// What happens to a second job with this key.
    pub on_duplicate: OnDuplicate,
}

/// What an enqueue does when another job holds the unique key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDuplicate {
    /// Returns the existing job and changes nothing.
    #[default]
    Keep,
    /// Gives the existing job the new payload and `run_at` if it is still waiting (debounce).
    Replace,
}

/// A concurrency limit: a job starts only while fewer than `limit` jobs with its key are running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    /// The key, shared by all queues and nodes.
    pub key: Key,
    /// The most jobs that may run at once; at least 1.
    pub limit: u32,
}

/// The occurrence of a schedule that a job was enqueued for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// The schedule.
    pub schedule_id: ScheduleId,
    /// The instant that the schedule computed, before any delay.
    pub scheduled_for: Timestamp,
}

/// One unit of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Made at enqueue. The ids of later jobs sort after those of earlier jobs.
    pub id: JobId,
    /// Picks the handler.
    pub kind: Kind,
    /// What the handler decodes.
    pub payload: Payload,
    /// The queue it waits in.
    pub queue: QueueName,
    /// Higher runs first. Retries keep it.
    pub priority: i16,
    /// From when it is due. For a waiting job only, see [`Job::due_at`].
    pub run_at: Timestamp,
    /// Whether it may start more than once.
    pub delivery: Delivery,
    /// The job's own limit of failed attempts.
    pub max_attempts: Option<AttemptLimit>,
    /// The job's own retry policy.
    pub retry: Option<Arc<RetryPolicy>>,
    /// How long one attempt may take.
    pub timeout: Timeout,
    /// No attempt starts after this instant.
    pub deadline: Option<Timestamp>,
    /// The unique key.
    pub unique: Option<Unique>,
    /// The concurrency key.
    pub concurrency: Option<Concurrency>,
    /// Labels for people and for search.
    pub tags: Vec<Tag>,
    /// Free data for people and programs.
    pub meta: BTreeMap<String, Value>,
    /// The schedule occurrence that it was enqueued for.
    pub occurrence: Option<Occurrence>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// How many times it was claimed. Goes up by one with each claim and never resets, so a write
    /// of an old attempt can be recognized and rejected.
    pub attempt: u32,
    /// How many attempts failed.
    pub failures: u32,
    /// How many attempts ended with a request to run later.
    pub snoozes: u32,
    /// How many attempts in a row, up to the last one, were lost.
    pub losses_in_a_row: u32,
    /// The delay before the current attempt, if that is a retry.
    pub previous_delay: Option<Duration>,
    /// When its first attempt started.
    pub first_started_at: Option<Timestamp>,
    /// When its last attempt started.
    pub started_at: Option<Timestamp>,
    /// The worker of its last attempt.
    pub worker: Option<WorkerName>,
    /// The error of the last failed attempt.
    pub last_error: Option<AttemptError>,
    /// When the last failed attempt ended.
    pub failed_at: Option<Timestamp>,
    /// The cause of the last failure, or of a death without an error.
    pub fingerprint: Option<Fingerprint>,
    /// Since when a waiting job waits: its enqueue, the end of its last attempt, or its revival.
    pub waiting_since: Timestamp,
    /// What operators did to it.
    pub interventions: Interventions,
    /// The state, with the data that only this state has.
    pub state_details: StateDetails,
}

/// The state of a job, with the data that only this state has.
#[derive(Debug, Clone, PartialEq)]
pub enum StateDetails {
    /// Waiting.
    Waiting,
    /// Running under this lease.
    Running(Lease),
    /// Finished: succeeded, dead or cancelled.
    Finished(Finish),
}

/// The right to run one attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// When the lease ends unless the worker renews it.
    pub until: Timestamp,
    /// The retry policy that the claim resolved; `None` means that the first failure is final.
    pub policy: Option<Arc<RetryPolicy>>,
    /// The limit of failed attempts that the claim resolved.
    pub effective_max: AttemptLimit,
    /// Whether a user asked to cancel the job.
    pub cancel_requested: bool,
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// When the job finished.
    pub finished_at: Timestamp,
    /// How the job finished.
    pub state: FinalState,
}

/// How a job finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinalState {
    /// It succeeded, with the handler's result.
    Succeeded(Option<Payload>),
    /// It is dead, for this reason.
    Dead(DeadReason),
    /// A user cancelled it.
    Cancelled,
}

/// The two lanes of a queue. New jobs and retries are claimed from separate lanes, so that neither
/// starves the other. A revived job counts as a retry, so that a replay never displaces new jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// No attempt failed yet, and no one revived the job.
    Fresh,
    /// At least one attempt failed, or someone revived the job.
    Retry,
}

impl Job {
    /// The state of the job.
    pub fn state(&self) -> State {
        match &self.state_details {
            StateDetails::Waiting => State::Waiting,
            StateDetails::Running(_) => State::Running,
            StateDetails::Finished(end) => match end.state {
                FinalState::Succeeded(_) => State::Succeeded,
                FinalState::Dead(reason) => State::Dead(reason),
                FinalState::Cancelled => State::Cancelled,
            },
        }
    }

    /// The lane in which the job waits.
    pub fn lane(&self) -> Lane {
        if self.failures == 0 && self.interventions.revived.is_none() {
            Lane::Fresh
        } else {
            Lane::Retry
        }
    }

    /// When the state of the job last changed.
    pub fn changed_at(&self) -> Timestamp {
        match &self.state_details {
            StateDetails::Waiting => self.waiting_since,
            StateDetails::Running(_) => self.started_at.unwrap_or(self.created_at),
            StateDetails::Finished(end) => end.finished_at,
        }
    }

    /// When the job finished, if it did.
    pub fn finished_at(&self) -> Option<Timestamp> {
        match &self.state_details {
            StateDetails::Finished(end) => Some(end.finished_at),
            _ => None,
        }
    }

    /// The lease, if the job is running.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state_details {
            StateDetails::Running(lease) => Some(lease),
            _ => None,
        }
    }

    /// The latest end of a lease of the running attempt: the timeout plus a short grace in which
    /// the report may still arrive. `None` if the job has no timeout.
    ///
    /// It limits leases of remote workers, which the server cannot stop. If a lease that ends at
    /// this instant expires, the attempt timed out.
    pub fn lease_until_max(&self) -> Option<Timestamp> {
        Some(self.started_at?.saturating_add(self.run_time_max()?))
    }

    /// Whether the job holds its unique key at `now`: while it waits or runs, and until
    /// [`Job::key_until`] unless it is dead.
    pub fn holds_key(&self, now: Timestamp) -> bool {
        match self.state() {
            State::Waiting | State::Running => self.unique.is_some(),
            State::Dead(_) => false,
            State::Succeeded | State::Cancelled => {
                self.key_until().is_some_and(|until| until > now)
            }
        }
    }

    /// Until when the job holds its unique key at least, if it has a `unique_for`.
    pub fn key_until(&self) -> Option<Timestamp> {
        let unique_for = self.unique.as_ref()?.unique_for?;
        Some(self.created_at.saturating_add(unique_for))
    }

    /// Whether an attempt may start at `now`: the job is waiting and due, and its deadline has not
    /// passed.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.state() == State::Waiting && self.run_at <= now && !has_expired(self.deadline, now)
    }

    /// When the job is due, if it is waiting.
    pub fn due_at(&self) -> Option<Timestamp> {
        (self.state() == State::Waiting).then_some(self.run_at)
    }

    /// The sort key of claims within a queue: highest priority first, then earliest `run_at`, then
    /// oldest id.
    pub fn claim_order(&self) -> (Reverse<i16>, Timestamp, JobId) {
        (Reverse(self.priority), self.run_at, self.id)
    }
}

string_enum!(Delivery {
    AtLeastOnce = "at_least_once",
    AtMostOnce = "at_most_once",
});

string_enum!(OnDuplicate {
    Keep = "keep",
    Replace = "replace",
});
