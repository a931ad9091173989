//! Forecasts what a retry policy does, for one job and for many jobs that fail together.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{AttemptLimit, Jitter, RetryPolicy};
use crate::Invalid;
use crate::random::Random;

/// The most attempts for which [`explain`] simulates a herd.
pub const HERD_REQUESTS_MAX: u64 = 1_000_000;

/// The most seconds that a herd lists.
pub const HERD_SECONDS_MAX: usize = 100_000;

/// The shortest, the nominal and the longest value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// If jitter always draws the shortest delay.
    pub min: Duration,
    /// Without jitter.
    pub nominal: Duration,
    /// If jitter always draws the longest delay.
    pub max: Duration,
}

/// When one attempt of an always failing job starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptForecast {
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The delay before it; zero for the first attempt.
    pub delay: Span,
    /// The time from the first attempt to this one.
    pub at: Span,
}

/// How many attempts start in one second, for jobs that fail together (a thundering herd).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Herd {
    /// The second, counted from the first attempts in second 0.
    pub second: u64,
    /// How many attempts start in it.
    pub requests: u64,
}

/// Every attempt of an always failing job, and the load of many such jobs together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// One forecast per attempt.
    pub attempts: Vec<AttemptForecast>,
    /// When the last attempt starts.
    pub horizon: Span,
    /// The seconds in which at least one attempt starts, in order; at most the first
    /// [`HERD_SECONDS_MAX`].
    pub herd: Vec<Herd>,
    /// How many attempts start after the last listed second.
    pub herd_rest: u64,
}

/// Explains a policy for `jobs` jobs that start together, each with `limit` attempts that take no
/// time and always fail.
///
/// The herd uses a fixed seed, so the same arguments give the same answer. If the policy has a
/// `max_elapsed`, no attempt follows a failure later than that; an attempt that starts only if
/// earlier delays are short is shown with the latest times at which it can start.
///
/// # Errors
///
/// Returns [`Invalid`] if the simulation would have more than [`HERD_REQUESTS_MAX`] attempts.
pub fn explain(
    policy: &RetryPolicy,
    limit: AttemptLimit,
    jobs: u64,
) -> Result<Explanation, Invalid> {
    check_herd(limit, jobs)?;
    let attempts = forecast(policy, limit);
    let horizon = attempts.last().map(|last| last.at).unwrap_or_default();
    let mut herd = herd(policy, limit, jobs);
    let rest = herd.split_off(herd.len().min(HERD_SECONDS_MAX));
    Ok(Explanation {
        attempts,
        horizon,
        herd,
        herd_rest: rest.iter().map(|row| row.requests).sum(),
    })
}

fn check_herd(limit: AttemptLimit, jobs: u64) -> Result<(), Invalid> {
    let jobs_max = HERD_REQUESTS_MAX / u64::from(limit.get());
    if jobs > jobs_max {
        let rule = format!(
            "must be at most {jobs_max} with {limit} attempts each: the simulation is limited to {HERD_REQUESTS_MAX} attempts in all"
        );
        return Err(Invalid::new("jobs", rule));
    }
    Ok(())
}

/// Whether a failure is still retried this long after the first start.
fn may_retry(policy: &RetryPolicy, elapsed: Duration) -> bool {
    policy.max_elapsed().is_none_or(|max| elapsed <= max)
}

fn forecast(policy: &RetryPolicy, limit: AttemptLimit) -> Vec<AttemptForecast> {
    let mut last = AttemptForecast {
        attempt: 1,
        delay: Span::default(),
        at: Span::default(),
    };
    let mut attempts = vec![last];
    // Show an attempt if the shortest delays reach it before `max_elapsed`.
    while last.attempt < limit.get() && may_retry(policy, last.at.min) {
        let delay = next_delay(policy, last.attempt, last.delay);
        last = AttemptForecast {
            attempt: last.attempt + 1,
            delay,
            at: Span {
                min: last.at.min.saturating_add(delay.min),
                nominal: in_time(policy, last.at.nominal).saturating_add(delay.nominal),
                max: in_time(policy, last.at.max).saturating_add(delay.max),
            },
        };
        attempts.push(last);
    }
    attempts
}

/// The latest time, at most `elapsed`, at which a failure is still retried.
fn in_time(policy: &RetryPolicy, elapsed: Duration) -> Duration {
    policy.max_elapsed().map_or(elapsed, |max| elapsed.min(max))
}

/// The delay after `failures` failures. With decorrelated jitter, each bound depends on the same
/// bound of the previous delay.
fn next_delay(policy: &RetryPolicy, failures: u32, before: Span) -> Span {
    let previous = |delay| (failures > 1).then_some(delay);
    let range = policy.delay_range(failures, previous(before.max));
    let nominal = match policy.jitter() {
        Jitter::Decorrelated => {
            policy
                .delay_range(failures, previous(before.nominal))
                .nominal
        }
        _ => range.nominal,
    };
    Span {
        min: range.min,
        nominal,
        max: range.max,
    }
}

fn herd(policy: &RetryPolicy, limit: AttemptLimit, jobs: u64) -> Vec<Herd> {
    const SEED: u64 = 0;
    let mut random = Random::new(SEED);
    let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..jobs {
        let mut at = Duration::ZERO;
        let mut previous = None;
        *seconds.entry(0).or_default() += 1;
        for failures in 1..limit.get() {
            if !may_retry(policy, at) {
                break;
            }
            let delay = policy.delay(failures, previous, random.bits());
            previous = Some(delay);
            at = at.saturating_add(delay);
            *seconds.entry(at.as_secs()).or_default() += 1;
        }
    }
    let herd = seconds.into_iter();
    herd.map(|(second, requests)| Herd { second, requests })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::{Backoff, Preset};
    use proptest::prelude::*;

    fn limit(n: i64) -> AttemptLimit {
        AttemptLimit::from_max_attempts(n).unwrap().unwrap()
    }

    fn explained(policy: &RetryPolicy, jobs: u64) -> Explanation {
        let limit = policy.max_attempts().unwrap_or(AttemptLimit::ONE);
        explain(policy, limit, jobs).unwrap()
    }

    fn millis(span: Span) -> (u128, u128, u128) {
        (
            span.min.as_millis(),
            span.nominal.as_millis(),
            span.max.as_millis(),
        )
    }

    fn counts(herd: &[Herd]) -> Vec<(u64, u64)> {
        herd.iter().map(|row| (row.second, row.requests)).collect()
    }

    #[test]
    fn the_times_of_a_policy_without_jitter_are_exact() {
        let explanation = explained(&Preset::Webhook.policy(), 10);
        let at: Vec<u128> = explanation
            .attempts
            .iter()
            .map(|attempt| attempt.at.nominal.as_millis())
            .collect();
        assert_eq!(at, [0, 1000, 3000, 7000]);
        assert_eq!(millis(explanation.horizon), (7000, 7000, 7000));
        assert_eq!(
            counts(&explanation.herd),
            [(0, 10), (1, 10), (3, 10), (7, 10)]
        );
        assert_eq!(explanation.attempts[0].delay, Span::default());
        assert_eq!(explanation.attempts[3].attempt, 4);
        assert_eq!(millis(explanation.attempts[3].delay), (4000, 4000, 4000));
    }

    #[test]
    fn jitter_widens_what_may_happen() {
        let explanation = explained(&Preset::Standard.policy(), 0);
        assert_eq!(explanation.attempts.len(), 25);
        assert_eq!(millis(explanation.attempts[1].delay), (160, 200, 240));
        assert_eq!(millis(explanation.attempts[2].at), (480, 600, 720));
        assert_eq!(millis(explanation.horizon), (80_960, 101_200, 121_440));
        assert_eq!(explanation.herd, []);
    }

    #[test]
    fn the_herd_holds_every_attempt_of_every_job() {
        let policy = Preset::FullJitter.policy();
        let explanation = explained(&policy, 1000);
        let total: u64 = explanation.herd.iter().map(|row| row.requests).sum();
        assert_eq!(total, 4000);
        let last = explanation.herd.last().unwrap().second;
        assert!(Duration::from_secs(last) <= explanation.horizon.max);
        assert!(
            explanation.herd[0].requests > 1000,
            "quick draws retry in the first second"
        );
        assert_eq!(explanation, explained(&policy, 1000));
    }

    #[test]
    fn one_attempt_has_no_horizon() {
        let explanation = explained(&Preset::None.policy(), 7);
        assert_eq!(explanation.attempts.len(), 1);
        assert_eq!(millis(explanation.horizon), (0, 0, 0));
        assert_eq!(counts(&explanation.herd), [(0, 7)]);
    }

    #[test]
    fn max_elapsed_ends_the_attempts() {
        let policy = Preset::Webhook
            .policy()
            .with_max_elapsed(Duration::from_secs(3))
            .unwrap();
        let explanation = explain(&policy, limit(10), 2).unwrap();
        // The failure at 3 s is not later than 3 s: one more attempt follows it, at 7 s.
        assert_eq!(counts(&explanation.herd), [(0, 2), (1, 2), (3, 2), (7, 2)]);
        assert_eq!(explanation.attempts.len(), 4);
    }

    #[test]
    fn max_elapsed_bounds_the_latest_times_too() {
        let policy = Preset::FullJitter
            .policy()
            .with_max_elapsed(Duration::from_secs(60))
            .unwrap();
        let explanation = explain(&policy, limit(20), 200).unwrap();
        assert_eq!(
            millis(explanation.horizon),
            (0, 90_000, 90_000),
            "60 s and the longest delay"
        );
        assert!(explanation.herd.last().unwrap().second <= 90);
    }

    #[test]
    fn a_herd_lists_a_bounded_number_of_seconds() {
        let day = Duration::from_secs(86_400);
        let backoff = Backoff::Constant { delay: 7 * day };
        let policy = RetryPolicy::new(backoff, Jitter::Full).unwrap();
        let explanation = explain(&policy, limit(1000), 150).unwrap();
        assert_eq!(explanation.herd.len(), HERD_SECONDS_MAX);
        let listed: u64 = explanation.herd.iter().map(|row| row.requests).sum();
        assert_eq!(listed + explanation.herd_rest, 150_000);
    }

    #[test]
    fn decorrelated_bounds_follow_one_another() {
        let second = Duration::from_secs(1);
        let backoff = Backoff::Exponential {
            base: second,
            multiplier: 2.0,
            max: 20 * second,
        };
        let policy = RetryPolicy::new(backoff, Jitter::Decorrelated).unwrap();
        let explanation = explain(&policy, limit(5), 100).unwrap();
        let delays: Vec<_> = explanation
            .attempts
            .iter()
            .map(|a| millis(a.delay))
            .collect();
        assert_eq!(
            delays,
            [
                (0, 0, 0),
                (1000, 2000, 3000),
                (1000, 3500, 9000),
                (1000, 5750, 20_000),
                (1000, 9125, 20_000)
            ]
        );
    }

    #[test]
    fn a_herd_too_large_to_work_out_is_refused() {
        assert_eq!(check_herd(limit(1000), 1000), Ok(()));
        let policy = Preset::Standard.policy();
        let refusal = explain(&policy, limit(1000), 1001).unwrap_err();
        assert_eq!(refusal.field(), "jobs");
        assert!(
            refusal
                .rule()
                .contains("at most 1000 with 1000 attempts each")
        );
        assert!(explain(&policy, limit(2), u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn every_request_of_the_herd_lies_in_the_forecast(
            base in 1u64..5_000, max in 5_000u64..60_000, attempts in 1i64..12, ratio in 0f64..1.0,
        ) {
            let (base, max) = (Duration::from_millis(base), Duration::from_millis(max));
            let backoff = Backoff::Exponential { base, multiplier: 2.0, max };
            for jitter in [Jitter::None, Jitter::Proportional { ratio }, Jitter::Full, Jitter::Decorrelated] {
                let policy = RetryPolicy::new(backoff.clone(), jitter).unwrap();
                let explanation = explain(&policy, limit(attempts), 20).unwrap();
                let last = explanation.herd.last().unwrap().second;
                prop_assert!(last <= explanation.horizon.max.as_secs());
                let total: u64 = explanation.herd.iter().map(|row| row.requests).sum();
                prop_assert_eq!(total, 20 * u64::try_from(attempts).unwrap());
                let bounded = policy.with_max_elapsed(3 * max).unwrap();
                let explanation = explain(&bounded, limit(attempts), 20).unwrap();
                let last = explanation.herd.last().unwrap().second;
                prop_assert!(last <= explanation.horizon.max.as_secs());
            }
        }
    }
}
