//! What happens to a job when its attempt ends: it succeeds, waits for another attempt, or finishes
//! without success.
//!
//! The rule is pure, so the committer (the handler returned), the sweeper (the worker died) and the
//! server (a remote worker reported) all decide the same way. Invariant: once the number of
//! failures has reached `effective_max`, the job is not retried.

use std::time::Duration;

use crate::failure::{AttemptError, Failure, FailureClass};
use crate::job::Delivery;
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::state::{DeadReason, State};
use crate::words::string_enum;
use crate::{DURATION_MAX, Fingerprint, Payload, Timestamp, format_duration};

/// The longest `retry_after` that counts: 24 hours. If a handler or HTTP target asks for a longer
/// delay, this one is used.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// How much time a cancelled handler gets to return, unless its worker sets another time.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// The maximum number of times that a job may be snoozed, that is, ask to run later.
pub const SNOOZES_MAX: u32 = 1000;

/// An exhausted job is poison if at least this many of its last attempts in a row were lost.
const POISON_LOSSES: u32 = 3;

/// The facts about a running job that decide what the end of its attempt leads to. The policy and
/// the limit are those that the claim stored with the job.
#[derive(Debug, Clone)]
pub struct Running<'a> {
    /// Whether the job may start more than once.
    pub delivery: Delivery,
    /// How many attempts failed before this one.
    pub failures: u32,
    /// How many attempts ended with a request to run later.
    pub snoozes: u32,
    /// How many attempts in a row, just before this one, were lost.
    pub losses_in_a_row: u32,
    /// The policy that computes the delay; `None` means that the first failure is final.
    pub policy: Option<&'a RetryPolicy>,
    /// The limit: the failure that reaches it is final.
    pub effective_max: AttemptLimit,
    /// When the first attempt of the job started.
    pub first_started_at: Timestamp,
    /// No attempt starts after this instant.
    pub deadline: Option<Timestamp>,
    /// The delay before this attempt, which decorrelated jitter needs.
    pub previous_delay: Option<Duration>,
    /// Whether a user asked to cancel the job while it ran.
    pub cancel_requested: bool,
}

/// How an attempt ended, as its worker reports it, or the sweeper in place of a dead worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The handler succeeded, with an optional result.
    Succeeded(Option<Payload>),
    /// The handler returned an error or panicked, or the payload could not be decoded.
    Failed(Failure),
    /// The attempt took longer than its timeout.
    TimedOut {
        /// The timeout.
        timeout: Duration,
        /// How much time the handler gets to stop. No retry starts before this time is over.
        grace: Duration,
    },
    /// The lease expired without a renewal: the worker died, hung or lost its connection.
    Lost,
    /// The handler asks to run again later.
    Snoozed {
        /// When to run again.
        until: Timestamp,
    },
    /// The worker returns the job to the queue, for a shutdown or deployment.
    Released {
        /// Whether the handler had started. If so, an at-most-once job is lost.
        started: bool,
    },
    /// The handler stopped because the job was cancelled.
    Cancelled,
}

impl Report {
    /// Whether this report leads to a history row with `outcome`. Stores use it to recognize a
    /// report that arrives twice.
    pub fn matches_outcome(&self, outcome: Outcome, delivery: Delivery) -> bool {
        match self {
            Report::Succeeded(_) => outcome == Outcome::Succeeded,
            Report::Failed(_) => outcome == Outcome::Failed,
            Report::TimedOut { .. } => outcome == Outcome::TimedOut,
            Report::Lost => outcome == Outcome::Lost,
            // A snooze that the rules refuse counts as a failure.
            Report::Snoozed { .. } => matches!(outcome, Outcome::Snoozed | Outcome::Failed),
            Report::Released { started: true } if delivery == Delivery::AtMostOnce => {
                outcome == Outcome::Lost
            }
            Report::Released { .. } => outcome == Outcome::Released,
            Report::Cancelled => outcome == Outcome::Cancelled,
        }
    }
}

/// How an attempt ended. Each row of a job's history has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The handler succeeded.
    Succeeded,
    /// An error, a panic, or a payload that the handler could not decode.
    Failed,
    /// The timeout passed.
    TimedOut,
    /// The lease expired.
    Lost,
    /// The handler asked to run again later.
    Snoozed,
    /// The worker returned the job to the queue.
    Released,
    /// The handler stopped because the job was cancelled.
    Cancelled,
}

string_enum!(Outcome {
    Succeeded = "succeeded",
    Failed = "failed",
    TimedOut = "timed_out",
    Lost = "lost",
    Snoozed = "snoozed",
    Released = "released",
    Cancelled = "cancelled",
});

impl Outcome {
    /// Whether this outcome counts against the limit of attempts.
    pub const fn counts_as_failure(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::TimedOut | Outcome::Lost)
    }
}

/// What happens to the job after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The job succeeded.
    Succeeded,
    /// The job runs again.
    Waiting {
        /// When it becomes due.
        run_at: Timestamp,
    },
    /// The job does not run again unless a person revives it.
    Dead(DeadReason),
    /// The job was cancelled.
    Cancelled,
}

impl Verdict {
    /// The state that the verdict leads to.
    pub const fn state(self) -> State {
        match self {
            Verdict::Succeeded => State::Succeeded,
            Verdict::Waiting { .. } => State::Waiting,
            Verdict::Dead(reason) => State::Dead(reason),
            Verdict::Cancelled => State::Cancelled,
        }
    }
}

/// Everything that the store writes, in one atomic step, when an attempt ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// How the attempt ended, for its history row.
    pub outcome: Outcome,
    /// What happens to the job.
    pub verdict: Verdict,
    /// The failures so far, this attempt included if it failed.
    pub failures: u32,
    /// The snoozes so far, this attempt included if it snoozed.
    pub snoozes: u32,
    /// How many attempts in a row, up to this one, were lost.
    pub losses_in_a_row: u32,
    /// The delay before the retry, if the job is retried.
    pub delay: Option<Duration>,
    /// The error, if the attempt failed.
    pub error: Option<AttemptError>,
    /// The cause, if the attempt failed. [`settle()`] alone does not know it, [`Job::decide`] does.
    ///
    /// [`Job::decide`]: crate::Job::decide
    pub fingerprint: Option<Fingerprint>,
    /// Whether this failure made its failure group new. The store sets it.
    pub is_new_group: bool,
    /// The handler's result, if it succeeded.
    pub result: Option<Payload>,
}

/// Decides what an attempt that ended at `now` leads to. `random` provides the bits for jitter.
pub fn settle(running: &Running<'_>, report: Report, now: Timestamp, random: u64) -> Settlement {
    let end = AttemptEnd::new(running, report);
    let failures = running
        .failures
        .saturating_add(u32::from(end.outcome.counts_as_failure()));
    let losses_in_a_row = match end.outcome {
        Outcome::Lost => running.losses_in_a_row.saturating_add(1),
        _ => 0,
    };
    let mut settlement = Settlement {
        outcome: end.outcome,
        verdict: Verdict::Succeeded,
        failures,
        snoozes: running.snoozes + u32::from(end.outcome == Outcome::Snoozed),
        losses_in_a_row,
        delay: None,
        error: end.failure.as_ref().map(|failure| failure.error.clone()),
        fingerprint: None,
        is_new_group: false,
        result: end.result,
    };
    settlement.verdict = match (end.outcome, &end.failure) {
        (Outcome::Succeeded, _) => Verdict::Succeeded,
        // The work may have been done, so a person must see the job, even if it was cancelled.
        (outcome, Some(failure)) if may_have_run(running, outcome, failure.class) => {
            Verdict::Dead(DeadReason::Lost)
        }
        _ if running.cancel_requested => Verdict::Cancelled,
        (Outcome::Cancelled, _) => Verdict::Cancelled,
        (_, Some(failure)) => match after_failure(running, &settlement, failure, now, random) {
            Ok(delay) => {
                settlement.delay = Some(delay);
                Verdict::Waiting {
                    run_at: now.saturating_add(delay),
                }
            }
            Err(reason) => Verdict::Dead(reason),
        },
        (_, None) => Verdict::Waiting {
            run_at: end.run_again_at.unwrap_or(now),
        },
    };
    settlement
}

/// Whether this at-most-once attempt ended without a known result.
fn may_have_run(running: &Running<'_>, outcome: Outcome, class: FailureClass) -> bool {
    let known = outcome == Outcome::Failed && class != FailureClass::Unknown;
    running.delivery == Delivery::AtMostOnce && !known
}

/// The delay before the next attempt, or the reason why the job is dead.
///
/// The order matters, because the first rule that applies gives the reason that operators see.
/// At-most-once jobs come first, then failures that no retry can fix, then time limits, then the
/// limit of attempts.
fn after_failure(
    running: &Running<'_>,
    settlement: &Settlement,
    failure: &Failure,
    now: Timestamp,
    random: u64,
) -> Result<Duration, DeadReason> {
    if running.delivery == Delivery::AtMostOnce {
        return Err(DeadReason::Exhausted); // `may_have_run` already handled lost attempts
    }
    if failure.class == FailureClass::Unrecoverable {
        return Err(DeadReason::Unrecoverable);
    }
    let elapsed = now.since(running.first_started_at);
    let max_elapsed = running.policy.and_then(RetryPolicy::max_elapsed);
    if has_expired(running.deadline, now) || max_elapsed.is_some_and(|max| elapsed > max) {
        return Err(DeadReason::Expired);
    }
    let Some(policy) = running
        .policy
        .filter(|_| settlement.failures < running.effective_max.get())
    else {
        let poison = settlement.losses_in_a_row >= POISON_LOSSES;
        return Err(if poison {
            DeadReason::Poison
        } else {
            DeadReason::Exhausted
        });
    };
    let by_policy = || policy.delay(settlement.failures, running.previous_delay, random);
    let delay = failure.delay.unwrap_or_else(by_policy).min(DURATION_MAX);
    let retry_after = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
    Ok(delay.max(retry_after))
}

/// Whether the deadline has passed, so that no attempt may start. At the deadline itself, an
/// attempt may still start.
pub fn has_expired(deadline: Option<Timestamp>, now: Timestamp) -> bool {
    deadline.is_some_and(|deadline| now > deadline)
}

/// A report after the rules of the job were applied to it: what the history row will say.
struct AttemptEnd {
    outcome: Outcome,
    failure: Option<Failure>,
    run_again_at: Option<Timestamp>,
    result: Option<Payload>,
}

impl AttemptEnd {
    fn new(running: &Running<'_>, report: Report) -> AttemptEnd {
        let at_most_once = running.delivery == Delivery::AtMostOnce;
        match report {
            Report::Succeeded(result) => AttemptEnd {
                result,
                ..AttemptEnd::plain(Outcome::Succeeded)
            },
            Report::Failed(failure) => AttemptEnd::failed(Outcome::Failed, failure),
            Report::TimedOut { timeout, grace } => {
                let timeout = format_duration(timeout);
                let message = format!("the attempt took longer than its timeout of {timeout}");
                let failure = Failure {
                    retry_after: Some(grace),
                    ..Failure::retryable(AttemptError::new(message))
                };
                AttemptEnd::failed(Outcome::TimedOut, failure)
            }
            Report::Lost => AttemptEnd::lost(
                "the lease expired without a renewal: the worker died, hung or lost its connection",
            ),
            Report::Snoozed { .. } if at_most_once => AttemptEnd::failure(
                Outcome::Failed,
                "an at-most-once job cannot be snoozed, because it would start twice".to_owned(),
            ),
            Report::Snoozed { .. } if running.snoozes >= SNOOZES_MAX => AttemptEnd::failure(
                Outcome::Failed,
                format!("the job was already snoozed {SNOOZES_MAX} times, which is the limit"),
            ),
            Report::Snoozed { until } => AttemptEnd {
                run_again_at: Some(until),
                ..AttemptEnd::plain(Outcome::Snoozed)
            },
            Report::Released { started: true } if at_most_once => AttemptEnd::lost(
                "the worker stopped after the handler had started; the handler may have done its work",
            ),
            Report::Released { .. } => AttemptEnd::plain(Outcome::Released),
            Report::Cancelled => AttemptEnd::plain(Outcome::Cancelled),
        }
    }

    fn plain(outcome: Outcome) -> AttemptEnd {
        AttemptEnd {
            outcome,
            failure: None,
            run_again_at: None,
            result: None,
        }
    }

    fn failed(outcome: Outcome, failure: Failure) -> AttemptEnd {
        AttemptEnd {
            failure: Some(failure),
            ..AttemptEnd::plain(outcome)
        }
    }

    fn failure(outcome: Outcome, message: String) -> AttemptEnd {
        AttemptEnd::failed(outcome, Failure::retryable(AttemptError::new(message)))
    }

    fn lost(message: &str) -> AttemptEnd {
        AttemptEnd::failure(Outcome::Lost, message.to_owned())
    }
}

#[cfg(test)]
mod tests;
