//! Types of [`Store::enqueue`](crate::Store::enqueue).

use windlass_core::{Job, JobId, QueueName};

/// The most jobs in one enqueue.
pub const ENQUEUE_MAX: usize = 10_000;

/// Jobs to store in one step.
#[derive(Debug, Clone)]
pub struct Enqueue {
    /// Waiting jobs that were never claimed.
    pub jobs: Vec<Job>,
    /// What happens to the other jobs if one queue is full.
    pub mode: EnqueueMode,
}

/// What happens to the other jobs of an enqueue if one job meets a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnqueueMode {
    /// None is stored: the enqueue returns an error.
    #[default]
    AllOrNone,
    /// The others are stored.
    Independent,
}

impl Enqueue {
    /// Stores all of these jobs, or none.
    pub fn all(jobs: Vec<Job>) -> Self {
        Enqueue {
            jobs,
            mode: EnqueueMode::AllOrNone,
        }
    }
}

/// The result of enqueuing one job. A unique key that is held is never an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// The job is stored.
    Created(JobId),
    /// Another job holds its unique key or has its id. Nothing changed.
    Duplicate {
        /// The existing job.
        id: JobId,
        /// Whether the existing job has a different payload.
        payload_differs: bool,
    },
    /// A waiting job holds its unique key and got the new payload and `run_at` (`on_duplicate:
    /// replace`).
    Replaced(JobId),
    /// Its queue is full.
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// The most jobs that may wait in it.
        max_depth: u64,
    },
}
