//! Jobs and attempts as a client reads them: one name for each thing.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use windlass_core::retry::RetryPolicy;
use windlass_core::{
    AttemptError, DeadReason, Ended, Job, Standing, Timeout, Timestamp, WorkerName, format_duration,
};

use crate::Content;

/// A job as it is answered.
#[derive(Debug, Clone, Copy)]
pub struct JobView<'a> {
    /// The job.
    pub job: &'a Job,
    /// What time it is: a waiting job is `scheduled` or `ready` by it.
    pub now: Timestamp,
    /// Whether what it carries is shown.
    pub content: Content,
}

impl Serialize for JobView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.fields(&mut map)?;
        map.end()
    }
}

impl JobView<'_> {
    /// Writes the fields into an object that may have more of them.
    pub fn fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let job = self.job;
        map.serialize_entry("id", &job.id)?;
        map.serialize_entry("kind", &job.kind)?;
        map.serialize_entry("queue", &job.queue)?;
        map.serialize_entry("state", job.state().name(job.run_at, self.now))?;
        match self.content {
            Content::Shown => {
                map.serialize_entry("payload", &job.payload)?;
                map.serialize_entry("result", &result_of(job))?;
            }
            Content::Withheld => map.serialize_entry("payload_withheld", &true)?,
            Content::NotRepeated => {}
        }
        map.serialize_entry("priority", &job.priority)?;
        map.serialize_entry("run_at", &job.due_at())?;
        map.serialize_entry("delivery", job.delivery.name())?;
        map.serialize_entry("max_attempts", &job.max_attempts.map(|limit| limit.get()))?;
        map.serialize_entry("retry", &retry_of(job))?;
        map.serialize_entry("timeout", &timeout_of(job))?;
        map.serialize_entry("deadline", &job.deadline)?;
        let unique = job.unique.as_ref();
        map.serialize_entry("unique_key", &unique.map(|unique| &unique.key))?;
        let unique_for = unique.and_then(|unique| unique.unique_for);
        map.serialize_entry("unique_for", &unique_for.map(format_duration))?;
        let concurrency = job.concurrency.as_ref();
        map.serialize_entry("concurrency_key", &concurrency.map(|of| &of.key))?;
        map.serialize_entry("limit", &concurrency.map(|of| of.limit))?;
        map.serialize_entry("tags", &job.tags)?;
        map.serialize_entry("meta", &job.meta)?;
        self.kept(map)
    }

    /// What the system keeps.
    fn kept<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let job = self.job;
        map.serialize_entry("attempt", &job.attempt)?;
        map.serialize_entry("failures", &job.failures)?;
        let withheld = self.content == Content::Withheld;
        let error = job.last_error.as_ref().filter(|_| !withheld);
        map.serialize_entry("last_error", &error.map(AttemptError::to_string))?;
        if withheld && job.last_error.is_some() {
            map.serialize_entry("error_withheld", &true)?;
        }
        map.serialize_entry("failed_at", &job.failed_at)?;
        map.serialize_entry("created_at", &job.created_at)?;
        map.serialize_entry("started_at", &job.started_at)?;
        map.serialize_entry("finished_at", &job.finished_at())?;
        map.serialize_entry("lease_until", &job.lease().map(|lease| lease.until))?;
        map.serialize_entry("worker", &job.worker)?;
        let reason = job.dead_reason().map(DeadReason::name);
        map.serialize_entry("dead_reason", &reason)?;
        let occurrence = job.occurrence.as_ref();
        map.serialize_entry("schedule_id", &occurrence.map(|of| of.schedule_id))?;
        map.serialize_entry("scheduled_for", &occurrence.map(|of| of.scheduled_for))?;
        let asked = job.lease().is_some_and(|lease| lease.cancel_requested);
        map.serialize_entry("cancel_requested", &asked)
    }
}

fn result_of(job: &Job) -> Option<&windlass_core::Payload> {
    match &job.standing {
        Standing::Finished(end) => match &end.how {
            Ended::Succeeded(result) => result.as_ref(),
            Ended::Dead(_) | Ended::Cancelled => None,
        },
        Standing::Waiting | Standing::Running(_) => None,
    }
}

fn retry_of(job: &Job) -> Option<Value> {
    job.retry.as_ref().map(|policy| retry_json(policy))
}

/// A policy as a client reads it: the name of its preset, or all of it.
pub fn retry_json(policy: &RetryPolicy) -> Value {
    let preset = policy.preset().map(|preset| preset.name().into());
    preset.unwrap_or_else(|| policy.to_json())
}

fn timeout_of(job: &Job) -> String {
    match job.timeout {
        Timeout::After(timeout) => format_duration(timeout),
        Timeout::None => "none".to_owned(),
    }
}

/// One row of a job's history.
#[derive(Debug, Clone, Serialize)]
pub struct AttemptView {
    /// Which attempt, counted from 1.
    pub attempt: u32,
    /// How many attempts had failed before it.
    pub retry_count: u32,
    /// How it ended.
    pub outcome: &'static str,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Who ran it.
    pub worker: Option<WorkerName>,
    /// Why it failed, if it did.
    pub error: Option<AttemptError>,
    /// There is an error, and the reader may not see it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// Status, timings and the start of the answer, of an HTTP job.
    pub http: Option<Value>,
    /// Lines that its handler left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Value>,
    /// What its handler last told of its progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
}
