//! The client: enqueues jobs, reads them and changes them.

mod actions;
mod change;
mod enqueue;
mod failures;
mod hooks;
mod jobs;
mod log;
mod queue;
mod schedule;
mod search;
mod statistics;
mod why;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::{
    FinalState, Job as StoredJob, JobId, Kind, Payload, QueueName, State, StateDetails, Timestamp,
};
use windlass_engine::remote::remote_workers;
use windlass_engine::{Engine, Health, PROGRESS, Recorder, Subscription};
use windlass_store::{Attempt, Counts, Filter, Listed, Node, Page};

pub use enqueue::{Enqueue, Receipt};
pub use failures::{FailureFilter, FailurePage};
pub use jobs::Jobs;
pub use log::JobLog;
pub use queue::QueueInfo;
pub use search::SearchPage;
pub use why::{ClaimRules, Diagnosis, FinishedDiagnosis, RetryPlan};

use crate::error::Error;
use crate::job::Job;
use crate::open::OwnerNote;

/// A handle to the jobs of one store: enqueues them, reads them and changes them.
///
/// A client is cheap to clone, and clones share the store. Keep one in the state of your program.
/// A [`Worker`](crate::Worker) is made from a client and runs the jobs.
///
/// ```
/// use std::time::Duration;
///
/// use serde::{Deserialize, Serialize};
/// use windlass::{Client, Job, State};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendEmail {
///     to: String,
/// }
///
/// impl Job for SendEmail {
///     const KIND: &'static str = "email:send";
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windlass::Error> {
/// let client = Client::open("memory:").await?;
/// let email = SendEmail { to: "ann@example.org".into() };
///
/// // Options go between the enqueue and the await.
/// let receipt = client.enqueue(email).delay(Duration::from_secs(60)).priority(5).await?;
/// assert_eq!(client.state(receipt.id).await?, Some(State::Waiting));
///
/// client.cancel(receipt.id).await?;
/// assert_eq!(client.state(receipt.id).await?, Some(State::Cancelled));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    /// How other processes reach this one, if it owns the store.
    pub(crate) owner_note: Option<OwnerNote>,
}

impl Client {
    /// Opens the store that a URL names, and creates it if it does not exist.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | in memory, private to this client and its clones |
    /// | `memory:name` | in memory, shared by every client of this process that opens the same name |
    /// | `sqlite:path` | a SQLite file, which one process at a time can open |
    /// | `postgres://user@host/database` | a PostgreSQL database (feature `postgres`) |
    ///
    /// If this process has the store open already, the new client shares it, its clock and its
    /// events. The store closes when its last client and worker are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL names no store of this build, [`Error::Store`] if the store
    /// cannot be opened: it is in use by another process, cannot be reached, or its schema has
    /// another version.
    pub async fn open(url: &str) -> Result<Self, Error> {
        crate::open::open(url, None).await
    }

    /// Opens a store like [`Client::open`], and sends all its metrics to a recorder.
    ///
    /// # Errors
    ///
    /// As [`Client::open`], and [`Error::Invalid`] if this process has the store open already: the
    /// first one to open a store sets its recorder.
    pub async fn open_with_recorder(url: &str, recorder: Arc<dyn Recorder>) -> Result<Self, Error> {
        crate::open::open(url, Some(recorder)).await
    }

    /// Returns the current time of the store's clock, which decides when jobs are due.
    ///
    /// In a [`TestKit`](crate::testing::TestKit) this is the virtual time.
    pub fn now(&self) -> Timestamp {
        self.engine.now()
    }

    /// Enqueues a job: set options on the returned [`Enqueue`], then await it for the [`Receipt`].
    ///
    /// The job is stored durably before the await returns. Nothing is stored without the await.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an option, the kind or the payload breaks a rule (a payload has at
    /// most 1 MiB of JSON). [`Error::Store`] if the store fails, or if the queue is full
    /// ([`StoreError::QueueFull`](crate::StoreError::QueueFull)).
    pub fn enqueue<T: Job>(&self, job: T) -> Enqueue<'_> {
        Enqueue::typed(self, std::slice::from_ref(&job))
    }

    /// Enqueues any number of jobs of one type, and returns one receipt per job, in their order.
    ///
    /// Options apply to all jobs. This is much faster than one enqueue per job.
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`]. The jobs are stored in batches of up to 10,000, and each batch is
    /// stored completely or not at all. If a batch after the first fails, the error is
    /// [`Error::PartiallyEnqueued`], with the receipts of the jobs that are stored. Any other error
    /// means that nothing is stored, except
    /// [`StoreError::Indeterminate`](crate::StoreError::Indeterminate).
    pub fn enqueue_many<T: Job>(&self, jobs: &[T]) -> Enqueue<'_, Vec<Receipt>> {
        Enqueue::typed(self, jobs)
    }

    /// Enqueues a job by its kind and JSON payload, for a kind that has no Rust type in this program.
    ///
    /// The job has the general defaults. Defaults of a type, such as the timeout of 30 s of HTTP
    /// jobs, must be given as options.
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`].
    pub fn enqueue_json(&self, kind: &str, payload: &Value) -> Enqueue<'_> {
        Enqueue::json(self, kind, payload)
    }

    /// Returns a job, or `None` if there is no job with this id.
    ///
    /// Finished jobs are removed after the retention period of their queue, see
    /// [`Worker::retention_days`](crate::Worker::retention_days).
    pub async fn get(&self, id: JobId) -> Result<Option<StoredJob>, Error> {
        let jobs = self.engine.store().get(&[id]).await?;
        Ok(jobs.into_iter().next().flatten())
    }

    /// Returns up to 10,000 jobs by their ids, in the same order, with `None` for each unknown id.
    pub async fn get_many(&self, ids: &[JobId]) -> Result<Vec<Option<StoredJob>>, Error> {
        Ok(self.engine.store().get(ids).await?)
    }

    /// Returns the number of jobs in each state, per queue. Queues without jobs are left out.
    pub async fn counts(&self) -> Result<BTreeMap<QueueName, Counts>, Error> {
        Ok(self.engine.store().counts(self.now()).await?)
    }

    /// Returns the processes that run workers on this store or serve it, sorted by name.
    ///
    /// [`Node::beat_at`] is the time of the last heartbeat: a process that died stays in the list for
    /// a while.
    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        Ok(self.engine.store().nodes().await?)
    }

    /// Returns all workers by name: the nodes of [`Client::nodes`], and the workers that claim jobs
    /// through a server.
    pub async fn workers(&self) -> Result<Vec<Node>, Error> {
        let store = self.engine.store();
        let remote = remote_workers(store, self.now()).await?;
        let all = remote.into_iter().chain(store.nodes().await?);
        let all: BTreeMap<String, Node> = all.map(|node| (node.name.clone(), node)).collect();
        Ok(all.into_values().collect())
    }

    /// Returns the health of the loops that the workers of this process run.
    ///
    /// A loop that hangs or panics is restarted automatically, and counted in
    /// [`Health::restarts`].
    pub fn health(&self) -> Vec<Health> {
        self.engine.health()
    }

    /// Returns one page of the jobs that match a filter, in the order of the page.
    ///
    /// A page may be empty and still not be the last: the list ends when [`Listed::next`] is `None`.
    /// [`Client::jobs`] reads all pages, and [`Client::count`] counts the matching jobs.
    pub async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, Error> {
        Ok(self.engine.store().list(filter, page, self.now()).await?)
    }

    /// Returns the finished attempts of a job, newest first: outcome, error, worker and times.
    ///
    /// Returns at most `limit` attempts, and at most 1000.
    pub async fn attempts(&self, id: JobId, limit: usize) -> Result<Vec<Attempt>, Error> {
        Ok(self.engine.store().attempts(id, limit).await?)
    }

    /// Returns the latest progress that the running attempt of a job reported, or `None`.
    ///
    /// A handler reports it with [`Context::progress`](crate::Context::progress).
    pub async fn progress(&self, id: JobId) -> Result<Option<Value>, Error> {
        let Some(job) = self.get(id).await?.filter(|job| job.lease().is_some()) else {
            return Ok(None);
        };
        let store = self.engine.store();
        let document = store
            .document(PROGRESS, &id.to_string(), self.now())
            .await?;
        let report = document.map(|document| document.value);
        // The report may be left over from an earlier attempt.
        let current = report.filter(|report| report.get("attempt") == Some(&job.attempt.into()));
        Ok(current.and_then(|report| report.get("progress").cloned()))
    }

    /// Waits until a job has succeeded, is dead or was cancelled, and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimedOut`] if the job has not finished after `timeout`, [`Error::NotFound`] if there
    /// is no such job.
    pub async fn wait(&self, id: JobId, timeout: Duration) -> Result<StoredJob, Error> {
        let job = self.engine.finished(id, timeout).await?;
        let job = job.ok_or(Error::NotFound(id))?;
        if job.state().is_final() {
            Ok(job)
        } else {
            Err(Error::WaitTimedOut { id, after: timeout })
        }
    }

    /// Waits until a job has succeeded, and returns the value that its handler returned.
    ///
    /// # Errors
    ///
    /// As [`Client::wait`]; [`Error::DidNotSucceed`] if the job is dead or cancelled;
    /// [`Error::Result`] if the value is not an `R`. A handler that returned `()`, or a value larger
    /// than [`RESULT_BYTES_MAX`](crate::admin::RESULT_BYTES_MAX), leaves no result, which decodes
    /// as `null`.
    pub async fn result<R: DeserializeOwned>(
        &self,
        id: JobId,
        timeout: Duration,
    ) -> Result<R, Error> {
        let job = self.wait(id, timeout).await?;
        if let StateDetails::Finished(end) = &job.state_details
            && let FinalState::Succeeded(result) = &end.state
        {
            let result = result.clone().unwrap_or_default();
            return result.decode().map_err(|error| Error::Result(id, error));
        }
        Err(Error::DidNotSucceed {
            id,
            state: job.state(),
            error: job.last_error.map(|error| error.to_string()),
        })
    }

    /// Subscribes to everything that happens to jobs and schedules in this process, from now on.
    ///
    /// See [`events`](crate::events).
    pub fn events(&self) -> Subscription {
        self.engine.subscribe()
    }

    /// Returns the state of a job, or `None` if there is no job with this id.
    pub async fn state(&self, id: JobId) -> Result<Option<State>, Error> {
        Ok(self.get(id).await?.map(|job| job.state()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.engine.store())
    }
}

/// Serializes a value as a payload; an error names the field `payload`.
pub(crate) fn payload_of(value: &impl serde::Serialize) -> Result<Payload, windlass_core::Invalid> {
    Payload::from_serialize(value, windlass_core::PAYLOAD_BYTES_MAX)
        .map_err(|error| error.within("payload"))
}

/// Returns the kind of a type, checked.
pub(crate) fn kind_of<T: Job>() -> Result<Kind, windlass_core::Invalid> {
    Kind::new(T::KIND).map_err(|error| error.within("kind"))
}
