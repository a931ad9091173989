//! Changes that operators make to single jobs: cancel, run now, resolve, revive, edit, purge.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::{Conflict, Event, Job, JobId, QueueName, State, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{Attempt, Change, Changed};

use crate::enqueue::{FreeDepths, free_depths};
use crate::error::{DriverError, DriverResult};
use crate::param::params;
use crate::read::{DEAD, FINISHED, FoundJobs, JOBS, StoredJob, find};
use crate::row::uuids;
use crate::schedule;
use crate::session::Session;
use crate::settings::Settings;
use crate::unique_key;
use crate::write::{self, Columns};

/// Changes jobs one after the other. Returns the answer for each, and the jobs that wait now.
pub(crate) async fn change(
    session: &mut Session,
    settings: &Settings,
    ids: &[JobId],
    change: &Change,
    now: Timestamp,
) -> DriverResult<(Vec<Changed>, Vec<Job>)> {
    if let Change::Purge = change {
        let answers = purge(session, settings, ids).await?;
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
    let answers: Vec<Changed> = ids
        .iter()
        .map(|id| batch.change(*id, change, now))
        .collect();
    batch.write(session, now).await?;
    session.commit().await?;
    let changed = batch.changed.iter().filter_map(|id| batch.jobs.get(id));
    let waiting = changed.filter(|job| job.state() == State::Waiting).cloned();
    Ok((answers, waiting.collect()))
}

/// Returns the queues that get additional waiting jobs by this change.
async fn queues_entered(
    session: &mut Session,
    ids: &[JobId],
    change: &Change,
) -> DriverResult<Vec<String>> {
    match change {
        Change::Revive(_) => {
            let sql = "select queue from windlass.dead where id = any ($1)
                 union select queue from windlass.finished where id = any ($1)";
            let ids = uuids(ids.iter().copied());
            let rows = session.read(sql, params![ids]).await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        }
        Change::Edit(edit) => Ok(edit.queue.iter().map(ToString::to_string).collect()),
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
            Change::Edit(edit) => edit.queue.as_ref(),
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

    fn change(&mut self, id: JobId, change: &Change, now: Timestamp) -> Changed {
        let Some(mut job) = self.jobs.get(&id).cloned() else {
            return if self.unreadable.contains(&id) {
                Changed::Unreadable
            } else {
                Changed::NotFound
            };
        };
        if let Err(refused) = self.apply(&mut job, change, now) {
            return refused;
        }
        let state = job.state();
        self.jobs.insert(id, job);
        self.changed.insert(id);
        Changed::Now(state)
    }

    fn apply(&mut self, job: &mut Job, change: &Change, now: Timestamp) -> Result<(), Changed> {
        let before = job.state();
        match change {
            Change::Cancel => job.cancel(now).map_err(conflict)?,
            Change::RunNow => job.run_now(now).map_err(conflict)?,
            Change::Resolve => job.resolve(now).map_err(conflict)?,
            Change::Revive(revival) => {
                let event = Event::Revived(revival.consent);
                before.after(event).ok_or(Changed::Conflict(before))?;
                self.refuse_taken_key(job, &job.queue, before)?;
                self.enter(&job.queue)?;
                job.revive(revival.clone(), now).map_err(conflict)?;
            }
            Change::Edit(edit) => {
                before
                    .after(Event::Changed)
                    .ok_or(Changed::Conflict(before))?;
                let target = edit.queue.as_ref().unwrap_or(&job.queue);
                self.refuse_taken_key(job, target, before)?;
                if *target != job.queue {
                    self.enter(target)?;
                }
                if let Some(queue_key) = unique_key::queue_key(job, &job.queue) {
                    self.holders.remove(&queue_key);
                }
                job.edit(edit.clone()).map_err(conflict)?;
            }
            Change::Purge => {} // handled by `purge`
        }
        let queue_key = unique_key::queue_key(job, &job.queue);
        if let Some(queue_key) = queue_key.filter(|_| job.holds_key(now)) {
            self.holders.entry(queue_key).or_insert(job.id);
        }
        Ok(())
    }

    /// Counts one more waiting job in a queue, or refuses if the queue is full.
    fn enter(&mut self, queue: &QueueName) -> Result<(), Changed> {
        match self.free_depths.get_mut(queue) {
            Some((0, max_depth)) => Err(Changed::QueueFull {
                max_depth: *max_depth,
            }),
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
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

    /// Writes all changed jobs. They may move between the tables of active and finished jobs.
    async fn write(&self, session: &mut Session, now: Timestamp) -> DriverResult<()> {
        let changed = || {
            let ids = self.changed.iter();
            ids.filter_map(|id| Some((self.before.get(id)?, self.jobs.get(id)?)))
        };
        // The row of a finished job includes its last attempt: move that to the history.
        let attempts = changed().filter_map(|(before, job)| {
            let attempt = before.last.row(&before.job)?;
            Some((job.id, attempt))
        });
        let attempts: Vec<(JobId, Attempt)> = attempts.collect();
        write::insert_attempts(session, &attempts).await?;
        let was_finished = |before: &StoredJob| before.table != JOBS;
        let active =
            changed().filter(|(before, job)| !was_finished(before) && !job.state().is_final());
        Columns::of(active.map(|(_, job)| job), now)
            .update(session)
            .await?;
        for table in [JOBS, DEAD, FINISHED] {
            let finished =
                changed().filter(|(before, job)| before.table == table && job.state().is_final());
            let finished: Vec<(Job, LastAttempt)> = finished
                .map(|(_, job)| (job.clone(), LastAttempt::default()))
                .collect();
            uncount(session, table, finished.iter().map(|(job, _)| job.id)).await?;
            write::finish(session, &finished, table).await?;
        }
        for table in [DEAD, FINISHED] {
            let revived =
                changed().filter(|(before, job)| before.table == table && !job.state().is_final());
            let revived: Vec<&Job> = revived.map(|(_, job)| job).collect();
            uncount(session, table, revived.iter().map(|job| job.id)).await?;
            remove(session, table, revived.iter().map(|job| job.id)).await?;
            write::insert_revived(session, &revived, now).await?;
        }
        let moved = changed().filter(|(before, job)| before.job.queue != job.queue);
        unique_key::release_in(session, moved.map(|(before, job)| (&before.job.queue, job)))
            .await?;
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

/// Subtracts jobs from the counts of finished jobs.
async fn uncount(
    session: &mut Session,
    table: &str,
    ids: impl Iterator<Item = JobId>,
) -> DriverResult<()> {
    let ids = uuids(ids);
    if table == JOBS || ids.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "insert into windlass.tallies (queue, state, count)
         select queue, state, -count(*) from {table} where id = any ($1) group by queue, state"
    );
    session.query(&sql, params![ids]).await?;
    Ok(())
}

async fn remove(
    session: &mut Session,
    table: &str,
    ids: impl Iterator<Item = JobId>,
) -> DriverResult<()> {
    let ids = uuids(ids);
    if !ids.is_empty() {
        let sql = format!("delete from {table} where id = any ($1)");
        session.query(&sql, params![ids]).await?;
    }
    Ok(())
}

/// Deletes finished jobs with their history.
async fn purge(
    session: &mut Session,
    settings: &Settings,
    ids: &[JobId],
) -> DriverResult<Vec<Changed>> {
    let mut found = find(session, settings, ids, true).await?;
    let mut removed = Vec::new();
    let mut answers = Vec::with_capacity(ids.len());
    for id in ids {
        let state = found.jobs.get(id).map(|found| found.job.state());
        answers.push(match state {
            None if found.unreadable.contains_key(id) => Changed::Unreadable,
            None => Changed::NotFound,
            Some(state) if !state.is_final() => Changed::Conflict(state),
            Some(_) => {
                removed.extend(found.jobs.remove(id));
                Changed::Removed
            }
        });
    }
    for table in [DEAD, FINISHED] {
        let of_table = || removed.iter().filter(|found| found.table == table);
        uncount(session, table, of_table().map(|found| found.job.id)).await?;
        remove(session, table, of_table().map(|found| found.job.id)).await?;
    }
    let removed_ids = uuids(removed.iter().map(|found| found.job.id));
    let sql = "delete from windlass.attempts where job = any ($1)";
    session.query(sql, params![removed_ids]).await?;
    schedule::remove_occurrences(session, removed.iter().map(|found| &found.job)).await?;
    session.commit().await?;
    Ok(answers)
}
