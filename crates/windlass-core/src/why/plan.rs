//! The attempts that a job still has, if each of them fails.

use std::time::Duration;

use crate::Timestamp;
use crate::job::{Delivery, Job};
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::settle::has_expired;
use crate::state::State;

/// The most attempts that a plan lists.
pub const PLANNED_MAX: usize = 100;

/// An attempt that follows if every attempt before it fails. Attempts take no time in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedAttempt {
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// Its start, if jitter always draws the shortest delay.
    pub earliest_at: Timestamp,
    /// Its start without jitter.
    pub nominal_at: Timestamp,
    /// Its start, if jitter always draws the longest delay.
    pub latest_at: Timestamp,
}

impl PlannedAttempt {
    fn exactly(attempt: u32, at: Timestamp) -> Self {
        PlannedAttempt {
            attempt,
            earliest_at: at,
            nominal_at: at,
            latest_at: at,
        }
    }
}

/// Plans the attempts of a waiting or running job under a policy and a limit of failed attempts. A
/// waiting job starts when it is due, or at `now` if that has passed; a running attempt fails at
/// `now` at the earliest. Lists at most [`PLANNED_MAX`] attempts, none for a finished job.
pub fn plan_attempts(
    job: &Job,
    policy: Option<&RetryPolicy>,
    limit: AttemptLimit,
    now: Timestamp,
) -> Vec<PlannedAttempt> {
    let mut plan = Vec::new();
    let mut last = match job.state() {
        State::Waiting if has_expired(job.deadline, now) => return plan,
        State::Waiting => {
            let next = PlannedAttempt::exactly(job.attempt + 1, job.run_at.max(now));
            plan.push(next);
            next
        }
        State::Running => PlannedAttempt::exactly(job.attempt, now),
        State::Succeeded | State::Dead(_) | State::Cancelled => return plan,
    };
    let Some(policy) = policy.filter(|_| job.delivery == Delivery::AtLeastOnce) else {
        return plan;
    };
    let first_start = job.first_started_at.unwrap_or(last.earliest_at);
    let mut failures = job.failures;
    let mut previous = job.previous_delay.map(|delay| (delay, delay, delay));
    while plan.len() < PLANNED_MAX {
        failures = failures.saturating_add(1);
        let elapsed = last.earliest_at.since(first_start);
        let is_late = policy.max_elapsed().is_some_and(|max| elapsed > max);
        if failures >= limit.get() || is_late || has_expired(job.deadline, last.earliest_at) {
            break;
        }
        let delays = delays_after(policy, failures, previous);
        let (shortest, nominal, longest) = delays;
        previous = Some(delays);
        last = PlannedAttempt {
            attempt: last.attempt.saturating_add(1),
            earliest_at: last.earliest_at.saturating_add(shortest),
            nominal_at: last.nominal_at.saturating_add(nominal),
            latest_at: last.latest_at.saturating_add(longest),
        };
        if has_expired(job.deadline, last.earliest_at) {
            break;
        }
        plan.push(last);
    }
    plan
}

/// The shortest, the nominal and the longest delay. With decorrelated jitter each one depends on
/// the same one before.
fn delays_after(
    policy: &RetryPolicy,
    failures: u32,
    previous: Option<(Duration, Duration, Duration)>,
) -> (Duration, Duration, Duration) {
    let range = |delay: Option<Duration>| policy.delay_range(failures, delay);
    (
        range(previous.map(|(shortest, ..)| shortest)).min,
        range(previous.map(|(_, nominal, _)| nominal)).nominal,
        range(previous.map(|(.., longest)| longest)).max,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Preset;
    use crate::timestamp::at;
    use crate::{JobId, Kind, NewJob};

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn job() -> Job {
        let new = NewJob::new(Kind::new("email:send").unwrap());
        let mut job = new.into_job(JobId::from_u128(1), at(NOW)).unwrap();
        job.failures = 1;
        job.attempt = 2;
        job.run_at = at("2026-01-01T00:00:10Z");
        job
    }

    fn plan(job: &Job, preset: Preset, limit: i64) -> Vec<(u32, String, String)> {
        let limit = AttemptLimit::from_max_attempts(limit).unwrap().unwrap();
        let plan = plan_attempts(job, Some(&preset.policy()), limit, at(NOW));
        let shown = |one: PlannedAttempt| {
            let time = |at: Timestamp| {
                let text = at.to_string();
                text.trim_start_matches("2026-01-01T00:").to_owned()
            };
            (one.attempt, time(one.earliest_at), time(one.latest_at))
        };
        plan.into_iter().map(shown).collect()
    }

    fn row(attempt: u32, earliest: &str, latest: &str) -> (u32, String, String) {
        (attempt, earliest.to_owned(), latest.to_owned())
    }

    #[test]
    fn a_waiting_job_starts_when_it_is_due_and_then_follows_its_policy() {
        let expected = [
            row(3, "00:10Z", "00:10Z"),
            row(4, "00:12Z", "00:12Z"),
            row(5, "00:16Z", "00:16Z"),
        ];
        assert_eq!(plan(&job(), Preset::Webhook, 4), expected);
        let overdue = Job {
            run_at: at("2025-12-31T00:00:00Z"),
            ..job()
        };
        assert_eq!(
            plan(&overdue, Preset::Webhook, 2),
            [row(3, "00:00Z", "00:00Z")]
        );
    }

    #[test]
    fn jitter_widens_each_later_attempt() {
        let expected = [
            row(3, "00:10Z", "00:10Z"),
            row(4, "00:10.32Z", "00:10.48Z"),
            row(5, "00:10.96Z", "00:11.44Z"),
        ];
        assert_eq!(plan(&job(), Preset::Standard, 4), expected);
    }

    #[test]
    fn a_deadline_and_an_at_most_once_job_end_the_plan() {
        let late = Job {
            deadline: Some(at("2026-01-01T00:00:12Z")),
            ..job()
        };
        let expected = [row(3, "00:10Z", "00:10Z"), row(4, "00:12Z", "00:12Z")];
        assert_eq!(plan(&late, Preset::Webhook, 9), expected);
        let once = Job {
            delivery: Delivery::AtMostOnce,
            ..job()
        };
        assert_eq!(
            plan(&once, Preset::Webhook, 9),
            [row(3, "00:10Z", "00:10Z")]
        );
        let mut cancelled = job();
        cancelled.cancel(at(NOW)).unwrap();
        assert_eq!(plan(&cancelled, Preset::Webhook, 9), []);
    }

    #[test]
    fn a_long_plan_is_cut() {
        assert_eq!(plan(&job(), Preset::Standard, 1000).len(), PLANNED_MAX);
    }
}
