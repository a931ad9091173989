//! The context of a handler: its attempt, the shared state, and what it can do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_core::{Job as StoredJob, JobId, Timestamp};
use windlass_engine::{Progress, ProgressError, RunningAttempt, StopReason};

use crate::admin::client_of;
use crate::client::{Client, Enqueue};
use crate::error::Error;
use crate::job::Job;

/// The entry of a job's `meta` that links its trace to the trace of its parent.
const TRACEPARENT: &str = "traceparent";
/// The entry of a child's `meta` that names the job that enqueued it.
const PARENT: &str = "parent";

/// The second argument of every handler: the running attempt, and the state that handlers share.
///
/// A context is cheap to clone, and clones refer to the same attempt. `S` is the type of the state
/// that was given to [`Worker::new`](crate::Worker::new).
///
/// ```
/// use std::time::Duration;
///
/// use serde::{Deserialize, Serialize};
/// use windlass::testing::TestKit;
/// use windlass::{Context, Failure, Job, Worker};
///
/// #[derive(Serialize, Deserialize)]
/// struct Import {
///     rows: u32,
/// }
///
/// impl Job for Import {
///     const KIND: &'static str = "import";
/// }
///
/// struct App {
///     table: String,
/// }
///
/// async fn import(job: Import, ctx: Context<App>) -> Result<u32, Failure> {
///     for row in 0..job.rows {
///         tokio::select! {
///             () = ctx.sleep(Duration::from_secs(1)) => {} // the work on one row
///             reason = ctx.stopped() => return Err(format!("stopped: {reason:?}").into()),
///         }
///         ctx.progress(row + 1).await?;
///     }
///     ctx.log(format!("imported {} rows into {}", job.rows, ctx.state.table));
///     Ok(job.rows)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windlass::Error> {
/// let kit = TestKit::new();
/// let id = kit.client().enqueue(Import { rows: 3 }).await?.id;
/// let app = App { table: "customers".into() };
/// kit.worker(Worker::new(kit.client(), app).handle(import)).await?.drain().await?;
/// assert_eq!(kit.client().result::<u32>(id, Duration::ZERO).await?, 3);
/// # Ok(())
/// # }
/// ```
pub struct Context<S = ()> {
    /// The state that was given to [`Worker::new`](crate::Worker::new).
    pub state: Arc<S>,
    attempt: Arc<RunningAttempt>,
    client: Client,
}

impl<S> Context<S> {
    pub(crate) fn new(state: Arc<S>, attempt: Arc<RunningAttempt>) -> Self {
        let client = client_of(Arc::clone(attempt.engine()));
        Context {
            state,
            attempt,
            client,
        }
    }

    /// Returns the id of the job.
    pub fn id(&self) -> JobId {
        self.attempt.job().id
    }

    /// Returns the kind that the job was enqueued with, which may be one of the
    /// [aliases](Job::ALIASES) of its type.
    pub fn kind(&self) -> &str {
        self.attempt.job().kind.as_str()
    }

    /// Returns the number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt.job().attempt
    }

    /// Returns how many attempts failed before this one.
    ///
    /// This is less than [`Context::attempt`] if an attempt was snoozed or given back.
    pub fn failures(&self) -> u32 {
        self.attempt.job().failures
    }

    /// Returns a key that is the same in every attempt of this job.
    ///
    /// Send it to a payment provider, or store it in a table of completed work, so that a job that
    /// runs twice has its effect once. It is the id of the job, unless its `meta` has an
    /// `idempotency_key`.
    pub fn idempotency_key(&self) -> String {
        let key = self.attempt.job().meta.get("idempotency_key");
        let key = key.and_then(Value::as_str).map(str::to_owned);
        key.unwrap_or_else(|| self.id().to_string())
    }

    /// Returns the whole job as it was when the worker claimed it.
    pub fn job(&self) -> &StoredJob {
        self.attempt.job()
    }

    /// Returns the time that is left before the attempt times out, or `None` without a timeout.
    pub fn time_left(&self) -> Option<Duration> {
        self.attempt.time_left()
    }

    /// Returns why the handler should stop, or `None` while it should continue.
    ///
    /// Check it in a loop. Where the handler can wait, use [`Context::stopped`].
    pub fn should_stop(&self) -> Option<StopReason> {
        self.attempt.stop().reason()
    }

    /// Waits until the handler should stop, and returns why.
    ///
    /// The reasons are: the job was cancelled, the attempt timed out, the lease was lost, or the
    /// worker shuts down. The handler then has 5 s
    /// ([`Worker::cancel_grace`](crate::Worker::cancel_grace)) to return; after that the worker drops
    /// it at its next `await`.
    pub async fn stopped(&self) -> StopReason {
        self.attempt.stop().wait().await
    }

    /// Returns the current time of the store's clock; in tests, the virtual time.
    pub fn now(&self) -> Timestamp {
        self.client.now()
    }

    /// Sleeps by the store's clock. In a [`TestKit`](crate::testing::TestKit) this takes no real time.
    pub async fn sleep(&self, duration: Duration) {
        let clock = self.client.engine.clock();
        clock
            .sleep_until(clock.now().saturating_add(duration))
            .await;
    }

    /// Adds a text to the log of the attempt. Each line of the text is a line of the log, cut to 1000
    /// characters.
    ///
    /// [`Client::log`] returns the log. While the handler runs, new lines are visible there within a
    /// few seconds, also after the process has died. The log keeps the last 1000 lines, at most
    /// 64 KiB, and counts the lines that it dropped.
    pub fn log(&self, line: impl AsRef<str>) {
        self.attempt.log(line.as_ref());
    }

    /// Reports how far the attempt is, as up to 64 KiB of JSON.
    ///
    /// [`Client::progress`] returns the latest report immediately, and the report is stored with the
    /// outcome of the attempt. If the attempt has lost its lease, nothing is stored and the answer is
    /// [`Progress::LeaseLost`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the value is too large, [`Error::Store`] if the store fails.
    pub async fn progress(&self, value: impl Into<Value>) -> Result<Progress, Error> {
        let progress = self.attempt.progress(value.into()).await;
        progress.map_err(|error| match error {
            ProgressError::Invalid(error) => Error::Invalid(error),
            ProgressError::Store(error) => Error::Store(error),
        })
    }

    /// Enqueues a child of this job, like [`Client::enqueue`].
    ///
    /// The child continues the trace of this job, its `meta` names this job as `parent`, and it
    /// inherits the deadline unless it has its own.
    pub fn enqueue<T: Job>(&self, job: T) -> Enqueue<'_> {
        let mut child = self
            .client
            .enqueue(job)
            .meta(PARENT, self.id().to_string().into());
        if let Some(deadline) = self.attempt.job().deadline {
            child = child.inherit_deadline(deadline);
        }
        if let Some(trace) = self.attempt.job().meta.get(TRACEPARENT) {
            child = child.meta(TRACEPARENT, trace.clone());
        }
        child
    }

    /// Returns a client of the store that the job comes from.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs blocking work on a separate thread, so that it does not hold up other jobs.
    ///
    /// Blocking work cannot be interrupted: it runs to its end even if the handler is dropped, and
    /// it occupies its slot of the worker until then. If it panics, the handler panics, which is a
    /// failure of the attempt.
    pub async fn blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let slot = self.attempt.hold_slot();
        let task = tokio::task::spawn_blocking(move || {
            let output = work();
            drop(slot);
            output
        });
        match task.await {
            Ok(output) => output,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl<S> Clone for Context<S> {
    fn clone(&self) -> Self {
        Context {
            state: Arc::clone(&self.state),
            attempt: Arc::clone(&self.attempt),
            client: self.client.clone(),
        }
    }
}

impl<S> fmt::Debug for Context<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.attempt)
    }
}
