//! The policy as a whole: limits, backoff and jitter, and the delay that they give.

use std::time::Duration;

use super::{AttemptLimit, Backoff, Jitter, Preset};
use crate::duration::check_duration;
use crate::random::pick;
use crate::{DURATION_MAX, Invalid};

/// When to retry a failed job, and how many times.
///
/// All parameters are checked, so a delay never overflows or becomes negative, for any number of
/// failures.
///
/// ```
/// use std::time::Duration;
/// use windlass_core::retry::{Backoff, Jitter, RetryPolicy};
///
/// let second = Duration::from_secs(1);
/// let backoff = Backoff::Exponential { base: second, multiplier: 2.0, max: 60 * second };
/// let policy = RetryPolicy::new(backoff, Jitter::None)?.with_max_attempts(5)?;
/// assert_eq!(policy.delay(3, None, 0), 4 * second);
/// # Ok::<(), windlass_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    max_attempts: Option<AttemptLimit>,
    backoff: Backoff,
    jitter: Jitter,
    max_elapsed: Option<Duration>,
}

/// The range from which a delay is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayRange {
    /// The shortest delay.
    pub min: Duration,
    /// The delay without jitter; the middle of the range for decorrelated jitter.
    pub nominal: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl RetryPolicy {
    /// Makes a policy without a limit of its own. Returns an error that names the bad parameter.
    pub fn new(backoff: Backoff, jitter: Jitter) -> Result<Self, Invalid> {
        backoff.check().map_err(|error| error.within("backoff"))?;
        jitter.check().map_err(|error| error.within("jitter"))?;
        if jitter == Jitter::Decorrelated && !matches!(backoff, Backoff::Exponential { .. }) {
            return Err(Invalid::new(
                "jitter",
                "can be `decorrelated` only with exponential backoff",
            ));
        }
        Ok(RetryPolicy {
            max_attempts: None,
            backoff: backoff.in_micros(),
            jitter,
            max_elapsed: None,
        })
    }

    /// Sets how many attempts may fail in all; 0 sets no limit.
    pub fn with_max_attempts(self, max_attempts: u32) -> Result<Self, Invalid> {
        Ok(self.with_limit(AttemptLimit::from_max_attempts(max_attempts.into())?))
    }

    /// Sets or removes the limit of failed attempts.
    #[must_use]
    pub fn with_limit(self, max_attempts: Option<AttemptLimit>) -> Self {
        RetryPolicy {
            max_attempts,
            ..self
        }
    }

    /// Sets how long after a job's first start a failure is still retried.
    pub fn with_max_elapsed(self, max_elapsed: Duration) -> Result<Self, Invalid> {
        check_duration(max_elapsed).map_err(|error| error.within("max_elapsed"))?;
        Ok(RetryPolicy {
            max_elapsed: Some(max_elapsed),
            ..self
        })
    }

    /// How many attempts may fail in all, if the policy limits it.
    pub fn max_attempts(&self) -> Option<AttemptLimit> {
        self.max_attempts
    }

    /// How the delay grows.
    pub fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// How the delay is randomized.
    pub fn jitter(&self) -> Jitter {
        self.jitter
    }

    /// How long after a job's first start a failure is still retried.
    pub fn max_elapsed(&self) -> Option<Duration> {
        self.max_elapsed
    }

    /// The preset that this policy exactly equals, if any.
    pub fn preset(&self) -> Option<Preset> {
        Preset::ALL
            .into_iter()
            .find(|preset| preset.policy() == *self)
    }

    /// The range of delays after failure number `failures`. `previous` is the delay before that,
    /// for decorrelated jitter.
    pub fn delay_range(&self, failures: u32, previous: Option<Duration>) -> DelayRange {
        if let (Jitter::Decorrelated, Backoff::Exponential { base, max, .. }) =
            (self.jitter, &self.backoff)
        {
            let previous = previous.unwrap_or(*base);
            let highest = previous.saturating_mul(3).clamp(*base, *max);
            return DelayRange {
                min: *base,
                nominal: *base + (highest - *base) / 2,
                max: highest,
            };
        }
        let nominal = self.backoff.nominal(failures);
        let (min, max) = self.jitter.spread(nominal);
        DelayRange { min, nominal, max }
    }

    /// The delay after failure number `failures`, chosen by 64 random bits. The same bits give the
    /// same delay.
    pub fn delay(&self, failures: u32, previous: Option<Duration>, random: u64) -> Duration {
        let range = self.delay_range(failures, previous);
        let drawn = pick(micros(range.min), micros(range.max), random);
        Duration::from_micros(drawn)
    }
}

fn micros(duration: Duration) -> u64 {
    // Jitter at most doubles the longest duration, which still fits.
    u64::try_from(duration.min(2 * DURATION_MAX).as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn exponential(base: u64, max: u64, jitter: Jitter) -> RetryPolicy {
        let backoff = Backoff::Exponential {
            base: ms(base),
            multiplier: 2.0,
            max: ms(max),
        };
        RetryPolicy::new(backoff, jitter).unwrap()
    }

    fn range_ms(policy: &RetryPolicy, n: u32) -> (u128, u128) {
        let range = policy.delay_range(n, None);
        (range.min.as_millis(), range.max.as_millis())
    }

    /// The closed range of what may be drawn, in milliseconds, for n = 1, 2, …; the last repeats.
    #[test]
    fn delays_lie_in_the_published_ranges() {
        let twenty = |preset: Preset| preset.policy().with_max_attempts(20).unwrap();
        let proportional = |ratio| Jitter::Proportional { ratio };
        let exactly = |delays: &[u128]| delays.iter().map(|d| (*d, *d)).collect::<Vec<_>>();
        let rows: Vec<(RetryPolicy, Vec<(u128, u128)>)> = vec![
            (
                Preset::Standard.policy(),
                vec![
                    (160, 240),
                    (320, 480),
                    (640, 960),
                    (1280, 1920),
                    (2560, 3840),
                    (4000, 6000),
                    (4000, 6000),
                    (4000, 6000),
                ],
            ),
            (
                exponential(200, 10_000, proportional(0.10)),
                vec![
                    (180, 220),
                    (360, 440),
                    (720, 880),
                    (1440, 1760),
                    (2880, 3520),
                    (5760, 7040),
                    (9000, 11_000),
                    (9000, 11_000),
                ],
            ),
            (
                exponential(100, 1000, Jitter::None),
                exactly(&[100, 200, 400, 800, 1000, 1000, 1000, 1000]),
            ),
            (
                twenty(Preset::FullJitter),
                vec![
                    (0, 500),
                    (0, 1000),
                    (0, 2000),
                    (0, 4000),
                    (0, 8000),
                    (0, 16_000),
                    (0, 30_000),
                    (0, 30_000),
                ],
            ),
            (
                Preset::Conservative.policy(),
                vec![(0, 1000), (0, 2000), (0, 4000), (0, 8000), (0, 16_000)],
            ),
            (Preset::Aggressive.policy(), vec![(0, 100), (0, 200)]),
            (Preset::Patient.policy(), exactly(&[1000, 4000, 16_000])),
            (
                twenty(Preset::Patient),
                exactly(&[
                    1000, 4000, 16_000, 64_000, 256_000, 1_024_000, 3_600_000, 3_600_000,
                ]),
            ),
            (
                twenty(Preset::Webhook),
                exactly(&[
                    1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000,
                    300_000,
                ]),
            ),
            (Preset::Immediate.policy(), exactly(&[0, 0])),
        ];
        for (policy, expected) in &rows {
            for (n, row) in (1u32..).zip(expected) {
                assert_eq!(range_ms(policy, n), *row, "{policy:?} after {n}");
            }
        }
    }

    #[test]
    fn after_very_many_failures_the_delay_is_the_cap() {
        for n in [64, 1000, i32::MAX as u32, u32::MAX] {
            assert_eq!(range_ms(&Preset::Standard.policy(), n), (4000, 6000));
            assert_eq!(range_ms(&Preset::FullJitter.policy(), n), (0, 30_000));
            assert_eq!(range_ms(&Preset::Webhook.policy(), n), (300_000, 300_000));
            let week = 7 * 86_400_000;
            assert_eq!(
                range_ms(&Preset::Persistent.policy(), n),
                (week * 9 / 10, week * 11 / 10)
            );
        }
    }

    #[test]
    fn full_jitter_is_even_over_its_range() {
        let policy = exponential(8000, 8000, Jitter::Full);
        let mut random = Random::new(7);
        let drawn: Vec<f64> = (0..10_000)
            .map(|_| policy.delay(1, None, random.bits()).as_secs_f64() * 1000.0)
            .collect();
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 4000.0).abs() <= 100.0, "mean {mean}");
        assert!(drawn.iter().any(|delay| *delay < 80.0));
        assert!(drawn.iter().any(|delay| *delay > 7920.0));
    }

    #[test]
    fn proportional_jitter_keeps_the_mean() {
        let policy = exponential(1000, 1000, Jitter::Proportional { ratio: 0.2 });
        let mut random = Random::new(7);
        let total: f64 = (0..10_000)
            .map(|_| policy.delay(1, None, random.bits()).as_secs_f64())
            .sum();
        assert!((total / 10_000.0 - 1.0).abs() <= 0.01);
    }

    #[test]
    fn the_same_seed_gives_the_same_delays() {
        let policy = Preset::Standard.policy();
        let sequence = |seed| {
            let mut random = Random::new(seed);
            (1..=25)
                .map(|n| policy.delay(n, None, random.bits()))
                .collect::<Vec<_>>()
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }

    #[test]
    fn decorrelated_delays_follow_the_one_before() {
        let policy = exponential(100, 1000, Jitter::Decorrelated);
        let range = |previous| policy.delay_range(9, previous);
        let spread = |min, nominal, max| DelayRange {
            min: ms(min),
            nominal: ms(nominal),
            max: ms(max),
        };
        assert_eq!(range(None), spread(100, 200, 300));
        assert_eq!(range(Some(ms(200))), spread(100, 350, 600));
        assert_eq!(range(Some(ms(999))), spread(100, 550, 1000));
        assert_eq!(range(Some(Duration::ZERO)), spread(100, 100, 100));
        assert_eq!(range(Some(Duration::MAX)), spread(100, 550, 1000));
        let constant = Backoff::Constant { delay: ms(1) };
        let refusal = RetryPolicy::new(constant, Jitter::Decorrelated).unwrap_err();
        assert_eq!(refusal.field(), "jitter");
    }

    #[test]
    fn a_bad_parameter_is_refused_with_its_whole_path() {
        let backoff = Backoff::Exponential {
            base: ms(2),
            multiplier: 2.0,
            max: ms(1),
        };
        let refusal = RetryPolicy::new(backoff, Jitter::None).unwrap_err();
        assert_eq!(refusal.field(), "backoff.max");
        let backoff = Backoff::Constant { delay: ms(1) };
        let jitter = Jitter::Upward { ratio: 2.0 };
        let refusal = RetryPolicy::new(backoff, jitter).unwrap_err();
        assert_eq!(refusal.field(), "jitter.ratio");
        let policy = Preset::Standard.policy();
        let refusal = policy.clone().with_max_attempts(1001).unwrap_err();
        assert_eq!(refusal.field(), "max_attempts");
        let refusal = policy.with_max_elapsed(Duration::MAX).unwrap_err();
        assert_eq!(refusal.field(), "max_elapsed");
    }

    #[test]
    fn what_is_finer_than_a_microsecond_is_cut_off() {
        let delay = Duration::from_nanos(1500);
        let policy = RetryPolicy::new(Backoff::Constant { delay }, Jitter::None).unwrap();
        assert_eq!(policy.delay(1, None, 0), Duration::from_micros(1));
        assert_eq!(policy.delay_range(1, None).min, Duration::from_micros(1));
        assert_eq!(RetryPolicy::from_json(&policy.to_json()), Ok(policy));
    }

    #[test]
    fn a_preset_is_recognised_until_it_is_changed() {
        for preset in Preset::ALL {
            assert_eq!(preset.policy().preset(), Some(preset));
        }
        let changed = Preset::Standard.policy().with_max_attempts(3).unwrap();
        assert_eq!(changed.preset(), None);
    }

    fn any_policy() -> impl Strategy<Value = RetryPolicy> {
        let micros = 0..=DURATION_MAX.as_micros() as u64;
        let jitter = prop_oneof![
            Just(Jitter::None),
            (0f64..=1.0).prop_map(|ratio| Jitter::Proportional { ratio }),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            (0f64..=1.0).prop_map(|ratio| Jitter::Upward { ratio }),
            Just(Jitter::Decorrelated),
        ];
        (micros.clone(), micros, 1f64..=1_000_000.0, jitter).prop_map(
            |(a, b, multiplier, jitter)| {
                let (base, max) = (
                    Duration::from_micros(a.min(b)),
                    Duration::from_micros(a.max(b)),
                );
                RetryPolicy::new(
                    Backoff::Exponential {
                        base,
                        multiplier,
                        max,
                    },
                    jitter,
                )
                .unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn every_delay_lies_in_its_range(
            policy in any_policy(), n in any::<u32>(), previous in proptest::option::of(any::<u64>()),
            random in any::<u64>(),
        ) {
            let previous = previous.map(Duration::from_micros);
            let range = policy.delay_range(n, previous);
            let delay = policy.delay(n, previous, random);
            prop_assert!(range.min <= range.nominal && range.nominal <= range.max);
            prop_assert!(range.min <= delay && delay <= range.max, "{:?} {:?}", delay, range);
        }
    }
}
