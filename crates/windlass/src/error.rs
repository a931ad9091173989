//! What may go wrong in a client or at the start of a worker.

use std::time::Duration;

use windlass_core::{Invalid, JobId, QueueName, State, Timestamp, format_duration};
use windlass_engine::DrainError;
use windlass_store::StoreError;

use crate::client::Receipt;

/// Something could not be done. Each variant is something a caller does differently.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was given breaks a rule, which names the field.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// A worker cannot start as it was set up: everything that is wrong with it.
    #[error("the worker cannot start: {}", listed(.0))]
    Worker(Vec<Invalid>),

    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// The first steps of a large enqueue were stored, then one failed. To continue, enqueue the jobs from position
    /// `receipts.len()` on.
    ///
    /// Nothing of the step that failed is stored, unless `source` is [`StoreError::Indeterminate`]: then the store did not
    /// say whether it is.
    #[error("stored the first {} of {total} jobs, then the store failed; enqueue the others again", receipts.len())]
    EnqueuedInPart {
        /// The receipts of the jobs that are stored, in order.
        receipts: Vec<Receipt>,
        /// How many jobs were to be stored.
        total: usize,
        /// Why the next step failed.
        source: StoreError,
    },

    /// In a test, jobs keep coming at one instant, so that time never passes.
    #[error(
        "started {attempts} attempts at {at} and more jobs are due; does a handler enqueue itself without a delay?"
    )]
    Spinning {
        /// The instant.
        at: Timestamp,
        /// How many attempts started at it.
        attempts: usize,
    },

    /// There is no such job.
    #[error("there is no job {0}")]
    NotFound(JobId),

    /// The job is in a state in which that cannot be done. Nothing changed.
    #[error("job {id} is {state}: that does not apply")]
    Conflict {
        /// The job.
        id: JobId,
        /// Its state.
        state: State,
    },

    /// The unique key of the job is taken by another one. Nothing changed.
    #[error("the unique key of job {0} is taken by another job")]
    KeyTaken(JobId),

    /// The queue that the job would wait in is full. Nothing changed; try again when it has drained.
    #[error(
        "the queue of job {id} is full: it holds at most {max_depth} waiting jobs; nothing changed"
    )]
    QueueFull {
        /// The job.
        id: JobId,
        /// The bound of the queue.
        max_depth: u64,
    },

    /// The job was not over in time.
    #[error("job {id} is not over after {}", format_duration(*after))]
    NotOver {
        /// The job.
        id: JobId,
        /// How long it was waited for.
        after: Duration,
    },

    /// The job is over, and did not succeed.
    #[error("job {id} did not succeed: it is {state}{}", because(.error))]
    DidNotSucceed {
        /// The job.
        id: JobId,
        /// Its state.
        state: State,
        /// The last error.
        error: Option<String>,
    },

    /// There is no such schedule.
    #[error("there is no schedule {0}")]
    NoSchedule(String),

    /// The schedule is not what its writer believes. Nothing changed.
    #[error("schedule {name} was changed meanwhile: read it again")]
    ScheduleChanged {
        /// The schedule.
        name: String,
        /// Its version; none if it is not there.
        version: Option<u64>,
    },

    /// A queue is changed by others all the time. Nothing changed; try again.
    #[error("queue {0} is changed by others all the time: try again")]
    QueueChanged(QueueName),

    /// The job of a schedule was not made: another one holds its unique key.
    #[error("the unique key of the job of schedule {0} is taken by another job")]
    ScheduleHeld(String),

    /// What a job left is not what it is asked as.
    #[error("the result of job {0} cannot be decoded")]
    Result(JobId, #[source] serde_json::Error),
}

impl From<DrainError> for Error {
    fn from(error: DrainError) -> Self {
        match error {
            DrainError::Store(error) => Error::Store(error),
            DrainError::Spinning { at, attempts } => Error::Spinning { at, attempts },
        }
    }
}

fn listed(problems: &[Invalid]) -> String {
    let all: Vec<String> = problems.iter().map(Invalid::to_string).collect();
    all.join("; ")
}

fn because(error: &Option<String>) -> String {
    error
        .as_ref()
        .map(|error| format!(" ({error})"))
        .unwrap_or_default()
}
