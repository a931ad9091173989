//! How drivers store a job: a few columns, the payload, and one JSON text for options that most
//! jobs do not set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::retry::{AttemptLimit, RetryPolicy};
use windlass_core::{
    Concurrency, Deadline, Delivery, FinalState, Finish, Interventions, Job, JobId, Key, Kind,
    NewJob, Occurrence, OnDuplicate, Outcome, Payload, QueueName, ScheduleId, Start, StateDetails,
    Tag, Timeout, Timestamp, Unique,
};

use crate::Attempt;

/// The columns of a stored job that describe what the user asked for.
#[derive(Debug)]
pub struct EnqueuedRow<'a> {
    /// The id.
    pub id: JobId,
    /// The kind.
    pub kind: Kind,
    /// The queue.
    pub queue: QueueName,
    /// The priority.
    pub priority: i16,
    /// From when it is due.
    pub run_at: Timestamp,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// The JSON text of the payload.
    pub payload: &'a str,
    /// The JSON text that [`optional_fields_json`] made.
    pub extra: Option<&'a str>,
}

/// The options that most jobs do not set, as JSON. A job with only defaults has no such text.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptionalFields {
    /// Never retried automatically once started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_most_once: bool,
    /// The job's own limit of failed attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The job's own retry policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// In microseconds; 0 means no timeout, absent means the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// In microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<i64>,
    /// The key, `unique_for` in microseconds, and whether a second job replaces the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<(Key, Option<i64>, bool)>,
    /// The key, and how many jobs with it may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<(Key, u32)>,
    /// The tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
    /// The meta entries.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, Value>,
    /// The schedule, and the instant of the occurrence in microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<(ScheduleId, i64)>,
}

impl OptionalFields {
    fn of(job: &Job) -> Self {
        let timeout = match job.timeout {
            timeout if timeout == Timeout::default() => None,
            Timeout::After(timeout) => Some(micros(timeout)),
            Timeout::None => Some(0),
        };
        let unique = job.unique.as_ref().map(|unique| {
            let replace = unique.on_duplicate == OnDuplicate::Replace;
            (unique.key.clone(), unique.unique_for.map(micros), replace)
        });
        OptionalFields {
            at_most_once: job.delivery == Delivery::AtMostOnce,
            max_attempts: job.max_attempts.map(AttemptLimit::get),
            retry: job.retry.as_deref().cloned(),
            timeout,
            deadline: job.deadline.map(Timestamp::as_micros),
            unique,
            concurrency: job
                .concurrency
                .as_ref()
                .map(|concurrency| (concurrency.key.clone(), concurrency.limit)),
            tags: job.tags.clone(),
            meta: job.meta.clone(),
            occurrence: job
                .occurrence
                .map(|occurrence| (occurrence.schedule_id, occurrence.scheduled_for.as_micros())),
        }
    }

    /// Reads the text. The error says what is wrong with it.
    pub fn parse(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text else {
            return Ok(OptionalFields::default());
        };
        serde_json::from_str(text)
            .map_err(|error| format!("cannot read the options of the job: {error}"))
    }
}

/// The JSON text of a job's options; `None` for a job with only defaults, as most jobs are.
pub fn optional_fields_json(job: &Job) -> Option<String> {
    let plain = job.delivery == Delivery::AtLeastOnce
        && job.max_attempts.is_none()
        && job.retry.is_none()
        && job.deadline.is_none()
        && job.unique.is_none()
        && job.concurrency.is_none()
        && job.occurrence.is_none()
        && job.tags.is_empty()
        && job.meta.is_empty()
        && job.timeout == Timeout::default();
    (!plain)
        .then(|| serde_json::to_string(&OptionalFields::of(job)).expect("options are plain JSON"))
}

impl EnqueuedRow<'_> {
    /// Builds the job as it was enqueued. The error says what is wrong with the stored data.
    pub fn into_job(self) -> Result<Job, String> {
        let extra = OptionalFields::parse(self.extra)?;
        let instant = |micros: i64| {
            Timestamp::from_micros(micros)
                .ok_or_else(|| format!("{micros} is not a valid timestamp"))
        };
        let limit = extra
            .max_attempts
            .map(|limit| AttemptLimit::from_max_attempts(limit.into()));
        let limit = limit.transpose().map_err(|error| error.to_string())?;
        let deadline = extra.deadline.map(instant).transpose()?;
        let new = NewJob {
            payload: Payload::from_stored(self.payload),
            queue: self.queue,
            priority: self.priority,
            start: Start::At(self.run_at),
            delivery: if extra.at_most_once {
                Delivery::AtMostOnce
            } else {
                Delivery::AtLeastOnce
            },
            max_attempts: limit.flatten(),
            retry: extra.retry.map(Arc::new),
            timeout: extra.timeout.map(|timeout| match timeout {
                0 => Timeout::None,
                timeout => Timeout::After(duration(timeout)),
            }),
            deadline: deadline.map(Deadline::At),
            unique: extra.unique.map(|(key, unique_for, replace)| Unique {
                key,
                unique_for: unique_for.map(duration),
                on_duplicate: if replace {
                    OnDuplicate::Replace
                } else {
                    OnDuplicate::Keep
                },
            }),
            concurrency: extra
                .concurrency
                .map(|(key, limit)| Concurrency { key, limit }),
            tags: extra.tags,
            meta: extra.meta,
            ..NewJob::new(self.kind)
        };
        let mut job = new.into_stored_job(self.id, self.created_at);
        if let Some((schedule_id, at)) = extra.occurrence {
            job.occurrence = Some(Occurrence {
                schedule_id,
                scheduled_for: instant(at)?,
            });
        }
        Ok(job)
    }
}

/// How the last attempt of a finished job ended. Stored with the job; it becomes a history row only
/// when another attempt follows.
#[derive(Debug, Clone, Default)]
pub struct LastAttempt {
    /// How the attempt ended, if the job finished with it.
    pub outcome: Option<Outcome>,
    /// More data, such as the status and timings of an HTTP job.
    pub detail: Option<Value>,
}

impl LastAttempt {
    /// The history row of the last attempt of a job that finished with it.
    pub fn row(&self, job: &Job) -> Option<Attempt> {
        let outcome = self.outcome?;
        let failed = outcome.counts_as_failure();
        Some(Attempt {
            attempt: job.attempt,
            retry_count: job.failures - u32::from(failed && job.failures > 0),
            outcome,
            started_at: job.started_at.unwrap_or(job.created_at),
            finished_at: job.finished_at()?,
            worker: job.worker.clone(),
            error: job.last_error.clone().filter(|_| failed),
            detail: self.detail.clone(),
        })
    }
}

/// The JSON text of what operators did to a job; `None` for most jobs.
pub fn interventions_json(job: &Job) -> Option<String> {
    let is_plain = job.interventions == Interventions::default();
    (!is_plain).then(|| serde_json::to_string(&job.interventions).expect("plain JSON"))
}

/// Reads the text that [`interventions_json`] made. The error says what is wrong with it.
pub fn parse_interventions(text: Option<&str>) -> Result<Interventions, String> {
    let Some(text) = text else {
        return Ok(Interventions::default());
    };
    serde_json::from_str(text)
        .map_err(|error| format!("cannot read what operators did to the job: {error}"))
}

/// The handler's result, if the job succeeded.
pub fn result_of(job: &Job) -> Option<&str> {
    match &job.state_details {
        StateDetails::Finished(Finish {
            state: FinalState::Succeeded(result),
            ..
        }) => result.as_ref().map(Payload::as_str),
        _ => None,
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
