//! Schedules as they are kept, and occurrences that are fired or skipped.

use serde_json::{Value, json};
use windlass_core::schedule::{NewSchedule, SkippedRange};
use windlass_core::{Job, JobId, ScheduleId, ScheduleName, Timestamp};

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
    /// Up to here every occurrence is dealt with: fired, or skipped.
    pub last_at: Option<Timestamp>,
    /// When it is due next; none if it is paused or finished.
    pub next_at: Option<Timestamp>,
}

/// Which schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleRef {
    /// The one with this id.
    Id(ScheduleId),
    /// The one of this name.
    Name(ScheduleName),
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
    /// The occurrences that do not, each range with its reason.
    pub skipped: Vec<SkippedRange>,
    /// The last occurrence that is dealt with.
    pub last_at: Option<Timestamp>,
    /// When the schedule is due next.
    pub next_at: Option<Timestamp>,
}

impl Fire {
    /// The topic of the records of skipped occurrences.
    pub const SKIPPED_TOPIC: &'static str = "schedule.skipped";

    /// The records of the occurrences that do not fire.
    pub fn skipped_records(&self) -> Vec<Value> {
        let skipped = self.skipped.iter();
        skipped
            .map(|range| skipped_record(self.schedule, range))
            .collect()
    }
}

/// The record of occurrences that did not fire, in the topic [`Fire::SKIPPED_TOPIC`].
pub fn skipped_record(schedule: ScheduleId, range: &SkippedRange) -> Value {
    json!({
        "schedule_id": schedule, "first": range.first, "last": range.last,
        "count": range.count, "reason": range.reason.name(),
    })
}

/// An occurrence that was fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiredOccurrence {
    /// The nominal instant.
    pub scheduled_for: Timestamp,
    /// Its job; none where another job held its unique key.
    pub job: Option<JobId>,
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// It is written. An occurrence that was fired before is not fired again, and one whose unique key is held makes no job.
    Done {
        /// The jobs that were made, in the order they were given.
        jobs: Vec<JobId>,
    },
    /// The schedule has changed since: nothing was written.
    Stale,
}
