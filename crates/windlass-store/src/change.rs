//! Types of [`Store::change`](crate::Store::change): what people and programs do to jobs.

use std::collections::BTreeMap;

use windlass_core::{
    ActionCount, ActionId, Edit, Invalid, Job, JobId, Patch, PatchError, QueueName, Revival, State,
    Timestamp,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionStep {
    /// The action. It changes each job at most once.
    pub action: ActionId,
    /// Jobs whose state changed later than this are left alone.
    pub frozen_at: Timestamp,
    /// Whether the action is a replay, which counts the results of the jobs that it revives.
    pub is_replay: bool,
    /// The state and attempt of the jobs when the action decided to change them. A job in another
    /// state or attempt is left alone. The time of the change does not show this when the clocks of
    /// two nodes differ. Jobs that are missing here are not compared.
    pub seen: BTreeMap<JobId, (State, u32)>,
}

impl ActionStep {
    /// Refuses a job that this action or a newer one has changed before, or whose state changed
    /// since the action was created or since it saw the job. The first check comes first, so that a
    /// step whose answer was lost can be repeated.
    ///
    /// A job remembers only one action. Without the second check, an older action could replace the
    /// newer one there, and a repeated step of the newer one would change the job again.
    pub fn check(&self, job: &Job) -> Result<(), Changed> {
        let last_action = job.interventions.last_action;
        if last_action == Some(self.action) {
            return Err(Changed::Repeated(job.state()));
        }
        let seen = self.seen.get(&job.id);
        let is_as_seen = seen.is_none_or(|seen| *seen == (job.state(), job.attempt));
        let has_newer_action = last_action > Some(self.action);
        if has_newer_action || job.changed_at() > self.frozen_at || !is_as_seen {
            return Err(Changed::ChangedSince(job.state()));
        }
        Ok(())
    }

    /// What a bulk action counts for these results in its tally. A replay counts the results of its
    /// jobs instead.
    pub fn count(&self, results: &[Changed]) -> Option<(ActionId, ActionCount, i64)> {
        let changed = results.iter().filter(|result| result.is_change()).count();
        let changed = i64::try_from(changed).unwrap_or(i64::MAX);
        let counts = !self.is_replay && changed > 0;
        counts.then_some((self.action, ActionCount::Gone, changed))
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
    /// The state of the job changed after the action was created, or after it saw the job, or a
    /// newer action changed the job. Nothing changed.
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

impl Changed {
    /// Whether the job was changed by this call.
    pub fn is_change(&self) -> bool {
        matches!(self, Changed::Now(_) | Changed::Removed)
    }
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
