//! Stored schedules, and their occurrences that fired or were skipped.

use serde_json::{Value, json};
use windlass_core::schedule::{NewSchedule, SkippedRange};
use windlass_core::{Job, JobId, ScheduleId, ScheduleName, Timestamp};

use crate::{Store, StoreError};

/// The most schedules, and the most occurrences, that fire in one call.
pub const FIRE_MAX: usize = 1000;

/// The number of newest occurrences of a schedule among which
/// [`Store::unfinished_occurrences`] looks.
pub const UNFINISHED_SCAN_MAX: usize = 1000;

/// A stored schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The id. The name is in the definition.
    pub id: ScheduleId,
    /// Goes up by one with every change and every firing.
    pub version: u64,
    /// What the user asked for.
    pub definition: NewSchedule,
    /// When it was created.
    pub created_at: Timestamp,
    /// All occurrences up to this one fired or were skipped.
    pub last_at: Option<Timestamp>,
    /// When it is due next; `None` if it is paused or finished.
    pub next_at: Option<Timestamp>,
}

/// A schedule whose definition this version cannot read: its time zone no longer exists, or a newer
/// version wrote it.
///
/// It does not fire. It can be replaced, by its id and version, or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableSchedule {
    /// The id.
    pub id: ScheduleId,
    /// The name.
    pub name: String,
    /// Goes up by one with every change and every firing.
    pub version: u64,
    /// The stored text of the definition.
    pub definition: String,
    /// Why it cannot be read.
    pub reason: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// All occurrences up to this one fired or were skipped.
    pub last_at: Option<Timestamp>,
}

/// All schedules of a store, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedules {
    /// The schedules that can be read.
    pub readable: Vec<Schedule>,
    /// The schedules that cannot be read.
    pub unreadable: Vec<UnreadableSchedule>,
}

impl FromIterator<Result<Schedule, UnreadableSchedule>> for Schedules {
    fn from_iter<I: IntoIterator<Item = Result<Schedule, UnreadableSchedule>>>(rows: I) -> Self {
        let mut schedules = Schedules::default();
        for row in rows {
            match row {
                Ok(readable) => schedules.readable.push(readable),
                Err(unreadable) => schedules.unreadable.push(unreadable),
            }
        }
        schedules
    }
}

/// A schedule as a database keeps it, with its definition as text.
#[derive(Debug)]
pub struct ScheduleRow {
    /// The id.
    pub id: ScheduleId,
    /// The name.
    pub name: String,
    /// Goes up by one with every change and every firing.
    pub version: u64,
    /// The text of the definition.
    pub definition: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// All occurrences up to this one fired or were skipped.
    pub last_at: Option<Timestamp>,
    /// When it is due next.
    pub next_at: Option<Timestamp>,
}

impl ScheduleRow {
    /// Reads the definition. If that fails, returns the rest of the row.
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

/// Identifies a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleRef {
    /// By its id.
    Id(ScheduleId),
    /// By its name.
    Name(ScheduleName),
}

/// One step of a schedule: occurrences become jobs or are skipped, the schedule moves to its next
/// occurrence, and may get a new definition. The store writes all of it or nothing.
#[derive(Debug, Clone)]
pub struct Fire {
    /// The schedule.
    pub schedule: ScheduleId,
    /// The version from which this step was computed.
    pub version: u64,
    /// The jobs of the occurrences that fire, each with its `occurrence` set.
    pub jobs: Vec<Job>,
    /// The occurrences that are skipped, each range with its reason.
    pub skipped: Vec<SkippedRange>,
    /// The cursor of an earlier record of skipped occurrences that the first of these ranges
    /// includes. The store removes that record.
    pub lengthened: Option<u64>,
    /// The last occurrence that fired or was skipped.
    pub last_at: Option<Timestamp>,
    /// When the schedule is due next.
    pub next_at: Option<Timestamp>,
    /// The new definition, under the same name; `None` keeps the definition.
    pub definition: Option<NewSchedule>,
}

impl Fire {
    /// Makes a step that changes nothing.
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

    /// How much of [`FIRE_MAX`] this step takes.
    pub fn size(&self) -> usize {
        self.jobs.len().max(1)
    }

    /// The topic with the records of skipped occurrences of a schedule. It is removed with the
    /// schedule.
    pub fn skipped_topic(schedule: ScheduleId) -> String {
        format!("schedule.skipped.{schedule}")
    }

    /// The records of the skipped occurrences.
    pub fn skipped_records(&self) -> Vec<Value> {
        let skipped = self.skipped.iter();
        skipped
            .map(|range| skipped_record(self.schedule, range))
            .collect()
    }
}

/// Makes a record of skipped occurrences for the topic [`Fire::skipped_topic`].
pub fn skipped_record(schedule: ScheduleId, range: &SkippedRange) -> Value {
    json!({
        "schedule_id": schedule, "first": range.first, "last": range.last,
        "count": range.count, "reason": range.reason.name(),
    })
}

/// Reads a record of skipped occurrences.
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
    /// The instant that the schedule computed.
    pub scheduled_for: Timestamp,
    /// Its job; `None` if another job held the unique key.
    pub job: Option<JobId>,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// The step is written. An occurrence that fired before does not fire again, and an occurrence
    /// whose unique key is held makes no job.
    Done {
        /// The new jobs, in the order of [`Fire::jobs`].
        jobs: Vec<JobId>,
    },
    /// The schedule has changed since. Nothing was written.
    Stale,
    /// A constraint or trigger of the database refuses this step. Nothing of it was written.
    Refused {
        /// The code and message of the database, without the values of the row.
        reason: String,
    },
}

/// Fires a single step. A refusal is an error.
pub async fn fire_one(store: &dyn Store, fire: Fire, now: Timestamp) -> Result<Fired, StoreError> {
    match store.fire(vec![fire], now).await?.pop() {
        Some(Fired::Refused { reason }) => Err(StoreError::Refused { reason }),
        Some(fired) => Ok(fired),
        None => Err(StoreError::Damaged {
            what: "the store did not answer for a schedule that fired".to_owned(),
            cause: None,
        }),
    }
}
