//! How delays are randomized, so that jobs that failed together do not retry together.

use std::time::Duration;

use crate::Invalid;

/// The range from which a delay is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Jitter {
    /// Exactly the nominal delay.
    None,
    /// `[1-ratio, 1+ratio]·nominal`. Applies after the limit `max`, so a delay of 5 s may become 6
    /// s.
    Proportional {
        /// From 0 to 1.
        ratio: f64,
    },
    /// `[0, nominal]`.
    Full,
    /// `[nominal/2, nominal]`.
    Equal,
    /// `[1, 1+ratio]·nominal`.
    Upward {
        /// From 0 to 1.
        ratio: f64,
    },
    /// `[base, 3·previous delay]`, at most `max`. Only with exponential backoff.
    Decorrelated,
}

impl Jitter {
    /// The shortest and the longest delay for `nominal`. Not for decorrelated jitter, which depends
    /// on the previous delay.
    pub(super) fn spread(self, nominal: Duration) -> (Duration, Duration) {
        match self {
            Jitter::None | Jitter::Decorrelated => (nominal, nominal),
            Jitter::Proportional { ratio } => {
                (times(nominal, 1.0 - ratio), times(nominal, 1.0 + ratio))
            }
            Jitter::Full => (Duration::ZERO, nominal),
            Jitter::Equal => (times(nominal, 0.5), nominal),
            Jitter::Upward { ratio } => (nominal, times(nominal, 1.0 + ratio)),
        }
    }

    pub(super) fn check(self) -> Result<(), Invalid> {
        match self {
            Jitter::Proportional { ratio } | Jitter::Upward { ratio }
                if !(0.0..=1.0).contains(&ratio) =>
            {
                let rule = format!("must be a number from 0 to 1, got {ratio}");
                Err(Invalid::new("ratio", rule))
            }
            _ => Ok(()),
        }
    }
}

/// `duration·factor`, rounded to microseconds; zero if the product is negative or undefined.
fn times(duration: Duration, factor: f64) -> Duration {
    Duration::from_micros((duration.as_micros() as f64 * factor).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_form_spreads_as_its_range_says() {
        let nominal = Duration::from_millis(1000);
        let millis = |jitter: Jitter| {
            let (low, high) = jitter.spread(nominal);
            (low.as_millis(), high.as_millis())
        };
        assert_eq!(millis(Jitter::None), (1000, 1000));
        assert_eq!(millis(Jitter::Proportional { ratio: 0.2 }), (800, 1200));
        assert_eq!(millis(Jitter::Proportional { ratio: 1.0 }), (0, 2000));
        assert_eq!(millis(Jitter::Full), (0, 1000));
        assert_eq!(millis(Jitter::Equal), (500, 1000));
        assert_eq!(millis(Jitter::Upward { ratio: 0.5 }), (1000, 1500));
    }

    #[test]
    fn a_ratio_outside_0_to_1_is_refused() {
        for ratio in [-0.1, 1.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for jitter in [Jitter::Proportional { ratio }, Jitter::Upward { ratio }] {
                assert_eq!(jitter.check().unwrap_err().field(), "ratio");
            }
        }
        for jitter in [
            Jitter::None,
            Jitter::Full,
            Jitter::Equal,
            Jitter::Decorrelated,
            Jitter::Proportional { ratio: 0.0 },
            Jitter::Upward { ratio: 1.0 },
        ] {
            assert_eq!(jitter.check(), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn no_ratio_and_no_delay_panic(micros in any::<u64>(), ratio in any::<f64>()) {
            let nominal = Duration::from_micros(micros);
            for jitter in [Jitter::Proportional { ratio }, Jitter::Upward { ratio }, Jitter::Full, Jitter::Equal] {
                let _ = (jitter.spread(nominal), jitter.check());
            }
        }
    }
}
