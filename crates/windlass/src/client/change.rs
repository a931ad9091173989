//! What people and programs do to single jobs.

use windlass_core::{Edit, JobId, Revival, State};
use windlass_engine::{JobEvent, JobRef};
use windlass_store::{Change, Changed};

use super::Client;
use crate::error::Error;

impl Client {
    /// Calls a job off: a waiting one is cancelled, a running one is told to stop. The state it is in then.
    pub async fn cancel(&self, id: JobId) -> Result<State, Error> {
        let changed = self.engine.cancel(&[id]).await?;
        self.answer(id, changed).await
    }

    /// Runs a dead or cancelled job again.
    pub async fn revive(&self, id: JobId, revival: &Revival) -> Result<State, Error> {
        let now = self.now();
        let changed = self
            .engine
            .store()
            .change(&[id], &Change::Revive(revival.clone()), now)
            .await?;
        let state = self.answer(id, changed).await?;
        if let Some(run_at) = revival.run_at {
            self.engine.due_at(run_at, now);
        }
        self.tell(id, JobEvent::Revived).await?;
        Ok(state)
    }

    /// Makes a waiting job due now; its failures stay.
    pub async fn run_now(&self, id: JobId) -> Result<State, Error> {
        let changed = self
            .engine
            .store()
            .change(&[id], &Change::RunNow, self.now())
            .await?;
        self.answer(id, changed).await
    }

    /// Changes a waiting job: payload, priority, time or queue.
    pub async fn edit(&self, id: JobId, edit: &Edit) -> Result<State, Error> {
        let now = self.now();
        if let (Some(queue), Some(job)) = (&edit.queue, self.get(id).await?) {
            self.engine.note_queue(&job.kind, queue).await?;
        }
        let changed = self
            .engine
            .store()
            .change(&[id], &Change::Edit(edit.clone()), now)
            .await?;
        if let Some(run_at) = edit.run_at {
            self.engine.due_at(run_at, now);
        }
        self.answer(id, changed).await
    }

    /// Says of a lost at-most-once job that it did succeed.
    pub async fn resolve(&self, id: JobId) -> Result<State, Error> {
        let changed = self
            .engine
            .store()
            .change(&[id], &Change::Resolve, self.now())
            .await?;
        self.answer(id, changed).await
    }

    /// Removes a job that is over, with its history.
    pub async fn purge(&self, id: JobId) -> Result<(), Error> {
        let changed = self
            .engine
            .store()
            .change(&[id], &Change::Purge, self.now())
            .await?;
        match changed.into_iter().next() {
            Some(Changed::Removed) => Ok(()),
            other => self
                .answer(id, other.into_iter().collect())
                .await
                .map(|_| ()),
        }
    }

    async fn tell(&self, id: JobId, what: JobEvent) -> Result<(), Error> {
        if let Some(job) = self.get(id).await? {
            self.engine.emit_job(self.now(), &JobRef::of(&job), what);
        }
        Ok(())
    }

    async fn answer(&self, id: JobId, changed: Vec<Changed>) -> Result<State, Error> {
        match changed.into_iter().next() {
            Some(Changed::Now(state)) => Ok(state),
            Some(Changed::Conflict(state)) => Err(Error::Conflict { id, state }),
            Some(Changed::KeyTaken(_)) => Err(Error::KeyTaken(id)),
            Some(Changed::QueueFull { max_depth }) => Err(Error::QueueFull { id, max_depth }),
            Some(Changed::Unreadable) => {
                self.get(id).await?; // says what is wrong with it
                Err(Error::NotFound(id))
            }
            Some(Changed::Removed | Changed::NotFound) | None => Err(Error::NotFound(id)),
        }
    }
}
