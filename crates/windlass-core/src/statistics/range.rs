//! The time range of a question, and which statistics answer it.

use std::time::Duration;

use super::Period;
use super::period::step_start;
use crate::{Invalid, Timestamp, format_duration};

/// The most points in one answer.
pub const POINTS_MAX: u64 = 2000;

/// How much older than its retention a range may start: a client that asks for the last 2 hours
/// computes the start a moment earlier than the server checks it.
const SLACK: Duration = Duration::from_secs(60);

/// A range of time in steps, of which statistics are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatisticsRange {
    from: Timestamp,
    to: Timestamp,
    step: Duration,
    period: Period,
}

impl StatisticsRange {
    /// Checks a range. It is extended to whole steps, and ends with the step of `now` at the latest.
    ///
    /// Without a step, it is the shortest period whose statistics are still kept for all of the
    /// range: 10 s, 1 minute or 1 hour.
    pub fn new(
        from: Timestamp,
        to: Timestamp,
        step: Option<Duration>,
        now: Timestamp,
    ) -> Result<Self, Invalid> {
        if from >= to {
            return Err(Invalid::new("to", "must be later than `from`"));
        }
        if from > now {
            return Err(Invalid::new("from", "must not be in the future"));
        }
        let age = now.since(from).saturating_sub(SLACK);
        let kept = Period::ALL.into_iter().find(|period| period.kept() >= age);
        let finest = kept.ok_or_else(|| {
            Invalid::new(
                "from",
                "must be within the last 30 days; older statistics are removed",
            )
        })?;
        let step = step.unwrap_or(finest.length());
        check_step(step, finest)?;
        let divides = |period: &Period| is_multiple(step, period.length());
        let period = Period::ALL.into_iter().rev().find(divides);
        let from = step_start(from, step);
        let last = step_start(to.min(now), step);
        // An end at the start of a step excludes that step.
        let to = if last == to {
            to
        } else {
            last.saturating_add(step)
        };
        let points = to.since(from).as_micros() / step.as_micros().max(1);
        if points > u128::from(POINTS_MAX) {
            let rule = format!(
                "gives {points} points, at most {POINTS_MAX} are returned; use a longer step or a shorter range"
            );
            return Err(Invalid::new("step", rule));
        }
        Ok(StatisticsRange {
            from,
            to,
            step,
            period: period.unwrap_or(finest),
        })
    }

    /// Where the first step starts.
    pub fn from(&self) -> Timestamp {
        self.from
    }

    /// Where the last step ends.
    pub fn to(&self) -> Timestamp {
        self.to
    }

    /// The length of a step.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// The statistics to read: those of the longest period that fits into a step, because they are
    /// the fewest.
    pub fn period(&self) -> Period {
        self.period
    }

    /// The start of the step that contains an instant, if it is in the range.
    pub fn step_of(&self, at: Timestamp) -> Option<Timestamp> {
        (self.from..self.to)
            .contains(&at)
            .then(|| step_start(at, self.step))
    }
}

fn is_multiple(step: Duration, of: Duration) -> bool {
    step.as_micros().is_multiple_of(of.as_micros())
}

/// Checks that the step is made of periods whose statistics are kept for long enough.
fn check_step(step: Duration, finest: Period) -> Result<(), Invalid> {
    if !step.is_zero() && is_multiple(step, finest.length()) && step <= Period::Hour.kept() {
        return Ok(());
    }
    let rule = match finest {
        Period::TenSeconds => "must be a multiple of 10s, at most 30d",
        Period::Minute => {
            "must be a multiple of 1m, at most 30d, for a range that starts more than 2h ago"
        }
        Period::Hour => {
            "must be a multiple of 1h, at most 30d, for a range that starts more than 24h ago"
        }
    };
    let rule = format!("{rule}, got {}", format_duration(step));
    Err(Invalid::new("step", rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        at("2026-01-31T12:34:56Z")
    }

    fn last(time: Duration, step: Option<Duration>) -> Result<StatisticsRange, Invalid> {
        StatisticsRange::new(now().saturating_sub(time), now(), step, now())
    }

    #[test]
    fn without_a_step_the_finest_kept_period_answers() {
        for (time, period, points) in [
            (HOUR, Period::TenSeconds, 361),
            (2 * HOUR, Period::TenSeconds, 721),
            (3 * HOUR, Period::Minute, 181),
            (24 * HOUR, Period::Minute, 1441),
            (25 * HOUR, Period::Hour, 26),
            (30 * 24 * HOUR, Period::Hour, 721),
        ] {
            let range = last(time, None).unwrap();
            assert_eq!((range.period(), range.step()), (period, period.length()));
            let count = range.to().since(range.from()).as_secs() / range.step().as_secs();
            assert_eq!(count, points, "{time:?}");
        }
    }

    #[test]
    fn a_range_covers_whole_steps_up_to_now() {
        let range = last(HOUR, Some(7 * MINUTE)).unwrap();
        assert_eq!(range.period(), Period::Minute);
        assert!(range.from() <= now().saturating_sub(HOUR) && range.to() > now());
        assert_eq!(
            range.step_of(now()),
            Some(range.to().saturating_sub(7 * MINUTE))
        );
        assert_eq!(range.step_of(range.to()), None);
        let hours = StatisticsRange::new(
            at("2026-01-31T10:00:00Z"),
            at("2026-01-31T12:00:00Z"),
            Some(HOUR),
            now(),
        );
        let hours = hours.unwrap();
        assert_eq!(hours.to(), at("2026-01-31T12:00:00Z"));
        assert_eq!(hours.period(), Period::Hour, "the longest period that fits");
        let future = StatisticsRange::new(now(), now().saturating_add(99 * HOUR), None, now());
        assert_eq!(future.unwrap().to(), at("2026-01-31T12:35:00Z"));
    }

    #[test]
    fn a_range_that_cannot_be_answered_says_why() {
        let refused = |range: Result<StatisticsRange, Invalid>| range.unwrap_err().to_string();
        assert_names(&refused(last(31 * 24 * HOUR, None)), "from", "30 days");
        assert_names(&refused(last(Duration::ZERO, None)), "to", "later");
        assert_names(&refused(last(HOUR, Some(Duration::ZERO))), "step", "10s");
        assert_names(
            &refused(last(HOUR, Some(MINUTE / 4))),
            "step",
            "multiple of 10s",
        );
        assert_names(&refused(last(3 * HOUR, Some(MINUTE / 6))), "step", "2h ago");
        assert_names(&refused(last(25 * HOUR, Some(MINUTE))), "step", "24h ago");
        assert_names(&refused(last(HOUR, Some(999 * 24 * HOUR))), "step", "30d");
        let later = StatisticsRange::new(now().saturating_add(HOUR), Timestamp::MAX, None, now());
        assert_names(&refused(later), "from", "future");
    }

    fn assert_names(text: &str, field: &str, part: &str) {
        assert!(text.contains(field) && text.contains(part), "{text}");
    }
}
