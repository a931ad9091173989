//! Enqueueing: jobs come in.

use windlass_core::{Job, JobId, QueueName};

/// The most jobs one enqueue takes.
pub const ENQUEUE_MAX: usize = 10_000;

/// Jobs to be stored, in one step.
#[derive(Debug, Clone)]
pub struct Enqueue {
    /// Waiting jobs that were never claimed.
    pub jobs: Vec<Job>,
    /// What a job that cannot be taken means for the others.
    pub mode: EnqueueMode,
}

/// What a job that meets a full queue means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnqueueMode {
    /// None of them is taken: the enqueue is an error.
    #[default]
    AllOrNone,
    /// The others are taken.
    EachForItself,
}

impl Enqueue {
    /// All of these jobs, or none.
    pub fn all(jobs: Vec<Job>) -> Self {
        Enqueue {
            jobs,
            mode: EnqueueMode::AllOrNone,
        }
    }
}

/// What became of one job. A job that meets a taken unique key is never an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// It is stored.
    Created(JobId),
    /// Its unique key, or its id, is taken: this job was there first, and nothing changed.
    Duplicate {
        /// The first job.
        id: JobId,
        /// Whether the first job has another payload.
        payload_differs: bool,
    },
    /// Its unique key is taken by a waiting job, which has the new payload and `run_at` now (`on_duplicate: replace`).
    Replaced(JobId),
    /// Its queue is full.
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// Its bound.
        max_depth: u64,
    },
}
