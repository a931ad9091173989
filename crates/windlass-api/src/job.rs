//! Jobs and attempts as a client reads them.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{
    ActionId, AttemptError, DeadReason, Delivery, FinalState, Fingerprint, JobId, Key, Kind,
    Outcome, Payload, QueueName, ScheduleId, State, StateDetails, Tag, Timestamp, WorkerName,
};

use crate::read::request;
use crate::value::either_duration;
use crate::{
    Body, BoundedInt, Checks, Count, DurationText, Json, Millis, Problem, Retry, TimeoutText,
    plain_body, some_even_if_null,
};

/// Whether a response contains what a job carries: payload, result and error texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The response contains it.
    Shown,
    /// The caller may not see it. The response says that it was left out.
    Withheld,
    /// The caller has just sent it, so the response leaves it out.
    NotRepeated,
}

/// State of a job. A waiting job is `scheduled` until its `run_at`, then `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum JobState {
    /// Waiting for its `run_at`.
    Scheduled,
    /// Waiting for a worker.
    Ready,
    /// A worker runs it.
    Running,
    /// An attempt succeeded.
    Succeeded,
    /// It failed for good and does not run again, unless an operator revives it.
    Dead,
    /// An operator cancelled it.
    Cancelled,
}

impl JobState {
    /// Returns the state at `now` of a job that is due at `run_at`.
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

    /// Whether the job has finished: it succeeded, is dead or was cancelled.
    pub fn is_finished(self) -> bool {
        match self {
            JobState::Scheduled | JobState::Ready | JobState::Running => false,
            JobState::Succeeded | JobState::Dead | JobState::Cancelled => true,
        }
    }
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Id of the job. Ids sort by creation time.
    pub id: JobId,
    /// Kind of the job, which selects the handler.
    pub kind: Kind,
    /// Queue of the job.
    pub queue: QueueName,
    /// State of the job.
    pub state: JobState,
    /// Input of the handler.
    #[serde(
        default,
        deserialize_with = "some_even_if_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub payload: Option<Json>,
    /// Result of the handler. Null if there is none.
    #[serde(
        default,
        deserialize_with = "some_even_if_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Json>,
    /// True if payload and result are left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub payload_withheld: bool,
    /// Last progress report of the running attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// Priority of the job. Workers claim higher priorities first.
    pub priority: i16,
    /// Earliest start. Null unless the job is waiting.
    pub run_at: Option<Timestamp>,
    /// Whether a started job may run again (`at_least_once`) or not (`at_most_once`).
    pub delivery: Delivery,
    /// How many attempts may fail in total. Null if the retry policy decides.
    pub max_attempts: Option<u32>,
    /// Retry policy of the job itself. Null if that of its kind or queue applies.
    pub retry: Option<Retry>,
    /// Maximum duration of one attempt, or `none`.
    pub timeout: TimeoutText,
    /// No attempt starts after this time.
    pub deadline: Option<Timestamp>,
    /// Unique key of the job.
    pub unique_key: Option<Key>,
    /// Minimum time that the job holds its unique key, counted from its creation.
    pub unique_for: Option<DurationText>,
    /// Concurrency key of the job.
    pub concurrency_key: Option<Key>,
    /// How many jobs with the same concurrency key may run at once.
    pub limit: Option<u32>,
    /// Tags, for people and search.
    pub tags: Vec<Tag>,
    /// Metadata, for people and programs.
    pub meta: BTreeMap<String, Value>,
    /// Number of times that a worker claimed the job. While it runs, this is the number of the
    /// running attempt.
    pub attempt: u32,
    /// Number of failed attempts.
    pub failures: u32,
    /// Error of the last failed attempt.
    pub last_error: Option<String>,
    /// True if an error is left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// When the last failed attempt ended.
    pub failed_at: Option<Timestamp>,
    /// Fingerprint of the cause of the last failure. Absent if the job has not failed since it was
    /// created or revived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// When the job was created.
    pub created_at: Timestamp,
    /// When the last attempt started.
    pub started_at: Option<Timestamp>,
    /// When the job finished. Null until then.
    pub finished_at: Option<Timestamp>,
    /// When the lease of the running attempt expires.
    pub lease_until: Option<Timestamp>,
    /// Name of the worker that ran the last attempt.
    pub worker: Option<WorkerName>,
    /// Why the job is dead.
    pub dead_reason: Option<DeadReason>,
    /// Id of the schedule that created the job.
    pub schedule_id: Option<ScheduleId>,
    /// Time of the occurrence that created the job.
    pub scheduled_for: Option<Timestamp>,
    /// True if the job was cancelled while it runs. Its worker is asked to stop it.
    pub cancel_requested: bool,
    /// Id of the replay that last revived the job. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revived_by: Option<ActionId>,
    /// Id of the last bulk action or replay that changed the job. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_action: Option<ActionId>,
}

impl Job {
    /// The job as the server shows it at `now`.
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
            fingerprint: job.fingerprint,
            created_at: job.created_at,
            started_at: job.started_at,
            finished_at,
            lease_until,
            worker: job.worker,
            dead_reason: match state {
                State::Dead(reason) => Some(reason),
                _ => None,
            },
            schedule_id: job.occurrence.map(|occurrence| occurrence.schedule_id),
            scheduled_for: job.occurrence.map(|occurrence| occurrence.scheduled_for),
            cancel_requested,
            revived_by: job.interventions.revived.and_then(|revived| revived.by),
            last_action: job.interventions.last_action,
        }
    }
}

/// The created job, or the existing job with the same unique key. Without payload and result.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreatedJob {
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// True if the unique key was taken: the response shows the existing job.
    pub duplicate: bool,
    /// Whether the existing job has another payload. Null if the key lacks the scope
    /// `read-payload`.
    pub payload_differs: Option<bool>,
    /// True if the existing job got the payload and the time of this request.
    pub replaced: bool,
}

/// Result of creating a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// Id of the created job, or of the existing job with the same unique key.
    pub id: JobId,
    /// True if the unique key was taken: `id` is the existing job.
    pub duplicate: bool,
    /// Whether the existing job has another payload. Null if the key lacks the scope
    /// `read-payload`.
    pub payload_differs: Option<bool>,
    /// True if the existing job got the payload and the time of this request.
    pub replaced: bool,
}

/// Result of creating one job of a bulk request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BulkResult {
    /// The job was created, or its unique key was taken.
    Stored(Receipt),
    /// The job was refused.
    Refused {
        /// Why the job was refused.
        problem: Box<Problem>,
    },
}

/// Result of a bulk request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BulkAnswer {
    /// Result of each job, in the order of the request.
    pub data: Vec<BulkResult>,
    /// Number of created jobs.
    pub created: Count,
    /// Number of jobs whose unique key was taken.
    pub duplicates: Count,
    /// Number of refused jobs.
    pub refused: Count,
}

impl BulkAnswer {
    /// Counts the results.
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

/// A page of jobs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct JobPage {
    /// The jobs.
    pub data: Vec<Job>,
    /// Cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
    /// How many jobs the server examined for this page. Only if a filter has no index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned: Option<usize>,
    /// How far the server came: creation time of the last job that it examined, or the time at
    /// which it finished if the list is sorted by that. Only if a filter has no index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned_until: Option<Timestamp>,
    /// Whether the server examined all jobs, so that this is the last page. Only if a filter has no
    /// index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
}

/// An attempt of a job that has ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// Number of failed attempts before this one.
    pub retry_count: u32,
    /// How the attempt ended.
    pub outcome: Outcome,
    /// When the attempt started.
    pub started_at: Timestamp,
    /// When the attempt ended.
    pub finished_at: Timestamp,
    /// Name of the worker that ran the attempt.
    pub worker: Option<WorkerName>,
    /// Why the attempt failed.
    pub error: Option<AttemptError>,
    /// True if the error is left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// Status, timings and the start of the response. Only for HTTP jobs, and only with the scope
    /// `read-payload`.
    pub http: Option<Value>,
    /// Lines that the handler logged. Only with the scope `read-payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Value>,
    /// Last progress report of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// The job of the attempt. Only in the history of a scheduler form.
    #[serde(flatten)]
    pub form: Option<FormAttempt>,
}

/// Additional fields of an attempt in the history of a scheduler form.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FormAttempt {
    /// Id of the job of the occurrence.
    pub job_id: JobId,
    /// Time of the occurrence.
    pub scheduled_for: Timestamp,
    /// `SUCCESS`, `FAILED`, `SNOOZED`, `RELEASED` or `CANCELLED`.
    pub status: String,
    /// When the attempt started. Same as `started_at`.
    pub execution_time: Timestamp,
}

/// Result of changing one batch of jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct BatchAnswer {
    /// Number of jobs that were changed.
    pub changed: usize,
    /// Number of jobs that were not changed, because their state does not allow it or the server
    /// cannot read them.
    pub conflicts: usize,
    /// Jobs in `ids` that the server cannot read (`job_unreadable`).
    pub unreadable: Vec<JobId>,
}

request! {
    /// Which attempts of a job to return.
    pub struct HistoryParams {
        /// Most attempts to return. Default: 10.
        pub limit: BoundedInt<1, 1000>,
        /// Only attempts that succeeded (`SUCCESS`), or only those that failed (`FAILED`).
        pub status: AttemptStatus,
    }
}

plain_body!(HistoryParams);

/// Whether an attempt succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(inline)]
pub enum AttemptStatus {
    /// The attempt succeeded.
    Success,
    /// The attempt failed, timed out or was lost.
    Failed,
}

impl AttemptStatus {
    /// The name of the status in JSON.
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
        /// Maximum wait: at most 60 s unless configured. Default: 30 s.
        pub timeout: DurationText,
        /// `timeout` in milliseconds.
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
    fn content_that_the_caller_may_not_see_is_left_out_and_marked() {
        let seen = view(r#"{"kind":"a","payload":"secret"}"#, Content::Withheld);
        assert!(!seen.to_string().contains("secret"));
        assert_eq!(seen["payload_withheld"], true);
        assert!(seen.get("error_withheld").is_none(), "it has no error");
        let own = view(r#"{"kind":"a","payload":"secret"}"#, Content::NotRepeated);
        assert!(own.get("payload").is_none() && own.get("payload_withheld").is_none());
    }
}
