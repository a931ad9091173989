//! Backoffs and jitters in a few words, for tables and pages.

use std::time::Duration;

use super::{Backoff, Jitter};
use crate::format_duration;

impl Backoff {
    /// The formula in a few words: `30s ×2, at most 30m`.
    pub fn words(&self) -> String {
        let text = |duration: &Duration| format_duration(*duration);
        match self {
            Backoff::Constant { delay } if delay.is_zero() => "no delay".to_owned(),
            Backoff::Constant { delay } => format!("always {}", text(delay)),
            Backoff::Linear { base, step, max } => {
                format!(
                    "{} and {} more each time, at most {}",
                    text(base),
                    text(step),
                    text(max)
                )
            }
            Backoff::Exponential {
                base,
                multiplier,
                max,
            } => {
                format!("{} ×{multiplier}, at most {}", text(base), text(max))
            }
            Backoff::Polynomial { base, power, max } => {
                format!("{} ·n^{power}, at most {}", text(base), text(max))
            }
            Backoff::Steps { delays } => {
                const SHOWN: usize = 6;
                let steps: Vec<String> = delays.iter().take(SHOWN).map(text).collect();
                let more = if delays.len() > SHOWN { ", …" } else { "" };
                format!("{}{more}", steps.join(", "))
            }
        }
    }
}

impl Jitter {
    /// The range of the delay in a few words: `±20 %`.
    pub fn words(self) -> String {
        let percent = |ratio: f64| (ratio * 1000.0).round() / 10.0;
        match self {
            Jitter::None => "none".to_owned(),
            Jitter::Proportional { ratio } => format!("±{} %", percent(ratio)),
            Jitter::Full => "0 to the whole delay".to_owned(),
            Jitter::Equal => "half to the whole delay".to_owned(),
            Jitter::Upward { ratio } => format!("up to {} % more", percent(ratio)),
            Jitter::Decorrelated => "up to 3 times the previous delay".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_and_jitter_have_short_descriptions() {
        let second = Duration::from_secs(1);
        for (backoff, words) in [
            (Backoff::Constant { delay: second }, "always 1s"),
            (
                Backoff::Linear {
                    base: second,
                    step: second,
                    max: 5 * second,
                },
                "1s and 1s more each time, at most 5s",
            ),
            (
                Backoff::Steps {
                    delays: vec![second; 7],
                },
                "1s, 1s, 1s, 1s, 1s, 1s, …",
            ),
        ] {
            assert_eq!(backoff.words(), words);
        }
        assert_eq!(Jitter::Upward { ratio: 0.125 }.words(), "up to 12.5 % more");
        assert_eq!(Jitter::Equal.words(), "half to the whole delay");
        assert_eq!(
            Jitter::Decorrelated.words(),
            "up to 3 times the previous delay"
        );
    }
}
