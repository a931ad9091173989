//! The periods of statistics, their records and their roll-ups.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Statistics;
use crate::Timestamp;

/// The length of time that one set of statistics covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// 10 s: the records of processes. Kept for 2 hours.
    TenSeconds,
    /// A minute: a roll-up, kept for 24 hours.
    Minute,
    /// An hour: a roll-up, kept for 30 days.
    Hour,
}

impl Period {
    /// All periods, the shortest first.
    pub const ALL: [Period; 3] = [Period::TenSeconds, Period::Minute, Period::Hour];

    /// How long it is.
    pub const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Period::TenSeconds => 10,
            Period::Minute => 60,
            Period::Hour => 3600,
        })
    }

    /// How long statistics of this period are kept.
    pub const fn kept(self) -> Duration {
        const HOUR: u64 = 3600;
        Duration::from_secs(match self {
            Period::TenSeconds => 2 * HOUR,
            Period::Minute => 24 * HOUR,
            Period::Hour => 30 * 24 * HOUR,
        })
    }

    /// The start of the period that contains an instant.
    pub fn start(self, at: Timestamp) -> Timestamp {
        step_start(at, self.length())
    }

    /// The length of time whose roll-ups are stored and read together: an hour of minutes, a day of
    /// hours.
    pub const fn group_length(self) -> Duration {
        match self {
            Period::TenSeconds => Period::Minute.length(),
            Period::Minute => Period::Hour.length(),
            Period::Hour => Duration::from_secs(24 * 3600),
        }
    }

    /// The start of the group that contains an instant.
    pub fn group_start(self, at: Timestamp) -> Timestamp {
        step_start(at, self.group_length())
    }

    /// When statistics of the period that starts at `start` are removed.
    pub fn kept_until(self, start: Timestamp) -> Timestamp {
        start.saturating_add(self.length() + self.kept())
    }
}

/// The start of the step that contains an instant. Steps are counted from 1970.
pub(super) fn step_start(at: Timestamp, step: Duration) -> Timestamp {
    let step = i64::try_from(step.as_micros()).unwrap_or(i64::MAX).max(1);
    let start = at.as_micros() - at.as_micros().rem_euclid(step);
    Timestamp::from_micros(start).unwrap_or(Timestamp::MIN)
}

/// What one process did in one period of 10 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticsRecord {
    /// A random number of the process.
    pub process: u64,
    /// The number of the record within its process.
    pub number: u64,
    /// The start of the period.
    pub start: Timestamp,
    /// What happened.
    pub statistics: Statistics,
}

/// The sum of the records of one longer period, up to a position in the list of records.
///
/// Invariant: it contains every record of its period up to `cursor`, exactly once. Records are
/// added in the order of their cursors, and a record that it contains already is ignored. So it
/// makes no difference if the same records are added again after a crash, or by two nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollUp {
    /// The cursor of the last record in it.
    pub cursor: u64,
    /// The sum.
    pub statistics: Statistics,
}

impl RollUp {
    /// Adds the record at a cursor. Returns false if it is included already.
    pub fn add(&mut self, cursor: u64, statistics: &Statistics) -> bool {
        if cursor <= self.cursor {
            return false;
        }
        self.cursor = cursor;
        self.statistics.merge(statistics);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    #[test]
    fn a_period_starts_at_a_round_time() {
        let now = at("2026-01-01T12:34:56.789Z");
        let starts = Period::ALL.map(|period| period.start(now).to_string());
        assert_eq!(
            starts,
            [
                "2026-01-01T12:34:50Z",
                "2026-01-01T12:34:00Z",
                "2026-01-01T12:00:00Z"
            ]
        );
        let early = at("1969-12-31T23:59:59Z");
        assert_eq!(Period::Minute.start(early), at("1969-12-31T23:59:00Z"));
        assert_eq!(Period::Hour.start(Timestamp::MIN), Timestamp::MIN);
    }

    #[test]
    fn statistics_are_kept_from_the_end_of_their_period() {
        let start = at("2026-01-01T12:00:00Z");
        let kept = Period::ALL.map(|period| period.kept_until(start).to_string());
        assert_eq!(
            kept,
            [
                "2026-01-01T14:00:10Z",
                "2026-01-02T12:01:00Z",
                "2026-01-31T13:00:00Z"
            ]
        );
    }

    #[test]
    fn a_record_is_added_to_a_roll_up_once() {
        let mut statistics = Statistics::default();
        statistics.other.enqueued = 5;
        let mut roll_up = RollUp::default();
        assert!(roll_up.add(3, &statistics));
        assert!(!roll_up.add(3, &statistics));
        assert!(!roll_up.add(2, &statistics));
        assert!(roll_up.add(4, &statistics));
        assert_eq!((roll_up.cursor, roll_up.statistics.other.enqueued), (4, 10));
    }
}
