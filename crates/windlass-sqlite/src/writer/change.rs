//! Changes that operators make to single jobs: cancel, run now, resolve, revive, edit, purge.

use windlass_core::{Conflict, Edit, Event, Job, JobId, QueueName, Revival, State, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{Change, Changed};

use super::{Answer, Writer};
use crate::error::{DriverResult, if_readable};
use crate::row;

impl Writer<'_> {
    pub(crate) fn change_all(
        &mut self,
        jobs: &[JobId],
        change: &Change,
        now: Timestamp,
    ) -> Answer<Vec<Changed>> {
        let mut answers = Vec::with_capacity(jobs.len());
        for id in jobs.iter().copied() {
            answers.push(match change {
                Change::Cancel => {
                    self.change(id, now, |_, job| Ok(job.cancel(now).map_err(conflict)))
                }
                Change::RunNow => {
                    self.change(id, now, |_, job| Ok(job.run_now(now).map_err(conflict)))
                }
                Change::Resolve => {
                    self.change(id, now, |_, job| Ok(job.resolve(now).map_err(conflict)))
                }
                Change::Revive(revival) => {
                    self.change(id, now, |writer, job| writer.revive(job, revival, now))
                }
                Change::Edit(edit) => {
                    self.change(id, now, |writer, job| writer.edit(job, edit, now))
                }
                Change::Purge => self.purge(id),
            }?);
        }
        Ok(Ok(answers))
    }

    fn revive(
        &mut self,
        job: &mut Job,
        revival: &Revival,
        now: Timestamp,
    ) -> DriverResult<Result<(), Changed>> {
        let before = job.state();
        if before.after(Event::Revived(revival.consent)).is_none() {
            return Ok(Err(Changed::Conflict(before)));
        }
        if self.key_is_taken(job, &job.queue, now)? {
            return Ok(Err(Changed::KeyTaken(before)));
        }
        if let Some(max_depth) = self.full(&job.queue) {
            return Ok(Err(Changed::QueueFull { max_depth }));
        }
        Ok(job.revive(revival.clone(), now).map_err(conflict))
    }

    fn edit(
        &mut self,
        job: &mut Job,
        edit: &Edit,
        now: Timestamp,
    ) -> DriverResult<Result<(), Changed>> {
        let before = job.state();
        if before.after(Event::Changed).is_none() {
            return Ok(Err(Changed::Conflict(before)));
        }
        let target = edit.queue.clone().unwrap_or_else(|| job.queue.clone());
        if self.key_is_taken(job, &target, now)? {
            return Ok(Err(Changed::KeyTaken(before)));
        }
        if let Some(max_depth) = self.full(&target).filter(|_| target != job.queue) {
            return Ok(Err(Changed::QueueFull { max_depth }));
        }
        if let Some(unique) = &job.unique {
            let queue = self.names.number(self.connection, job.queue.as_str())?;
            self.remove_hold(queue, &unique.key)?;
        }
        Ok(job.edit(edit.clone()).map_err(conflict))
    }

    fn purge(&mut self, id: JobId) -> DriverResult<Changed> {
        let Some(found) = if_readable(self.find(id))? else {
            return Ok(Changed::Unreadable);
        };
        let Some((job, _)) = found else {
            return Ok(Changed::NotFound);
        };
        if !job.state().is_final() {
            return Ok(Changed::Conflict(job.state()));
        }
        let queue = self.names.number(self.connection, job.queue.as_str())?;
        self.tally(queue, row::state_number(&job), -1);
        for statement in [
            "delete from jobs where id = ?1",
            "delete from states where id = ?1",
            "delete from attempts where id = ?1",
        ] {
            self.connection
                .prepare_cached(statement)?
                .execute([row::blob(id)])?;
        }
        self.remove_occurrence(&job)?;
        Ok(Changed::Removed)
    }

    fn change(
        &mut self,
        id: JobId,
        now: Timestamp,
        change: impl FnOnce(&mut Writer<'_>, &mut Job) -> DriverResult<Result<(), Changed>>,
    ) -> DriverResult<Changed> {
        self.index.promote(now);
        let Some(found) = if_readable(self.find(id))? else {
            return Ok(Changed::Unreadable);
        };
        let Some((mut job, last)) = found else {
            return Ok(Changed::NotFound);
        };
        let before = job.clone();
        if let Err(refused) = change(self, &mut job)? {
            return Ok(refused);
        }
        self.store_change(&before, &mut job, &last, now)?;
        Ok(Changed::Now(job.state()))
    }

    /// Writes a changed job. Both its old and its new state may be active or final.
    fn store_change(
        &mut self,
        before: &Job,
        job: &mut Job,
        last: &LastAttempt,
        now: Timestamp,
    ) -> DriverResult<()> {
        if before.state().is_final() {
            let queue = self.names.number(self.connection, before.queue.as_str())?;
            self.tally(queue, row::state_number(before), -1);
        }
        // `states` holds only the last attempt of a finished job: move it to the history.
        if let Some(attempt) = last.row(before) {
            row::insert_attempt(self.connection, &mut self.names, job.id, &attempt)?;
        }
        let last = LastAttempt::default();
        if job.state().is_final() {
            self.index.take(job.id);
            return self.finish(job, &last, now);
        }
        if job.state() == State::Running {
            row::request_cancel(self.connection, job)?;
            self.index.take(job.id);
            let (queue, kind) = self.numbers(job)?;
            self.index_job(job, queue, kind, true);
            return Ok(());
        }
        let queue = self.names.number(self.connection, job.queue.as_str())?;
        self.rewrite(job, &last)?;
        self.take_key(job, queue)
    }

    fn key_is_taken(&mut self, job: &Job, queue: &QueueName, now: Timestamp) -> DriverResult<bool> {
        let Some(unique) = &job.unique else {
            return Ok(false);
        };
        let queue = self.names.number(self.connection, queue.as_str())?;
        let hold = self.index.hold(queue, &unique.key, now);
        Ok(hold.is_some_and(|hold| hold.id != job.id))
    }
}

fn conflict(conflict: Conflict) -> Changed {
    Changed::Conflict(conflict.state)
}
