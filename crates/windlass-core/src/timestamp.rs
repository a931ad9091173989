//! Instants in microseconds, which every driver stores without loss.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Invalid;
use crate::invalid::shown;

/// An instant in UTC, in microseconds.
///
/// Always within the years 1 to 9999, so that it can be written as RFC 3339 in every time zone.
/// Arithmetic stops at the ends of this range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The first instant of the year 1.
    pub const MIN: Timestamp = Timestamp(-62_135_596_800_000_000);
    /// The last instant that is in the year 9999 in every time zone.
    pub const MAX: Timestamp = Timestamp(253_402_207_200_000_000);
    /// 1970-01-01T00:00:00Z.
    pub const UNIX_EPOCH: Timestamp = Timestamp(0);

    /// The instant this many microseconds after 1970, or `None` outside the years 1 to 9999.
    pub fn from_micros(micros: i64) -> Option<Self> {
        let at = Timestamp(micros);
        (Timestamp::MIN..=Timestamp::MAX)
            .contains(&at)
            .then_some(at)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The instant `duration` later; at most [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_add(micros)).min(Timestamp::MAX)
    }

    /// The instant `duration` earlier; at least [`Timestamp::MIN`].
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(micros)).max(Timestamp::MIN)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    pub(crate) fn from_jiff(at: jiff::Timestamp) -> Option<Self> {
        Timestamp::from_micros(at.as_microsecond())
    }

    pub(crate) fn to_jiff(self) -> jiff::Timestamp {
        jiff::Timestamp::from_microsecond(self.0).expect("jiff's range of years includes 1 to 9999")
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let since_1970 = Duration::from_micros(at.0.unsigned_abs());
        if at.0 < 0 {
            SystemTime::UNIX_EPOCH - since_1970
        } else {
            SystemTime::UNIX_EPOCH + since_1970
        }
    }
}

impl From<SystemTime> for Timestamp {
    /// Drops fractions of a microsecond, and cuts the result to the years 1 to 9999.
    fn from(at: SystemTime) -> Self {
        match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Timestamp::UNIX_EPOCH.saturating_add(after),
            Err(before) => {
                let micros = before.duration().as_nanos().div_ceil(1000);
                let micros = u64::try_from(micros).unwrap_or(u64::MAX);
                Timestamp::UNIX_EPOCH.saturating_sub(Duration::from_micros(micros))
            }
        }
    }
}

impl From<Timestamp> for jiff::Timestamp {
    fn from(at: Timestamp) -> Self {
        at.to_jiff()
    }
}

impl From<jiff::Timestamp> for Timestamp {
    /// Drops fractions of a microsecond, and cuts the result to the years 1 to 9999.
    fn from(at: jiff::Timestamp) -> Self {
        let micros = at.as_nanosecond().div_euclid(1000);
        let end = if micros < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        };
        i64::try_from(micros)
            .ok()
            .and_then(Timestamp::from_micros)
            .unwrap_or(end)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_jiff(), f)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = Invalid;

    /// Reads RFC 3339. Drops fractions of a microsecond.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let at: jiff::Timestamp = text.trim().parse().map_err(|_| {
            let rule = format!(
                "must be an RFC 3339 time with a zone, like 2026-11-01T05:30:00Z, got {}",
                shown(text)
            );
            Invalid::new("", rule)
        })?;
        Timestamp::from_jiff(at).ok_or_else(|| Invalid::new("", "must be in the years 1 to 9999"))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn instants_convert_from_and_to_other_types() {
        for text in ["2026-11-01T05:30:00.123456Z", "1901-12-13T20:45:52.000001Z"] {
            let instant = at(text);
            assert_eq!(Timestamp::from(SystemTime::from(instant)), instant);
            assert_eq!(Timestamp::from(jiff::Timestamp::from(instant)), instant);
        }
        let finer = Duration::from_nanos(1500);
        let (after, before) = (
            SystemTime::UNIX_EPOCH + finer,
            SystemTime::UNIX_EPOCH - finer,
        );
        assert_eq!(Timestamp::from(after).as_micros(), 1);
        assert_eq!(Timestamp::from(before).as_micros(), -2);
        assert_eq!(
            Timestamp::from(jiff::Timestamp::from_nanosecond(-1500).unwrap()).as_micros(),
            -2
        );
        assert_eq!(Timestamp::from(jiff::Timestamp::MIN), Timestamp::MIN);
        assert_eq!(Timestamp::from(jiff::Timestamp::MAX), Timestamp::MAX);
    }

    #[test]
    fn reads_and_writes_rfc_3339() {
        assert_eq!(
            at("2026-11-01T01:30:00-04:00").to_string(),
            "2026-11-01T05:30:00Z"
        );
        assert_eq!(
            at("2026-11-01T05:30:00.123456999Z").to_string(),
            "2026-11-01T05:30:00.123456Z"
        );
        assert_eq!(
            serde_json::to_string(&Timestamp::UNIX_EPOCH).unwrap(),
            "\"1970-01-01T00:00:00Z\""
        );
        assert_eq!(
            format!("{:?}", Timestamp::UNIX_EPOCH),
            "1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn the_ends_of_the_range_can_be_written_and_read() {
        assert_eq!(Timestamp::MIN.to_string(), "0001-01-01T00:00:00Z");
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00Z");
        for end in [Timestamp::MIN, Timestamp::MAX] {
            assert_eq!(at(&end.to_string()), end);
        }
        assert_eq!(Timestamp::from_micros(Timestamp::MAX.as_micros() + 1), None);
        assert_eq!(Timestamp::from_micros(Timestamp::MIN.as_micros() - 1), None);
        assert_eq!(Timestamp::from_micros(i64::MIN), None);
    }

    #[test]
    fn text_that_is_not_an_instant_is_refused() {
        for text in [
            "",
            "tomorrow",
            "2026-11-01",
            "2026-11-01T05:30:00",
            "2026-02-30T00:00:00Z",
            "-000001-01-01T00:00:00Z",
            "99999-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ] {
            let refused = text.parse::<Timestamp>().unwrap_err();
            assert!(refused.rule().starts_with("must "), "{text}: {refused}");
        }
    }

    #[test]
    fn the_difference_of_two_instants_is_never_negative() {
        let early = at("2026-01-01T00:00:00Z");
        let late = at("2026-01-01T00:00:01.5Z");
        assert_eq!(late.since(early), Duration::from_millis(1500));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.saturating_sub(Duration::from_millis(1500)), early);
    }

    proptest! {
        #[test]
        fn arithmetic_stays_in_range(micros in any::<i64>(), seconds in any::<u64>()) {
            let duration = Duration::from_secs(seconds);
            if let Some(start) = Timestamp::from_micros(micros) {
                prop_assert!(start.saturating_add(duration) >= start);
                prop_assert!(start.saturating_add(duration) <= Timestamp::MAX);
                prop_assert!(start.saturating_sub(duration) <= start);
                prop_assert!(start.saturating_sub(duration) >= Timestamp::MIN);
            }
        }

        #[test]
        fn text_is_read_back_exactly(micros in Timestamp::MIN.0..=Timestamp::MAX.0) {
            let start = Timestamp::from_micros(micros).unwrap();
            prop_assert_eq!(at(&start.to_string()), start);
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = text.parse::<Timestamp>();
        }
    }
}
