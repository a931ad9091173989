//! Retry policies with a name.

use std::time::Duration;

use super::{Backoff, Jitter, RetryPolicy};
use crate::words::string_enum;

/// A retry policy that users select by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Preset {
    /// Quick first retries, then one every 5 s. The default.
    #[default]
    Standard,
    /// Three retries, each at a random time within its delay.
    FullJitter,
    /// Five slower retries, each at a random time within its delay.
    Conservative,
    /// Two quick retries.
    Aggressive,
    /// Two retries without delay.
    Immediate,
    /// Delays that grow fourfold, without jitter.
    Patient,
    /// Doubling delays up to five minutes. The default of HTTP jobs.
    Webhook,
    /// About twenty days of retries, for long outages.
    Persistent,
    /// No retry.
    None,
}

string_enum!(Preset {
    Standard = "standard",
    FullJitter = "full-jitter",
    Conservative = "conservative",
    Aggressive = "aggressive",
    Immediate = "immediate",
    Patient = "patient",
    Webhook = "webhook",
    Persistent = "persistent",
    None = "none",
});

impl Preset {
    /// One line that says what the preset is for.
    pub const fn purpose(self) -> &'static str {
        match self {
            Preset::Standard => "the default: quick first retries, then about every 5 s",
            Preset::FullJitter => "three retries, each at a random time within its delay",
            Preset::Conservative => "five slower retries, for targets that need time to recover",
            Preset::Aggressive => "two quick retries, for work where latency matters",
            Preset::Immediate => "two retries without delay, for errors that disappear at once",
            Preset::Patient => "delays that grow fourfold, without jitter",
            Preset::Webhook => "the default of HTTP jobs: doubling delays, at most five minutes",
            Preset::Persistent => "about twenty days of retries, for long outages",
            Preset::None => "no retry: fail fast",
        }
    }

    /// The policy of this preset.
    pub fn policy(self) -> RetryPolicy {
        const DAY: u64 = 86_400_000;
        let proportional = |ratio| Jitter::Proportional { ratio };
        let (max_attempts, backoff, jitter) = match self {
            Preset::Standard => (25, exponential(200, 2.0, 5_000), proportional(0.20)),
            Preset::FullJitter => (4, exponential(500, 2.0, 30_000), Jitter::Full),
            Preset::Conservative => (6, exponential(1_000, 2.0, 60_000), Jitter::Full),
            Preset::Aggressive => (3, exponential(100, 2.0, 5_000), Jitter::Full),
            Preset::Immediate => (3, constant(0), Jitter::None),
            Preset::Patient => (4, exponential(1_000, 4.0, 3_600_000), Jitter::None),
            Preset::Webhook => (4, exponential(1_000, 2.0, 300_000), Jitter::None),
            Preset::Persistent => (25, polynomial(1_000, 4.0, 7 * DAY), proportional(0.10)),
            Preset::None => (1, constant(0), Jitter::None),
        };
        RetryPolicy::new(backoff, jitter)
            .and_then(|policy| policy.with_max_attempts(max_attempts))
            .expect("every preset follows the rules of a policy; a test checks all of them")
    }
}

fn constant(delay: u64) -> Backoff {
    Backoff::Constant {
        delay: Duration::from_millis(delay),
    }
}

fn exponential(base: u64, multiplier: f64, max: u64) -> Backoff {
    Backoff::Exponential {
        base: Duration::from_millis(base),
        multiplier,
        max: Duration::from_millis(max),
    }
}

fn polynomial(base: u64, power: f64, max: u64) -> Backoff {
    Backoff::Polynomial {
        base: Duration::from_millis(base),
        power,
        max: Duration::from_millis(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_made_and_found_by_its_name() {
        for preset in Preset::ALL {
            assert!(preset.policy().max_attempts().is_some());
            assert_eq!(preset.name().parse(), Ok(preset));
            assert_eq!(preset.to_string(), preset.name());
            assert!(!preset.purpose().is_empty());
        }
        assert_eq!(Preset::default(), Preset::Standard);
    }

    #[test]
    fn the_limits_are_the_published_ones() {
        let limits = Preset::ALL.map(|preset| preset.policy().max_attempts().unwrap().get());
        assert_eq!(limits, [25, 4, 6, 3, 3, 4, 4, 25, 1]);
    }

    #[test]
    fn the_nominal_delays_of_standard_sum_to_101_seconds() {
        let policy = Preset::Standard.policy();
        let total: Duration = (1..25).map(|n| policy.backoff().nominal(n)).sum();
        assert_eq!(total, Duration::from_millis(101_200));
    }

    #[test]
    fn persistent_lasts_about_twenty_days() {
        let policy = Preset::Persistent.policy();
        let total: Duration = (1..25).map(|n| policy.backoff().nominal(n)).sum();
        assert_eq!(total.as_secs() / 86_400, 20);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let refusal = "standrad".parse::<Preset>().unwrap_err();
        assert!(refusal.rule().contains("standard, full-jitter"));
    }
}
