//! The error of the SDK.

use std::time::Duration;

use windlass_core::{Invalid, JobId, QueueName, State, Timestamp, format_duration};
use windlass_engine::{ActionError, DrainError, HookError};
use windlass_store::StoreError;

use crate::client::Receipt;

/// The error of [`Client`](crate::Client), [`Worker`](crate::Worker) and
/// [`TestKit`](crate::testing::TestKit).
///
/// There is a variant for each case that a caller handles differently. Handlers return any error,
/// or a [`Failure`](crate::Failure).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument breaks a rule. The error names the field and the rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// The configuration of a worker is not valid. The list has all problems.
    #[error("the worker cannot start: {}", listed(.0))]
    Worker(Vec<Invalid>),

    /// The store refused the operation or failed.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// A large enqueue was stored in part. To continue, enqueue the jobs from position
    /// `receipts.len()` on.
    ///
    /// Nothing of the batch that failed is stored, unless `source` is
    /// [`StoreError::Indeterminate`]: then it is unknown.
    #[error("stored the first {} of {total} jobs, then the store failed; enqueue the remaining jobs again", receipts.len())]
    PartiallyEnqueued {
        /// The receipts of the jobs that are stored, in order.
        receipts: Vec<Receipt>,
        /// The number of jobs in the enqueue.
        total: usize,
        /// Why the next batch failed.
        source: StoreError,
    },

    /// In a test, jobs keep becoming due at the same instant, so virtual time never advances.
    #[error(
        "started {attempts} attempts at {at} and more jobs are due; does a handler enqueue itself without a delay?"
    )]
    NoProgress {
        /// The instant.
        at: Timestamp,
        /// The number of attempts that started at that instant.
        attempts: usize,
    },

    /// There is no job with this id. It never existed, or was removed after its retention period.
    #[error("job {0} does not exist, or was removed")]
    NotFound(JobId),

    /// The change does not apply to a job in this state. Nothing changed.
    #[error("job {id} is {state}; the change does not apply to a job in this state")]
    Conflict {
        /// The job.
        id: JobId,
        /// The state of the job.
        state: State,
    },

    /// Another job holds the unique key of this job. Nothing changed.
    #[error(
        "another job holds the unique key of job {0}; wait until it has finished, or cancel it"
    )]
    KeyTaken(JobId),

    /// The queue that the job would wait in is full. Nothing changed.
    #[error(
        "the queue of job {id} is full (at most {max_depth} waiting jobs); retry when it has drained"
    )]
    QueueFull {
        /// The job.
        id: JobId,
        /// The limit of the queue.
        max_depth: u64,
    },

    /// The patch does not apply to the payload of this job. Nothing changed.
    #[error("cannot patch the payload of job {id}: {reason}")]
    PatchFailed {
        /// The job.
        id: JobId,
        /// Why the patch does not apply.
        reason: String,
    },

    /// A bulk action or replay could not be created or changed.
    #[error(transparent)]
    Action(ActionError),

    /// A hook could not be read or changed.
    #[error(transparent)]
    Hook(HookError),

    /// The job has not finished within the timeout of [`Client::wait`](crate::Client::wait).
    #[error("job {id} has not finished after {}", format_duration(*after))]
    WaitTimedOut {
        /// The job.
        id: JobId,
        /// The timeout.
        after: Duration,
    },

    /// The job has finished without success.
    #[error("job {id} did not succeed: it is {state}{}", because(.error))]
    DidNotSucceed {
        /// The job.
        id: JobId,
        /// Its final state: dead or cancelled.
        state: State,
        /// The error of the last failed attempt.
        error: Option<String>,
    },

    /// There is no schedule with this name.
    #[error("schedule {0} does not exist")]
    ScheduleNotFound(String),

    /// The schedule is not at the expected version. Nothing changed.
    #[error("schedule {name} has changed meanwhile; read it again and repeat the change")]
    ScheduleChanged {
        /// The name of the schedule.
        name: String,
        /// Its current version, if it is known; `None` if it does not exist.
        version: Option<u64>,
    },

    /// There is no such queue.
    #[error(
        "there is no queue {queue}: it has no jobs and no settings, and no live worker takes jobs from it"
    )]
    QueueNotFound {
        /// The queue.
        queue: QueueName,
        /// The queue that has the most similar name, if one is similar.
        nearest: Option<String>,
    },

    /// Other writers keep changing the settings of a queue. Nothing changed.
    #[error("other writers keep changing queue {0}; try again")]
    QueueContended(QueueName),

    /// The schedule enqueued no job, because another job holds the unique key of its job.
    #[error("schedule {0} enqueued no job: another job holds the unique key of its job")]
    ScheduleKeyTaken(String),

    /// The result or payload of a job cannot be decoded as the requested type.
    #[error("the JSON of job {0} cannot be decoded as the requested type")]
    Result(JobId, #[source] serde_json::Error),
}

impl From<ActionError> for Error {
    fn from(error: ActionError) -> Self {
        match error {
            ActionError::Invalid(error) => Error::Invalid(error),
            ActionError::Store(error) => Error::Store(error),
            error => Error::Action(error),
        }
    }
}

impl From<HookError> for Error {
    fn from(error: HookError) -> Self {
        match error {
            HookError::Invalid(error) => Error::Invalid(error),
            HookError::Store(error) => Error::Store(error),
            error => Error::Hook(error),
        }
    }
}

impl From<DrainError> for Error {
    fn from(error: DrainError) -> Self {
        match error {
            DrainError::Store(error) => Error::Store(error),
            DrainError::NoProgress { at, attempts } => Error::NoProgress { at, attempts },
        }
    }
}

fn listed(problems: &[Invalid]) -> String {
    let texts: Vec<String> = problems.iter().map(Invalid::to_string).collect();
    texts.join("; ")
}

fn because(error: &Option<String>) -> String {
    error
        .as_ref()
        .map(|error| format!(" ({error})"))
        .unwrap_or_default()
}
