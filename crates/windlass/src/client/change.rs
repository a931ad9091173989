//! What people and programs do to jobs.

use windlass_core::{Edit, JobId, Revival, State};
use windlass_store::{Change, Changed};

use super::Client;
use crate::error::Error;

impl Client {
    /// Cancels a waiting job, and asks a running one to stop. The state it is in then.
    pub async fn cancel(&self, id: JobId) -> Result<State, Error> {
        self.change_one(id, Change::Cancel).await
    }

    /// Runs a dead or cancelled job again.
    pub async fn revive(&self, id: JobId, revival: &Revival) -> Result<State, Error> {
        self.change_one(id, Change::Revive(revival.clone())).await
    }

    /// Makes a waiting job due now; its failures stay.
    pub async fn run_now(&self, id: JobId) -> Result<State, Error> {
        self.change_one(id, Change::RunNow).await
    }

    /// Changes a waiting job: payload, priority, time or queue.
    pub async fn edit(&self, id: JobId, edit: &Edit) -> Result<State, Error> {
        self.change_one(id, Change::Edit(edit.clone())).await
    }

    /// Says of a lost at-most-once job that it did succeed.
    pub async fn resolve(&self, id: JobId) -> Result<State, Error> {
        self.change_one(id, Change::Resolve).await
    }

    /// Removes a finished job, with its history.
    pub async fn purge(&self, id: JobId) -> Result<(), Error> {
        let changed = self.change_many(&[id], &Change::Purge).await?;
        match changed[..] {
            [Changed::Removed] => Ok(()),
            _ => self.answer(id, changed).await.map(|_| ()),
        }
    }

    /// Makes one change to any number of jobs. Returns what happened to each, in their order; what does not apply to one job
    /// does not stop the others.
    ///
    /// ```
    /// # use windlass::admin::{Change, Revival};
    /// # use windlass::{Client, Error, JobId};
    /// # async fn example(client: &Client, dead: &[JobId]) -> Result<(), Error> {
    /// let revived = client.change_many(dead, &Change::Revive(Revival::default())).await?;
    /// # let _ = revived;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change_many(&self, ids: &[JobId], change: &Change) -> Result<Vec<Changed>, Error> {
        Ok(self.engine.change(ids, change).await?)
    }

    async fn change_one(&self, id: JobId, change: Change) -> Result<State, Error> {
        let changed = self.change_many(&[id], &change).await?;
        self.answer(id, changed).await
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
