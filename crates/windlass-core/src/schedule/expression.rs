//! The three forms of a schedule's rule: cron, interval, single time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Cron;
use crate::duration::{format_duration, parse_duration};
use crate::{Invalid, Timestamp};

/// When a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// At the wall-clock times of a cron expression.
    Cron(Cron),
    /// At a fixed interval of real time, counted from the schedule's anchor; at least one second.
    Every(Duration),
    /// Once, at this instant.
    At(Timestamp),
}

impl Expression {
    /// Makes an interval (`@every`) of at least one second.
    pub fn every(period: Duration) -> Result<Self, Invalid> {
        if period < Duration::from_secs(1) {
            let rule = format!("must be at least 1s, got {}", format_duration(period));
            return Err(Invalid::new("every", rule));
        }
        Ok(Expression::Every(period))
    }

    /// The rule of a schedule: exactly one of `cron` (which takes `@every 90s` too), `every` and `at`.
    pub fn from_fields(
        cron: Option<&str>,
        every: Option<Duration>,
        at: Option<Timestamp>,
    ) -> Result<Self, Invalid> {
        match (cron, every, at) {
            (Some(text), None, None) if text.trim_start().starts_with("at ") => Err(Invalid::new(
                "cron",
                "must be a cron expression; an instant goes into `at`",
            )),
            (Some(text), None, None) => text.parse().map_err(within_cron),
            (None, Some(period), None) => Expression::every(period),
            (None, None, Some(instant)) => Ok(Expression::At(instant)),
            _ => Err(Invalid::new(
                "cron",
                "or `every` or `at` must be given, and only one of them",
            )),
        }
    }
}

impl Expression {
    /// The rule in words: `at 02:30 on weekdays`, `every 90 seconds`. `None` if it is too complex
    /// for a sentence; show the expression then.
    pub fn words(&self) -> Option<String> {
        match self {
            Expression::Cron(cron) => cron.words(),
            Expression::Every(period) => Some(interval_words(*period)),
            Expression::At(instant) => Some(format!("once, at {instant}")),
        }
    }
}

/// `every 90 seconds`, `every 2 hours`, `every 1d 12h`.
fn interval_words(period: Duration) -> String {
    const SECONDS_MAX: u64 = 120;
    let seconds = period.as_secs();
    if period.subsec_nanos() > 0 {
        return format!("every {}", format_duration(period));
    }
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let unit = units
        .into_iter()
        .find(|(size, _)| seconds.is_multiple_of(*size));
    match unit {
        Some((size, unit)) if seconds == size => format!("every {unit}"),
        Some((size, unit)) => format!("every {} {unit}s", seconds / size),
        None if seconds == 1 => "every second".to_owned(),
        None if seconds <= SECONDS_MAX => format!("every {seconds} seconds"),
        None => format!("every {}", format_duration(period)),
    }
}

/// A problem of one field of a cron expression names the expression too.
fn within_cron(error: Invalid) -> Invalid {
    if error.field() == "cron" {
        error
    } else {
        error.within("cron")
    }
}

impl FromStr for Expression {
    type Err = Invalid;

    /// Reads `*/5 * * * *`, `@hourly`, `@every 90s`, or `at 2026-11-01T05:30:00Z`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let text = text.trim();
        if let Some(period) = text.strip_prefix("@every") {
            let period = parse_duration(period).map_err(|error| error.within("every"))?;
            return Expression::every(period);
        }
        if let Some(instant) = text.strip_prefix("at ") {
            let instant = instant
                .parse()
                .map_err(|error: Invalid| error.within("at"))?;
            return Ok(Expression::At(instant));
        }
        Ok(Expression::Cron(Cron::parse(text)?))
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expression::Cron(cron) => f.write_str(cron.as_str()),
            Expression::Every(period) => write!(f, "@every {}", format_duration(*period)),
            Expression::At(instant) => write!(f, "at {instant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_form_is_read_and_written() {
        for text in [
            "*/5 * * * *",
            "@hourly",
            "@every 1m 30s",
            "at 2026-11-01T05:30:00Z",
        ] {
            assert_eq!(text.parse::<Expression>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_forms_are_refused_by_name() {
        for (field, text) in [
            ("every", "@every"),
            ("every", "@every 999ms"),
            ("every", "@every -5s"),
            ("every", "@every 4000d"),
            ("at", "at noon"),
            ("cron", "noon"),
        ] {
            let refusal = text.parse::<Expression>().unwrap_err();
            assert_eq!(refusal.field(), field, "{text}: {refusal}");
        }
        assert!("@every 1s".parse::<Expression>().is_ok());
    }

    #[test]
    fn each_form_has_words() {
        for (text, words) in [
            ("30 2 * * MON-FRI", "at 02:30 on weekdays"),
            ("@every 90s", "every 90 seconds"),
            ("@every 1s", "every second"),
            ("@every 1m", "every minute"),
            ("@every 36h", "every 36 hours"),
            ("@every 2d", "every 2 days"),
            ("@every 3m 20s", "every 3m 20s"),
            ("@every 1500ms", "every 1s 500ms"),
            ("at 2026-11-01T05:30:00Z", "once, at 2026-11-01T05:30:00Z"),
        ] {
            let expression: Expression = text.parse().unwrap();
            assert_eq!(expression.words().as_deref(), Some(words), "{text}");
        }
        let complex: Expression = "1,3,7,12,20,33,50 * * * *".parse().unwrap();
        assert_eq!(complex.words(), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = text.parse::<Expression>();
            let _ = format!("@every {text}").parse::<Expression>();
            let _ = format!("at {text}").parse::<Expression>();
        }
    }
}
