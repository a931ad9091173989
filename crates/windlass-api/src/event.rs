//! What happens to jobs and schedules, as the stream of events says it.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use windlass_core::{JobId, Kind, QueueName, ScheduleId, ScheduleName, Timestamp, string_enum};

use crate::{Count, plain_body};

/// Something that happened. Which fields it has depends on `event`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// What happened.
    pub event: EventName,
    /// When; not given for `missed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The job: of all events of jobs, and of `fired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// The kind of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The queue of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Which attempt of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// `claimed`: how long the job was due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<Count>,
    /// `succeeded`, `failed`, `timed_out`: how long the attempt ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_ms: Option<Count>,
    /// `failed`: why, for callers who may see payloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `retried`, `snoozed`: from when on it runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// `retried`: after how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Count>,
    /// `retried`, `dead`: how many attempts failed so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// `dead`: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_reason: Option<String>,
    /// The schedule: of `fired` and `skipped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<ScheduleId>,
    /// The name of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleName>,
    /// `fired`: the occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
    /// `fired`: how late it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<Count>,
    /// `skipped`: the first occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Timestamp>,
    /// `skipped`: the last occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// `skipped`: how many occurrences; `missed`: how many events. Not given if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Count>,
    /// `skipped`: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What happened, in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventName {
    /// A job was stored.
    #[default]
    Enqueued,
    /// A worker has it.
    Claimed,
    /// Its handler runs.
    Started,
    /// Its attempt succeeded.
    Succeeded,
    /// Its attempt failed.
    Failed,
    /// Its attempt took too long.
    TimedOut,
    /// Its worker died or hung.
    Lost,
    /// It failed and will run again.
    Retried,
    /// Its handler asked to run again later.
    Snoozed,
    /// Its worker gave it back.
    Released,
    /// It was cancelled.
    Cancelled,
    /// It failed for good.
    Dead,
    /// An operator runs it again.
    Revived,
    /// An occurrence of a schedule became a job.
    Fired,
    /// Occurrences of a schedule will not fire.
    Skipped,
    /// The reader came back too late: events are no longer kept. Always sent.
    Missed,
}

string_enum!(EventName {
    Enqueued = "enqueued",
    Claimed = "claimed",
    Started = "started",
    Succeeded = "succeeded",
    Failed = "failed",
    TimedOut = "timed_out",
    Lost = "lost",
    Retried = "retried",
    Snoozed = "snoozed",
    Released = "released",
    Cancelled = "cancelled",
    Dead = "dead",
    Revived = "revived",
    Fired = "fired",
    Skipped = "skipped",
    Missed = "missed",
});

/// Which events a reader gets.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventParams {
    /// Names of events, with commas between them.
    #[serde(default, serialize_with = "write_list", deserialize_with = "read_list")]
    #[schemars(with = "Option<String>")]
    pub event: Option<BTreeSet<EventName>>,
    /// Only of this queue.
    pub queue: Option<QueueName>,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of this schedule.
    pub schedule: Option<ScheduleId>,
    /// The same as the header `Last-Event-ID`.
    pub last_event_id: Option<String>,
}

plain_body!(EventParams);

#[expect(clippy::ref_option, reason = "serde calls it so")]
fn write_list<S: Serializer>(
    names: &Option<BTreeSet<EventName>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let words = names.as_ref().map(|names| {
        let words: Vec<&str> = names.iter().map(|name| name.name()).collect();
        words.join(",")
    });
    words.serialize(serializer)
}

fn read_list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeSet<EventName>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let names = text.split(',').map(|word| word.trim().parse());
    names
        .collect::<Result<_, _>>()
        .map(Some)
        .map_err(de::Error::custom)
}
