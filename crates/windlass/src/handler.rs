//! Handlers: plain async functions, adapted for the engine.

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
use crate::retry::{RetryRule, apply_rule};

/// The largest result of a handler that is stored with its job: 64 KiB of JSON.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;

/// An async function that runs jobs of one type:
/// `async fn(job: T, ctx: Context<S>) -> Result<R, E>`.
///
/// | type | what it is |
/// |---|---|
/// | `T` | the [`Job`] that the handler runs |
/// | `S` | the state of the [`Worker`](crate::Worker), which all its handlers share |
/// | `R` | any type that implements `Serialize`; [`Client::result`](crate::Client::result) reads it |
/// | `E` | any error, or a [`Failure`] |
///
/// The trait is implemented for all such functions and closures. You do not implement it yourself;
/// pass the function to [`Worker::handle`](crate::Worker::handle). The parameter `Shape` only helps
/// the compiler to infer `T`, `R` and `E`.
///
/// A result that is larger than [`RESULT_BYTES_MAX`](crate::admin::RESULT_BYTES_MAX) is not stored.
/// The job has succeeded nevertheless, and the log of the attempt says that the result is missing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of a worker whose state is `{S}`",
    label = "must be `async fn(job: T, ctx: Context<{S}>) -> Result<R, E>`",
    note = "`T` must implement `windlass::Job`, `R` `serde::Serialize`, and `E` must be an error (or `windlass::Failure`)",
    note = "the future must be `Send`: do not hold an `Rc` or a lock guard across an `await`"
)]
pub trait Handler<S, Shape>: Send + Sync + 'static {
    /// The type of job that the handler runs.
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
        let result = self(job, context.clone()).await.map_err(Into::into)?;
        Ok(encode_result(&result, &context))
    }
}

/// Encodes the result of a handler. `()` gives none, and neither does a result that is too large:
/// the job has succeeded in any case.
fn encode_result<S>(result: &impl Serialize, context: &Context<S>) -> Option<Payload> {
    match Payload::from_serialize(result, RESULT_BYTES_MAX) {
        Ok(payload) => Some(payload).filter(|payload| payload.as_str() != "null"),
        Err(error) => {
            context.log(format!("the result is not stored: it {}", error.rule()));
            None
        }
    }
}

/// What all handlers of a worker share: the state, and what decides about failures.
pub(crate) struct HandlerEnvironment<S> {
    pub(crate) state: Arc<S>,
    pub(crate) classifiers: Vec<Classifier>,
    pub(crate) retry_rule: Option<Box<dyn RetryRule>>,
}

/// Adapts a [`Handler`] to the interface of the engine.
pub(crate) struct HandlerAdapter<S, H, Shape> {
    handler: Arc<H>,
    environment: Arc<HandlerEnvironment<S>>,
    shape: PhantomData<fn() -> Shape>,
}

impl<S, H, Shape> HandlerAdapter<S, H, Shape> {
    pub(crate) fn new(handler: Arc<H>, environment: Arc<HandlerEnvironment<S>>) -> Self {
        HandlerAdapter {
            handler,
            environment,
            shape: PhantomData,
        }
    }
}

impl<S, H, Shape> EngineHandler for HandlerAdapter<S, H, Shape>
where
    S: Send + Sync + 'static,
    H: Handler<S, Shape>,
    Shape: 'static,
{
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running {
        let handler = Arc::clone(&self.handler);
        let environment = Arc::clone(&self.environment);
        Box::pin(async move {
            let report = run_attempt(&*handler, &environment, &attempt).await;
            match &environment.retry_rule {
                Some(rule) => apply_rule(&**rule, attempt.job(), report),
                None => report,
            }
        })
    }
}

/// Decodes the payload, calls the handler and reports how the attempt ended.
async fn run_attempt<S, H, Shape>(
    handler: &H,
    environment: &HandlerEnvironment<S>,
    attempt: &Arc<RunningAttempt>,
) -> Report
where
    H: Handler<S, Shape>,
{
    let job = match decode::<H::Job>(attempt.job()) {
        Ok(job) => job,
        // Retried: a deploy that fixes the type also fixes the job.
        Err(reason) => return Report::Failed(CoreFailure::retryable(AttemptError::new(reason))),
    };
    let context = Context::new(Arc::clone(&environment.state), Arc::clone(attempt));
    match handler.call(job, context).await {
        Ok(result) => Report::Succeeded(result),
        Err(failure) => {
            let text = failure.to_string();
            let report = failure.into_report(&environment.classifiers, attempt.engine().now());
            if report == Report::Cancelled {
                attempt.log(&format!("cancelled: {text}"));
            }
            report
        }
    }
}

/// Decodes the payload of a job, after converting it from an older version. An error is a sentence
/// for people.
fn decode<T: Job>(job: &StoredJob) -> Result<T, String> {
    let version = job.meta.get(VERSION).and_then(Value::as_u64).unwrap_or(1);
    let current = u64::from(T::VERSION);
    let undecodable = |error: &dyn std::fmt::Display| {
        format!("the payload of {} cannot be decoded: {error}", job.kind)
    };
    if version > current {
        return Err(format!(
            "the payload of {} has version {version}, this worker supports {current}; deploy the newer version",
            job.kind
        ));
    }
    if version == current {
        return job.payload.decode().map_err(|error| undecodable(&error));
    }
    let old: Value = job.payload.decode().map_err(|error| undecodable(&error))?;
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    let new = T::upcast(version, old).map_err(|error| undecodable(&error))?;
    serde_json::from_value(new).map_err(|error| undecodable(&error))
}
