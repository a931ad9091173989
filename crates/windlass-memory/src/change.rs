//! Changes that people and programs make to jobs.

use windlass_core::{Conflict, Edit, Event, Job, JobId, Revival, Timestamp};
use windlass_store::{Change, Changed};

use crate::state::State;

impl State {
    pub(crate) fn change_all(
        &mut self,
        jobs: &[JobId],
        change: &Change,
        now: Timestamp,
    ) -> Vec<Changed> {
        let ids = jobs.iter().copied();
        ids.map(|id| match change {
            Change::Cancel => self.change(id, |_, job| job.cancel(now).map_err(conflict)),
            Change::RunNow => self.change(id, |_, job| job.run_now(now).map_err(conflict)),
            Change::Resolve => self.change(id, |state, job| state.resolve(job, now)),
            Change::Revive(revival) => {
                self.change(id, |state, job| state.revive(job, revival, now))
            }
            Change::Edit(edit) => self.change(id, |state, job| state.edit(job, edit, now)),
            Change::Purge => self.purge(id),
        })
        .collect()
    }

    fn resolve(&mut self, job: &mut Job, now: Timestamp) -> Result<(), Changed> {
        job.resolve(now).map_err(conflict)?;
        // The job holds its key again for the rest of `unique_for`, unless another job has it.
        if job.holds_key(now) && !self.key_is_taken(job, &job.queue, now) {
            self.take_key(job);
        }
        Ok(())
    }

    fn revive(&mut self, job: &mut Job, revival: &Revival, now: Timestamp) -> Result<(), Changed> {
        let before = job.state();
        before
            .after(Event::Revived(revival.consent))
            .ok_or(Changed::Conflict(before))?;
        if self.key_is_taken(job, &job.queue, now) {
            return Err(Changed::KeyTaken(before));
        }
        if let Some(max_depth) = self.full(&job.queue) {
            return Err(Changed::QueueFull { max_depth });
        }
        job.revive(revival.clone(), now).map_err(conflict)?;
        self.take_key(job);
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
        if let Some(unique) = &before.unique {
            let key = (before.queue.clone(), unique.key.clone());
            self.keys.remove(&key);
        }
        job.edit(edit.clone()).map_err(conflict)?;
        self.take_key(job);
        Ok(())
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

    fn change(
        &mut self,
        id: JobId,
        change: impl FnOnce(&mut State, &mut Job) -> Result<(), Changed>,
    ) -> Changed {
        let Some(mut job) = self.jobs.get(&id).cloned() else {
            return Changed::NotFound;
        };
        match change(self, &mut job) {
            Err(refused) => refused,
            Ok(()) => {
                let state = job.state();
                self.put(job);
                Changed::Now(state)
            }
        }
    }
}

/// The last instant before `instant`.
fn before(instant: Timestamp) -> Timestamp {
    instant.saturating_sub(std::time::Duration::from_micros(1))
}

fn conflict(conflict: Conflict) -> Changed {
    Changed::Conflict(conflict.state)
}
