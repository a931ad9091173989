//! What was asked for, as drivers keep it: a few columns, the payload, and a text for what most jobs have not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::retry::{AttemptLimit, RetryPolicy};
use windlass_core::{
    Concurrency, Deadline, Delivery, End, Ended, Job, JobId, Key, Kind, NewJob, Occurrence,
    OnDuplicate, Outcome, Payload, QueueName, ScheduleId, Standing, Start, Tag, Timeout, Timestamp,
    Unique,
};

use crate::Attempt;

/// What was asked for, read from where it is kept.
#[derive(Debug)]
pub struct Asked<'a> {
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
    /// The payload's text.
    pub payload: &'a str,
    /// The text of [`extra_of`].
    pub extra: Option<&'a str>,
}

/// What a job has that most have not, as JSON: a job at its defaults has no such text.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Extra {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    /// It is never started again by itself.
    pub at_most_once: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Its own limit.
    pub max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Its own policy.
    pub retry: Option<RetryPolicy>,
    /// In microseconds; 0 is none, absent is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// In microseconds.
    pub deadline: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The key, how long it is held at least in microseconds, and whether a second job replaces the first.
    pub unique: Option<(Key, Option<i64>, bool)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The key, and how many may run with it.
    pub concurrency: Option<(Key, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Its tags.
    pub tags: Vec<Tag>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    /// Its meta.
    pub meta: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The schedule, and the nominal instant in microseconds.
    pub occurrence: Option<(ScheduleId, i64)>,
}

impl Extra {
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
        Extra {
            at_most_once: job.delivery == Delivery::AtMostOnce,
            max_attempts: job.max_attempts.map(AttemptLimit::get),
            retry: job.retry.as_deref().cloned(),
            timeout,
            deadline: job.deadline.map(Timestamp::as_micros),
            unique,
            concurrency: job
                .concurrency
                .as_ref()
                .map(|of| (of.key.clone(), of.limit)),
            tags: job.tags.clone(),
            meta: job.meta.clone(),
            occurrence: job
                .occurrence
                .map(|of| (of.schedule_id, of.scheduled_for.as_micros())),
        }
    }

    /// Reads the text; what is wrong with it, if it was not written by [`extra_of`].
    pub fn parse(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text else {
            return Ok(Extra::default());
        };
        serde_json::from_str(text).map_err(|error| format!("a job's options: {error}"))
    }
}

/// The text of a job's options; nothing for a job at its defaults, which most are.
pub fn extra_of(job: &Job) -> Option<String> {
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
    (!plain).then(|| serde_json::to_string(&Extra::of(job)).expect("options are plain JSON"))
}

impl Asked<'_> {
    /// The job as it was enqueued; what is wrong with it, if it was not written by us.
    pub fn into_job(self) -> Result<Job, String> {
        let extra = Extra::parse(self.extra)?;
        let instant = |micros: i64| {
            Timestamp::from_micros(micros).ok_or_else(|| format!("{micros} is no instant"))
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

/// The end of a job's last attempt, kept with the job: a row of history only when something else follows it.
#[derive(Debug, Clone, Default)]
pub struct LastAttempt {
    /// How it ended, if the job ended by it.
    pub outcome: Option<Outcome>,
    /// More, for an HTTP job.
    pub detail: Option<Value>,
}

impl LastAttempt {
    /// The last attempt of a job that has ended by it, as a row of history.
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

/// What the handler left, if the job succeeded.
pub fn result_of(job: &Job) -> Option<&str> {
    match &job.standing {
        Standing::Finished(End {
            how: Ended::Succeeded(result),
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
