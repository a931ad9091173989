//! Schedules as they are kept, and occurrences that are fired or skipped.

use serde_json::{Value, json};
use windlass_core::schedule::{NewSchedule, SkippedRange};
use windlass_core::{Job, ScheduleId, Timestamp};

/// The most occurrences one firing takes.
pub const FIRE_MAX: usize = 1000;

/// A schedule as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its id; the name is in the definition.
    pub id: ScheduleId,
    /// Counts up with every change and every firing.
    pub version: u64,
    /// What was asked for.
    pub definition: NewSchedule,
    /// When it was created.
    pub created_at: Timestamp,
    /// The last occurrence that was fired or skipped.
    pub last_at: Option<Timestamp>,
    /// When it is due next; none if it is paused or finished.
    pub next_at: Option<Timestamp>,
}

/// One step of a schedule: occurrences become jobs or are skipped, and the schedule moves on. All of it or none.
#[derive(Debug, Clone)]
pub struct Fire {
    /// Which schedule.
    pub schedule: ScheduleId,
    /// The version this step was worked out from.
    pub version: u64,
    /// The jobs of the occurrences that fire; each has its `occurrence` set.
    pub jobs: Vec<Job>,
    /// The occurrences that do not.
    pub skipped: Option<SkippedRange>,
    /// The last occurrence that is dealt with.
    pub last_at: Option<Timestamp>,
    /// When the schedule is due next.
    pub next_at: Option<Timestamp>,
}

impl Fire {
    /// The topic of the records of skipped occurrences.
    pub const SKIPPED_TOPIC: &'static str = "schedule.skipped";

    /// The record of the occurrences that do not fire.
    pub fn skipped_record(&self) -> Option<Value> {
        let range = self.skipped?;
        Some(json!({
            "schedule_id": self.schedule, "first": range.first, "last": range.last,
            "count": range.count, "reason": range.reason.name(),
        }))
    }
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    /// It is written; so many jobs were new. An occurrence that was fired before is not fired again.
    Done {
        /// How many jobs were made.
        jobs: usize,
    },
    /// The schedule has changed since: nothing was written.
    Stale,
}
