//! Types of [`Store::change`](crate::Store::change): what people and programs do to jobs.

use windlass_core::{
    ActionId, Edit, Invalid, Job, Patch, PatchError, QueueName, Revival, State, Timestamp,
};

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
    /// Changes fields of a job that waits, is dead or is cancelled. It moves only to a queue that is
    /// not full.
    Patch(Patch),
    /// Marks a lost at-most-once job as succeeded, because a person confirmed it.
    Resolve,
    /// Removes a finished job with its history. A waiting or running job is a conflict.
    Purge,
}

impl Change {
    /// Refuses a change that would move jobs to a reserved queue.
    pub fn check(&self) -> Result<(), Invalid> {
        let queue = match self {
            Change::Edit(edit) => edit.queue.as_ref(),
            Change::Patch(patch) => patch.queue.as_ref(),
            Change::Revive(revival) => revival.changes.queue.as_ref(),
            Change::Cancel | Change::RunNow | Change::Resolve | Change::Purge => None,
        };
        queue.map_or(Ok(()), QueueName::check_unreserved)
    }
}

/// The bulk action or replay that a change is a step of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActionStep {
    /// The action. It changes each job at most once.
    pub action: ActionId,
    /// Jobs whose state changed later than this are left alone.
    pub frozen_at: Timestamp,
    /// Whether the action is a replay, which counts the results of the jobs that it revives.
    pub is_replay: bool,
}

impl ActionStep {
    /// Refuses a job that this action has changed before, or whose state changed since the action
    /// was created.
    pub fn check(&self, job: &Job) -> Result<(), Changed> {
        if job.interventions.last_action == Some(self.action) {
            return Err(Changed::Repeated(job.state()));
        }
        if job.changed_at() > self.frozen_at {
            return Err(Changed::ChangedSince(job.state()));
        }
        Ok(())
    }

    /// The replay to count revivals for.
    pub fn replay(&self) -> Option<ActionId> {
        self.is_replay.then_some(self.action)
    }
}

/// The result of a change to one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// The job is in this state now.
    Now(State),
    /// The change does not apply to a job in this state. Nothing changed.
    Conflict(State),
    /// The job is in this state, and another job holds its unique key. Nothing changed.
    KeyTaken(State),
    /// The state of the job changed after the action was created. Nothing changed.
    ChangedSince(State),
    /// The same action changed the job before. Nothing changed.
    Repeated(State),
    /// The patch does not apply to the payload of the job. Nothing changed.
    PatchFailed {
        /// Why it does not apply.
        reason: String,
    },
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

impl From<PatchError> for Changed {
    fn from(error: PatchError) -> Self {
        let reason = error.to_string();
        match error {
            PatchError::Conflict(conflict) => Changed::Conflict(conflict.state),
            PatchError::DoesNotApply(_) => Changed::PatchFailed { reason },
        }
    }
}
