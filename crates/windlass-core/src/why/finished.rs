//! Explains why a job is dead, and forecasts what reviving a finished job would do.

use std::fmt;

use crate::job::{Delivery, Job, Revival};
use crate::retry::AttemptLimit;
use crate::state::{Consent, DeadReason, State};
use crate::{JobId, Timestamp};

/// Explains in words why a job is dead. `limit` is the number of failed attempts that a claim would
/// allow today.
pub fn why_dead(job: &Job, reason: DeadReason, limit: AttemptLimit) -> String {
    let failures = job.failures;
    match reason {
        DeadReason::Exhausted if job.delivery == Delivery::AtMostOnce => {
            "its attempt failed, and an at-most-once job is never retried".to_owned()
        }
        DeadReason::Exhausted => attempts_used(failures, limit),
        DeadReason::Poison => format!(
            "{}; the last three killed or hung their workers",
            attempts_used(failures, limit)
        ),
        DeadReason::Unrecoverable => "its handler reported that no retry can help".to_owned(),
        DeadReason::Expired => match job.deadline {
            Some(deadline) if job.finished_at().is_some_and(|at| deadline <= at) => {
                format!("its deadline passed at {deadline}")
            }
            Some(deadline) => format!(
                "its deadline {deadline} or the `max_elapsed` of its policy left no time for a retry"
            ),
            None => "its last attempt failed after the `max_elapsed` of its policy".to_owned(),
        },
        DeadReason::Lost => "an attempt ended without a result; it may have done its work, so the at-most-once job does not start again".to_owned(),
    }
}

fn attempts_used(failures: u32, limit: AttemptLimit) -> String {
    match failures.cmp(&limit.get()) {
        std::cmp::Ordering::Less => {
            format!("{failures} attempts failed, the limit of the worker that ran the last one")
        }
        _ => format!("{failures} of {limit} attempts failed"),
    }
}

/// The facts about a finished job's limits that a revival depends on.
#[derive(Debug, Clone, Copy)]
pub struct FinishedContext {
    /// How many failed attempts the next claim would allow.
    pub limit: AttemptLimit,
    /// The `max_depth` of its queue, if the queue is full.
    pub full_at: Option<u64>,
    /// Another job that holds the same unique key.
    pub key_held_by: Option<JobId>,
}

/// Why a revival without further options would be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevivalRefusal {
    /// The job may have done its work: a person must accept that it may run twice.
    NeedsForce,
    /// Its queue is full.
    QueueFull {
        /// The most jobs that may wait in the queue.
        max_depth: u64,
    },
    /// Another job holds its unique key.
    KeyHeld {
        /// The other job.
        by: JobId,
    },
}

impl RevivalRefusal {
    /// The word for programs. It never changes.
    pub fn code(&self) -> &'static str {
        match self {
            RevivalRefusal::NeedsForce => "needs_force",
            RevivalRefusal::QueueFull { .. } => "queue_full",
            RevivalRefusal::KeyHeld { .. } => "unique_key_taken",
        }
    }
}

impl fmt::Display for RevivalRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RevivalRefusal::NeedsForce => f.write_str(
                "it may have done its work: revive it with `force`, or resolve it if it succeeded",
            ),
            RevivalRefusal::QueueFull { max_depth } => {
                write!(
                    f,
                    "its queue is full: {max_depth} jobs are waiting, which is its `max_depth`"
                )
            }
            RevivalRefusal::KeyHeld { by } => write!(f, "job {by} holds its unique key"),
        }
    }
}

/// What reviving a job without further options would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevivalForecast {
    /// Everything that would refuse the revival today; empty if nothing does.
    pub refusals: Vec<RevivalRefusal>,
    /// When it would be due.
    pub run_at: Timestamp,
    /// The deadline it would have.
    pub deadline: Option<Timestamp>,
    /// How many attempts it would have left.
    pub attempts_left: u32,
}

/// Forecasts what reviving the job at `now` would do. Returns `None` if its state does not allow
/// it.
pub fn forecast_revival(
    job: &Job,
    around: &FinishedContext,
    now: Timestamp,
) -> Option<RevivalForecast> {
    let revive = |consent| {
        let mut revived = job.clone();
        let revival = Revival {
            consent,
            ..Revival::default()
        };
        revived.revive(revival, None, now).ok().map(|()| revived)
    };
    let revived = revive(Consent::MayRunTwice)?;
    let needs_force = revive(Consent::NotGiven).is_none();
    let refusals = [
        needs_force.then_some(RevivalRefusal::NeedsForce),
        around
            .full_at
            .map(|max_depth| RevivalRefusal::QueueFull { max_depth }),
        around.key_held_by.map(|by| RevivalRefusal::KeyHeld { by }),
    ];
    Some(RevivalForecast {
        refusals: refusals.into_iter().flatten().collect(),
        run_at: revived.run_at,
        deadline: revived.deadline,
        attempts_left: match revived.delivery {
            Delivery::AtMostOnce => 1,
            Delivery::AtLeastOnce => around.limit.get().saturating_sub(revived.failures).max(1),
        },
    })
}

impl Job {
    /// Why the job is dead, if it is.
    pub fn dead_reason(&self) -> Option<DeadReason> {
        match self.state() {
            State::Dead(reason) => Some(reason),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{FinalState, Finish, StateDetails};
    use crate::timestamp::at;
    use crate::{Kind, NewJob};

    const NOW: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:05:00Z";

    fn finished(state: FinalState) -> Job {
        let new = NewJob::new(Kind::new("email:send").unwrap());
        let mut job = new.into_job(JobId::from_u128(1), at(NOW)).unwrap();
        job.failures = 3;
        job.state_details = StateDetails::Finished(Finish {
            finished_at: at(NOW),
            state,
        });
        job
    }

    fn limit(attempts: i64) -> AttemptLimit {
        AttemptLimit::from_max_attempts(attempts).unwrap().unwrap()
    }

    fn around() -> FinishedContext {
        FinishedContext {
            limit: limit(3),
            full_at: None,
            key_held_by: None,
        }
    }

    #[test]
    fn every_death_is_explained() {
        let explain = |change: &dyn Fn(&mut Job), reason, attempts| {
            let mut job = finished(FinalState::Dead(reason));
            change(&mut job);
            why_dead(&job, reason, limit(attempts))
        };
        let same: &dyn Fn(&mut Job) = &|_| {};
        let at_most_once: &dyn Fn(&mut Job) = &|job| job.delivery = Delivery::AtMostOnce;
        let late: &dyn Fn(&mut Job) = &|job| job.deadline = Some(at(NOW));
        let close: &dyn Fn(&mut Job) = &|job| job.deadline = Some(at(LATER));
        for (change, reason, attempts, expected) in [
            (same, DeadReason::Exhausted, 3, "3 of 3 attempts failed"),
            (
                same,
                DeadReason::Exhausted,
                9,
                "the limit of the worker that ran the last one",
            ),
            (at_most_once, DeadReason::Exhausted, 3, "never retried"),
            (same, DeadReason::Poison, 3, "killed or hung"),
            (same, DeadReason::Unrecoverable, 3, "no retry can help"),
            (same, DeadReason::Expired, 3, "`max_elapsed`"),
            (
                late,
                DeadReason::Expired,
                3,
                "passed at 2026-01-01T00:00:00Z",
            ),
            (close, DeadReason::Expired, 3, LATER),
            (at_most_once, DeadReason::Lost, 3, "may have done its work"),
        ] {
            let text = explain(change, reason, attempts);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_revived_job_has_all_its_attempts_and_no_deadline_that_passed() {
        let mut job = finished(FinalState::Dead(DeadReason::Exhausted));
        job.deadline = Some(at(NOW));
        let forecast = forecast_revival(&job, &around(), at(LATER)).unwrap();
        assert_eq!(
            forecast,
            RevivalForecast {
                refusals: Vec::new(),
                run_at: at(LATER),
                deadline: None,
                attempts_left: 3,
            }
        );
        job.delivery = Delivery::AtMostOnce;
        let once = forecast_revival(&job, &around(), at(LATER)).unwrap();
        assert_eq!(once.attempts_left, 1);
        let cancelled = finished(FinalState::Cancelled);
        assert!(forecast_revival(&cancelled, &around(), at(LATER)).is_some());
        let succeeded = finished(FinalState::Succeeded(None));
        assert_eq!(forecast_revival(&succeeded, &around(), at(LATER)), None);
    }

    #[test]
    fn what_refuses_a_revival_is_named() {
        let lost = finished(FinalState::Dead(DeadReason::Lost));
        let around = FinishedContext {
            full_at: Some(5),
            key_held_by: Some(JobId::from_u128(2)),
            ..around()
        };
        let refusals = forecast_revival(&lost, &around, at(NOW)).unwrap().refusals;
        let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        assert_eq!(refusals.len(), 3, "{texts:?}");
        assert!(texts[0].contains("`force`"), "{texts:?}");
        assert!(texts[1].contains("full: 5 jobs are waiting"), "{texts:?}");
        assert!(texts[2].contains("holds its unique key"), "{texts:?}");
    }
}
