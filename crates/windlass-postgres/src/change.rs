//! Changes that operators make to jobs: cancel, run now, resolve, revive, edit, patch, purge.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::{
    ActionCount, ActionId, Conflict, Edit, Event, Job, JobId, Patch, QueueName, Revival,
    RevivalChanges, State, Timestamp,
};
use windlass_store::stored::LastAttempt;
use windlass_store::{ActionStep, Attempt, Change, Changed};

use crate::claim::Claimable;
use crate::concurrency_key;
use crate::enqueue::{FreeDepths, free_depths};
use crate::error::{DriverError, DriverResult};
use crate::failure_group::{Entry, Groups};
use crate::param::params;
use crate::read::{DEAD, FINISHED, FoundJobs, JOBS, StoredJob, find};
use crate::row::uuids;
use crate::schedule;
use crate::session::Session;
use crate::settings::Settings;
use crate::tally_change::TallyChanges;
use crate::unique_key;
use crate::write::{self, Columns, JobOptions};

/// A change, and the action that it is a step of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) change: &'a Change,
    pub(crate) step: Option<&'a ActionStep>,
}

/// Changes jobs one after the other. Returns the answer for each, and the jobs that wait now, or
/// whose concurrency key became free.
pub(crate) async fn change(
    session: &mut Session,
    settings: &Settings,
    groups: &Groups,
    ids: &[JobId],
    order: Order<'_>,
    now: Timestamp,
) -> DriverResult<(Vec<Changed>, Vec<Claimable>)> {
    let change = order.change;
    if let Change::Purge = change {
        let answers = purge(session, settings, ids, order.step).await?;
        return Ok((answers, Vec::new()));
    }
    // Lock queues before jobs, in the same order as an enqueue, so that they cannot deadlock.
    let queues = queues_entered(session, ids, change).await?;
    let free_depths = if queues.is_empty() {
        FreeDepths::new()
    } else {
        free_depths(session, queues.iter().map(String::as_str)).await?
    };
    let found = find(session, settings, ids, true).await?;
    let mut batch = ChangeBatch::lock_keys(session, found, change, now).await?;
    batch.free_depths = free_depths;
    let answers: Vec<Changed> = ids.iter().map(|id| batch.change(*id, order, now)).collect();
    batch.enter_groups(session, groups, now).await?;
    let counted = order.step.and_then(|step| step.count(&answers));
    batch.write(session, change, counted, now).await?;
    // Also of jobs that stay as they are: an end of their key may just have passed their locked
    // rows.
    let active = batch.before.values().filter(|before| before.table == JOBS);
    let keys = concurrency_key::keys(active.map(|before| &before.job));
    let mut claimable = concurrency_key::unpark_and_commit(session, keys, now).await?;
    let changed = batch.changed.iter().filter_map(|id| batch.jobs.get(id));
    let waiting = changed.filter(|job| job.state() == State::Waiting);
    claimable.extend(waiting.map(write::claimable));
    Ok((answers, claimable))
}

/// Returns the queues that get additional waiting jobs by this change.
async fn queues_entered(
    session: &mut Session,
    ids: &[JobId],
    change: &Change,
) -> DriverResult<Vec<String>> {
    match change {
        Change::Revive(Revival {
            changes: RevivalChanges {
                queue: Some(queue), ..
            },
            ..
        }) => Ok(vec![queue.to_string()]),
        Change::Revive(_) => {
            let sql = "select queue from windlass.dead where id = any ($1)
                 union select queue from windlass.finished where id = any ($1)";
            let ids = uuids(ids.iter().copied());
            let rows = session.read(sql, params![ids]).await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        }
        Change::Edit(Edit { queue, .. }) | Change::Patch(Patch { queue, .. }) => {
            Ok(queue.iter().map(ToString::to_string).collect())
        }
        Change::Cancel | Change::RunNow | Change::Resolve | Change::Purge => Ok(Vec::new()),
    }
}

/// A batch of jobs, before and after the change.
struct ChangeBatch {
    before: HashMap<JobId, StoredJob>,
    unreadable: BTreeSet<JobId>,
    jobs: HashMap<JobId, Job>,
    holders: BTreeMap<unique_key::QueueKey, JobId>,
    changed: BTreeSet<JobId>,
    free_depths: FreeDepths,
}

impl ChangeBatch {
    async fn lock_keys(
        session: &mut Session,
        found: FoundJobs,
        change: &Change,
        now: Timestamp,
    ) -> DriverResult<Self> {
        let target = match change {
            Change::Edit(Edit { queue, .. }) | Change::Patch(Patch { queue, .. }) => queue.as_ref(),
            Change::Revive(revival) => revival.changes.queue.as_ref(),
            _ => None,
        };
        let jobs = found.jobs.values().map(|found| &found.job);
        let queue_keys = jobs.flat_map(|job| {
            let queues = [Some(&job.queue), target];
            queues
                .into_iter()
                .flatten()
                .filter_map(|queue| unique_key::queue_key(job, queue))
        });
        let holders = unique_key::holders(session, &queue_keys.collect(), now).await?;
        Ok(ChangeBatch {
            jobs: found
                .jobs
                .iter()
                .map(|(id, found)| (*id, found.job.clone()))
                .collect(),
            before: found.jobs,
            unreadable: found.unreadable.into_keys().collect(),
            holders,
            changed: BTreeSet::new(),
            free_depths: FreeDepths::new(),
        })
    }

    fn change(&mut self, id: JobId, order: Order<'_>, now: Timestamp) -> Changed {
        let Some(mut job) = self.jobs.get(&id).cloned() else {
            return if self.unreadable.contains(&id) {
                Changed::Unreadable
            } else {
                Changed::NotFound
            };
        };
        if let Some(Err(refused)) = order.step.map(|step| step.check(&job)) {
            return refused;
        }
        if let Err(refused) = self.apply(&mut job, order, now) {
            return refused;
        }
        if let Some(step) = order.step {
            job.interventions.last_action = Some(step.action);
        }
        let state = job.state();
        self.jobs.insert(id, job);
        self.changed.insert(id);
        Changed::Now(state)
    }

    fn apply(&mut self, job: &mut Job, order: Order<'_>, now: Timestamp) -> Result<(), Changed> {
        match order.change {
            Change::Cancel => job.cancel(now).map_err(conflict)?,
            Change::RunNow => job.run_now(now).map_err(conflict)?,
            Change::Resolve => job.resolve(now).map_err(conflict)?,
            Change::Revive(revival) => self.revive(job, revival, order.step, now)?,
            Change::Edit(edit) => self.edit(job, edit)?,
            Change::Patch(patch) => return self.patch(job, patch),
            Change::Purge => {} // handled by `purge`
        }
        if job.holds_key(now) {
            self.take_key(job);
        }
        Ok(())
    }

    fn revive(
        &mut self,
        job: &mut Job,
        revival: &Revival,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Result<(), Changed> {
        let before = job.state();
        let event = Event::Revived(revival.consent);
        before.after(event).ok_or(Changed::Conflict(before))?;
        let target = revival.changes.queue.as_ref().unwrap_or(&job.queue);
        self.refuse_taken_key(job, target, before)?;
        self.refuse_full(target)?;
        let replay = step.and_then(ActionStep::replay);
        let left = unique_key::queue_key(job, &job.queue);
        job.revive(revival.clone(), replay, now)?;
        // A cancelled job may still hold its key in the queue that it leaves.
        if let Some(left) = left
            && self.holders.get(&left) == Some(&job.id)
        {
            self.holders.remove(&left);
        }
        self.enter(&job.queue);
        Ok(())
    }

    fn edit(&mut self, job: &mut Job, edit: &Edit) -> Result<(), Changed> {
        let before = job.state();
        before
            .after(Event::Changed)
            .ok_or(Changed::Conflict(before))?;
        self.move_to(job, edit.queue.as_ref().unwrap_or(&job.queue))?;
        job.edit(edit.clone()).map_err(conflict)
    }

    fn patch(&mut self, job: &mut Job, patch: &Patch) -> Result<(), Changed> {
        let before = job.clone();
        job.patch(patch)?;
        if before.state() == State::Waiting {
            self.move_to(&before, &job.queue)?;
            self.take_key(job);
        }
        Ok(())
    }

    /// Lets a waiting job leave its queue, if the other one takes it.
    fn move_to(&mut self, job: &Job, target: &QueueName) -> Result<(), Changed> {
        self.refuse_taken_key(job, target, job.state())?;
        if *target != job.queue {
            self.refuse_full(target)?;
            self.enter(target);
        }
        if let Some(queue_key) = unique_key::queue_key(job, &job.queue) {
            self.holders.remove(&queue_key);
        }
        Ok(())
    }

    /// Makes a job the holder of its unique key, if no other job holds it.
    fn take_key(&mut self, job: &Job) {
        if let Some(queue_key) = unique_key::queue_key(job, &job.queue) {
            self.holders.entry(queue_key).or_insert(job.id);
        }
    }

    /// Refuses the change if the queue is full.
    fn refuse_full(&self, queue: &QueueName) -> Result<(), Changed> {
        match self.free_depths.get(queue) {
            Some((0, max_depth)) => Err(Changed::QueueFull {
                max_depth: *max_depth,
            }),
            _ => Ok(()),
        }
    }

    /// Counts one more waiting job in a queue.
    fn enter(&mut self, queue: &QueueName) {
        if let Some((left, _)) = self.free_depths.get_mut(queue) {
            *left = left.saturating_sub(1);
        }
    }

    /// Refuses the change if another job holds the unique key.
    fn refuse_taken_key(&self, job: &Job, queue: &QueueName, before: State) -> Result<(), Changed> {
        let queue_key = unique_key::queue_key(job, queue);
        let holder = queue_key.and_then(|queue_key| self.holders.get(&queue_key).copied());
        match holder {
            Some(holder) if holder != job.id => Err(Changed::KeyTaken(before)),
            _ => Ok(()),
        }
    }

    /// Whether another job holds the key that a finished job would still hold.
    fn lost_key(&self, job: &Job, now: Timestamp) -> bool {
        let queue_key = unique_key::queue_key(job, &job.queue);
        let holder = queue_key.and_then(|queue_key| self.holders.get(&queue_key));
        job.holds_key(now) && holder.is_some_and(|holder| *holder != job.id)
    }

    /// Makes sure that the failure groups of jobs that moved to another group exist.
    async fn enter_groups(
        &mut self,
        session: &mut Session,
        groups: &Groups,
        now: Timestamp,
    ) -> DriverResult<()> {
        let group_of = |job: &Job| job.group().map(|(key, _)| key);
        let (before, changed) = (&self.before, &self.changed);
        let moved = self.jobs.iter_mut().filter(|(id, job)| {
            let before = before.get(id).and_then(|before| group_of(&before.job));
            changed.contains(id) && group_of(job) != before
        });
        let mut moved: Vec<&mut Job> = moved.map(|(_, job)| job).collect();
        moved.sort_unstable_by_key(|job| job.id);
        groups.enter(session, &mut moved, Entry::Moved, now).await?;
        Ok(())
    }

    /// The changed jobs that were active, as they were before.
    fn changed_before(&self) -> impl Iterator<Item = &StoredJob> {
        let before = self.changed.iter().filter_map(|id| self.before.get(id));
        before.filter(|before| before.table == JOBS)
    }

    /// Writes all changed jobs. They may move between the tables of active and finished jobs.
    async fn write(
        &self,
        session: &mut Session,
        change: &Change,
        counted: Option<(ActionId, ActionCount, i64)>,
        now: Timestamp,
    ) -> DriverResult<()> {
        let changed = || {
            let ids = self.changed.iter();
            ids.filter_map(|id| Some((self.before.get(id)?, self.jobs.get(id)?)))
        };
        let waiting = self.changed_before().map(|before| &before.job);
        concurrency_key::before_change(session, waiting)?;
        let mut tallies = TallyChanges::default();
        for (before, job) in changed() {
            tallies.count(&before.job, Some(job));
        }
        if let Some((action, count, by)) = counted {
            tallies.count_action(action, count, by);
        }
        tallies.write(session)?;
        let patches = matches!(change, Change::Patch(_));
        if patches {
            for table in [DEAD, FINISHED] {
                let patched = changed().filter(|(before, _)| before.table == table);
                let patched: Vec<&Job> = patched.map(|(_, job)| job).collect();
                write::patch_finished(session, &patched, table, now).await?;
            }
        }
        // A patched job that has finished stays where it is.
        let changed = || changed().filter(|(before, _)| !patches || before.table == JOBS);
        // The row of a finished job includes its last attempt: move that to the history.
        let attempts = changed().filter_map(|(before, job)| {
            let attempt = before.last.row(&before.job)?;
            Some((job.id, attempt))
        });
        let attempts: Vec<(JobId, Attempt)> = attempts.collect();
        write::insert_attempts(session, &attempts)?;
        let was_finished = |before: &StoredJob| before.table != JOBS;
        let active =
            changed().filter(|(before, job)| !was_finished(before) && !job.state().is_final());
        let job_options = if patches {
            JobOptions::Write
        } else {
            JobOptions::Keep
        };
        Columns::of(active.map(|(_, job)| job), now).update(session, job_options)?;
        for table in [JOBS, DEAD] {
            let finished =
                changed().filter(|(before, job)| before.table == table && job.state().is_final());
            let finished: Vec<(Job, LastAttempt)> = finished
                .map(|(_, job)| (job.clone(), LastAttempt::default()))
                .collect();
            write::finish(session, &finished, table)?;
        }
        let revived =
            || changed().filter(|(before, job)| was_finished(before) && !job.state().is_final());
        for table in [DEAD, FINISHED] {
            let revived = revived().filter(|(before, _)| before.table == table);
            remove(session, table, revived.map(|(_, job)| job.id)).await?;
        }
        let revived: Vec<&Job> = revived().map(|(_, job)| job).collect();
        write::insert_revived(session, &revived, now).await?;
        let moved = changed().filter(|(before, job)| before.job.queue != job.queue);
        unique_key::release_in(session, moved.map(|(before, job)| (&before.job.queue, job)))?;
        let active = changed().filter(|(_, job)| !job.state().is_final());
        let active: Vec<&Job> = active.map(|(_, job)| job).collect();
        if !unique_key::acquire(session, &active, now).await?.is_empty() {
            return Err(DriverError::Collision); // another transaction took a key that was free
        }
        let finished =
            changed().filter(|(_, job)| job.state().is_final() && !self.lost_key(job, now));
        let finished: Vec<&Job> = finished.map(|(_, job)| job).collect();
        unique_key::release(session, &finished, now).await
    }
}

fn conflict(conflict: Conflict) -> Changed {
    Changed::Conflict(conflict.state)
}

/// Deletes finished jobs from a table, and subtracts them from the counts.
async fn remove(
    session: &mut Session,
    table: &str,
    ids: impl Iterator<Item = JobId>,
) -> DriverResult<()> {
    let ids = uuids(ids);
    if !ids.is_empty() {
        let sql = include_str!("../sql/remove_finished.sql").replace("/* table */", table);
        session.query(&sql, params![ids]).await?;
    }
    Ok(())
}

/// Deletes finished jobs with their history.
async fn purge(
    session: &mut Session,
    settings: &Settings,
    ids: &[JobId],
    step: Option<&ActionStep>,
) -> DriverResult<Vec<Changed>> {
    let mut found = find(session, settings, ids, true).await?;
    let mut removed = Vec::new();
    let mut answers = Vec::with_capacity(ids.len());
    for id in ids {
        let Some(before) = found.jobs.get(id) else {
            let is_unreadable = found.unreadable.contains_key(id);
            answers.push(if is_unreadable {
                Changed::Unreadable
            } else {
                Changed::NotFound
            });
            continue;
        };
        let state = before.job.state();
        let checked = step.map_or(Ok(()), |step| step.check(&before.job));
        answers.push(match checked {
            Err(refused) => refused,
            Ok(()) if !state.is_final() => Changed::Conflict(state),
            Ok(()) => {
                removed.extend(found.jobs.remove(id));
                Changed::Removed
            }
        });
    }
    let mut tallies = TallyChanges::default();
    for before in &removed {
        tallies.count(&before.job, None);
    }
    if let Some((action, count, by)) = step.and_then(|step| step.count(&answers)) {
        tallies.count_action(action, count, by);
    }
    tallies.write(session)?;
    for table in [DEAD, FINISHED] {
        let of_table = removed.iter().filter(|found| found.table == table);
        remove(session, table, of_table.map(|found| found.job.id)).await?;
    }
    let removed_ids = uuids(removed.iter().map(|found| found.job.id));
    let sql = "delete from windlass.attempts where job = any ($1)";
    session.query(sql, params![removed_ids]).await?;
    schedule::remove_occurrences(session, removed.iter().map(|found| &found.job)).await?;
    session.commit().await?;
    Ok(answers)
}
