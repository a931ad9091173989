//! Changes that operators make to jobs: cancel, run now, resolve, revive, edit, patch, purge.

use windlass_core::{
    ActionId, Conflict, Edit, Event, Job, JobId, Patch, QueueName, Revival, State, Timestamp,
};
use windlass_store::stored::LastAttempt;
use windlass_store::{ActionStep, Change, Changed};

use super::{Answer, Writer};
use crate::error::{DriverResult, if_readable};
use crate::row;

impl Writer<'_> {
    pub(crate) fn change_all(
        &mut self,
        jobs: &[JobId],
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Answer<Vec<Changed>> {
        self.index.promote(now);
        let mut answers = Vec::with_capacity(jobs.len());
        for id in jobs {
            answers.push(self.change(*id, change, step, now)?);
        }
        if let Some((action, count, by)) = step.and_then(|step| step.count(&answers)) {
            self.tallies.count_action(action, count, by);
        }
        Ok(Ok(answers))
    }

    fn change(
        &mut self,
        id: JobId,
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> DriverResult<Changed> {
        let Some(found) = if_readable(self.find(id))? else {
            return Ok(Changed::Unreadable);
        };
        let Some((mut job, last)) = found else {
            return Ok(Changed::NotFound);
        };
        if let Some(Err(refused)) = step.map(|step| step.check(&job)) {
            return Ok(refused);
        }
        let before = job.clone();
        let done = match change {
            Change::Cancel => job.cancel(now).map_err(conflict),
            Change::RunNow => job.run_now(now).map_err(conflict),
            Change::Resolve => job.resolve(now).map_err(conflict),
            Change::Revive(revival) => {
                let replay = step.and_then(ActionStep::replay);
                self.revive(&mut job, revival, replay, now)?
            }
            Change::Edit(edit) => self.edit(&mut job, edit, now)?,
            Change::Patch(patch) => self.patch(&mut job, patch, now)?,
            Change::Purge => return self.purge(&job),
        };
        if let Err(refused) = done {
            return Ok(refused);
        }
        if let Some(step) = step {
            job.interventions.last_action = Some(step.action);
        }
        self.store_change(&before, &mut job, &last, now)?;
        Ok(Changed::Now(job.state()))
    }

    fn revive(
        &mut self,
        job: &mut Job,
        revival: &Revival,
        replay: Option<ActionId>,
        now: Timestamp,
    ) -> DriverResult<Result<(), Changed>> {
        let before = job.state();
        if before.after(Event::Revived(revival.consent)).is_none() {
            return Ok(Err(Changed::Conflict(before)));
        }
        let queue = revival.changes.queue.clone();
        let queue = queue.unwrap_or_else(|| job.queue.clone());
        if self.key_is_taken(job, &queue, now)? {
            return Ok(Err(Changed::KeyTaken(before)));
        }
        if let Some(max_depth) = self.full(&queue) {
            return Ok(Err(Changed::QueueFull { max_depth }));
        }
        let finished = job.clone();
        if let Err(refused) = job.revive(revival.clone(), replay, now) {
            return Ok(Err(refused.into()));
        }
        // A cancelled job may still hold its key in the queue that it leaves.
        if queue != finished.queue && !self.key_is_taken(&finished, &finished.queue, now)? {
            self.leave_key(&finished)?;
        }
        Ok(Ok(()))
    }

    fn edit(
        &mut self,
        job: &mut Job,
        edit: &Edit,
        now: Timestamp,
    ) -> DriverResult<Result<(), Changed>> {
        let before = job.clone();
        if let Err(refused) = job.edit(edit.clone()) {
            return Ok(Err(conflict(refused)));
        }
        self.leave_queue(&before, &job.queue, now)
    }

    fn patch(
        &mut self,
        job: &mut Job,
        patch: &Patch,
        now: Timestamp,
    ) -> DriverResult<Result<(), Changed>> {
        let before = job.clone();
        if let Err(refused) = job.patch(patch) {
            return Ok(Err(refused.into()));
        }
        if before.state() != State::Waiting {
            return Ok(Ok(()));
        }
        self.leave_queue(&before, &job.queue, now)
    }

    /// Frees the unique key of a waiting job, so that the job can take it in `target`, which may be
    /// the same queue. Refuses a target where the job cannot wait.
    fn leave_queue(
        &mut self,
        job: &Job,
        target: &QueueName,
        now: Timestamp,
    ) -> DriverResult<Result<(), Changed>> {
        if self.key_is_taken(job, target, now)? {
            return Ok(Err(Changed::KeyTaken(job.state())));
        }
        if let Some(max_depth) = self.full(target).filter(|_| *target != job.queue) {
            return Ok(Err(Changed::QueueFull { max_depth }));
        }
        self.leave_key(job)?;
        Ok(Ok(()))
    }

    /// Frees the unique key of a job in its queue.
    fn leave_key(&mut self, job: &Job) -> DriverResult<()> {
        if let Some(unique) = &job.unique {
            let queue = self.names.number(self.connection, job.queue.as_str())?;
            self.remove_hold(queue, &unique.key)?;
        }
        Ok(())
    }

    fn purge(&mut self, job: &Job) -> DriverResult<Changed> {
        if !job.state().is_final() {
            return Ok(Changed::Conflict(job.state()));
        }
        let queue = self.names.number(self.connection, job.queue.as_str())?;
        self.tally(queue, row::state_number(job), -1);
        self.tallies.count_change(job, None);
        for statement in [
            "delete from jobs where id = ?1",
            "delete from states where id = ?1",
            "delete from attempts where id = ?1",
        ] {
            self.connection
                .prepare_cached(statement)?
                .execute([row::blob(job.id)])?;
        }
        self.remove_occurrence(job)?;
        Ok(Changed::Removed)
    }

    /// Writes a changed job. Both its old and its new state may be active or final.
    fn store_change(
        &mut self,
        before: &Job,
        job: &mut Job,
        last: &LastAttempt,
        now: Timestamp,
    ) -> DriverResult<()> {
        self.tallies.count_change(before, Some(job));
        if before.state().is_final() {
            let queue = self.names.number(self.connection, before.queue.as_str())?;
            self.tally(queue, row::state_number(before), -1);
            if job.state() == before.state() {
                row::update_job(self.connection, &mut self.names, job)?;
                return self.write(job, last);
            }
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
