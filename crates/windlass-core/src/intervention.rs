//! What operators did to a job, as far as later decisions depend on it.

use serde::{Deserialize, Serialize};

use crate::job::{FinalState, Finish, Job, StateDetails};
use crate::words::string_enum;
use crate::{ActionId, Fingerprint, Outcome};

/// What operators did to a job. Most jobs have none of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interventions {
    /// The newest bulk action or replay that changed the job. A job never gets the same action
    /// twice, and no older one after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_action: Option<ActionId>,
    /// The last revival, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revived: Option<Revived>,
    /// The cause of the last failure, if the job counts in the group `other` because there was no
    /// space for a group of its own. A replay compares it with the cause of the next failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ungrouped_cause: Option<Fingerprint>,
}

/// A revival of a job, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Revived {
    /// The replay that revived the job; absent if a person or another bulk action did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<ActionId>,
    /// The cause that the job had died of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Fingerprint>,
    /// The first counted outcome since the revival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_outcome: Option<FirstOutcome>,
}

/// The first counted outcome after a revival. A snooze or a release does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstOutcome {
    /// The job succeeded.
    Succeeded,
    /// The job failed, or expired, with another cause than before.
    Failed,
    /// The job failed, or expired, with the cause that it had died of before.
    FailedAlike,
}

/// The result of a revival by a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevivalResult {
    /// It has no counted outcome yet.
    Pending,
    /// It succeeded, if not at once.
    Recovered,
    /// Its first outcome was a failure, and it has not succeeded since.
    FailedAgain,
    /// It was cancelled, removed or revived by someone else before it had an outcome.
    Gone,
}

/// How many jobs of an action have which result. The sum of the first four is the number of jobs
/// that the action changed. A bulk action, unlike a replay, does not follow its jobs: each of them
/// is gone at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActionTally {
    /// Jobs with the result [`RevivalResult::Pending`].
    pub pending: u64,
    /// Jobs with the result [`RevivalResult::Recovered`].
    pub recovered: u64,
    /// Jobs with the result [`RevivalResult::FailedAgain`].
    pub failed_again: u64,
    /// Jobs with the result [`RevivalResult::Gone`], and all jobs of a bulk action.
    pub gone: u64,
    /// Jobs whose first outcome was a success.
    pub first_succeeded: u64,
    /// Jobs whose first outcome was a failure with another cause.
    pub first_failed: u64,
    /// Jobs whose first outcome was a failure with the same cause as before.
    pub first_failed_alike: u64,
}

/// A number of a [`ActionTally`]. Drivers that store the numbers as rows use its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionCount {
    /// Jobs with the result [`RevivalResult::Pending`].
    Pending,
    /// Jobs with the result [`RevivalResult::Recovered`].
    Recovered,
    /// Jobs with the result [`RevivalResult::FailedAgain`].
    FailedAgain,
    /// Jobs with the result [`RevivalResult::Gone`].
    Gone,
    /// Jobs with the first outcome [`FirstOutcome::Succeeded`].
    FirstSucceeded,
    /// Jobs with the first outcome [`FirstOutcome::Failed`].
    FirstFailed,
    /// Jobs with the first outcome [`FirstOutcome::FailedAlike`].
    FirstFailedAlike,
}

string_enum!(ActionCount {
    Pending = "pending",
    Recovered = "recovered",
    FailedAgain = "failed_again",
    Gone = "gone",
    FirstSucceeded = "first_succeeded",
    FirstFailed = "first_failed",
    FirstFailedAlike = "first_failed_alike",
});

impl From<RevivalResult> for ActionCount {
    fn from(result: RevivalResult) -> Self {
        match result {
            RevivalResult::Pending => ActionCount::Pending,
            RevivalResult::Recovered => ActionCount::Recovered,
            RevivalResult::FailedAgain => ActionCount::FailedAgain,
            RevivalResult::Gone => ActionCount::Gone,
        }
    }
}

impl From<FirstOutcome> for ActionCount {
    fn from(outcome: FirstOutcome) -> Self {
        match outcome {
            FirstOutcome::Succeeded => ActionCount::FirstSucceeded,
            FirstOutcome::Failed => ActionCount::FirstFailed,
            FirstOutcome::FailedAlike => ActionCount::FirstFailedAlike,
        }
    }
}

impl ActionTally {
    /// How many jobs the action changed.
    pub fn changed(&self) -> u64 {
        self.pending + self.recovered + self.failed_again + self.gone
    }

    /// Adds to one of the counts.
    pub fn add(&mut self, count: ActionCount, by: i64) {
        let value = match count {
            ActionCount::Pending => &mut self.pending,
            ActionCount::Recovered => &mut self.recovered,
            ActionCount::FailedAgain => &mut self.failed_again,
            ActionCount::Gone => &mut self.gone,
            ActionCount::FirstSucceeded => &mut self.first_succeeded,
            ActionCount::FirstFailed => &mut self.first_failed,
            ActionCount::FirstFailedAlike => &mut self.first_failed_alike,
        };
        *value = value.saturating_add_signed(by);
    }
}

impl Job {
    /// The replay that last revived the job, and its result.
    pub fn revival_result(&self) -> Option<(ActionId, RevivalResult)> {
        let revived = self.interventions.revived.as_ref()?;
        let final_state = match &self.state_details {
            StateDetails::Finished(Finish { state, .. }) => Some(state),
            _ => None,
        };
        let result = match (final_state, revived.first_outcome) {
            (Some(FinalState::Succeeded(_)), _) => RevivalResult::Recovered,
            (_, Some(FirstOutcome::Failed | FirstOutcome::FailedAlike)) => {
                RevivalResult::FailedAgain
            }
            (Some(FinalState::Cancelled), _) => RevivalResult::Gone,
            _ => RevivalResult::Pending,
        };
        Some((revived.by?, result))
    }

    /// The cause of the last failure, also of a job that counts in the group `other`.
    pub fn own_cause(&self) -> Option<Fingerprint> {
        self.interventions.ungrouped_cause.or(self.fingerprint)
    }

    /// Sets the cause of a failure. The store decides later whether it gets a group of its own.
    pub(crate) fn set_cause(&mut self, cause: Option<Fingerprint>) {
        self.fingerprint = cause;
        self.interventions.ungrouped_cause = None;
    }

    /// Counts the job in the group `other`, because there is no space for the group of its cause.
    pub fn count_as_other(&mut self) {
        self.interventions.ungrouped_cause = self.own_cause();
        self.fingerprint = Some(Fingerprint::OTHER);
    }

    /// Remembers the first counted outcome since the last revival. Call it after
    /// [`Job::fingerprint`] is set.
    pub(crate) fn note_first_outcome(&mut self, outcome: Outcome) {
        let fingerprint = self.fingerprint;
        let Some(revived) = &mut self.interventions.revived else {
            return;
        };
        let first = match outcome {
            Outcome::Succeeded => FirstOutcome::Succeeded,
            outcome if !outcome.counts_as_failure() => return,
            _ if revived.cause.is_some() && revived.cause == fingerprint => {
                FirstOutcome::FailedAlike
            }
            _ => FirstOutcome::Failed,
        };
        revived.first_outcome.get_or_insert(first);
    }
}

/// How the counts of replays change when a job changes from `before` to `after`; `None` if the job
/// is removed. Results are final for a replay once the job leaves it: only a pending job is then
/// counted as gone.
pub fn revival_changes(before: &Job, after: Option<&Job>) -> Vec<(ActionId, ActionCount, i64)> {
    let old = before.revival_result();
    let new = after.and_then(Job::revival_result);
    let mut changes = Vec::new();
    match (old, new) {
        (Some((action, old)), Some((same, new))) if action == same => {
            if old != new {
                changes.push((action, old.into(), -1));
                changes.push((action, new.into(), 1));
            }
        }
        (old, new) => {
            if let Some((action, RevivalResult::Pending)) = old {
                changes.push((action, ActionCount::Pending, -1));
                changes.push((action, ActionCount::Gone, 1));
            }
            changes.extend(new.map(|(action, new)| (action, new.into(), 1)));
        }
    }
    let first = |job: &Job| {
        let revived = job.interventions.revived.as_ref()?;
        Some((revived.by?, revived.first_outcome?))
    };
    let new = after.and_then(first);
    if let Some((action, first_outcome)) = new.filter(|_| first(before) != new) {
        changes.push((action, first_outcome.into(), 1));
    }
    changes
}
