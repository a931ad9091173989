//! What people do to single jobs.

use windlass_core::{Edit, Revival, State};

/// The most jobs one change takes.
pub const CHANGE_MAX: usize = 10_000;

/// What people and programs ask of jobs, in one step for many of them.
#[derive(Debug, Clone)]
pub enum Change {
    /// A waiting job is cancelled, a running one is asked to stop.
    Cancel,
    /// A dead or cancelled job runs again.
    Revive(Revival),
    /// A waiting job is due now; its failures stay.
    RunNow,
    /// A waiting job gets other values. It moves only to a queue that is not full.
    Edit(Edit),
    /// A lost at-most-once job did succeed, a person says.
    Resolve,
    /// A finished job is removed with its history. A job that waits or runs is a conflict.
    Purge,
}

/// What became of a change to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It is in this state now.
    Now(State),
    /// The change does not apply to a job in this state. Nothing changed.
    Conflict(State),
    /// Its unique key is taken by another job, in this state. Nothing changed.
    KeyTaken(State),
    /// The queue that it would wait in is full. Nothing changed.
    QueueFull {
        /// The bound of that queue.
        max_depth: u64,
    },
    /// It cannot be read: a newer version may have written it. Nothing changed.
    Unreadable,
    /// It is gone.
    Removed,
    /// There is no such job.
    NotFound,
}
