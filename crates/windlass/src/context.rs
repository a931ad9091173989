//! What a handler knows and can do beside its job.

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

/// The entry of a job's `meta` that ties its traces to those of others.
const TRACEPARENT: &str = "traceparent";
/// The entry of a child's `meta` that names the job that enqueued it.
const PARENT: &str = "parent";

/// A running attempt, and the state that the worker shares among its handlers. Clones are the same.
pub struct Context<S = ()> {
    /// What the worker was given to share.
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

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.attempt.job().id
    }

    /// The job's kind, as it was enqueued.
    pub fn kind(&self) -> &str {
        self.attempt.job().kind.as_str()
    }

    /// Which attempt this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt.job().attempt
    }

    /// How many attempts failed before.
    pub fn failures(&self) -> u32 {
        self.attempt.job().failures
    }

    /// The same in every attempt of this job: for a payment provider, or a table of what was done. The job's id, unless its
    /// `meta` has an `idempotency_key`.
    pub fn idempotency_key(&self) -> String {
        let given = self.attempt.job().meta.get("idempotency_key");
        let given = given.and_then(Value::as_str).map(str::to_owned);
        given.unwrap_or_else(|| self.id().to_string())
    }

    /// The whole job, as it was claimed.
    pub fn job(&self) -> &StoredJob {
        self.attempt.job()
    }

    /// How long the attempt may still take; none without a timeout.
    pub fn time_left(&self) -> Option<Duration> {
        self.attempt.time_left()
    }

    /// Why the handler should stop, if it should.
    pub fn should_stop(&self) -> Option<StopReason> {
        self.attempt.stop().reason()
    }

    /// Ends when the handler should stop: the job was called off, the timeout is over, the lease is lost, or the worker shuts
    /// down.
    pub async fn stopped(&self) -> StopReason {
        self.attempt.stop().wait().await
    }

    /// What time it is by the clock of jobs.
    pub fn now(&self) -> Timestamp {
        self.client.now()
    }

    /// Waits by the clock of jobs: in tests, no time passes.
    pub async fn sleep(&self, time: Duration) {
        let clock = self.client.engine.clock();
        clock.sleep_until(clock.now().saturating_add(time)).await;
    }

    /// Keeps a line with the attempt: up to 100 of them.
    pub fn log(&self, line: impl AsRef<str>) {
        self.attempt.log(line.as_ref());
    }

    /// Tells how far the attempt is: others see it at once, and it is kept with the attempt. At most 64 KiB of JSON.
    ///
    /// An attempt that lost its lease changes nothing, and is told so.
    pub async fn progress(&self, told: impl Into<Value>) -> Result<Progress, Error> {
        let told = self.attempt.progress(told.into()).await;
        told.map_err(|error| match error {
            ProgressError::Invalid(error) => Error::Invalid(error),
            ProgressError::Store(error) => Error::Store(error),
        })
    }

    /// Enqueues a job from within this one: it carries on the trace, its `meta` names its `parent`,
    /// and it has the deadline of this one unless it is given another.
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

    /// A client of the store that the job is in.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs work that blocks on a thread of its own. Its slot stays taken until it is done, even if nobody waits for it any
    /// more. A panic in it is a panic of the handler.
    pub async fn blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let slot = self.attempt.hold_slot();
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(slot);
            done
        });
        match done.await {
            Ok(done) => done,
            Err(broken) => std::panic::resume_unwind(broken.into_panic()),
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
