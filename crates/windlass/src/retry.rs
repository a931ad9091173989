//! Retries: when a failed job runs again, how often, and who decides.
//!
//! A handler that returns an error has failed, and so has one that panics, times out, or whose
//! worker dies. Three questions follow, and each can be answered in several places. The first place
//! that has an answer decides.
//!
//! **Is it worth a retry?**
//!
//! 1. The handler, with a constructor of [`Failure`](crate::Failure).
//! 2. The type of the error: one that implements [`Classify`] and is registered with
//!    [`Worker::classify`](crate::Worker::classify), or [`Unrecoverable`], anywhere in the chain of
//!    sources.
//! 3. Otherwise yes.
//!
//! A [`RetryRule`] of the worker ([`Worker::retry_rule`](crate::Worker::retry_rule)) then may refuse
//! the retry or set its delay.
//!
//! **After which delay?** A [`RetryPolicy`] combines a [`Backoff`] (how the delay grows), a
//! [`Jitter`] (how it is spread) and a limit of attempts. A [`Preset`] is a policy with a name. The
//! policy comes from:
//!
//! 1. the job ([`Enqueue::retry`](crate::Enqueue::retry)),
//! 2. its kind ([`Job::defaults`](crate::Job::defaults) or
//!    [`Worker::retry_for_kind`](crate::Worker::retry_for_kind)),
//! 3. its queue ([`Queue::retry`](crate::Queue::retry)),
//! 4. the worker ([`Worker::retry`](crate::Worker::retry)), which is [`Preset::Standard`] by default.
//!
//! **How often?** The limit is the job's own
//! ([`Options::max_attempts`](crate::Options::max_attempts)), or that of the first of these policies
//! that has one. It is never above the cap of the worker ([`Worker::attempt_cap`](crate::Worker::attempt_cap)). A job
//! that reaches its limit is dead; [`Client::revive`](crate::Client::revive) runs it again.
//!
//! [`explain()`] shows what a policy will do before you use it.
//!
//! ```
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use windlass::retry::{Backoff, Class, Classify, Jitter, RetryPolicy};
//! use windlass::testing::TestKit;
//! use windlass::{Context, Job, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Charge {
//!     card: String,
//! }
//!
//! impl Job for Charge {
//!     const KIND: &'static str = "charge";
//! }
//!
//! #[derive(Debug, thiserror::Error)]
//! enum PaymentError {
//!     #[error("the provider does not answer")]
//!     Unreachable,
//!     #[error("the card was stolen")]
//!     Stolen,
//! }
//!
//! impl Classify for PaymentError {
//!     fn class(&self) -> Class {
//!         match self {
//!             PaymentError::Unreachable => Class::Retry,
//!             PaymentError::Stolen => Class::Unrecoverable,
//!         }
//!     }
//! }
//!
//! async fn charge(job: Charge, ctx: Context) -> Result<(), PaymentError> {
//!     match (job.card.as_str(), ctx.attempt()) {
//!         ("stolen", _) => Err(PaymentError::Stolen),
//!         (_, 1 | 2) => Err(PaymentError::Unreachable),
//!         _ => Ok(()),
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! let delays = vec![Duration::from_secs(1), Duration::from_secs(9)];
//! let policy = RetryPolicy::new(Backoff::Steps { delays }, Jitter::None)?.with_max_attempts(5)?;
//!
//! let kit = TestKit::new(); // a virtual clock: the example takes no time
//! let good = kit.client().enqueue(Charge { card: "good".into() }).retry(policy).await?;
//! let stolen = kit.client().enqueue(Charge { card: "stolen".into() }).await?;
//! let worker = Worker::new(kit.client(), ()).classify::<PaymentError>().handle(charge);
//! kit.worker(worker).await?.drain().await?;
//!
//! let timeline = kit.timeline(good.id).await?;
//! assert_eq!(timeline.to_string(), "\
//! +0s #1 failed: the provider does not answer
//! +1s #2 failed: the provider does not answer
//! +10s #3 succeeded
//! ");
//! assert_eq!(kit.timeline(stolen.id).await?.outcomes(), ["failed"]);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

#[doc(inline)]
pub use windlass_core::Unrecoverable;
#[doc(inline)]
pub use windlass_core::retry::*;

use windlass_core::{AttemptError, Failure, FailureClass, Job as StoredJob, Report};

pub use crate::failure::{Class, Classify};
pub use crate::options::Retry;

/// An attempt that failed, as a [`RetryRule`] sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct FailedAttempt<'a> {
    /// The job, as it was when the attempt started.
    pub job: &'a StoredJob,
    /// The number of failed attempts, this one included.
    pub failures: u32,
    /// The error of the attempt.
    pub error: &'a AttemptError,
    /// The delay that the handler or its error asked for.
    pub retry_after: Option<Duration>,
}

/// What a [`RetryRule`] decides about a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Follow the policy of the job.
    ByPolicy,
    /// Retry after this delay, if the limit of attempts allows another attempt. A longer
    /// `retry_after` takes precedence.
    After(Duration),
    /// Do not retry: the job is dead, with the reason unrecoverable.
    Never,
}

/// Decides about failed attempts in code: a closure `Fn(&FailedAttempt) -> RetryDecision`, or your
/// own type.
///
/// The worker calls the rule after a handler returned an error that may be retried. Timeouts, panics
/// and crashed workers follow the policy of the job, which every node knows. Register the rule with
/// [`Worker::retry_rule`](crate::Worker::retry_rule).
pub trait RetryRule: Send + Sync + 'static {
    /// Returns what should happen after this failure.
    fn decide(&self, failed: &FailedAttempt<'_>) -> RetryDecision;
}

impl<F> RetryRule for F
where
    F: Fn(&FailedAttempt<'_>) -> RetryDecision + Send + Sync + 'static,
{
    fn decide(&self, failed: &FailedAttempt<'_>) -> RetryDecision {
        self(failed)
    }
}

/// Applies a rule to the report of an attempt, if the attempt failed and may be retried.
pub(crate) fn apply_rule(rule: &dyn RetryRule, job: &StoredJob, report: Report) -> Report {
    let Report::Failed(mut failure) = report else {
        return report;
    };
    if failure.class == FailureClass::Unrecoverable {
        return Report::Failed(failure);
    }
    let failed = FailedAttempt {
        job,
        failures: job.failures.saturating_add(1),
        error: &failure.error,
        retry_after: failure.retry_after,
    };
    match rule.decide(&failed) {
        RetryDecision::ByPolicy => {}
        RetryDecision::After(delay) => failure.delay = Some(delay),
        RetryDecision::Never => failure = Failure::unrecoverable(failure.error),
    }
    Report::Failed(failure)
}
