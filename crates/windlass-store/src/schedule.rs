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

/// A schedule whose definition cannot be read any more: its time zone is gone, or a newer build wrote it.
///
/// It does not fire. It can be written anew, by its id and version, or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableSchedule {
    /// Its id.
    pub id: ScheduleId,
    /// Its name.
    pub name: String,
    /// Counts up with every change and every firing.
    pub version: u64,
    /// What was asked for, as it was written.
    pub definition: String,
    /// Why it cannot be read.
    pub reason: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Up to here every occurrence is dealt with.
    pub last_at: Option<Timestamp>,
}

/// All schedules of a store, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedules {
    /// Those that can be read.
    pub readable: Vec<Schedule>,
    /// Those that cannot.
    pub unreadable: Vec<UnreadableSchedule>,
}

impl FromIterator<Result<Schedule, UnreadableSchedule>> for Schedules {
    fn from_iter<I: IntoIterator<Item = Result<Schedule, UnreadableSchedule>>>(found: I) -> Self {
        let mut schedules = Schedules::default();
        for one in found {
            match one {
                Ok(readable) => schedules.readable.push(readable),
                Err(unreadable) => schedules.unreadable.push(unreadable),
            }
        }
        schedules
    }
}

/// A schedule as a database holds it: its definition is a text.
#[derive(Debug)]
pub struct ScheduleRow {
    /// Its id.
    pub id: ScheduleId,
    /// Its name.
    pub name: String,
    /// Counts up with every change and every firing.
    pub version: u64,
    /// What was asked for, as it was written.
    pub definition: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Up to here every occurrence is dealt with.
    pub last_at: Option<Timestamp>,
    /// When it is due next.
    pub next_at: Option<Timestamp>,
}

impl ScheduleRow {
    /// The schedule, or what there is of one whose definition cannot be read.
    pub fn read(self) -> Result<Schedule, UnreadableSchedule> {
        match NewSchedule::from_json(&self.definition) {
            Ok(definition) => Ok(Schedule {
                id: self.id,
                version: self.version,
                definition,
                created_at: self.created_at,
                last_at: self.last_at,
                next_at: self.next_at,
            }),
            Err(refused) => Err(UnreadableSchedule {
                id: self.id,
                name: self.name,
                version: self.version,
                definition: self.definition,
                reason: refused.to_string(),
                created_at: self.created_at,
                last_at: self.last_at,
            }),
        }
    }
}

/// Which schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleRef {
    /// The one with this id.
    Id(ScheduleId),
    /// The one of this name.
    Name(ScheduleName),
}

/// One step of a schedule: occurrences become jobs or are skipped, the schedule moves on, and may get another definition. All
/// of it or none.
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
    /// The record of skipped occurrences that the first of these ranges contains: it goes.
    pub lengthened: Option<u64>,
    /// The last occurrence that is dealt with.
    pub last_at: Option<Timestamp>,
    /// When the schedule is due next.
    pub next_at: Option<Timestamp>,
    /// What the schedule is from now on, under the same name; none leaves it as it is.
    pub definition: Option<NewSchedule>,
}

impl Fire {
    /// A step of a schedule that leaves everything as it is.
    pub fn nothing(schedule: &Schedule) -> Self {
        Fire {
            schedule: schedule.id,
            version: schedule.version,
            jobs: Vec::new(),
            skipped: Vec::new(),
            lengthened: None,
            last_at: schedule.last_at,
            next_at: schedule.next_at,
            definition: None,
        }
    }

    /// The topic of the records of the skipped occurrences of a schedule. It goes with the schedule.
    pub fn skipped_topic(schedule: ScheduleId) -> String {
        format!("schedule.skipped.{schedule}")
    }

    /// The records of the occurrences that do not fire.
    pub fn skipped_records(&self) -> Vec<Value> {
        let skipped = self.skipped.iter();
        skipped
            .map(|range| skipped_record(self.schedule, range))
            .collect()
    }
}

/// The record of occurrences that did not fire, in the topic [`Fire::skipped_topic`].
pub fn skipped_record(schedule: ScheduleId, range: &SkippedRange) -> Value {
    json!({
        "schedule_id": schedule, "first": range.first, "last": range.last,
        "count": range.count, "reason": range.reason.name(),
    })
}

/// What such a record says.
pub fn read_skipped(record: &Value) -> Option<SkippedRange> {
    let text = |name: &str| record.get(name)?.as_str();
    let count = record.get("count").and_then(Value::as_u64);
    Some(SkippedRange {
        first: text("first")?.parse().ok()?,
        last: text("last")?.parse().ok()?,
        reason: text("reason")?.parse().ok()?,
        count: count.and_then(|count| count.try_into().ok()),
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
