//! Explains why a job is not running, from facts that the store and the nodes know.

mod finished;
mod plan;

use std::fmt;

pub use finished::{FinishedContext, RevivalForecast, RevivalRefusal, forecast_revival, why_dead};
pub use plan::{PLANNED_MAX, PlannedAttempt, plan_attempts};

use crate::job::Job;
use crate::settle::has_expired;
use crate::state::{DeadReason, State};
use crate::{JobId, Kind, QueueName, Timestamp};

/// One reason why a job is not running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It is running or finished.
    NotWaiting {
        /// The word for its state, see [`State::name`].
        state: &'static str,
    },
    /// It is dead: only a person can run it again.
    Dead {
        /// Why.
        reason: DeadReason,
    },
    /// Its deadline passed; the next sweep makes it dead.
    Expired {
        /// The deadline.
        deadline: Timestamp,
    },
    /// It is not due yet.
    NotDue {
        /// When it is due.
        run_at: Timestamp,
        /// Whether it waits for a retry.
        retry: bool,
    },
    /// Someone paused its queue.
    QueuePaused {
        /// The queue.
        queue: QueueName,
        /// The person or program that paused it.
        by: String,
        /// Why, in the words of that person.
        why: Option<String>,
    },
    /// No live worker takes its kind from its queue.
    NoWorker {
        /// The kind.
        kind: Kind,
        /// The queue.
        queue: QueueName,
    },
    /// The limit of its concurrency key or of its queue is reached.
    LimitHeld {
        /// The limit, in words.
        limit: String,
        /// One of the running jobs that use up the limit.
        by: JobId,
        /// When the lease of that job ends unless it is renewed.
        until: Timestamp,
    },
    /// Its queue already runs the most retries allowed.
    RetriesHeld {
        /// The limit.
        max_inflight_retries: u32,
    },
    /// Its queue has started the most jobs that its rate allows.
    RateHeld {
        /// When the next job may start.
        until: Timestamp,
    },
    /// The handler of an earlier attempt still runs, and its worker does not claim the job until
    /// that handler returns.
    OldHandler {
        /// The worker.
        worker: String,
    },
    /// Other jobs of its queue come first.
    Behind {
        /// How many.
        jobs: u64,
        /// Whether `jobs` is only a lower bound, because counting stopped there.
        or_more: bool,
    },
    /// Nothing: a worker takes it as soon as it has a free slot.
    Next,
}

/// The facts about a waiting job's queue, workers and limits.
#[derive(Debug, Clone, Default)]
pub struct WaitingContext {
    /// Who paused its queue, if it is paused.
    pub paused_by: Option<String>,
    /// Why its queue is paused, in the words of the person that paused it.
    pub pause_reason: Option<String>,
    /// How many live workers take its kind from its queue.
    pub workers: u64,
    /// A limit that is reached: its name, one of the jobs that use it up, and the end of that job's
    /// lease.
    pub limit_held: Option<(String, JobId, Timestamp)>,
    /// The limit of running retries, if it is reached.
    pub retries_held: Option<u32>,
    /// When its queue may start the next job, if its rate is used up.
    pub rate_until: Option<Timestamp>,
    /// The worker that still runs the handler of an earlier attempt.
    pub old_handler: Option<String>,
    /// How many ready jobs of its queue come before it.
    pub ahead: u64,
    /// Whether `ahead` is only a lower bound.
    pub ahead_or_more: bool,
}

/// Returns all reasons why the job is not running at `now`, the most important one first. Never
/// empty.
pub fn why_not_running(job: &Job, around: &WaitingContext, now: Timestamp) -> Vec<Reason> {
    let state = job.state();
    if let State::Dead(reason) = state {
        return vec![Reason::Dead { reason }];
    }
    if state != State::Waiting {
        let state = state.name(job.run_at, now);
        return vec![Reason::NotWaiting { state }];
    }
    if let Some(deadline) = job.deadline.filter(|_| has_expired(job.deadline, now)) {
        return vec![Reason::Expired { deadline }];
    }
    let mut reasons = Vec::new();
    if job.run_at > now {
        reasons.push(Reason::NotDue {
            run_at: job.run_at,
            retry: job.failures > 0,
        });
    }
    if let Some(by) = &around.paused_by {
        reasons.push(Reason::QueuePaused {
            queue: job.queue.clone(),
            by: by.clone(),
            why: around.pause_reason.clone(),
        });
    }
    if around.workers == 0 {
        reasons.push(Reason::NoWorker {
            kind: job.kind.clone(),
            queue: job.queue.clone(),
        });
    }
    if let Some((limit, by, until)) = &around.limit_held {
        reasons.push(Reason::LimitHeld {
            limit: limit.clone(),
            by: *by,
            until: *until,
        });
    }
    if let Some(max_inflight_retries) = around.retries_held.filter(|_| job.failures > 0) {
        reasons.push(Reason::RetriesHeld {
            max_inflight_retries,
        });
    }
    if let Some(until) = around.rate_until.filter(|until| *until > now) {
        reasons.push(Reason::RateHeld { until });
    }
    if let Some(worker) = &around.old_handler {
        reasons.push(Reason::OldHandler {
            worker: worker.clone(),
        });
    }
    if around.ahead > 0 && job.run_at <= now {
        reasons.push(Reason::Behind {
            jobs: around.ahead,
            or_more: around.ahead_or_more,
        });
    }
    if reasons.is_empty() {
        reasons.push(Reason::Next);
    }
    reasons
}

impl Reason {
    /// The word for programs. It never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::NotWaiting { .. } => "not_waiting",
            Reason::Dead { .. } => "dead",
            Reason::Expired { .. } => "expired",
            Reason::NotDue { .. } => "not_due",
            Reason::QueuePaused { .. } => "queue_paused",
            Reason::NoWorker { .. } => "no_worker",
            Reason::LimitHeld { .. } => "limit_held",
            Reason::RetriesHeld { .. } => "retries_held",
            Reason::RateHeld { .. } => "rate_held",
            Reason::OldHandler { .. } => "old_handler",
            Reason::Behind { .. } => "behind",
            Reason::Next => "next",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotWaiting { state } => write!(f, "it is {state}"),
            Reason::Dead { reason } => {
                write!(
                    f,
                    "it is dead ({reason}); it runs again only if someone revives it"
                )
            }
            Reason::Expired { deadline } => write!(f, "its deadline passed at {deadline}"),
            Reason::NotDue {
                run_at,
                retry: true,
            } => write!(f, "its retry is due at {run_at}"),
            Reason::NotDue {
                run_at,
                retry: false,
            } => write!(f, "it is due at {run_at}"),
            Reason::QueuePaused { queue, by, why } => {
                write!(f, "queue {queue} was paused by {by}")?;
                why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            Reason::NoWorker { kind, queue } => {
                write!(f, "no worker takes kind {kind} from queue {queue}")
            }
            Reason::LimitHeld { limit, by, until } => {
                write!(f, "{limit} is held by job {by} until {until}")
            }
            Reason::RetriesHeld {
                max_inflight_retries,
            } => {
                write!(
                    f,
                    "its queue already runs {max_inflight_retries} retries, which is its limit"
                )
            }
            Reason::RateHeld { until } => {
                write!(f, "its queue has used up its rate until {until}")
            }
            Reason::OldHandler { worker } => write!(
                f,
                "the handler of an earlier attempt still runs on worker {worker}, which claims the job only after that handler returns; other workers may claim it"
            ),
            Reason::Behind { jobs, or_more } => {
                let or_more = if *or_more { "at least " } else { "" };
                write!(f, "{or_more}{jobs} jobs come before it")
            }
            Reason::Next => f.write_str("nothing holds it back; the next free slot takes it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewJob;
    use crate::timestamp::at;

    const NOW: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:05:00Z";

    fn job() -> Job {
        let new = NewJob::new(Kind::new("email:send").unwrap());
        new.into_job(JobId::from_u128(1), at(NOW)).unwrap()
    }

    fn around() -> WaitingContext {
        WaitingContext {
            workers: 1,
            ..WaitingContext::default()
        }
    }

    fn texts(job: &Job, around: &WaitingContext) -> Vec<String> {
        let reasons = why_not_running(job, around, at(NOW));
        reasons.iter().map(Reason::to_string).collect()
    }

    #[test]
    fn an_old_handler_that_still_runs_is_named() {
        let around = WaitingContext {
            old_handler: Some("w1".to_owned()),
            ..around()
        };
        let [reason] = &texts(&job(), &around)[..] else {
            panic!("one reason");
        };
        assert!(reason.contains("still runs on worker w1"), "{reason}");
    }

    #[test]
    fn a_job_that_nothing_holds_back_is_next() {
        assert_eq!(
            texts(&job(), &around()),
            ["nothing holds it back; the next free slot takes it"]
        );
    }

    #[test]
    fn every_reason_has_a_text() {
        let mut job = job();
        job.run_at = at(LATER);
        assert_eq!(
            texts(&job, &around()),
            ["it is due at 2026-01-01T00:05:00Z"]
        );
        job.failures = 2;
        assert_eq!(
            texts(&job, &around()),
            ["its retry is due at 2026-01-01T00:05:00Z"]
        );
        let by = JobId::from_u128(2);
        let around = WaitingContext {
            paused_by: Some("ann".into()),
            pause_reason: Some("deploy".into()),
            workers: 0,
            limit_held: Some(("concurrency_key eu".into(), by, at(LATER))),
            retries_held: Some(5),
            rate_until: Some(at(LATER)),
            old_handler: None,
            ahead: 3,
            ahead_or_more: true,
        };
        job.run_at = at(NOW);
        assert_eq!(
            texts(&job, &around),
            [
                "queue default was paused by ann: deploy".to_owned(),
                "no worker takes kind email:send from queue default".to_owned(),
                format!("concurrency_key eu is held by job {by} until 2026-01-01T00:05:00Z"),
                "its queue already runs 5 retries, which is its limit".to_owned(),
                "its queue has used up its rate until 2026-01-01T00:05:00Z".to_owned(),
                "at least 3 jobs come before it".to_owned(),
            ]
        );
    }

    #[test]
    fn what_does_not_concern_the_job_is_left_out() {
        let fresh = job();
        let held = WaitingContext {
            retries_held: Some(5),
            rate_until: Some(at(NOW)),
            ..around()
        };
        assert_eq!(why_not_running(&fresh, &held, at(NOW)), [Reason::Next]);
        let mut future = job();
        future.run_at = at(LATER);
        let behind = WaitingContext {
            ahead: 3,
            ..around()
        };
        assert_eq!(why_not_running(&future, &behind, at(NOW)).len(), 1);
    }

    #[test]
    fn a_job_that_does_not_wait_says_so() {
        let mut job = job();
        job.deadline = Some(at("2025-12-31T00:00:00Z"));
        assert_eq!(
            texts(&job, &around()),
            ["its deadline passed at 2025-12-31T00:00:00Z"]
        );
        let mut cancelled = job.clone();
        cancelled.cancel(at(NOW)).unwrap();
        assert_eq!(texts(&cancelled, &around()), ["it is cancelled"]);
        job.expire(at(NOW)).unwrap();
        assert_eq!(
            texts(&job, &around()),
            ["it is dead (expired); it runs again only if someone revives it"]
        );
    }
}
