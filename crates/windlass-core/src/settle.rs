//! What the end of an attempt leads to: success, another attempt, or the end of the job.
//!
//! Pure, so that the committer (the handler ended), the sweeper (the worker died) and the server (a worker in another
//! language reported) treat an end alike. Invariant: the failure that reaches or passes `effective_max` is the last.

use std::time::Duration;

use crate::failure::{AttemptError, Failure, FailureClass};
use crate::job::Delivery;
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::state::{DeadReason, State};
use crate::words::words;
use crate::{DURATION_MAX, Payload, Timestamp, format_duration};

/// A handler's or target's `retry_after` counts up to here.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// How long a handler that was told to stop has to return, unless its worker sets another time.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// How often a job may be snoozed in its life.
pub const SNOOZES_MAX: u32 = 1000;

/// So many lost attempts in a row make an exhausted job poison.
const POISON_LOSSES: u32 = 3;

/// What is known of a running job when its attempt ends. The policy and the limit were stamped on it by the claim.
#[derive(Debug, Clone)]
pub struct Running<'a> {
    /// How often it may run.
    pub delivery: Delivery,
    /// Attempts that failed before this one.
    pub failures: u32,
    /// Attempts that asked to run again later.
    pub snoozes: u32,
    /// How many attempts just before this one were lost.
    pub losses_in_a_row: u32,
    /// The policy that gives the delay; none means fail fast.
    pub policy: Option<&'a RetryPolicy>,
    /// The failure that reaches it is the last.
    pub effective_max: AttemptLimit,
    /// When its first attempt started.
    pub first_started_at: Timestamp,
    /// No attempt starts after it.
    pub deadline: Option<Timestamp>,
    /// The last delay, for decorrelated jitter.
    pub previous_delay: Option<Duration>,
    /// Somebody called it off while it ran.
    pub cancel_requested: bool,
}

/// What a worker, or the sweeper in its place, reports of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The handler is done; it may leave a result.
    Succeeded(Option<Payload>),
    /// The handler returned an error or panicked, or the payload could not be decoded.
    Failed(Failure),
    /// The attempt took longer than its timeout.
    TimedOut {
        /// The timeout.
        timeout: Duration,
        /// How long its handler has to stop: no retry is due before that.
        grace: Duration,
    },
    /// The lease expired: the worker died or hung.
    Lost,
    /// The handler asks to run again at that time.
    Snoozed {
        /// From when on.
        until: Timestamp,
    },
    /// The worker gives the job back, for a shutdown or deploy.
    Released {
        /// Whether the handler had started: an at-most-once job is lost then.
        started: bool,
    },
    /// The handler gave up because the job was called off.
    Cancelled,
}

impl Report {
    /// Whether a row of history with that outcome may stand for this report: a report that comes twice is known by it.
    pub fn stands_as(&self, outcome: Outcome, delivery: Delivery) -> bool {
        match self {
            Report::Succeeded(_) => outcome == Outcome::Succeeded,
            Report::Failed(_) => outcome == Outcome::Failed,
            Report::TimedOut { .. } => outcome == Outcome::TimedOut,
            Report::Lost => outcome == Outcome::Lost,
            // One that the rules refuse is a failure.
            Report::Snoozed { .. } => matches!(outcome, Outcome::Snoozed | Outcome::Failed),
            Report::Released { started: true } if delivery == Delivery::AtMostOnce => {
                outcome == Outcome::Lost
            }
            Report::Released { .. } => outcome == Outcome::Released,
            Report::Cancelled => outcome == Outcome::Cancelled,
        }
    }
}

/// How an attempt ended: one row of history each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The handler is done.
    Succeeded,
    /// An error, a panic, an undecodable payload.
    Failed,
    /// The timeout passed.
    TimedOut,
    /// The lease expired.
    Lost,
    /// The handler asked to run again later.
    Snoozed,
    /// The worker gave the job back.
    Released,
    /// The job was called off.
    Cancelled,
}

words!(Outcome {
    Succeeded = "succeeded",
    Failed = "failed",
    TimedOut = "timed_out",
    Lost = "lost",
    Snoozed = "snoozed",
    Released = "released",
    Cancelled = "cancelled",
});

impl Outcome {
    /// Whether it counts against the limit.
    pub const fn counts_as_failure(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::TimedOut | Outcome::Lost)
    }
}

/// What becomes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Succeeded,
    /// It runs again from `run_at` on.
    Waiting {
        /// From when on.
        run_at: Timestamp,
    },
    /// It waits for a person.
    Dead(DeadReason),
    /// It was called off.
    Cancelled,
}

impl Verdict {
    /// The state it leads to.
    pub const fn state(self) -> State {
        match self {
            Verdict::Succeeded => State::Succeeded,
            Verdict::Waiting { .. } => State::Waiting,
            Verdict::Dead(reason) => State::Dead(reason),
            Verdict::Cancelled => State::Cancelled,
        }
    }
}

/// All that is written, in one atomic step, when an attempt ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// What the row of history says.
    pub outcome: Outcome,
    /// What becomes of the job.
    pub verdict: Verdict,
    /// The failures so far, this one included if it is one.
    pub failures: u32,
    /// The snoozes so far.
    pub snoozes: u32,
    /// How many attempts up to this one were lost.
    pub losses_in_a_row: u32,
    /// The delay of the retry, if one follows.
    pub delay: Option<Duration>,
    /// Why the attempt failed, if it did.
    pub error: Option<AttemptError>,
    /// What the handler left, if it succeeded.
    pub result: Option<Payload>,
}

/// Decides what the end of an attempt at `now` leads to. `random` draws the jitter.
pub fn settle(running: &Running<'_>, report: Report, now: Timestamp, random: u64) -> Settlement {
    let end = End::of(running, report);
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
        result: end.result,
    };
    settlement.verdict = match (end.outcome, &end.failure) {
        (Outcome::Succeeded, _) => Verdict::Succeeded,
        // What may have run must not look as if it had not: a person is told, cancel or no cancel.
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
            run_at: end.again_at.unwrap_or(now),
        },
    };
    settlement
}

/// Whether this is an at-most-once attempt of which nobody knows how far it came.
fn may_have_run(running: &Running<'_>, outcome: Outcome, class: FailureClass) -> bool {
    let known = outcome == Outcome::Failed && class != FailureClass::Unknown;
    running.delivery == Delivery::AtMostOnce && !known
}

/// The delay before the next attempt, or the reason why there is none.
///
/// The order matters: the first rule that applies names the reason that operators see. What can
/// never succeed comes before what took too long, and that before what failed too often.
fn after_failure(
    running: &Running<'_>,
    settlement: &Settlement,
    failure: &Failure,
    now: Timestamp,
    random: u64,
) -> Result<Duration, DeadReason> {
    if running.delivery == Delivery::AtMostOnce {
        return Err(DeadReason::Exhausted); // or lost, which was asked before
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
    let asked = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
    Ok(delay.max(asked))
}

/// Whether no attempt may start any more: the deadline itself is still in time.
pub fn has_expired(deadline: Option<Timestamp>, now: Timestamp) -> bool {
    deadline.is_some_and(|deadline| now > deadline)
}

/// A report, read by the rules of the job: what a row of history will say of it.
struct End {
    outcome: Outcome,
    failure: Option<Failure>,
    again_at: Option<Timestamp>,
    result: Option<Payload>,
}

impl End {
    fn of(running: &Running<'_>, report: Report) -> End {
        let at_most_once = running.delivery == Delivery::AtMostOnce;
        match report {
            Report::Succeeded(result) => End {
                result,
                ..End::plain(Outcome::Succeeded)
            },
            Report::Failed(failure) => End::failed(Outcome::Failed, failure),
            Report::TimedOut { timeout, grace } => {
                let timeout = format_duration(timeout);
                let message = format!("the attempt took longer than its timeout of {timeout}");
                let failure = Failure {
                    retry_after: Some(grace),
                    ..Failure::retryable(AttemptError::new(message))
                };
                End::failed(Outcome::TimedOut, failure)
            }
            Report::Lost => End::lost("its worker died or hung: the lease expired"),
            Report::Snoozed { .. } if at_most_once => End::failure(
                Outcome::Failed,
                "an at-most-once job cannot be snoozed: it would start twice".to_owned(),
            ),
            Report::Snoozed { .. } if running.snoozes >= SNOOZES_MAX => End::failure(
                Outcome::Failed,
                format!("snoozed more than {SNOOZES_MAX} times"),
            ),
            Report::Snoozed { until } => End {
                again_at: Some(until),
                ..End::plain(Outcome::Snoozed)
            },
            Report::Released { started: true } if at_most_once => {
                End::lost("its worker stopped after it had started: it may have run")
            }
            Report::Released { .. } => End::plain(Outcome::Released),
            Report::Cancelled => End::plain(Outcome::Cancelled),
        }
    }

    fn plain(outcome: Outcome) -> End {
        End {
            outcome,
            failure: None,
            again_at: None,
            result: None,
        }
    }

    fn failed(outcome: Outcome, failure: Failure) -> End {
        End {
            failure: Some(failure),
            ..End::plain(outcome)
        }
    }

    fn failure(outcome: Outcome, message: String) -> End {
        End::failed(outcome, Failure::retryable(AttemptError::new(message)))
    }

    fn lost(message: &str) -> End {
        End::failure(Outcome::Lost, message.to_owned())
    }
}

#[cfg(test)]
mod tests;
