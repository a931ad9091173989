//! Plain async functions as handlers.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use windlass_core::{AttemptError, Failure as CoreFailure, Job as StoredJob, Payload, Report};
use windlass_engine::{Handler as EngineHandler, Running, RunningAttempt};

use crate::context::Context;
use crate::failure::{Classifier, Failure};
use crate::job::{Job, VERSION};

/// The largest result that is kept: 64 KiB.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;

/// An async function that runs jobs of one type: `async fn(job: T, ctx: Context<S>) -> Result<R, E>`.
///
/// `T` is a [`Job`], `S` the state of the worker, `R` anything that serialises (it is kept as the result), and `E` any error.
/// It is implemented for such functions; there is no need to implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of a worker whose state is `{S}`",
    label = "must be `async fn(job: T, ctx: Context<{S}>) -> Result<R, E>`",
    note = "`T` must implement `windlass::Job`, `R` `serde::Serialize`, and `E` must be an error (or `windlass::Failure`)",
    note = "the future must be `Send`: hold no `Rc` or lock guard across an `await`"
)]
pub trait Handler<S, Shape>: Send + Sync + 'static {
    /// What it runs.
    type Job: Job;

    #[doc(hidden)]
    fn call(
        &self,
        job: Self::Job,
        context: Context<S>,
    ) -> impl Future<Output = Result<Option<Payload>, Failure>> + Send;
}

impl<S, F, T, R, E, Fut> Handler<S, (T, R, E)> for F
where
    S: Send + Sync + 'static,
    F: Fn(T, Context<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    T: Job,
    R: Serialize,
    E: Into<Failure>,
{
    type Job = T;

    async fn call(&self, job: T, context: Context<S>) -> Result<Option<Payload>, Failure> {
        let left = self(job, context).await.map_err(Into::into)?;
        kept(&left)
    }
}

/// What a handler leaves; nothing at all for `()`.
fn kept(left: &impl Serialize) -> Result<Option<Payload>, Failure> {
    let payload = Payload::from_serialize(left, RESULT_BYTES_MAX);
    let payload =
        payload.map_err(|error| Failure::unrecoverable(format!("the result {}", error.rule())))?;
    Ok(Some(payload).filter(|payload| payload.as_str() != "null"))
}

/// A handler as the engine wants it.
pub(crate) struct Adapter<S, H, Shape> {
    handler: Arc<H>,
    state: Arc<S>,
    classifiers: Arc<[Classifier]>,
    shape: PhantomData<fn() -> Shape>,
}

impl<S, H, Shape> Adapter<S, H, Shape> {
    pub(crate) fn new(handler: Arc<H>, state: Arc<S>, classifiers: Arc<[Classifier]>) -> Self {
        Adapter {
            handler,
            state,
            classifiers,
            shape: PhantomData,
        }
    }
}

impl<S, H, Shape> EngineHandler for Adapter<S, H, Shape>
where
    S: Send + Sync + 'static,
    H: Handler<S, Shape>,
    Shape: 'static,
{
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running {
        let job = match decode::<H::Job>(attempt.job()) {
            Ok(job) => job,
            Err(why) => {
                let failure = CoreFailure::retryable(AttemptError::new(why));
                return Box::pin(std::future::ready(Report::Failed(failure)));
            }
        };
        let handler = Arc::clone(&self.handler);
        let classifiers = Arc::clone(&self.classifiers);
        let engine = Arc::clone(attempt.engine());
        let context = Context::new(Arc::clone(&self.state), attempt);
        Box::pin(async move {
            match handler.call(job, context).await {
                Ok(left) => Report::Succeeded(left),
                Err(failure) => failure.into_report(&classifiers, engine.now()),
            }
        })
    }
}

/// The value that a payload stands for; an old one is brought up to date first. In words why not.
fn decode<T: Job>(job: &StoredJob) -> Result<T, String> {
    let version = job.meta.get(VERSION).and_then(Value::as_u64).unwrap_or(1);
    let ours = u64::from(T::VERSION);
    let cannot = |error: &dyn std::fmt::Display| {
        format!("the payload of {} cannot be decoded: {error}", job.kind)
    };
    if version > ours {
        return Err(format!(
            "the payload of {} has version {version}, this worker knows {ours}: deploy the newer one",
            job.kind
        ));
    }
    if version == ours {
        return job.payload.decode().map_err(|error| cannot(&error));
    }
    let old: Value = job.payload.decode().map_err(|error| cannot(&error))?;
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    let new = T::upcast(version, old).map_err(|error| cannot(&error))?;
    serde_json::from_value(new).map_err(|error| cannot(&error))
}
