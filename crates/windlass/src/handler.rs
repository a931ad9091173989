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
use crate::retry::{RetryRule, decided};

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
        let left = self(job, context.clone()).await.map_err(Into::into)?;
        Ok(kept(&left, &context))
    }
}

/// What a handler leaves; nothing at all for `()`. The job succeeded also if that cannot be kept.
fn kept<S>(left: &impl Serialize, context: &Context<S>) -> Option<Payload> {
    match Payload::from_serialize(left, RESULT_BYTES_MAX) {
        Ok(payload) => Some(payload).filter(|payload| payload.as_str() != "null"),
        Err(error) => {
            context.log(format!("the result is not kept: it {}", error.rule()));
            None
        }
    }
}

/// What the handlers of a worker share.
pub(crate) struct Shared<S> {
    pub(crate) state: Arc<S>,
    pub(crate) classifiers: Vec<Classifier>,
    pub(crate) rule: Option<Box<dyn RetryRule>>,
}

/// A handler as the engine wants it.
pub(crate) struct Adapter<S, H, Shape> {
    handler: Arc<H>,
    shared: Arc<Shared<S>>,
    shape: PhantomData<fn() -> Shape>,
}

impl<S, H, Shape> Adapter<S, H, Shape> {
    pub(crate) fn new(handler: Arc<H>, shared: Arc<Shared<S>>) -> Self {
        Adapter {
            handler,
            shared,
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
        let handler = Arc::clone(&self.handler);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let report = report(&*handler, &shared, &attempt).await;
            match &shared.rule {
                Some(rule) => decided(&**rule, attempt.job(), report),
                None => report,
            }
        })
    }
}

/// How an attempt ended.
async fn report<S, H, Shape>(
    handler: &H,
    shared: &Shared<S>,
    attempt: &Arc<RunningAttempt>,
) -> Report
where
    H: Handler<S, Shape>,
{
    let job = match decode::<H::Job>(attempt.job()) {
        Ok(job) => job,
        Err(why) => return Report::Failed(CoreFailure::retryable(AttemptError::new(why))),
    };
    let context = Context::new(Arc::clone(&shared.state), Arc::clone(attempt));
    match handler.call(job, context).await {
        Ok(left) => Report::Succeeded(left),
        Err(failure) => {
            let text = failure.to_string();
            let report = failure.into_report(&shared.classifiers, attempt.engine().now());
            if report == Report::Cancelled {
                attempt.log(&format!("cancelled: {text}"));
            }
            report
        }
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
