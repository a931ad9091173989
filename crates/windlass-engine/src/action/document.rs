//! The stored form of an action.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{
    ActionCommand, ActionId, ActionState, Filter, Job, JobId, QueueName, SkipReason, StopReason,
    Timestamp, WaitingFor,
};
use windlass_store::{Document, Expected, PAGE_MAX, StoreError, compare_and_set};

use super::{ActionError, Work, newest_id};
use crate::engine::Engine;

/// The collection of actions that are not ended.
const LIVE: &str = "actions";
/// The collection of ended actions.
const ENDED: &str = "ended-actions";
/// How long ended actions are kept. 30 days.
const ENDED_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The most failures of single jobs that an action remembers. It counts all of them.
const FAILURES_MAX: usize = 100;

/// The most characters of such a failure.
const ERROR_CHARS_MAX: usize = 500;

/// A bulk action or a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The id.
    pub id: ActionId,
    /// Which jobs it changes.
    pub filter: Filter,
    /// What it does with them.
    pub work: Work,
    /// Why, in the words of the operator.
    pub reason: String,
    /// Who created it.
    pub created_by: String,
    /// When it was created. Jobs that are newer or changed later are left alone.
    pub created_at: Timestamp,
    /// The state.
    pub state: ActionState,
    /// Why it stopped itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// When it stopped itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// How many jobs matched when it was created.
    pub matched: u64,
    /// How many jobs it left alone, by reason.
    #[serde(default)]
    pub skipped: BTreeMap<SkipReason, u64>,
    /// The first failures of single jobs.
    #[serde(default)]
    pub failures: Vec<ItemFailure>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// The queue that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_queue: Option<QueueName>,
    /// Where counting continues; `None` once all matching jobs are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) count_after: Option<JobId>,
    /// Where the walk over the jobs continues; `None` once it has seen all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) walk_after: Option<JobId>,
    /// Jobs that the walk has seen, but that have to wait for their queue.
    #[serde(default)]
    pub(super) held: Vec<JobId>,
    /// Up to when the rate is used up.
    pub(super) paced_at: Timestamp,
    /// Whether its end, or its stop, was emitted and audited.
    #[serde(default)]
    pub(super) is_reported: bool,
    /// The runner that carries it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<ActionLease>,
}

/// The right of one runner to carry an action on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ActionLease {
    pub(super) holder: String,
    pub(super) until: Timestamp,
}

/// A job that an action could not change, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemFailure {
    /// The job.
    pub job_id: JobId,
    /// The reason.
    pub reason: SkipReason,
    /// What went wrong.
    pub error: String,
}

impl Action {
    pub(super) fn new(
        id: ActionId,
        filter: Filter,
        work: Work,
        reason: String,
        created_by: String,
        now: Timestamp,
    ) -> Self {
        Action {
            id,
            filter,
            work,
            reason,
            created_by,
            created_at: now,
            state: ActionState::Running,
            stop_reason: None,
            stopped_at: None,
            ended_at: None,
            matched: 0,
            skipped: BTreeMap::new(),
            failures: Vec::new(),
            waiting_for: None,
            waiting_queue: None,
            count_after: Some(newest_id(now)),
            walk_after: Some(newest_id(now)),
            held: Vec::new(),
            paced_at: now,
            is_reported: false,
            lease: None,
        }
    }

    /// The first position of the walk: no job that existed at the creation is newer.
    pub(super) fn newest_id(&self) -> JobId {
        newest_id(self.created_at)
    }

    /// Whether all matching jobs are counted.
    pub fn is_counted(&self) -> bool {
        self.count_after.is_none()
    }

    /// Whether the state of a job has not changed since the action was created.
    pub(super) fn is_unchanged(&self, job: &Job) -> bool {
        job.changed_at() <= self.created_at
    }

    /// Whether another runner holds the action at `now`.
    pub(super) fn is_held_by_other(&self, holder: &str, now: Timestamp) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.holder != holder && lease.until > now)
    }

    /// Whether no job is left to change.
    pub(super) fn is_walked(&self) -> bool {
        self.walk_after.is_none() && self.held.is_empty()
    }

    /// How many jobs it left alone.
    pub fn skipped_total(&self) -> u64 {
        self.skipped.values().sum()
    }

    /// Counts a job that is left alone.
    pub(super) fn skip(&mut self, job_id: JobId, reason: SkipReason, error: Option<String>) {
        *self.skipped.entry(reason).or_default() += 1;
        if let Some(error) = error.filter(|_| self.failures.len() < FAILURES_MAX) {
            self.failures.push(ItemFailure {
                job_id,
                reason,
                error: error.chars().take(ERROR_CHARS_MAX).collect(),
            });
        }
    }

    /// Applies a command of a person.
    pub(super) fn command(&mut self, next: ActionState, command: ActionCommand, now: Timestamp) {
        self.state = next;
        self.waiting_for = None;
        self.waiting_queue = None;
        if let (ActionCommand::Continue, Work::Replay { progress, .. }) = (command, &mut self.work)
        {
            progress.restart();
            self.stop_reason = None;
            self.stopped_at = None;
        }
        self.ended_at = next.is_final().then_some(now);
        self.is_reported = next.is_final(); // the person who ended it knows
    }

    /// Stops a replay by one of its rules.
    pub(super) fn stop(&mut self, reason: StopReason, now: Timestamp) {
        self.state = ActionState::Stopped;
        self.stop_reason = Some(reason);
        self.stopped_at = Some(now);
        self.waiting_for = None;
        self.waiting_queue = None;
    }

    /// Ends the action. Jobs that matched but were not found again have changed in the meantime.
    pub(super) fn finish(&mut self, done: u64, now: Timestamp) {
        let missing = self.matched.saturating_sub(done + self.skipped_total());
        if missing > 0 {
            *self.skipped.entry(SkipReason::Changed).or_default() += missing;
        }
        self.state = ActionState::Finished;
        self.waiting_for = None;
        self.waiting_queue = None;
        self.ended_at = Some(now);
    }

    /// Takes over the progress that a runner made while a person may have changed the state.
    fn merge(&mut self, progress: &Action) {
        let state = if self.state == ActionState::Running {
            progress.state
        } else {
            self.state
        };
        let (stop_reason, stopped_at) = (self.stop_reason, self.stopped_at);
        let ended_at = self.ended_at;
        *self = progress.clone();
        if state != progress.state {
            (self.stop_reason, self.stopped_at) = (stop_reason, stopped_at);
            (self.state, self.ended_at) = (state, ended_at);
            self.waiting_for = None;
            self.waiting_queue = None;
        }
    }
}

/// Returns the actions that are not ended. An unreadable one, which a newer version wrote, is left
/// out.
pub(crate) async fn live(engine: &Engine) -> Result<Vec<Action>, StoreError> {
    let documents = engine.store().documents(LIVE, engine.now()).await?;
    Ok(documents
        .iter()
        .filter_map(|document| read(document).ok())
        .collect())
}

/// Returns the ids of all actions, the oldest first.
pub(super) async fn ids(engine: &Engine) -> Result<Vec<ActionId>, StoreError> {
    let (store, now) = (engine.store(), engine.now());
    let mut ids = Vec::new();
    for collection in [LIVE, ENDED] {
        let mut after = String::new();
        loop {
            let names = store
                .document_names(collection, &after, PAGE_MAX, now)
                .await?;
            ids.extend(
                names
                    .iter()
                    .filter_map(|name| name.parse::<ActionId>().ok()),
            );
            match names.last() {
                Some(last) if names.len() == PAGE_MAX => after.clone_from(last),
                _ => break,
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

pub(super) async fn find(engine: &Engine, id: ActionId) -> Result<Option<Action>, StoreError> {
    let (store, now) = (engine.store(), engine.now());
    // An action is added to the second collection before it leaves the first.
    for collection in [LIVE, ENDED] {
        if let Some(document) = store.document(collection, &id.to_string(), now).await? {
            return read(&document).map(Some);
        }
    }
    Ok(None)
}

/// Stores a new action, unless it exists: an insert whose result is unknown can be repeated.
pub(super) async fn insert(engine: &Engine, action: &Action) -> Result<(), StoreError> {
    let (name, value) = (action.id.to_string(), json(action));
    let store = engine.store();
    let absent = Expected::Absent;
    let written = store.put_document(LIVE, &name, &value, absent, None, engine.now());
    written.await.map(|_| ())
}

/// Changes a live action: reads it, applies `change` and writes it, until no one interferes.
pub(super) async fn update(
    engine: &Engine,
    id: ActionId,
    change: impl Fn(&mut Action) -> Result<(), ActionError>,
) -> Result<Action, ActionError> {
    let (store, name) = (engine.store(), id.to_string());
    compare_and_set(contended, || async {
        let now = engine.now();
        let Some(document) = store.document(LIVE, &name, now).await? else {
            let mut ended = find(engine, id).await?.ok_or(ActionError::NotFound(id))?;
            change(&mut ended)?;
            return Err(ActionError::NotFound(id));
        };
        let mut action = read(&document)?;
        change(&mut action)?;
        let (value, expected) = (json(&action), Expected::Version(document.version));
        let written = store.put_document(LIVE, &name, &value, expected, None, now);
        Ok(written.await?.version().map(|_| action))
    })
    .await
}

/// Takes the lease of an action for a runner, or returns `None` if another runner has it.
pub(super) async fn lease(
    engine: &Engine,
    id: ActionId,
    holder: &str,
    length: Duration,
) -> Result<Option<Action>, ActionError> {
    let now = engine.now();
    let is_ours = |action: &Action| {
        let half = now.saturating_add(length / 2);
        let lease = action.lease.as_ref();
        action.state == ActionState::Running
            && lease.is_some_and(|lease| lease.holder == holder && lease.until > half)
    };
    if let Some(action) = find(engine, id).await?.filter(is_ours) {
        return Ok(Some(action)); // no need to write
    }
    // Only one process at a time can open a store without a shared clock: a lease of another process
    // is one of a dead process.
    let is_exclusive = engine.store().time().await?.is_none();
    let take = |action: &mut Action| {
        let other = action.lease.as_ref().filter(|lease| lease.holder != holder);
        let is_alive =
            |lease: &&ActionLease| !is_exclusive || lease.holder.starts_with(engine.instance());
        let is_held = other
            .filter(is_alive)
            .is_some_and(|lease| lease.until > now);
        if is_held || action.state != ActionState::Running {
            return Err(ActionError::NotFound(id));
        }
        action.lease = Some(ActionLease {
            holder: holder.to_owned(),
            until: now.saturating_add(length),
        });
        Ok(())
    };
    match update(engine, id, take).await {
        Err(ActionError::NotFound(_)) => Ok(None),
        taken => taken.map(Some),
    }
}

/// Writes the progress of a runner and returns the action as it is now. If another runner has taken
/// over, nothing is written: the jobs themselves say what was done.
pub(super) async fn save(engine: &Engine, progress: &Action) -> Result<Action, ActionError> {
    let holder = |action: &Action| action.lease.as_ref().map(|lease| lease.holder.clone());
    let merge = |action: &mut Action| {
        if holder(action) == holder(progress) {
            action.merge(progress);
        }
        Ok(())
    };
    match update(engine, progress.id, merge).await {
        Err(ActionError::NotFound(id)) => {
            // A person ended it in the meantime: its figures are still to be written.
            let mut ended = find(engine, id).await?.ok_or(ActionError::NotFound(id))?;
            merge(&mut ended)?;
            put_ended(engine, &ended).await?;
            Ok(ended)
        }
        saved => saved,
    }
}

/// Gives an action up, so that another runner can try.
pub(super) async fn release(
    engine: &Engine,
    id: ActionId,
    holder: &str,
) -> Result<(), ActionError> {
    let release = |action: &mut Action| {
        action.lease = action.lease.take().filter(|lease| lease.holder != holder);
        Ok(())
    };
    match update(engine, id, release).await {
        Err(ActionError::NotFound(_)) => Ok(()),
        released => released.map(|_| ()),
    }
}

/// Marks the end of an action as reported.
pub(super) async fn mark_reported(engine: &Engine, id: ActionId) -> Result<(), ActionError> {
    let mark = |action: &mut Action| {
        action.is_reported = true;
        Ok(())
    };
    update(engine, id, mark).await.map(|_| ())
}

/// Moves an ended action to the collection where it expires.
pub(super) async fn archive(engine: &Engine, id: ActionId) -> Result<(), ActionError> {
    let (store, name) = (engine.store(), id.to_string());
    compare_and_set(contended, || async {
        let Some(document) = store.document(LIVE, &name, engine.now()).await? else {
            return Ok(Some(()));
        };
        put_ended(engine, &read(&document)?).await?;
        let expected = Expected::Version(document.version);
        let removed = store.remove_document(LIVE, &name, expected).await?;
        Ok(removed.version().map(|_| ()))
    })
    .await
}

async fn put_ended(engine: &Engine, action: &Action) -> Result<(), StoreError> {
    let (store, name, now) = (engine.store(), action.id.to_string(), engine.now());
    let (value, expires_at) = (json(action), Some(now.saturating_add(ENDED_KEPT)));
    let put = store.put_document(ENDED, &name, &value, Expected::Any, expires_at, now);
    put.await.map(|_| ())
}

fn json(action: &Action) -> serde_json::Value {
    serde_json::to_value(action).expect("an action is plain JSON")
}

fn read(document: &Document) -> Result<Action, StoreError> {
    Action::deserialize(&document.value).map_err(|error| StoreError::Damaged {
        what: format!("the action {}", document.name),
        cause: Some(error.into()),
    })
}

fn contended() -> ActionError {
    let reason = "other nodes keep writing this action; try again";
    ActionError::Store(StoreError::Unavailable(reason.into()))
}
