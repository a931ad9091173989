//! Durations as people write them: `200ms`, `1m 30s`, `7d`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::Invalid;
use crate::invalid::shown;

/// The longest duration that Windlass accepts anywhere: ten years.
pub const DURATION_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// The units, largest first, in microseconds.
const UNITS: [(&str, u64); 7] = [
    ("w", 7 * 86_400_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Reads a duration: numbers with a unit (`w d h m s ms us`) that are added up, such as `1m 30s` or
/// `1.5h`.
///
/// Drops fractions of a microsecond. The field of the error is empty; the caller adds it.
pub fn parse_duration(text: &str) -> Result<Duration, Invalid> {
    let mut rest = text.trim();
    if rest.starts_with('-') {
        return Err(Invalid::new("", "must not be negative"));
    }
    if rest.is_empty() {
        return Err(unreadable(text));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (part, after) = parse_part(rest).ok_or_else(|| unreadable(text))?;
        total = total.saturating_add(part);
        rest = after.trim_start();
    }
    check_duration(total)
}

/// Writes a duration in the form that [`parse_duration`] reads: `1m 30s`. Drops fractions of a
/// microsecond.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, micros) in UNITS.into_iter().filter(|(unit, _)| *unit != "w") {
        let count = rest / micros;
        rest %= micros;
        if count > 0 {
            let space = if text.is_empty() { "" } else { " " };
            write!(text, "{space}{count}{unit}").expect("a String takes every write");
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// Checks that a duration is at most [`DURATION_MAX`].
pub(crate) fn check_duration(duration: Duration) -> Result<Duration, Invalid> {
    if duration > DURATION_MAX {
        let rule = format!("must be at most {}", format_duration(DURATION_MAX));
        return Err(Invalid::new("", rule));
    }
    Ok(duration)
}

/// Durations as text, for `#[serde(with = "…::text")]`.
pub(crate) mod text {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map_err(de::Error::custom)
    }
}

/// Reads one number with its unit; returns it and the rest of the text.
fn parse_part(text: &str) -> Option<(Duration, &str)> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, after) = text.split_at(number_end);
    let unit_end = after
        .find(|c: char| !c.is_ascii_alphabetic() && c != 'µ')
        .unwrap_or(after.len());
    let (unit, rest) = after.split_at(unit_end);
    let unit = if unit == "µs" { "us" } else { unit };
    let (_, unit_micros) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let micros = parse_decimal(number, unit_micros)?;
    Some((Duration::from_micros(micros), rest))
}

/// Returns `number · scale` in whole units. Uses no floating point, so that the result is exact.
fn parse_decimal(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    // A number too large for u64 exceeds every limit: saturate, and the limit refuses it.
    let whole: u64 = whole.parse().unwrap_or(u64::MAX);
    let mut micros = whole.saturating_mul(scale);
    let mut digit_scale = scale;
    for digit in fraction.chars() {
        // Tenths, hundredths … of the unit; digits below a microsecond add nothing.
        let digit = u64::from(digit.to_digit(10)?);
        micros = micros.saturating_add(digit * digit_scale / 10);
        digit_scale /= 10;
    }
    Some(micros)
}

fn unreadable(text: &str) -> Invalid {
    let rule = format!(
        "must be a duration like \"1m 30s\" (units w d h m s ms us), got {}",
        shown(text)
    );
    Invalid::new("", rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in [
            ("200ms", 200),
            ("1m 30s", 90_000),
            ("1m30s", 90_000),
            (" 90s ", 90_000),
            ("1.5s", 1_500),
            ("0.25h", 900_000),
            ("1.05m", 63_000),
            ("7d", 604_800_000),
            ("1w", 604_800_000),
            ("0s", 0),
            ("1500us", 1),
            ("3000µs", 3),
        ] {
            let read = parse_duration(text).unwrap();
            assert_eq!(read.as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn writes_the_same_form() {
        for (micros, text) in [
            (0, "0s"),
            (1, "1us"),
            (200_000, "200ms"),
            (90_000_000, "1m 30s"),
            (604_800_000_000, "7d"),
            (3_661_001_000, "1h 1m 1s 1ms"),
        ] {
            assert_eq!(format_duration(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "", " ", "5", "s", "5 s", "1..5s", "1.s", ".5s", "5x", "1s,2s", "1e3s", "∞s", "1s-",
            "1.5.5s", "+1s", "1 000s",
        ] {
            let refused = parse_duration(text).unwrap_err();
            assert!(refused.rule().contains("must be a duration"), "{text}");
        }
        for text in ["-5s", "-1", " -0.1ms"] {
            assert_eq!(
                parse_duration(text).unwrap_err().rule(),
                "must not be negative"
            );
        }
        for text in [
            "3651d",
            "99999999999999999999999999w",
            "18446744073709551615us",
            "3650d 1us",
        ] {
            assert_eq!(
                parse_duration(text).unwrap_err().rule(),
                "must be at most 3650d",
                "{text}"
            );
        }
        assert_eq!(parse_duration("3650d"), Ok(DURATION_MAX));
    }

    proptest! {
        #[test]
        fn a_written_duration_is_read_back(micros in 0..=DURATION_MAX.as_micros() as u64) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in any::<String>(), number in any::<f64>(), unit in "[a-z]{0,3}") {
            let _ = parse_duration(&text);
            let _ = parse_duration(&format!("{number}{unit}"));
        }

        #[test]
        fn no_duration_panics(seconds in any::<u64>(), nanos in any::<u32>()) {
            let _ = format_duration(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into())));
        }
    }
}
