//! The event stream: what happens to jobs and schedules.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use windlass_core::{
    ActionId, Fingerprint, JobId, Kind, QueueName, ScheduleId, ScheduleName, Timestamp, string_enum,
};

use crate::{Count, plain_body};

/// Something that happened to a job, a schedule or a bulk action. The other fields depend on `event`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// What happened.
    pub event: EventName,
    /// When it happened. Absent for `missed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Id of the job. In all events of jobs, and in `fired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Kind of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Queue of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Number of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How long the job was due before a worker claimed it, in milliseconds. Only in `claimed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<Count>,
    /// How long the attempt ran, in milliseconds. Only in `succeeded`, `failed` and `timed_out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_ms: Option<Count>,
    /// Why the attempt failed. Only in `failed`, and only with the scope `read-payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Earliest start of the next attempt. Only in `retried` and `snoozed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// Time until the next attempt, in milliseconds. Only in `retried`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Count>,
    /// How many attempts have failed so far. Only in `retried` and `dead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// Why the job is dead. Only in `dead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_reason: Option<String>,
    /// Id of the schedule. Only in `fired` and `skipped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<ScheduleId>,
    /// Name of the schedule. Only in `fired` and `skipped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleName>,
    /// Time of the occurrence. Only in `fired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
    /// How late the occurrence fired, in milliseconds. Only in `fired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<Count>,
    /// Time of the first skipped occurrence. Only in `skipped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Timestamp>,
    /// Time of the last skipped occurrence. Only in `skipped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// Number of skipped occurrences (`skipped`) or missed events (`missed`). Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Count>,
    /// Why the occurrences were skipped (`skipped`), or why the replay stopped itself
    /// (`replay_stopped`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Fingerprint of the cause. Only in `failure_group_created`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Id of the replay or bulk action. Only in `replay_stopped`, `replay_finished` and
    /// `bulk_action_finished`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_id: Option<ActionId>,
}

/// The name of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventName {
    /// A job was created.
    #[default]
    Enqueued,
    /// A worker claimed the job.
    Claimed,
    /// The handler of the job started.
    Started,
    /// The attempt succeeded.
    Succeeded,
    /// The attempt failed.
    Failed,
    /// The attempt took longer than its timeout.
    TimedOut,
    /// The lease expired because the worker died or hung.
    Lost,
    /// The job failed and will run again.
    Retried,
    /// Its handler asked to run again later.
    Snoozed,
    /// The worker released the job without a result.
    Released,
    /// The job was cancelled.
    Cancelled,
    /// The job is dead and will not be retried.
    Dead,
    /// An operator revived the job.
    Revived,
    /// The job failed with a cause that its queue and kind did not have in the last 24 hours.
    FailureGroupCreated,
    /// A replay stopped itself.
    ReplayStopped,
    /// A replay finished.
    ReplayFinished,
    /// A bulk action finished.
    BulkActionFinished,
    /// An occurrence of a schedule created a job.
    Fired,
    /// Occurrences of a schedule were skipped.
    Skipped,
    /// The reader reconnected too late, and the server no longer has some of the events. Sent to
    /// every reader.
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
    FailureGroupCreated = "failure_group_created",
    ReplayStopped = "replay_stopped",
    ReplayFinished = "replay_finished",
    BulkActionFinished = "bulk_action_finished",
    Fired = "fired",
    Skipped = "skipped",
    Missed = "missed",
});

/// Filters of the event stream. An event must match all that are given.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventParams {
    /// Only these events: names separated by commas.
    #[serde(default, serialize_with = "write_list", deserialize_with = "read_list")]
    #[schemars(with = "Option<String>")]
    pub event: Option<BTreeSet<EventName>>,
    /// Only events of jobs in this queue.
    pub queue: Option<QueueName>,
    /// Only events of jobs of this kind.
    pub kind: Option<Kind>,
    /// Only events of the job with this id.
    pub job: Option<JobId>,
    /// Only events of the schedule with this id.
    pub schedule: Option<ScheduleId>,
    /// Resume after this event. Same as the header `Last-Event-ID`.
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
