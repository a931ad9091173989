//! What a program does with jobs: enqueue them, look at them, change them.

mod change;
mod enqueue;
mod jobs;
mod queue;
mod schedule;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::{
    Ended, Job as StoredJob, JobId, Kind, Payload, QueueName, Standing, State, Timestamp,
};
use windlass_engine::{Engine, Health, PROGRESS, Recorder, Subscription};
use windlass_store::{Attempt, Counts, Filter, Listed, Node, Page};

pub use enqueue::{Enqueue, Receipt};
pub use jobs::Jobs;
pub use queue::QueueSettings;

use crate::error::Error;
use crate::job::Job;

/// A way to the jobs of one store. Clones share it.
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
}

impl Client {
    /// Opens a store: `memory:` (gone with the process; `memory:name` is shared within it), `sqlite:path` or, with the
    /// feature `postgres`, `postgres://user@host/database`.
    ///
    /// Opened again in the same process, it is the same store. A new file, and a database without a schema, are set up.
    pub async fn open(url: &str) -> Result<Self, Error> {
        let engine = crate::open::open(url, None).await?;
        Ok(Client { engine })
    }

    /// The same, with figures going to a recorder.
    pub async fn open_with_recorder(url: &str, recorder: Arc<dyn Recorder>) -> Result<Self, Error> {
        let engine = crate::open::open(url, Some(recorder)).await?;
        Ok(Client { engine })
    }

    /// What time it is by the clock of jobs.
    pub fn now(&self) -> Timestamp {
        self.engine.now()
    }

    /// Stores a job; options may be said before it is awaited.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::{Client, Error, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct SendEmail { to: String }
    /// # impl Job for SendEmail { const KIND: &'static str = "email:send"; }
    /// # async fn example() -> Result<(), Error> {
    /// let client = Client::open("memory:").await?;
    /// let email = SendEmail { to: "ann@example.org".into() };
    /// let receipt = client.enqueue(email).delay(Duration::from_secs(60)).priority(5).await?;
    /// println!("job {}", receipt.id);
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue<T: Job>(&self, job: T) -> Enqueue<'_> {
        Enqueue::typed(self, std::slice::from_ref(&job))
    }

    /// Stores any number of jobs of one type; awaiting it returns one receipt per job, in their order. The options apply to all.
    ///
    /// The store takes them in steps of up to 10,000, each all or none. If a step after the first fails, the error is
    /// [`Error::EnqueuedInPart`], with the receipts of what is stored. Any other error means that nothing is stored, except
    /// [`StoreError::Indeterminate`](crate::StoreError::Indeterminate).
    pub fn enqueue_many<T: Job>(&self, jobs: &[T]) -> Enqueue<'_, Vec<Receipt>> {
        Enqueue::typed(self, jobs)
    }

    /// Stores a job of a kind that has no type here.
    pub fn enqueue_json(&self, kind: &str, payload: &Value) -> Enqueue<'_> {
        Enqueue::json(self, kind, payload)
    }

    /// One job.
    pub async fn get(&self, id: JobId) -> Result<Option<StoredJob>, Error> {
        let found = self.engine.store().get(&[id]).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Jobs by their ids, at most 10,000, in the order of the ids.
    pub async fn get_many(&self, ids: &[JobId]) -> Result<Vec<Option<StoredJob>>, Error> {
        Ok(self.engine.store().get(ids).await?)
    }

    /// How many jobs of each queue are in each state. A queue without jobs is not named.
    pub async fn counts(&self) -> Result<BTreeMap<QueueName, Counts>, Error> {
        Ok(self.engine.store().counts(self.now()).await?)
    }

    /// The processes that run workers on this store or serve it, by name.
    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        Ok(self.engine.store().nodes().await?)
    }

    /// How the loops of all workers of this process are.
    pub fn health(&self) -> Vec<Health> {
        self.engine.health()
    }

    /// One page of jobs, newest first. A page may be empty and still not the last: only `next` says that the list ends. Use
    /// [`Client::jobs`] to read all of them and [`Client::count`] to know how many there are.
    pub async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, Error> {
        Ok(self.engine.store().list(filter, page, self.now()).await?)
    }

    /// The ended attempts of a job, newest first.
    pub async fn attempts(&self, id: JobId, limit: usize) -> Result<Vec<Attempt>, Error> {
        Ok(self.engine.store().attempts(id, limit).await?)
    }

    /// What the running attempt of a job last told of its progress.
    pub async fn progress(&self, id: JobId) -> Result<Option<Value>, Error> {
        let Some(job) = self.get(id).await?.filter(|job| job.lease().is_some()) else {
            return Ok(None);
        };
        let store = self.engine.store();
        let told = store
            .document(PROGRESS, &id.to_string(), self.now())
            .await?;
        let told = told.map(|document| document.value);
        let ours = told.filter(|told| told.get("attempt") == Some(&job.attempt.into()));
        Ok(ours.and_then(|told| told.get("progress").cloned()))
    }

    /// Waits until a job is over, for so long at most.
    pub async fn wait(&self, id: JobId, most: Duration) -> Result<StoredJob, Error> {
        let job = self.engine.finished(id, most).await?;
        let job = job.ok_or(Error::NotFound(id))?;
        match job.state().is_final() {
            true => Ok(job),
            false => Err(Error::NotOver { id, after: most }),
        }
    }

    /// Waits until a job succeeded, for so long at most, and reads what its handler returned.
    pub async fn result<R: DeserializeOwned>(&self, id: JobId, most: Duration) -> Result<R, Error> {
        let job = self.wait(id, most).await?;
        if let Standing::Finished(end) = &job.standing
            && let Ended::Succeeded(left) = &end.how
        {
            let left = left.clone().unwrap_or_default();
            return left.decode().map_err(|error| Error::Result(id, error));
        }
        Err(Error::DidNotSucceed {
            id,
            state: job.state(),
            error: job.last_error.map(|error| error.to_string()),
        })
    }

    /// Listens to what happens in this process from now on.
    pub fn events(&self) -> Subscription {
        self.engine.subscribe()
    }

    /// The state of a job, if there is one.
    pub async fn state(&self, id: JobId) -> Result<Option<State>, Error> {
        Ok(self.get(id).await?.map(|job| job.state()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.engine.store())
    }
}

/// The payload of a value.
pub(crate) fn payload_of(value: &impl serde::Serialize) -> Result<Payload, windlass_core::Invalid> {
    Payload::from_serialize(value, windlass_core::PAYLOAD_BYTES_MAX)
        .map_err(|error| error.within("payload"))
}

/// The kind of a type.
pub(crate) fn kind_of<T: Job>() -> Result<Kind, windlass_core::Invalid> {
    Kind::new(T::KIND).map_err(|error| error.within("kind"))
}
