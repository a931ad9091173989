//! The delay after the n-th failure, before jitter.

use std::time::Duration;

use crate::Invalid;
use crate::duration::{check_duration, format_duration};

/// The longest delay of a backoff that sets no `max`: 24 hours.
pub const BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(24 * 3600);

const STEPS_MAX: usize = 1000;
const POWER_MAX: f64 = 100.0;
const MULTIPLIER_MAX: f64 = 1_000_000.0;

/// How the delay grows with the number of failures `n`, before jitter.
#[derive(Debug, Clone, PartialEq)]
pub enum Backoff {
    /// Always `delay`.
    Constant {
        /// The delay.
        delay: Duration,
    },
    /// `base + step·(n-1)`, at most `max`.
    Linear {
        /// The first delay.
        base: Duration,
        /// What each further failure adds to the delay.
        step: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// `base·multiplier^(n-1)`, at most `max`.
    Exponential {
        /// The first delay.
        base: Duration,
        /// What each further failure multiplies the delay by; at least 1.
        multiplier: f64,
        /// The longest delay.
        max: Duration,
    },
    /// `base·n^power`, at most `max`.
    Polynomial {
        /// The first delay.
        base: Duration,
        /// The exponent of `n`.
        power: f64,
        /// The longest delay.
        max: Duration,
    },
    /// The n-th delay of a list; the last one repeats.
    Steps {
        /// The delays in order.
        delays: Vec<Duration>,
    },
}

impl Backoff {
    /// The delay after `failures` failures, before jitter, in whole microseconds. 0 counts as 1.
    pub fn nominal(&self, failures: u32) -> Duration {
        let n = failures.max(1);
        match self {
            Backoff::Constant { delay } => *delay,
            Backoff::Linear { base, step, max } => {
                base.saturating_add(step.saturating_mul(n - 1)).min(*max)
            }
            Backoff::Exponential {
                base,
                multiplier,
                max,
            } => scaled(*base, multiplier.powf(f64::from(n - 1)), *max),
            Backoff::Polynomial { base, power, max } => {
                scaled(*base, f64::from(n).powf(*power), *max)
            }
            Backoff::Steps { delays } => {
                let index = usize::try_from(n - 1).unwrap_or(usize::MAX);
                let step = delays.get(index).or(delays.last());
                step.copied().unwrap_or(Duration::ZERO)
            }
        }
    }

    /// The same backoff with all durations cut to whole microseconds, as stores keep them.
    pub(super) fn in_micros(mut self) -> Self {
        let cut = |duration: &mut Duration| *duration = micros(*duration);
        match &mut self {
            Backoff::Constant { delay } => cut(delay),
            Backoff::Linear { base, step, max } => [base, step, max].into_iter().for_each(cut),
            Backoff::Exponential { base, max, .. } | Backoff::Polynomial { base, max, .. } => {
                [base, max].into_iter().for_each(cut);
            }
            Backoff::Steps { delays } => delays.iter_mut().for_each(cut),
        }
        self
    }

    /// Checks the parameters; the error names the bad one.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        match self {
            Backoff::Constant { delay } => check_span("delay", *delay),
            Backoff::Linear { base, step, max } => {
                check_span("step", *step)?;
                check_cap(*base, *max)
            }
            Backoff::Exponential {
                base,
                multiplier,
                max,
            } => {
                check_factor("multiplier", *multiplier, 1.0, MULTIPLIER_MAX)?;
                check_cap(*base, *max)
            }
            Backoff::Polynomial { base, power, max } => {
                check_factor("power", *power, 0.0, POWER_MAX)?;
                check_cap(*base, *max)
            }
            Backoff::Steps { delays } => check_steps(delays),
        }
    }
}

fn micros(duration: Duration) -> Duration {
    Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// `base·factor`, at most `max`, for any factor.
fn scaled(base: Duration, factor: f64, max: Duration) -> Duration {
    if base.is_zero() {
        return base; // an infinite factor would give NaN
    }
    let micros = base.as_micros() as f64 * factor;
    // The cast saturates at the ends of u64; NaN would become 0.
    Duration::from_micros(micros.round() as u64).min(max)
}

fn check_span(field: &str, duration: Duration) -> Result<(), Invalid> {
    check_duration(duration)
        .map(|_| ())
        .map_err(|error| error.within(field))
}

fn check_cap(base: Duration, max: Duration) -> Result<(), Invalid> {
    check_span("base", base)?;
    check_span("max", max)?;
    if max < base {
        let rule = format!(
            "must be at least `base` ({}), got {}",
            format_duration(base),
            format_duration(max)
        );
        return Err(Invalid::new("max", rule));
    }
    Ok(())
}

fn check_factor(field: &str, value: f64, min: f64, max: f64) -> Result<(), Invalid> {
    if (min..=max).contains(&value) {
        return Ok(()); // false for NaN
    }
    let rule = format!("must be a number from {min} to {max}, got {value}");
    Err(Invalid::new(field, rule))
}

fn check_steps(delays: &[Duration]) -> Result<(), Invalid> {
    if delays.is_empty() || delays.len() > STEPS_MAX {
        let rule = format!("must list 1 to {STEPS_MAX} delays, got {}", delays.len());
        return Err(Invalid::new("delays", rule));
    }
    for (index, delay) in delays.iter().enumerate() {
        check_span(&format!("delays[{index}]"), *delay)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn nominals(backoff: &Backoff, count: u32) -> Vec<u128> {
        (1..=count)
            .map(|n| backoff.nominal(n).as_millis())
            .collect()
    }

    #[test]
    fn each_form_grows_as_its_formula_says() {
        let (base, max) = (ms(100), ms(1000));
        let constant = Backoff::Constant { delay: ms(7) };
        assert_eq!(nominals(&constant, 3), [7, 7, 7]);
        let linear = Backoff::Linear {
            base,
            step: ms(400),
            max,
        };
        assert_eq!(nominals(&linear, 5), [100, 500, 900, 1000, 1000]);
        let exponential = Backoff::Exponential {
            base,
            multiplier: 3.0,
            max,
        };
        assert_eq!(nominals(&exponential, 4), [100, 300, 900, 1000]);
        let polynomial = Backoff::Polynomial {
            base,
            power: 2.0,
            max,
        };
        assert_eq!(nominals(&polynomial, 5), [100, 400, 900, 1000, 1000]);
        let steps = Backoff::Steps {
            delays: vec![ms(5), ms(1), ms(9)],
        };
        assert_eq!(nominals(&steps, 5), [5, 1, 9, 9, 9]);
        assert_eq!(exponential.nominal(0), exponential.nominal(1));
    }

    #[test]
    fn a_huge_number_of_failures_is_exactly_the_cap() {
        let max = ms(5000);
        for backoff in [
            Backoff::Linear {
                base: ms(1),
                step: ms(1),
                max,
            },
            Backoff::Exponential {
                base: ms(200),
                multiplier: 2.0,
                max,
            },
            Backoff::Polynomial {
                base: ms(1000),
                power: 4.0,
                max,
            },
        ] {
            let caps: &[u32] = &[1_000_000, i32::MAX as u32, u32::MAX];
            for n in caps {
                assert_eq!(backoff.nominal(*n), max, "{backoff:?}");
            }
        }
        let nothing = Backoff::Exponential {
            base: ms(0),
            multiplier: 2.0,
            max,
        };
        assert_eq!(nothing.nominal(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn bad_parameters_are_refused_by_name() {
        let (base, max) = (ms(200), ms(100));
        let longer = crate::DURATION_MAX + ms(1);
        for (field, backoff) in [
            (
                "max",
                Backoff::Linear {
                    base,
                    step: base,
                    max,
                },
            ),
            (
                "max",
                Backoff::Exponential {
                    base,
                    multiplier: 2.0,
                    max,
                },
            ),
            (
                "max",
                Backoff::Polynomial {
                    base,
                    power: 2.0,
                    max,
                },
            ),
            (
                "multiplier",
                Backoff::Exponential {
                    base,
                    multiplier: 0.99,
                    max: base,
                },
            ),
            (
                "multiplier",
                Backoff::Exponential {
                    base,
                    multiplier: f64::NAN,
                    max: base,
                },
            ),
            (
                "multiplier",
                Backoff::Exponential {
                    base,
                    multiplier: f64::INFINITY,
                    max: base,
                },
            ),
            (
                "multiplier",
                Backoff::Exponential {
                    base,
                    multiplier: -2.0,
                    max: base,
                },
            ),
            (
                "power",
                Backoff::Polynomial {
                    base,
                    power: f64::NAN,
                    max: base,
                },
            ),
            (
                "power",
                Backoff::Polynomial {
                    base,
                    power: -1.0,
                    max: base,
                },
            ),
            (
                "power",
                Backoff::Polynomial {
                    base,
                    power: 101.0,
                    max: base,
                },
            ),
            ("delays", Backoff::Steps { delays: vec![] }),
            (
                "delays",
                Backoff::Steps {
                    delays: vec![base; 1001],
                },
            ),
            (
                "delays[1]",
                Backoff::Steps {
                    delays: vec![base, longer],
                },
            ),
            (
                "delay",
                Backoff::Constant {
                    delay: Duration::MAX,
                },
            ),
            (
                "step",
                Backoff::Linear {
                    base,
                    step: longer,
                    max: base,
                },
            ),
            (
                "base",
                Backoff::Linear {
                    base: longer,
                    step: base,
                    max: Duration::MAX,
                },
            ),
            (
                "max",
                Backoff::Linear {
                    base,
                    step: base,
                    max: longer,
                },
            ),
        ] {
            let refusal = backoff.check().unwrap_err();
            assert_eq!(refusal.field(), field, "{backoff:?}: {refusal}");
        }
    }

    #[test]
    fn parameters_at_the_edge_are_taken() {
        let base = ms(200);
        for backoff in [
            Backoff::Exponential {
                base,
                multiplier: 1.0,
                max: base,
            },
            Backoff::Polynomial {
                base,
                power: 0.0,
                max: base,
            },
            Backoff::Polynomial {
                base,
                power: 100.0,
                max: base,
            },
            Backoff::Steps {
                delays: vec![base; 1000],
            },
            Backoff::Constant {
                delay: crate::DURATION_MAX,
            },
        ] {
            assert_eq!(backoff.check(), Ok(()), "{backoff:?}");
        }
    }

    pub(crate) fn any_backoff() -> impl Strategy<Value = Backoff> {
        let span = || any::<u64>().prop_map(Duration::from_micros);
        prop_oneof![
            span().prop_map(|delay| Backoff::Constant { delay }),
            (span(), span(), span()).prop_map(|(base, step, max)| Backoff::Linear {
                base,
                step,
                max
            }),
            (span(), any::<f64>(), span()).prop_map(|(base, multiplier, max)| {
                Backoff::Exponential {
                    base,
                    multiplier,
                    max,
                }
            }),
            (span(), any::<f64>(), span()).prop_map(|(base, power, max)| Backoff::Polynomial {
                base,
                power,
                max
            }),
            proptest::collection::vec(span(), 0..4).prop_map(|delays| Backoff::Steps { delays }),
        ]
    }

    proptest! {
        #[test]
        fn no_parameters_panic(backoff in any_backoff(), n in any::<u32>()) {
            let _ = (backoff.nominal(n), backoff.check());
        }

        #[test]
        fn a_checked_backoff_never_shrinks_and_never_passes_its_cap(
            base in 0u64..10_000_000, more in 0u64..10_000_000, factor in 1f64..10.0, n in 1u32..u32::MAX,
        ) {
            let (base, max) = (Duration::from_micros(base), Duration::from_micros(base + more));
            for backoff in [
                Backoff::Linear { base, step: base, max },
                Backoff::Exponential { base, multiplier: factor, max },
                Backoff::Polynomial { base, power: factor, max },
            ] {
                prop_assert_eq!(backoff.check(), Ok(()));
                prop_assert!(backoff.nominal(n) <= backoff.nominal(n.saturating_add(1)));
                prop_assert!((base..=max).contains(&backoff.nominal(n)));
            }
        }
    }
}
