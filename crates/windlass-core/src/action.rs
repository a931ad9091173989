//! Bulk actions and replays: what they do to jobs, and how far they are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::string_enum;
use crate::{
    Consent, Edit, FailureCount, Filter, Invalid, ListedState, Patch, PayloadPatch, QueueName,
    Revival, RevivalChanges, Timestamp,
};

/// What a bulk action does to each job. A replay revives jobs too, but in a controlled way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum BulkChange {
    /// Makes dead or cancelled jobs run again.
    Revive(BulkRevival),
    /// Makes waiting jobs due now.
    RunNow,
    /// Cancels waiting jobs, and asks running ones to stop.
    Cancel,
    /// Removes finished jobs with their history.
    Delete,
    /// Moves waiting jobs to another queue.
    Move {
        /// The queue.
        queue: QueueName,
    },
    /// Gives waiting jobs another priority.
    Reprioritise {
        /// The priority.
        priority: i16,
    },
    /// Marks lost at-most-once jobs as succeeded.
    Resolve,
    /// Changes fields of jobs that wait, are dead or are cancelled.
    Patch {
        /// The fields.
        patch: Patch,
    },
}

/// How a bulk action or a replay revives jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BulkRevival {
    /// Whether the count of failures is kept. By default it is reset.
    pub keep_failures: bool,
    /// A patch of the payloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_patch: Option<PayloadPatch>,
    /// When the jobs are due; at once if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// Whether lost at-most-once jobs are revived too, although they may have run.
    pub force: bool,
    /// Other fields to change.
    #[serde(flatten)]
    pub changes: RevivalChanges,
}

impl BulkRevival {
    /// The revival of one job.
    pub fn revival(&self) -> Revival {
        Revival {
            failures: if self.keep_failures {
                FailureCount::Keep
            } else {
                FailureCount::Reset
            },
            run_at: self.run_at,
            payload: None,
            payload_patch: self.payload_patch.clone(),
            consent: if self.force {
                Consent::MayRunTwice
            } else {
                Consent::NotGiven
            },
            changes: self.changes.clone(),
        }
    }
}

impl BulkChange {
    /// The word of the action.
    pub const fn name(&self) -> &'static str {
        match self {
            BulkChange::Revive(_) => "revive",
            BulkChange::RunNow => "run_now",
            BulkChange::Cancel => "cancel",
            BulkChange::Delete => "delete",
            BulkChange::Move { .. } => "move",
            BulkChange::Reprioritise { .. } => "reprioritise",
            BulkChange::Resolve => "resolve",
            BulkChange::Patch { .. } => "patch",
        }
    }

    /// The edit of a job, if the action is one.
    pub fn edit(&self) -> Option<Edit> {
        match self {
            BulkChange::Move { queue } => Some(Edit {
                queue: Some(queue.clone()),
                ..Edit::default()
            }),
            BulkChange::Reprioritise { priority } => Some(Edit {
                priority: Some(*priority),
                ..Edit::default()
            }),
            _ => None,
        }
    }

    /// Completes and checks the filter of the action. The filter must have a condition, so that no
    /// one changes all jobs by accident. A revival means dead jobs unless it says otherwise.
    pub fn check_filter(&self, mut filter: Filter) -> Result<Filter, Invalid> {
        if filter == Filter::default() {
            return Err(Invalid::new("filter", "must have at least one condition"));
        }
        let final_states = [
            ListedState::Succeeded,
            ListedState::Dead,
            ListedState::Cancelled,
        ];
        match self {
            BulkChange::Revive(_) | BulkChange::Resolve => {
                filter.state = filter.state.or(Some(ListedState::Dead));
            }
            BulkChange::Delete
                if !filter
                    .state
                    .is_some_and(|state| final_states.contains(&state)) =>
            {
                let rule = "must be succeeded, dead or cancelled, because only finished jobs can be deleted";
                return Err(Invalid::new("filter.state", rule));
            }
            _ => {}
        }
        Ok(filter)
    }
}

/// The state of a bulk action or replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionState {
    /// It changes jobs.
    Running,
    /// A person paused it.
    Paused,
    /// It stopped itself by a stop rule. A person can continue or abort it.
    Stopped,
    /// It changed all jobs that it could.
    Finished,
    /// A person ended it.
    Aborted,
}

string_enum!(ActionState {
    Running = "running",
    Paused = "paused",
    Stopped = "stopped",
    Finished = "finished",
    Aborted = "aborted",
});

/// What a person does to a bulk action or replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionCommand {
    /// Pauses it.
    Pause,
    /// Resumes it after a pause.
    Resume,
    /// Ends it. Jobs that it changed stay as they are.
    Abort,
    /// Goes on after a stop, with a new canary.
    Continue,
}

string_enum!(ActionCommand {
    Pause = "pause",
    Resume = "resume",
    Abort = "abort",
    Continue = "continue",
});

impl ActionState {
    /// The state that a command leads to, or `None` if the command does not apply.
    pub fn after(self, command: ActionCommand) -> Option<ActionState> {
        match (self, command) {
            (ActionState::Running | ActionState::Paused, ActionCommand::Pause) => {
                Some(ActionState::Paused)
            }
            (ActionState::Running | ActionState::Paused, ActionCommand::Resume)
            | (ActionState::Stopped, ActionCommand::Continue) => Some(ActionState::Running),
            (
                ActionState::Running | ActionState::Paused | ActionState::Stopped,
                ActionCommand::Abort,
            ) => Some(ActionState::Aborted),
            _ => None,
        }
    }

    /// Whether the action is over.
    pub fn is_final(self) -> bool {
        matches!(self, ActionState::Finished | ActionState::Aborted)
    }
}

/// Why an action left a job alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// The job changed after the action was created, or no longer matches.
    Changed,
    /// The job was removed.
    Gone,
    /// Another job holds its unique key.
    KeyTaken,
    /// A lost at-most-once job may have run, and the action has no `force`.
    LostNeedsForce,
    /// The patch does not apply to its payload.
    Patch,
    /// This version cannot read the job.
    Unreadable,
}

string_enum!(SkipReason {
    Changed = "changed",
    Gone = "gone",
    KeyTaken = "key_taken",
    LostNeedsForce = "lost_needs_force",
    Patch = "patch",
    Unreadable = "unreadable",
});

/// How many jobs an action with this rate per second may change now, if it last did so at
/// `paced_at`. A pause is not made up for: at most what one second allows.
pub fn allowance(rate: u32, paced_at: Timestamp, now: Timestamp) -> u64 {
    let elapsed = now.since(paced_at).min(Duration::from_secs(1));
    u64::from(rate) * u64::try_from(elapsed.as_micros()).unwrap_or(0) / 1_000_000
}

/// The instant up to which `changed` jobs use the rate up.
pub fn paced_until(rate: u32, paced_at: Timestamp, changed: u64, now: Timestamp) -> Timestamp {
    let from = paced_at.max(now.saturating_sub(Duration::from_secs(1)));
    let micros = changed.saturating_mul(1_000_000) / u64::from(rate.max(1));
    from.saturating_add(Duration::from_micros(micros)).min(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    #[test]
    fn commands_apply_to_some_states() {
        use ActionState::{Aborted, Finished, Paused, Running, Stopped};
        for (state, command, next) in [
            (Running, ActionCommand::Pause, Some(Paused)),
            (Paused, ActionCommand::Resume, Some(Running)),
            (Stopped, ActionCommand::Resume, None),
            (Stopped, ActionCommand::Continue, Some(Running)),
            (Running, ActionCommand::Continue, None),
            (Stopped, ActionCommand::Abort, Some(Aborted)),
            (Finished, ActionCommand::Abort, None),
            (Aborted, ActionCommand::Resume, None),
        ] {
            assert_eq!(state.after(command), next, "{state} {command}");
        }
    }

    #[test]
    fn a_bulk_revival_revives_each_job_as_it_says() {
        let payload_patch = PayloadPatch::new(serde_json::json!({"a": 1})).unwrap();
        let bulk = BulkRevival {
            keep_failures: true,
            payload_patch: Some(payload_patch.clone()),
            run_at: Some(at("2026-01-01T00:00:00Z")),
            force: true,
            changes: RevivalChanges {
                priority: Some(7),
                ..RevivalChanges::default()
            },
        };
        let expected = Revival {
            failures: FailureCount::Keep,
            run_at: Some(at("2026-01-01T00:00:00Z")),
            payload: None,
            payload_patch: Some(payload_patch),
            consent: Consent::MayRunTwice,
            changes: bulk.changes.clone(),
        };
        assert_eq!(bulk.revival(), expected);
        assert_eq!(BulkRevival::default().revival(), Revival::default());
    }

    #[test]
    fn moves_and_new_priorities_are_edits() {
        let queue: QueueName = "other".parse().unwrap();
        let moved = BulkChange::Move {
            queue: queue.clone(),
        };
        let edit = Edit {
            queue: Some(queue),
            ..Edit::default()
        };
        assert_eq!(moved.edit(), Some(edit));
        let edit = Edit {
            priority: Some(-3),
            ..Edit::default()
        };
        assert_eq!(BulkChange::Reprioritise { priority: -3 }.edit(), Some(edit));
        assert_eq!(BulkChange::Cancel.edit(), None);
    }

    #[test]
    fn a_filter_is_completed_and_checked() {
        let revive = BulkChange::Revive(BulkRevival::default());
        let all = Filter::default();
        assert_eq!(
            revive.check_filter(all.clone()).unwrap_err().field(),
            "filter"
        );
        let kind = Filter {
            kind: Some("a".parse().unwrap()),
            ..all
        };
        let dead = revive.check_filter(kind.clone()).unwrap();
        assert_eq!(dead.state, Some(ListedState::Dead));
        let refused = BulkChange::Delete.check_filter(kind.clone()).unwrap_err();
        assert_eq!(refused.field(), "filter.state");
        assert_eq!(BulkChange::Cancel.check_filter(kind.clone()).unwrap(), kind);
    }

    #[test]
    fn a_rate_allows_what_the_elapsed_time_gives() {
        let (start, later) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00.1Z"));
        assert_eq!(allowance(500, start, later), 50);
        let paced = paced_until(500, start, 30, later);
        assert_eq!(allowance(500, paced, later), 20);
        let much_later = at("2026-01-01T01:00:00Z");
        assert_eq!(allowance(500, start, much_later), 500);
        assert_eq!(
            allowance(500, paced_until(500, start, 500, much_later), much_later),
            0
        );
        assert_eq!(
            allowance(500, later, start),
            0,
            "a clock that is behind allows nothing"
        );
    }
}
