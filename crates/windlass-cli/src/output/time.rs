//! Times for people: `3m ago`.

use std::time::Duration;

use windlass_core::{Timestamp, format_duration};

const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];

/// Returns how far a time is away: `3m ago`, `in 2h`, `now`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        match short(at.since(now)) {
            Some(text) => format!("in {text}"),
            None => "now".to_owned(),
        }
    } else {
        match short(now.since(at)) {
            Some(text) => format!("{text} ago"),
            None => "now".to_owned(),
        }
    }
}

/// Returns a time and how far it is away.
pub(crate) fn with_relative(at: Timestamp, now: Timestamp) -> String {
    format!("{at} ({})", relative(at, now))
}

/// Returns how long something took, in whole milliseconds.
pub(crate) fn took(from: Timestamp, until: Timestamp) -> String {
    let millis = u64::try_from(until.since(from).as_millis()).unwrap_or(u64::MAX);
    format_duration(Duration::from_millis(millis))
}

/// Returns a duration in its largest unit; `None` if it is shorter than a second.
fn short(span: Duration) -> Option<String> {
    let seconds = span.as_secs();
    let (size, unit) = UNITS.into_iter().find(|(size, _)| seconds >= *size)?;
    Some(format!("{}{unit}", seconds / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_relative_to_now() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (seconds, before, after) in [
            (0, "now", "now"),
            (59, "59s ago", "in 59s"),
            (60, "1m ago", "in 1m"),
            (3 * 60 + 59, "3m ago", "in 3m"),
            (7200, "2h ago", "in 2h"),
            (90_000, "1d ago", "in 1d"),
        ] {
            let span = Duration::from_secs(seconds);
            assert_eq!(relative(now.saturating_sub(span), now), before);
            assert_eq!(relative(now.saturating_add(span), now), after);
        }
    }
}
