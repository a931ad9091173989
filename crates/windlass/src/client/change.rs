//! Changes to jobs that are in the store.

use windlass_core::{Edit, JobId, Revival, State};
use windlass_store::{Change, Changed};

use super::Client;
use crate::error::Error;

impl Client {
    /// Cancels a waiting job, or asks a running one to stop. Returns the new state of the job.
    ///
    /// A running job stays [`State::Running`] until its handler returns, or until the worker drops
    /// the handler after [`Worker::cancel_grace`](crate::Worker::cancel_grace). The handler sees the
    /// request with [`Context::stopped`](crate::Context::stopped).
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or [`Error::Conflict`] if the job has finished.
    pub async fn cancel(&self, id: JobId) -> Result<State, Error> {
        self.change_one(id, Change::Cancel).await
    }

    /// Runs a dead or cancelled job again.
    ///
    /// [`Revival::default`] makes the job due now, with its failures reset. A lost at-most-once job
    /// needs [`Consent::MayRunTwice`](crate::admin::Consent::MayRunTwice).
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Conflict`] if the job is in another state or needs consent;
    /// [`Error::KeyTaken`] if another job holds its unique key; [`Error::QueueFull`].
    pub async fn revive(&self, id: JobId, revival: &Revival) -> Result<State, Error> {
        self.change_one(id, Change::Revive(revival.clone())).await
    }

    /// Makes a waiting job due now. Its count of failures stays.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or [`Error::Conflict`] if the job is not waiting.
    pub async fn run_now(&self, id: JobId) -> Result<State, Error> {
        self.change_one(id, Change::RunNow).await
    }

    /// Changes the payload, priority, time or queue of a waiting job.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Conflict`] if the job is not waiting; [`Error::KeyTaken`] or
    /// [`Error::QueueFull`] if it cannot move to the new queue.
    pub async fn edit(&self, id: JobId, edit: &Edit) -> Result<State, Error> {
        self.change_one(id, Change::Edit(edit.clone())).await
    }

    /// Marks a lost at-most-once job as succeeded, after a person has checked that it did its work.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or [`Error::Conflict`] if the job is not dead with the reason
    /// [`DeadReason::Lost`](crate::DeadReason::Lost).
    pub async fn resolve(&self, id: JobId) -> Result<State, Error> {
        self.change_one(id, Change::Resolve).await
    }

    /// Removes a finished job and its history.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or [`Error::Conflict`] if the job has not finished.
    pub async fn purge(&self, id: JobId) -> Result<(), Error> {
        let changed = self.change_many(&[id], &Change::Purge).await?;
        match changed[..] {
            [Changed::Removed] => Ok(()),
            _ => self.changed_state(id, changed).await.map(|_| ()),
        }
    }

    /// Makes one change to any number of jobs, and returns the result for each, in their order.
    ///
    /// A job that the change does not apply to does not stop the others. [`admin`](crate::admin) has
    /// an example.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the change moves jobs to a reserved queue; [`Error::Store`] if the store
    /// fails. The jobs are changed in batches of up to 10,000: earlier
    /// batches stay changed.
    pub async fn change_many(&self, ids: &[JobId], change: &Change) -> Result<Vec<Changed>, Error> {
        change.check()?;
        Ok(self.engine.change(ids, change).await?)
    }

    async fn change_one(&self, id: JobId, change: Change) -> Result<State, Error> {
        let changed = self.change_many(&[id], &change).await?;
        self.changed_state(id, changed).await
    }

    /// Turns the result of a change to one job into its new state, or an error.
    async fn changed_state(&self, id: JobId, changed: Vec<Changed>) -> Result<State, Error> {
        match changed.into_iter().next() {
            Some(Changed::Now(state)) => Ok(state),
            Some(
                Changed::Conflict(state) | Changed::ChangedSince(state) | Changed::Repeated(state),
            ) => Err(Error::Conflict { id, state }),
            Some(Changed::PatchFailed { reason }) => Err(Error::PatchFailed { id, reason }),
            Some(Changed::KeyTaken(_)) => Err(Error::KeyTaken(id)),
            Some(Changed::QueueFull { max_depth }) => Err(Error::QueueFull { id, max_depth }),
            Some(Changed::Unreadable) => {
                self.get(id).await?; // returns the error that says why it is unreadable
                Err(Error::NotFound(id))
            }
            Some(Changed::Removed | Changed::NotFound) | None => Err(Error::NotFound(id)),
        }
    }
}
