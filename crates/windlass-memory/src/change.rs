//! What people do to single jobs.

use windlass_core::{Conflict, Edit, Event, Job, JobId, Revival, Timestamp};
use windlass_store::Changed;

use crate::state::State;

impl State {
    pub(crate) fn cancel(&mut self, jobs: &[JobId], now: Timestamp) -> Vec<Changed> {
        self.change_all(jobs, |_, job| job.cancel(now).map_err(conflict))
    }

    pub(crate) fn run_now(&mut self, jobs: &[JobId], now: Timestamp) -> Vec<Changed> {
        self.change_all(jobs, |_, job| job.run_now(now).map_err(conflict))
    }

    pub(crate) fn resolve(&mut self, jobs: &[JobId], now: Timestamp) -> Vec<Changed> {
        self.change_all(jobs, |state, job| {
            job.resolve(now).map_err(conflict)?;
            // It holds its key again for the rest of `unique_for`, unless another has it.
            if job.holds_key(now) && !state.key_is_taken(job, &job.queue, now) {
                state.take_key(job);
            }
            Ok(())
        })
    }

    pub(crate) fn revive(
        &mut self,
        jobs: &[JobId],
        revival: &Revival,
        now: Timestamp,
    ) -> Vec<Changed> {
        self.change_all(jobs, |state, job| {
            let before = job.state();
            before
                .after(Event::Revived(revival.consent))
                .ok_or(Changed::Conflict(before))?;
            if state.key_is_taken(job, &job.queue, now) {
                return Err(Changed::KeyTaken(before));
            }
            if let Some(max_depth) = state.full(&job.queue) {
                return Err(Changed::QueueFull { max_depth });
            }
            job.revive(revival.clone(), now).map_err(conflict)?;
            state.take_key(job);
            Ok(())
        })
    }

    pub(crate) fn edit(&mut self, id: JobId, edit: &Edit, now: Timestamp) -> Changed {
        self.change(id, |state, job| {
            let (before, queue) = (job.clone(), edit.queue.as_ref().unwrap_or(&job.queue));
            before
                .state()
                .after(Event::Changed)
                .ok_or(Changed::Conflict(before.state()))?;
            if state.key_is_taken(job, queue, now) {
                return Err(Changed::KeyTaken(before.state()));
            }
            let full = state.full(queue).filter(|_| *queue != job.queue);
            if let Some(max_depth) = full {
                return Err(Changed::QueueFull { max_depth });
            }
            if let Some(unique) = &before.unique {
                state
                    .keys
                    .remove(&(before.queue.clone(), unique.key.clone()));
            }
            job.edit(edit.clone()).map_err(conflict)?;
            state.take_key(job);
            Ok(())
        })
    }

    pub(crate) fn purge(&mut self, jobs: &[JobId]) -> Vec<Changed> {
        let purge_one = |id: &JobId| {
            let Some(state) = self.jobs.get(id).map(Job::state) else {
                return Changed::NotFound;
            };
            if !state.is_final() {
                return Changed::Conflict(state);
            }
            let Some(job) = self.jobs.remove(id) else {
                return Changed::NotFound;
            };
            if let Some(unique) = &job.unique {
                let key = (job.queue.clone(), unique.key.clone());
                if self.keys.get(&key) == Some(id) {
                    self.keys.remove(&key);
                    let until = job
                        .key_until()
                        .filter(|until| job.holds_key(before(*until)));
                    self.holds.extend(until.map(|until| (key, (*id, until))));
                }
            }
            if let Some(of) = job.occurrence {
                self.occurrences.remove(&(of.schedule_id, of.scheduled_for));
            }
            self.attempts.retain(|(job, _), _| job != id);
            Changed::Removed
        };
        jobs.iter().map(purge_one).collect()
    }

    fn change_all(
        &mut self,
        jobs: &[JobId],
        change: impl Fn(&mut State, &mut Job) -> Result<(), Changed>,
    ) -> Vec<Changed> {
        jobs.iter().map(|id| self.change(*id, &change)).collect()
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

/// The last instant before that one.
fn before(instant: Timestamp) -> Timestamp {
    instant.saturating_sub(std::time::Duration::from_micros(1))
}

fn conflict(conflict: Conflict) -> Changed {
    Changed::Conflict(conflict.state)
}
