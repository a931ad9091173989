//! What people do to single jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::{Conflict, Event, Job, JobId, QueueName, State, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{Attempt, Change, Changed};

use crate::enqueue::{Room, room};
use crate::error::{Fault, Step};
use crate::param::params;
use crate::read::{DEAD, FINISHED, Finds, Found, JOBS, find};
use crate::row::uuids;
use crate::schedule;
use crate::session::Session;
use crate::settings::Settings;
use crate::unique_key;
use crate::write::{self, Columns};

/// Changes jobs one after the other; answers what became of each, and those that wait now.
pub(crate) async fn change(
    session: &mut Session,
    settings: &Settings,
    ids: &[JobId],
    change: &Change,
    now: Timestamp,
) -> Step<(Vec<Changed>, Vec<Job>)> {
    if let Change::Purge = change {
        let answers = purge(session, settings, ids).await?;
        return Ok((answers, Vec::new()));
    }
    // Queues are locked before jobs, as an enqueue does.
    let queues = queues_entered(session, ids, change).await?;
    let room = match queues.is_empty() {
        true => Room::new(),
        false => room(session, queues.iter().map(String::as_str)).await?,
    };
    let found = find(session, settings, ids, true).await?;
    let mut work = Work::lock_keys(session, found, change, now).await?;
    work.room = room;
    let answers: Vec<Changed> = ids.iter().map(|id| work.change(*id, change, now)).collect();
    work.write(session, now).await?;
    session.commit().await?;
    let changed = work.changed.iter().filter_map(|id| work.jobs.get(id));
    let waiting = changed.filter(|job| job.state() == State::Waiting).cloned();
    Ok((answers, waiting.collect()))
}

/// The queues in which a change lets jobs wait that did not wait there.
async fn queues_entered(
    session: &mut Session,
    ids: &[JobId],
    change: &Change,
) -> Step<Vec<String>> {
    match change {
        Change::Revive(_) => {
            let sql = "select queue from windlass.dead where id = any ($1)
                 union select queue from windlass.finished where id = any ($1)";
            let ids = uuids(ids.iter().copied());
            let rows = session.look(sql, params![ids]).await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        }
        Change::Edit(edit) => Ok(edit.queue.iter().map(ToString::to_string).collect()),
        Change::Cancel | Change::RunNow | Change::Resolve | Change::Purge => Ok(Vec::new()),
    }
}

/// The jobs as they were, and as they are by now.
struct Work {
    before: HashMap<JobId, Found>,
    unreadable: BTreeSet<JobId>,
    jobs: HashMap<JobId, Job>,
    holders: BTreeMap<unique_key::Place, JobId>,
    changed: BTreeSet<JobId>,
    room: Room,
}

impl Work {
    async fn lock_keys(
        session: &mut Session,
        found: Finds,
        change: &Change,
        now: Timestamp,
    ) -> Step<Self> {
        let to = match change {
            Change::Edit(edit) => edit.queue.as_ref(),
            _ => None,
        };
        let jobs = found.jobs.values().map(|found| &found.job);
        let places = jobs.flat_map(|job| {
            let queues = [Some(&job.queue), to];
            queues
                .into_iter()
                .flatten()
                .filter_map(|queue| unique_key::place(job, queue))
        });
        let holders = unique_key::holders(session, &places.collect(), now).await?;
        Ok(Work {
            jobs: found
                .jobs
                .iter()
                .map(|(id, found)| (*id, found.job.clone()))
                .collect(),
            before: found.jobs,
            unreadable: found.unreadable.into_keys().collect(),
            holders,
            changed: BTreeSet::new(),
            room: Room::new(),
        })
    }

    fn change(&mut self, id: JobId, change: &Change, now: Timestamp) -> Changed {
        let Some(mut job) = self.jobs.get(&id).cloned() else {
            return match self.unreadable.contains(&id) {
                true => Changed::Unreadable,
                false => Changed::NotFound,
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
                self.refuse_taken(job, &job.queue, before)?;
                self.enter(&job.queue)?;
                job.revive(revival.clone(), now).map_err(conflict)?;
            }
            Change::Edit(edit) => {
                before
                    .after(Event::Changed)
                    .ok_or(Changed::Conflict(before))?;
                let to = edit.queue.as_ref().unwrap_or(&job.queue);
                self.refuse_taken(job, to, before)?;
                if *to != job.queue {
                    self.enter(to)?;
                }
                if let Some(place) = unique_key::place(job, &job.queue) {
                    self.holders.remove(&place);
                }
                job.edit(edit.clone()).map_err(conflict)?;
            }
            Change::Purge => {} // handled by `purge`
        }
        let place = unique_key::place(job, &job.queue);
        if let Some(place) = place.filter(|_| job.holds_key(now)) {
            self.holders.entry(place).or_insert(job.id);
        }
        Ok(())
    }

    /// Takes a place among the waiting jobs of a queue, if it has one left.
    fn enter(&mut self, queue: &QueueName) -> Result<(), Changed> {
        match self.room.get_mut(queue) {
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

    /// A unique key that another job holds is a conflict.
    fn refuse_taken(&self, job: &Job, queue: &QueueName, before: State) -> Result<(), Changed> {
        let place = unique_key::place(job, queue);
        let holder = place.and_then(|place| self.holders.get(&place).copied());
        match holder {
            Some(holder) if holder != job.id => Err(Changed::KeyTaken(before)),
            _ => Ok(()),
        }
    }

    /// Whether a job that is over would hold its key, but another does.
    fn lost_key(&self, job: &Job, now: Timestamp) -> bool {
        let place = unique_key::place(job, &job.queue);
        let holder = place.and_then(|place| self.holders.get(&place));
        job.holds_key(now) && holder.is_some_and(|holder| *holder != job.id)
    }

    /// Writes all that changed, wherever it was and is.
    async fn write(&self, session: &mut Session, now: Timestamp) -> Step<()> {
        let changed = || {
            let ids = self.changed.iter();
            ids.filter_map(|id| Some((self.before.get(id)?, self.jobs.get(id)?)))
        };
        // The last attempt of a job that was over becomes a row of history.
        let attempts = changed().filter_map(|(before, job)| {
            let attempt = before.last.row(&before.job)?;
            Some((job.id, attempt))
        });
        let attempts: Vec<(JobId, Attempt)> = attempts.collect();
        write::insert_attempts(session, &attempts).await?;
        let was_over = |before: &Found| before.table != JOBS;
        let lives = changed().filter(|(before, job)| !was_over(before) && !job.state().is_final());
        Columns::of(lives.map(|(_, job)| job), now)
            .update(session)
            .await?;
        for table in [JOBS, DEAD, FINISHED] {
            let ends =
                changed().filter(|(before, job)| before.table == table && job.state().is_final());
            let ends: Vec<(Job, LastAttempt)> = ends
                .map(|(_, job)| (job.clone(), LastAttempt::default()))
                .collect();
            uncount(session, table, ends.iter().map(|(job, _)| job.id)).await?;
            write::end(session, &ends, table).await?;
        }
        for table in [DEAD, FINISHED] {
            let again =
                changed().filter(|(before, job)| before.table == table && !job.state().is_final());
            let again: Vec<&Job> = again.map(|(_, job)| job).collect();
            uncount(session, table, again.iter().map(|job| job.id)).await?;
            remove(session, table, again.iter().map(|job| job.id)).await?;
            write::insert_again(session, &again, now).await?;
        }
        let moved = changed().filter(|(before, job)| before.job.queue != job.queue);
        unique_key::forget(session, moved.map(|(before, job)| (&before.job.queue, job))).await?;
        let living = changed().filter(|(_, job)| !job.state().is_final());
        let living: Vec<&Job> = living.map(|(_, job)| job).collect();
        if !unique_key::take(session, &living, now).await?.is_empty() {
            return Err(Fault::Collision); // another was quicker with a key that was free
        }
        let over = changed().filter(|(_, job)| job.state().is_final() && !self.lost_key(job, now));
        let over: Vec<&Job> = over.map(|(_, job)| job).collect();
        unique_key::release(session, &over, now).await
    }
}

fn conflict(conflict: Conflict) -> Changed {
    Changed::Conflict(conflict.state)
}

/// Jobs that were over are counted no more.
async fn uncount(session: &mut Session, table: &str, ids: impl Iterator<Item = JobId>) -> Step<()> {
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

async fn remove(session: &mut Session, table: &str, ids: impl Iterator<Item = JobId>) -> Step<()> {
    let ids = uuids(ids);
    if !ids.is_empty() {
        let sql = format!("delete from {table} where id = any ($1)");
        session.query(&sql, params![ids]).await?;
    }
    Ok(())
}

/// Removes jobs that are over, with their history.
async fn purge(session: &mut Session, settings: &Settings, ids: &[JobId]) -> Step<Vec<Changed>> {
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
    let gone = uuids(removed.iter().map(|found| found.job.id));
    let sql = "delete from windlass.attempts where job = any ($1)";
    session.query(sql, params![gone]).await?;
    schedule::forget_occurrences(session, removed.iter().map(|found| &found.job)).await?;
    session.commit().await?;
    Ok(answers)
}
