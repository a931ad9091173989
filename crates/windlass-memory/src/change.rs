//! Changes that people and programs make to jobs.

use windlass_core::{
    ActionId, Conflict, Edit, Event, Job, JobId, Patch, Revival, State as JobState, Timestamp,
};
use windlass_store::{ActionStep, Change, Changed};

use crate::state::State;

impl State {
    pub(crate) fn change_all(
        &mut self,
        jobs: &[JobId],
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Vec<Changed> {
        let ids = jobs.iter();
        let answers: Vec<_> = ids.map(|id| self.change(*id, change, step, now)).collect();
        if let Some((action, count, by)) = step.and_then(|step| step.count(&answers)) {
            self.actions.entry(action).or_default().add(count, by);
        }
        answers
    }

    fn change(
        &mut self,
        id: JobId,
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Changed {
        let Some(mut job) = self.jobs.get(&id).cloned() else {
            return Changed::NotFound;
        };
        if let Some(Err(refused)) = step.map(|step| step.check(&job)) {
            return refused;
        }
        let done = match change {
            Change::Cancel => job.cancel(now).map_err(conflict),
            Change::RunNow => job.run_now(now).map_err(conflict),
            Change::Resolve => self.resolve(&mut job, now),
            Change::Revive(revival) => {
                let replay = step.and_then(ActionStep::replay);
                self.revive(&mut job, revival, replay, now)
            }
            Change::Edit(edit) => self.edit(&mut job, edit, now),
            Change::Patch(patch) => self.patch(&mut job, patch, now),
            Change::Purge => return self.purge(id),
        };
        if let Err(refused) = done {
            return refused;
        }
        if let Some(step) = step {
            job.interventions.last_action = Some(step.action);
        }
        let state = job.state();
        self.put(job);
        Changed::Now(state)
    }

    fn resolve(&mut self, job: &mut Job, now: Timestamp) -> Result<(), Changed> {
        job.resolve(now).map_err(conflict)?;
        // The job holds its key again for the rest of `unique_for`, unless another job has it.
        if job.holds_key(now) && !self.key_is_taken(job, &job.queue, now) {
            self.take_key(job);
        }
        Ok(())
    }

    fn revive(
        &mut self,
        job: &mut Job,
        revival: &Revival,
        replay: Option<ActionId>,
        now: Timestamp,
    ) -> Result<(), Changed> {
        let before = job.state();
        before
            .after(Event::Revived(revival.consent))
            .ok_or(Changed::Conflict(before))?;
        let queue = revival.changes.queue.as_ref().unwrap_or(&job.queue);
        if self.key_is_taken(job, queue, now) {
            return Err(Changed::KeyTaken(before));
        }
        if let Some(max_depth) = self.full(queue) {
            return Err(Changed::QueueFull { max_depth });
        }
        let finished = job.clone();
        job.revive(revival.clone(), replay, now)?;
        // A cancelled job may still hold its key in the queue that it leaves.
        if finished.queue != job.queue && !self.key_is_taken(&finished, &finished.queue, now) {
            self.move_key(&finished, job);
        } else {
            self.take_key(job);
        }
        Ok(())
    }

    fn edit(&mut self, job: &mut Job, edit: &Edit, now: Timestamp) -> Result<(), Changed> {
        let (before, queue) = (job.clone(), edit.queue.as_ref().unwrap_or(&job.queue));
        before
            .state()
            .after(Event::Changed)
            .ok_or(Changed::Conflict(before.state()))?;
        if self.key_is_taken(job, queue, now) {
            return Err(Changed::KeyTaken(before.state()));
        }
        let full = self.full(queue).filter(|_| *queue != job.queue);
        if let Some(max_depth) = full {
            return Err(Changed::QueueFull { max_depth });
        }
        job.edit(edit.clone()).map_err(conflict)?;
        self.move_key(&before, job);
        Ok(())
    }

    fn patch(&mut self, job: &mut Job, patch: &Patch, now: Timestamp) -> Result<(), Changed> {
        let before = job.clone();
        job.patch(patch)?;
        if before.state() == JobState::Waiting {
            if self.key_is_taken(&before, &job.queue, now) {
                return Err(Changed::KeyTaken(before.state()));
            }
            let full = self.full(&job.queue).filter(|_| before.queue != job.queue);
            if let Some(max_depth) = full {
                return Err(Changed::QueueFull { max_depth });
            }
            self.move_key(&before, job);
        }
        Ok(())
    }

    /// Moves the unique key of a waiting job to its new queue.
    fn move_key(&mut self, before: &Job, job: &Job) {
        if let Some(unique) = &before.unique {
            let key = (before.queue.clone(), unique.key.clone());
            self.keys.remove(&key);
        }
        self.take_key(job);
    }

    fn purge(&mut self, id: JobId) -> Changed {
        let Some(state) = self.jobs.get(&id).map(Job::state) else {
            return Changed::NotFound;
        };
        if !state.is_final() {
            return Changed::Conflict(state);
        }
        let Some(job) = self.jobs.remove(&id) else {
            return Changed::NotFound;
        };
        self.count_revival(&job, None);
        if let Some(unique) = &job.unique {
            let key = (job.queue.clone(), unique.key.clone());
            if self.keys.get(&key) == Some(&id) {
                self.keys.remove(&key);
                let until = job
                    .key_until()
                    .filter(|until| job.holds_key(before(*until)));
                self.holds.extend(until.map(|until| (key, (id, until))));
            }
        }
        if let Some(occurrence) = job.occurrence {
            let key = (occurrence.schedule_id, occurrence.scheduled_for);
            self.occurrences.remove(&key);
        }
        self.attempts.retain(|(job, _), _| *job != id);
        Changed::Removed
    }
}

/// The last instant before `instant`.
fn before(instant: Timestamp) -> Timestamp {
    instant.saturating_sub(std::time::Duration::from_micros(1))
}

fn conflict(conflict: Conflict) -> Changed {
    Changed::Conflict(conflict.state)
}
