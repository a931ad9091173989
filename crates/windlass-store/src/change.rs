//! Types of [`Store::change`](crate::Store::change): what people and programs do to jobs.

use windlass_core::{Edit, Revival, State};

/// The most jobs in one change.
pub const CHANGE_MAX: usize = 10_000;

/// A change to apply to jobs.
#[derive(Debug, Clone)]
pub enum Change {
    /// Cancels a waiting job, or asks the handler of a running job to stop.
    Cancel,
    /// Makes a dead or cancelled job run again.
    Revive(Revival),
    /// Makes a waiting job due now. Its failures still count.
    RunNow,
    /// Changes fields of a waiting job. It moves only to a queue that is not full.
    Edit(Edit),
    /// Marks a lost at-most-once job as succeeded, because a person confirmed it.
    Resolve,
    /// Removes a finished job with its history. A waiting or running job is a conflict.
    Purge,
}

/// The result of a change to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The job is in this state now.
    Now(State),
    /// The change does not apply to a job in this state. Nothing changed.
    Conflict(State),
    /// The job is in this state, and another job holds its unique key. Nothing changed.
    KeyTaken(State),
    /// The queue that the job would wait in is full. Nothing changed.
    QueueFull {
        /// The most jobs that may wait in that queue.
        max_depth: u64,
    },
    /// This version cannot read the job; a newer version may have written it. Nothing changed.
    Unreadable,
    /// The job is removed.
    Removed,
    /// No job has this id.
    NotFound,
}
