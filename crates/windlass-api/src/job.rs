//! Jobs and attempts as a client reads them: one name for each thing.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{
    AttemptError, DeadReason, Delivery, FinalState, JobId, Key, Kind, Outcome, Payload, QueueName,
    ScheduleId, State, StateDetails, Tag, Timestamp, WorkerName,
};

use crate::read::request;
use crate::value::either_duration;
use crate::{
    Body, BoundedInt, Checks, Count, DurationText, Json, Millis, Problem, Retry, TimeoutText,
    plain_body, some_even_if_null,
};

/// Whether what a job carries (payload, result and error texts) is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// It is.
    Shown,
    /// The reader may not see it; the answer says so.
    Withheld,
    /// The reader has just sent it.
    NotRepeated,
}

/// The state of a job: one that waits is `scheduled` until its `run_at`, then `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum JobState {
    /// It waits for its `run_at`.
    Scheduled,
    /// It waits for a worker.
    Ready,
    /// A worker runs it.
    Running,
    /// An attempt succeeded.
    Succeeded,
    /// It will not run again unless a person revives it.
    Dead,
    /// It was cancelled.
    Cancelled,
}

impl JobState {
    /// The state at `now` of a job that is due at `run_at`.
    pub fn new(state: State, run_at: Timestamp, now: Timestamp) -> Self {
        match state {
            State::Waiting if run_at > now => JobState::Scheduled,
            State::Waiting => JobState::Ready,
            State::Running => JobState::Running,
            State::Succeeded => JobState::Succeeded,
            State::Dead(_) => JobState::Dead,
            State::Cancelled => JobState::Cancelled,
        }
    }
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Its id; ids of later jobs sort after those of earlier ones.
    pub id: JobId,
    /// The name of its type, which picks the handler.
    pub kind: Kind,
    /// Where it waits.
    pub queue: QueueName,
    /// Its state.
    pub state: JobState,
    /// What the handler decodes.
    #[serde(
        default,
        deserialize_with = "some_even_if_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub payload: Option<Json>,
    /// What the handler left; null if nothing.
    #[serde(
        default,
        deserialize_with = "some_even_if_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Json>,
    /// The key may not read payloads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub payload_withheld: bool,
    /// What the running attempt last reported of its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// Higher runs first.
    pub priority: i16,
    /// From when it is due, while it waits.
    pub run_at: Option<Timestamp>,
    /// How often it may run.
    pub delivery: Delivery,
    /// How many of its attempts may fail, if the job says so itself.
    pub max_attempts: Option<u32>,
    /// Its own retry policy.
    pub retry: Option<Retry>,
    /// How long one attempt may take, or `none`.
    pub timeout: TimeoutText,
    /// No attempt starts after it.
    pub deadline: Option<Timestamp>,
    /// Its unique key.
    pub unique_key: Option<Key>,
    /// How long the key is held at least.
    pub unique_for: Option<DurationText>,
    /// Its concurrency key.
    pub concurrency_key: Option<Key>,
    /// How many jobs with its concurrency key may run at once.
    pub limit: Option<u32>,
    /// For people and search.
    pub tags: Vec<Tag>,
    /// For people and programs.
    pub meta: BTreeMap<String, Value>,
    /// Claims so far. The number of the running attempt, which every report of it must name.
    pub attempt: u32,
    /// Attempts that failed.
    pub failures: u32,
    /// Why the last failed attempt did.
    pub last_error: Option<String>,
    /// There is an error, and the key may not read its text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// When the last failed attempt ended.
    pub failed_at: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When its last attempt started.
    pub started_at: Option<Timestamp>,
    /// When it finished.
    pub finished_at: Option<Timestamp>,
    /// Until when the running attempt holds its lease.
    pub lease_until: Option<Timestamp>,
    /// Who ran its last attempt.
    pub worker: Option<WorkerName>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// The schedule that created it.
    pub schedule_id: Option<ScheduleId>,
    /// The occurrence of that schedule.
    pub scheduled_for: Option<Timestamp>,
    /// It was cancelled while it runs: its worker is asked to stop.
    pub cancel_requested: bool,
}

impl Job {
    /// A job as it is answered at `now`.
    pub fn new(job: windlass_core::Job, now: Timestamp, content: Content) -> Self {
        let (shown, withheld) = (content == Content::Shown, content == Content::Withheld);
        let (state, run_at, finished_at) = (job.state(), job.due_at(), job.finished_at());
        let lease = job.lease();
        let (lease_until, cancel_requested) = (
            lease.map(|lease| lease.until),
            lease.is_some_and(|lease| lease.cancel_requested),
        );
        let result = match job.state_details {
            StateDetails::Finished(end) => match end.state {
                FinalState::Succeeded(result) => result,
                FinalState::Dead(_) | FinalState::Cancelled => None,
            },
            StateDetails::Waiting | StateDetails::Running(_) => None,
        };
        let (unique_key, unique_for) = match job.unique {
            Some(unique) => (Some(unique.key), unique.unique_for),
            None => (None, None),
        };
        let (concurrency_key, limit) = match job.concurrency {
            Some(concurrency) => (Some(concurrency.key), Some(concurrency.limit)),
            None => (None, None),
        };
        let error = job.last_error.as_ref();
        Job {
            id: job.id,
            kind: job.kind,
            queue: job.queue,
            state: JobState::new(state, job.run_at, now),
            payload: shown.then_some(Json(job.payload)),
            result: shown.then(|| Json(result.unwrap_or_else(Payload::default))),
            payload_withheld: withheld,
            progress: None,
            priority: job.priority,
            run_at,
            delivery: job.delivery,
            max_attempts: job.max_attempts.map(|limit| limit.get()),
            retry: job.retry.as_deref().map(Retry::from),
            timeout: TimeoutText(job.timeout),
            deadline: job.deadline,
            unique_key,
            unique_for: unique_for.map(DurationText),
            concurrency_key,
            limit,
            tags: job.tags,
            meta: job.meta,
            attempt: job.attempt,
            failures: job.failures,
            last_error: error.filter(|_| !withheld).map(AttemptError::to_string),
            error_withheld: withheld && error.is_some(),
            failed_at: job.failed_at,
            created_at: job.created_at,
            started_at: job.started_at,
            finished_at,
            lease_until,
            worker: job.worker,
            dead_reason: match state {
                State::Dead(reason) => Some(reason),
                _ => None,
            },
            schedule_id: job.occurrence.map(|of| of.schedule_id),
            scheduled_for: job.occurrence.map(|of| of.scheduled_for),
            cancel_requested,
        }
    }
}

/// A job that was just created, or the one that was there first. What it carries is not repeated.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreatedJob {
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// Its unique key was taken: this is the job that was there first.
    pub duplicate: bool,
    /// Whether the job that was there first has another payload. Null if the key may not read
    /// payloads.
    pub payload_differs: Option<bool>,
    /// The job that was there first got the payload and the time of this one.
    pub replaced: bool,
}

/// What happened to a job that was to be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// The job, or the one that was there first.
    pub id: JobId,
    /// Its unique key was taken: this is the job that was there first.
    pub duplicate: bool,
    /// Whether the job that was there first has another payload. Null if the key may not read
    /// payloads.
    pub payload_differs: Option<bool>,
    /// The job that was there first got the payload and the time of this one.
    pub replaced: bool,
}

/// What happened to one of many jobs that were to be created.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BulkResult {
    /// It is stored, or one was there before.
    Stored(Receipt),
    /// It was refused.
    Refused {
        /// Why.
        problem: Box<Problem>,
    },
}

/// What happened to many jobs that were to be created.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BulkAnswer {
    /// What happened to each, in order.
    pub data: Vec<BulkResult>,
    /// How many were created.
    pub created: Count,
    /// Of how many the unique key was taken.
    pub duplicates: Count,
    /// How many were refused.
    pub refused: Count,
}

impl BulkAnswer {
    /// The answer with its counts.
    pub fn new(data: Vec<BulkResult>) -> Self {
        let (mut created, mut duplicates, mut refused) = (0, 0, 0);
        for result in &data {
            match result {
                BulkResult::Stored(receipt) if receipt.duplicate => duplicates += 1,
                BulkResult::Stored(_) => created += 1,
                BulkResult::Refused { .. } => refused += 1,
            }
        }
        BulkAnswer {
            data,
            created,
            duplicates,
            refused,
        }
    }
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct JobPage {
    /// The jobs.
    pub data: Vec<Job>,
    /// Where the next page begins; null at the end of the list.
    pub next_cursor: Option<String>,
    /// How many jobs a search looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned: Option<usize>,
    /// When the last job that a search looked at was enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned_until: Option<Timestamp>,
}

/// One attempt of a job that has ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Which attempt, counted from 1.
    pub attempt: u32,
    /// How many attempts had failed before it.
    pub retry_count: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Who ran it.
    pub worker: Option<WorkerName>,
    /// Why it failed, if it did.
    pub error: Option<AttemptError>,
    /// There is an error, and the key may not read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// Status, timings and the start of the answer, of an HTTP job.
    pub http: Option<Value>,
    /// Lines that its handler logged. Needs the scope `read-payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Value>,
    /// What its handler last reported of its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// Which job it is of, in the history of a scheduler form.
    #[serde(flatten)]
    pub form: Option<FormAttempt>,
}

/// What the history of a scheduler form says about each attempt in addition.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FormAttempt {
    /// The job of the occurrence.
    pub job_id: JobId,
    /// The occurrence.
    pub scheduled_for: Timestamp,
    /// `SUCCESS`, `FAILED`, `SNOOZED`, `RELEASED` or `CANCELLED`.
    pub status: String,
    /// When it started.
    pub execution_time: Timestamp,
}

/// What a pass over many jobs did.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct PassAnswer {
    /// How many jobs it changed.
    pub changed: usize,
    /// To how many jobs it does not apply, or cannot be read.
    pub conflicts: usize,
    /// Jobs that were named in `ids` and cannot be read (`job_unreadable`). The others were changed.
    pub unreadable: Vec<JobId>,
    /// How many jobs it looked at.
    pub scanned: usize,
    /// Where the next pass goes on.
    pub next_cursor: Option<String>,
}

/// Dead jobs that failed in the same way.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeadGroup {
    /// What they have in common, as a short name for filters.
    pub fingerprint: String,
    /// Their kind.
    pub kind: Kind,
    /// The error without its details. Null if the key may not read errors.
    pub pattern: Option<String>,
    /// How many there are.
    pub count: usize,
    /// One of them.
    pub example: JobId,
    /// When the first of them died.
    pub first_at: Timestamp,
    /// When the last of them died.
    pub last_at: Timestamp,
    /// How many are dead for each reason.
    pub reasons: BTreeMap<DeadReason, usize>,
}

/// Groups of dead jobs, the largest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeadGroups {
    /// The groups.
    pub data: Vec<DeadGroup>,
    /// Always null: the groups come in one page.
    pub next_cursor: Option<String>,
    /// How many dead jobs were looked at.
    pub scanned: usize,
    /// Whether those are all.
    pub complete: bool,
}

request! {
    /// Which attempts of a job are asked for.
    pub struct HistoryParams {
        /// At most this many. 10.
        pub limit: BoundedInt<1, 1000>,
        /// Only attempts that succeeded, or only those that failed.
        pub status: AttemptStatus,
    }
}

plain_body!(HistoryParams);

/// Whether an attempt succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(inline)]
pub enum AttemptStatus {
    /// It did.
    Success,
    /// It failed, timed out or was lost.
    Failed,
}

impl AttemptStatus {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            AttemptStatus::Success => "SUCCESS",
            AttemptStatus::Failed => "FAILED",
        }
    }
}

request! {
    /// How long to wait for a job.
    pub struct WaitParams {
        /// At most this long. 30 s.
        pub timeout: DurationText,
        /// The same in milliseconds.
        pub timeout_ms: Millis,
    }
}

impl Body for WaitParams {
    type Checked = Option<Duration>;

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        let timeout = either_duration(checks, "timeout", self.timeout, self.timeout_ms);
        Some(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use windlass_core::NewJob;

    fn view(text: &str, content: Content) -> Value {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let job = NewJob::from_json(text).unwrap();
        let job = job.into_job(JobId::new(now, 1), now).unwrap();
        let job = Job::new(job, now, content);
        let written = serde_json::to_string(&job).unwrap();
        let read: Job = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), written);
        serde_json::to_value(job).unwrap()
    }

    #[test]
    fn a_job_has_every_field_by_its_name() {
        let seen = view(
            concat!(
                r#"{"kind":"a","payload":{"x":1},"delay":"1m","unique_key":"u","unique_for":"1h","#,
                r#""concurrency_key":"c","limit":2,"retry":"webhook","max_attempts":3,"timeout":"none","tags":["t"]}"#
            ),
            Content::Shown,
        );
        let expected = json!({
            "kind": "a", "payload": {"x": 1}, "result": null, "queue": "default", "state": "scheduled",
            "priority": 0, "run_at": "2026-01-01T00:01:00Z", "delivery": "at_least_once",
            "max_attempts": 3, "retry": "webhook", "timeout": "none", "deadline": null,
            "unique_key": "u", "unique_for": "1h", "concurrency_key": "c", "limit": 2,
            "tags": ["t"], "meta": {}, "attempt": 0, "failures": 0, "last_error": null,
            "failed_at": null, "created_at": "2026-01-01T00:00:00Z", "started_at": null,
            "finished_at": null, "lease_until": null, "worker": null, "dead_reason": null,
            "schedule_id": null, "scheduled_for": null, "cancel_requested": false,
        });
        let mut seen = seen;
        seen.as_object_mut().unwrap().remove("id").unwrap();
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_may_not_be_seen_is_left_out_and_the_answer_says_so() {
        let seen = view(r#"{"kind":"a","payload":"secret"}"#, Content::Withheld);
        assert!(!seen.to_string().contains("secret"));
        assert_eq!(seen["payload_withheld"], true);
        assert!(seen.get("error_withheld").is_none(), "it has no error");
        let own = view(r#"{"kind":"a","payload":"secret"}"#, Content::NotRepeated);
        assert!(own.get("payload").is_none() && own.get("payload_withheld").is_none());
    }
}
