//! One step of an action: finds the next jobs and changes them.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_core::{
    Consent, DeadReason, Job, JobId, QueueName, SkipReason, State, Timestamp, WaitingFor,
};
use windlass_store::{ActionStep, Change, Changed, Page, StoreError};

use super::document::Action;
use super::{Work, store_change};
use crate::engine::Engine;

/// The most held jobs of one step. They are not read as a list, which bounds its bytes.
const HELD_MAX: usize = 64;

/// What a step did.
#[derive(Debug, Default)]
pub(super) struct StepResult {
    /// How many jobs were changed.
    pub(super) changed: u64,
    /// How many jobs were looked at.
    pub(super) seen: usize,
    /// How long the store took to change them. Lists do not count: they delay no other write.
    pub(super) change_time: Duration,
}

/// The change that an action makes to each job.
pub(super) fn change_of(work: &Work) -> Change {
    store_change(&work.bulk_change())
}

/// Changes up to `limit` of the next jobs, and counts those that it leaves alone in the action.
pub(super) async fn take(
    engine: &Engine,
    action: &mut Action,
    limit: usize,
) -> Result<StepResult, StoreError> {
    action.waiting_for = None;
    action.waiting_queue = None;
    let jobs = next_jobs(engine, action, limit).await?;
    let paused = if action.work.is_replay() {
        paused_queues(engine).await?
    } else {
        BTreeSet::new()
    };
    let (held, ready): (Vec<Job>, Vec<Job>) = jobs
        .into_iter()
        .partition(|job| paused.contains(&job.queue));
    let mut result = StepResult {
        changed: 0,
        seen: held.len() + ready.len(),
        change_time: Duration::ZERO,
    };
    for job in held {
        hold(action, &job, WaitingFor::QueuePaused);
    }
    let step = ActionStep {
        action: action.id,
        frozen_at: action.created_at,
        is_replay: action.work.is_replay(),
        seen: ready
            .iter()
            .map(|job| (job.id, (job.state(), job.attempt)))
            .collect(),
    };
    let change = change_of(&action.work);
    let ids: Vec<JobId> = ready.iter().map(|job| job.id).collect();
    let started = engine.clock().elapsed();
    let mut answers = engine.change_as(&ids, &change, Some(&step)).await;
    if let Err(StoreError::Indeterminate(_)) = &answers {
        // The jobs remember the action, so a second call changes nothing twice.
        answers = engine.change_as(&ids, &change, Some(&step)).await;
    }
    let answers = answers?;
    result.change_time = engine.clock().elapsed().saturating_sub(started);
    for (job, answer) in ready.iter().zip(answers) {
        result.changed += u64::from(note(action, job, &change, answer));
    }
    Ok(result)
}

/// Takes the jobs that were held back, or the next ones of the walk.
async fn next_jobs(
    engine: &Engine,
    action: &mut Action,
    limit: usize,
) -> Result<Vec<Job>, StoreError> {
    let store = engine.store();
    if !action.held.is_empty() {
        let limit = limit.min(HELD_MAX).min(action.held.len());
        let later = action.held.split_off(limit);
        let held = std::mem::replace(&mut action.held, later);
        let found = store.get(&held).await?;
        for (id, job) in held.iter().zip(&found) {
            if job.is_none() {
                action.skip(*id, SkipReason::Gone, None);
            }
        }
        return Ok(found.into_iter().flatten().collect());
    }
    let Some(after) = action.walk_after else {
        return Ok(Vec::new());
    };
    let page = Page::after(Some(after), limit);
    let listed = store.list(&action.filter, page, action.created_at).await?;
    action.walk_after = listed.next.map(|next| next.id);
    // A job that changed since may not have matched before. Those that did are missing in the end,
    // and are counted as changed then.
    let mut jobs = listed.jobs;
    jobs.retain(|job| action.is_unchanged(job));
    Ok(jobs)
}

async fn paused_queues(engine: &Engine) -> Result<BTreeSet<QueueName>, StoreError> {
    let queues = engine.store().queues().await?;
    let paused = queues
        .into_iter()
        .filter(|(_, limits)| limits.paused.is_some());
    Ok(paused.map(|(queue, _)| queue).collect())
}

fn hold(action: &mut Action, job: &Job, waiting_for: WaitingFor) {
    action.held.push(job.id);
    action.waiting_for = Some(waiting_for);
    action.waiting_queue = Some(job.queue.clone());
}

/// Counts the job if it was left alone. Returns whether the action has changed it: the store counts
/// those.
///
/// A job that has changed since, or that is removed, may have been changed by a runner that could
/// not write its progress. Such jobs are counted at the end: they are those that are missing then.
fn note(action: &mut Action, job: &Job, change: &Change, answer: Changed) -> bool {
    let skipped = match answer {
        Changed::Now(_) | Changed::Removed | Changed::Repeated(_) => return true,
        Changed::ChangedSince(_) => return false,
        Changed::NotFound if matches!(change, Change::Purge) => return false,
        Changed::QueueFull { .. } => {
            hold(action, job, WaitingFor::QueueFull);
            return false;
        }
        Changed::PatchFailed { reason } => (SkipReason::Patch, Some(reason)),
        Changed::Unreadable => {
            let error = "this version cannot read the job; a newer version may have written it";
            (SkipReason::Unreadable, Some(error.to_owned()))
        }
        Changed::KeyTaken(_) => {
            let error = "another job holds the unique key";
            (SkipReason::KeyTaken, Some(error.to_owned()))
        }
        Changed::Conflict(state) if needs_force(change, state) => {
            let error = "the job may have run; it needs `force`";
            (SkipReason::LostNeedsForce, Some(error.to_owned()))
        }
        Changed::Conflict(_) => (SkipReason::Changed, None),
        Changed::NotFound => (SkipReason::Gone, None),
    };
    action.skip(job.id, skipped.0, skipped.1);
    false
}

fn needs_force(change: &Change, state: State) -> bool {
    let is_lost = state == State::Dead(DeadReason::Lost);
    is_lost && matches!(change, Change::Revive(revival) if revival.consent == Consent::NotGiven)
}

/// What a change would make of a job: `None` if it would remove it. Unique keys and full queues are
/// not checked.
pub(super) fn preview(job: &Job, change: &Change, now: Timestamp) -> Result<Option<Job>, Changed> {
    let mut after = job.clone();
    let conflict = |conflict: windlass_core::Conflict| Changed::Conflict(conflict.state);
    match change {
        Change::Cancel => after.cancel(now).map_err(conflict)?,
        Change::RunNow => after.run_now(now).map_err(conflict)?,
        Change::Resolve => after.resolve(now).map_err(conflict)?,
        Change::Edit(edit) => after.edit(edit.clone()).map_err(conflict)?,
        Change::Patch(patch) => after.patch(patch)?,
        Change::Revive(revival) => after.revive(revival.clone(), None, now)?,
        Change::Purge if job.state().is_final() => return Ok(None),
        Change::Purge => return Err(Changed::Conflict(job.state())),
    }
    Ok(Some(after))
}
