//! How failed attempts are retried: policies that are data, and rules that are code.

use std::time::Duration;

pub use windlass_core::Unrecoverable;
pub use windlass_core::retry::*;

use windlass_core::{AttemptError, Failure, FailureClass, Job as StoredJob, Report};

pub use crate::failure::{Class, Classify};
pub use crate::options::Retry;

/// An attempt that failed, as a [`RetryRule`] sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct FailedAttempt<'a> {
    /// Its job, as it was when the attempt began.
    pub job: &'a StoredJob,
    /// How many attempts failed, this one included.
    pub failures: u32,
    /// What went wrong.
    pub error: &'a AttemptError,
    /// How long the handler or its error asked to wait.
    pub retry_after: Option<Duration>,
}

/// What a failed attempt leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// What the policy of the job says.
    ByPolicy,
    /// Another attempt after so long, if the limit of attempts allows one. A longer `retry_after` counts.
    After(Duration),
    /// The job is dead, as unrecoverable.
    Never,
}

/// Decides about a failed attempt in code: a closure `Fn(&FailedAttempt) -> RetryDecision`, or a type of one's own.
///
/// It is asked where the handler runs. A worker that dies and an attempt that times out are treated by the policy of the job,
/// which is data that every node knows; so is a handler that panics.
pub trait RetryRule: Send + Sync + 'static {
    /// What the failure leads to.
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

/// The report of an attempt after a rule was asked; only failures that may be retried are its business.
pub(crate) fn decided(rule: &dyn RetryRule, job: &StoredJob, report: Report) -> Report {
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
