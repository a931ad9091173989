//! Bulk actions and replays: objects in the store that any process can carry on.
//!
//! An action is a document. Unfinished actions are in one small collection that every
//! [`ActionRunner`] polls; an ended one moves to another collection, where it expires. A runner
//! holds an action by a lease inside the document and writes its progress there. What happened to
//! each job is written with the job itself, so a runner that dies between changing jobs and writing
//! its progress repeats nothing: a job remembers the last action that changed it. The store counts the
//! changed jobs in the same step, so their number is exact too.

mod count;
mod document;
mod runner;
mod step;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::warn;
use windlass_core::{
    ActionCommand, ActionId, ActionState, ActionTally, BulkChange, BulkRevival, Filter, Invalid,
    Job, JobId, ReplayProgress, ReplayRules, Timestamp,
};
use windlass_store::{Change, Changed, PAGE_MAX, StoreError};

use crate::audit::{Actor, Audit};
use crate::engine::Engine;
use crate::event::{ActionEvent, Event};
use crate::ids::Origin;

pub(crate) use document::live as live_actions;
pub use document::{Action, ItemFailure};
pub use runner::{ActionRunner, ActionRunnerConfig, Activity};

/// The most actions that are not ended.
const LIVE_MAX: usize = 100;

/// The most characters of a reason.
const REASON_CHARS_MAX: usize = 500;

/// The most bytes of a change with its patches. It is written with every step.
const CHANGE_BYTES_MAX: usize = 64 * 1024;

/// The most jobs that a preview shows.
const SAMPLES_MAX: usize = 5;

/// What an action does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Work {
    /// Makes one change to every job.
    Bulk {
        /// The change.
        change: BulkChange,
        /// The most jobs per second; without limit if not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        rate: Option<u32>,
    },
    /// Revives dead jobs step by step, and stops itself when they fail again.
    Replay {
        /// How to revive a job.
        revival: BulkRevival,
        /// How to proceed, and when to stop.
        rules: ReplayRules,
        /// How far it is.
        progress: ReplayProgress,
    },
}

impl Work {
    /// A replay that revives each job as usual.
    pub fn replay(rules: ReplayRules) -> Self {
        Work::Replay {
            revival: BulkRevival::default(),
            rules,
            progress: ReplayProgress::default(),
        }
    }

    /// Whether this is a replay.
    pub fn is_replay(&self) -> bool {
        matches!(self, Work::Replay { .. })
    }

    /// The first word of its audit records.
    fn noun(&self) -> &'static str {
        match self {
            Work::Bulk { .. } => "bulk_action",
            Work::Replay { .. } => "replay",
        }
    }

    /// The change to each job.
    pub fn bulk_change(&self) -> BulkChange {
        match self {
            Work::Bulk { change, .. } => change.clone(),
            Work::Replay { revival, .. } => BulkChange::Revive(revival.clone()),
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        store_change(&self.bulk_change()).check()?;
        let text = serde_json::to_string(&self.bulk_change()).unwrap_or_default();
        if text.len() > CHANGE_BYTES_MAX {
            let rule = format!("must have at most {CHANGE_BYTES_MAX} bytes of JSON");
            return Err(Invalid::new("patch", rule));
        }
        match self {
            Work::Bulk { rate: Some(0), .. } => {
                Err(Invalid::new("rate", "must be at least 1 per second"))
            }
            Work::Bulk { .. } => Ok(()),
            Work::Replay { rules, .. } => rules.check(),
        }
    }
}

/// An action to create.
#[derive(Debug, Clone)]
pub struct NewAction {
    /// Which jobs.
    pub filter: Filter,
    /// What to do with them.
    pub work: Work,
    /// Why: 1 to 500 characters, for the audit log and for other operators.
    pub reason: String,
}

/// What an action would do.
#[derive(Debug, Clone)]
pub struct ActionPreview {
    /// How many jobs match.
    pub matched: u64,
    /// Whether all jobs were examined. If not, more may match.
    pub is_complete: bool,
    /// The first jobs, each with what the action would make of it.
    pub samples: Vec<(Job, Result<Option<Job>, Changed>)>,
}

/// An action with what the store counts for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionStatus {
    /// The action.
    pub action: Action,
    /// How many jobs it changed; for a replay with their results.
    pub tally: ActionTally,
}

impl ActionStatus {
    /// How many jobs the action changed.
    pub fn done(&self) -> u64 {
        self.tally.changed()
    }

    /// How many jobs it has not touched yet.
    pub fn to_do(&self) -> u64 {
        self.action.matched.saturating_sub(self.touched())
    }

    /// How many jobs match. A job that changed in the same moment in which the action was created
    /// may be changed without having been counted.
    pub fn matched(&self) -> u64 {
        self.action.matched.max(self.touched())
    }

    fn touched(&self) -> u64 {
        self.done() + self.action.skipped_total()
    }
}

/// Why an action could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// A value breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such action.
    #[error("no bulk action or replay has the id {0}")]
    NotFound(ActionId),
    /// The command does not apply to the state of the action.
    #[error("cannot {command} an action that is {state}")]
    Conflict {
        /// The command.
        command: ActionCommand,
        /// The state of the action.
        state: ActionState,
    },
    /// Too many actions are not ended.
    #[error("{LIVE_MAX} actions are not finished yet; abort or finish some of them first")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Creates, reads and controls bulk actions and replays.
#[derive(Debug, Clone)]
pub struct Actions {
    engine: Arc<Engine>,
    audit: Audit,
}

impl Actions {
    /// The actions of the engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Actions {
            audit: Audit::new(Arc::clone(&engine)),
            engine,
        }
    }

    /// Creates an action. It is frozen: jobs that are newer, or whose state changes from now on,
    /// are left alone. Runners start it at once.
    pub async fn create(&self, new: NewAction, actor: &Actor) -> Result<Action, ActionError> {
        self.create_from(new, actor, &self.origin()).await
    }

    /// Like [`Actions::create`], with the time and the id of an origin. An origin that comes again
    /// creates no second action.
    pub async fn create_from(
        &self,
        new: NewAction,
        actor: &Actor,
        origin: &Origin,
    ) -> Result<Action, ActionError> {
        let action = frozen(new, actor, origin)?;
        if origin.repeats
            && let Some(action) = document::find(&self.engine, action.id).await?
        {
            return Ok(action);
        }
        if document::live(&self.engine).await?.len() >= LIVE_MAX {
            return Err(ActionError::TooMany);
        }
        let action = count::first_part(&self.engine, action).await?;
        // The record comes first: an action must not run without one.
        self.write_record(&action, "create", actor).await?;
        document::insert(&self.engine, &action).await?;
        self.engine.actions_changed().notify_waiters();
        Ok(action)
    }

    fn origin(&self) -> Origin {
        Origin {
            now: self.engine.now(),
            seed: self.engine.ids().bits(),
            repeats: false,
        }
    }

    /// Returns what an action would do, without creating it.
    pub async fn preview(&self, new: NewAction) -> Result<ActionPreview, ActionError> {
        let actor = Actor {
            id: String::new(),
            name: String::new(),
        };
        let action = frozen(new, &actor, &self.origin())?;
        let counted = count::first_part(&self.engine, action).await?;
        let page = windlass_store::Page::after(Some(counted.newest_id()), SAMPLES_MAX);
        let store = self.engine.store();
        let listed = store
            .list(&counted.filter, page, counted.created_at)
            .await?;
        let change = step::change_of(&counted.work);
        let preview = |job: Job| {
            let changed = step::preview(&job, &change, counted.created_at);
            (job, changed)
        };
        Ok(ActionPreview {
            matched: counted.matched,
            is_complete: counted.is_counted(),
            samples: listed.jobs.into_iter().map(preview).collect(),
        })
    }

    /// Returns an action.
    pub async fn get(&self, id: ActionId) -> Result<ActionStatus, ActionError> {
        let action = document::find(&self.engine, id).await?;
        let action = action.ok_or(ActionError::NotFound(id))?;
        self.status(action).await
    }

    async fn status(&self, action: Action) -> Result<ActionStatus, ActionError> {
        let tally = self.engine.store().action_tally(action.id).await?;
        Ok(ActionStatus { action, tally })
    }

    /// Returns replays, or all other actions, newest first, older than `before`.
    pub async fn list(
        &self,
        replays: bool,
        before: Option<ActionId>,
        limit: usize,
    ) -> Result<Vec<ActionStatus>, ActionError> {
        let mut listed = Vec::new();
        for id in document::ids(&self.engine).await?.into_iter().rev() {
            if listed.len() >= limit.min(PAGE_MAX) {
                break;
            }
            if before.is_some_and(|before| id >= before) {
                continue;
            }
            let action = match document::find(&self.engine, id).await {
                Err(StoreError::Damaged { .. }) => None, // a newer version wrote it
                found => found?,
            };
            if let Some(action) = action.filter(|action| action.work.is_replay() == replays) {
                listed.push(self.status(action).await?);
            }
        }
        Ok(listed)
    }

    /// Pauses, resumes, aborts or continues an action.
    pub async fn command(
        &self,
        id: ActionId,
        command: ActionCommand,
        actor: &Actor,
    ) -> Result<ActionStatus, ActionError> {
        let now = self.engine.now();
        let change = |action: &mut Action| {
            let state = action.state;
            let next = state
                .after(command)
                .filter(|_| command != ActionCommand::Continue || action.work.is_replay());
            let next = next.ok_or(ActionError::Conflict { command, state })?;
            action.command(next, command, now);
            Ok(())
        };
        let action = document::update(&self.engine, id, change).await?;
        if action.state.is_final() {
            document::archive(&self.engine, id).await?;
        }
        self.record(&action, command.name(), actor).await;
        self.engine.actions_changed().notify_waiters();
        self.status(action).await
    }

    async fn record(&self, action: &Action, what: &str, actor: &Actor) {
        if let Err(error) = self.write_record(action, what, actor).await {
            warn!(%error, action.id = %action.id, what, "writing the audit record failed");
        }
    }

    async fn write_record(
        &self,
        action: &Action,
        what: &str,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let detail = json!({
            "filter": action.filter.without_values(),
            "action": action.work.bulk_change().name(),
            "reason": action.reason,
            "matched": action.matched,
        });
        let target = action.id.to_string();
        let name = format!("{}.{what}", action.work.noun());
        self.audit.write(actor, &name, &target, detail).await
    }
}

/// Checks a new action and freezes it.
fn frozen(new: NewAction, actor: &Actor, origin: &Origin) -> Result<Action, Invalid> {
    let length = new.reason.chars().count();
    if length == 0 || length > REASON_CHARS_MAX {
        let rule = format!("must have 1 to {REASON_CHARS_MAX} characters");
        return Err(Invalid::new("reason", rule));
    }
    new.work.check()?;
    let filter = new.work.bulk_change().check_filter(new.filter)?;
    let now = origin.now;
    let id = origin.ids().action(now);
    let by = format!("{} ({})", actor.name, actor.id);
    Ok(Action::new(id, filter, new.work, new.reason, by, now))
}

impl Engine {
    pub(crate) fn emit_action(&self, action: &Action, what: ActionEvent, at: Timestamp) {
        self.emit(|| Event::Action {
            at,
            id: action.id,
            is_replay: action.work.is_replay(),
            what,
        });
    }
}

/// The change of one job that a step makes.
pub(crate) fn store_change(change: &BulkChange) -> Change {
    match change {
        BulkChange::Revive(revival) => Change::Revive(revival.revival()),
        BulkChange::RunNow => Change::RunNow,
        BulkChange::Cancel => Change::Cancel,
        BulkChange::Delete => Change::Purge,
        BulkChange::Resolve => Change::Resolve,
        BulkChange::Patch { patch } => Change::Patch(patch.clone()),
        BulkChange::Move { .. } | BulkChange::Reprioritise { .. } => {
            Change::Edit(change.edit().unwrap_or_default())
        }
    }
}

/// An id that is not older than any job enqueued at `at`.
fn newest_id(at: Timestamp) -> JobId {
    let end_of_micro = at.saturating_add(std::time::Duration::from_micros(1));
    JobId::new(end_of_micro, 0)
}
