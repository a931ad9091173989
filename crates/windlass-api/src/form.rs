//! The scheduler form, and the completion of HTTP jobs by their target.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass_core::{JobId, Kind, PAYLOAD_BYTES_MAX, QueueName, ScheduleId, Timestamp};

use crate::read::request;
use crate::{Body, BoundedInt, Checks, Job, Json, NewJob, Receipt, some_even_if_null};

request! {
    /// A schedule that requests a URL, as one flat object.
    pub struct SchedulerForm {
        /// When to send the request: a cron expression, or an interval such as `@every 90s`.
        #[schemars(required, example = "*/10 * * * * *")]
        pub schedule: String,
        /// URL to request.
        #[schemars(required, example = "https://example.com/hook")]
        pub api: String,
        /// How often each occurrence may run. Default: `AT_LEAST_ONCE`.
        #[serde(rename = "type")]
        pub delivery: FormDelivery,
        /// Whether the schedule fires at every match (`true`) or only at the next one (`false`).
        /// Default: `true`.
        #[serde(rename = "isRecurring")]
        pub is_recurring: bool,
        /// How many times to retry a failed request. Default: 3.
        #[serde(rename = "maxRetryCount")]
        pub max_retry_count: BoundedInt<0, 999>,
        /// HTTP method. Default: `POST`.
        pub method: String,
        /// HTTP headers, as an object of names and values.
        #[schemars(with = "Option<Map<String, Value>>")]
        pub headers: Json,
        /// Request body. Text is sent as it is, any other JSON value as JSON.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub body: Json,
        /// Name of the secret that signs each request, or a list of up to 8 names.
        pub sign: Value,
    }
}

/// How often an occurrence may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(inline)]
pub enum FormDelivery {
    /// The server retries until the request succeeds or the job is dead. A request may be sent
    /// twice.
    AtLeastOnce,
    /// The server never retries a request that it has started to send.
    AtMostOnce,
}

/// A job to create, or a scheduler form: a flat object that creates a schedule of HTTP jobs.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum NewJobOrForm {
    /// A job.
    Job(Box<NewJob>),
    /// A scheduler form. The server recognizes it by the field `schedule` or `api`.
    Form(Box<SchedulerForm>),
}

/// What the request created.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Created {
    /// The job.
    Job(Box<crate::CreatedJob>),
    /// The id of the existing job with the same unique key, for a key that may not read jobs.
    Receipt(Receipt),
    /// The schedule that the scheduler form created.
    Form(Box<FormView>),
}

/// A job, or a scheduler form.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum JobOrForm {
    /// A job.
    Job(Box<Job>),
    /// A scheduler form.
    Form(Box<FormView>),
}

/// A scheduler form. Its id identifies the schedule, which covers all occurrences.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FormView {
    /// Id of the schedule.
    pub id: ScheduleId,
    /// Alias of `id`.
    pub job_id: ScheduleId,
    /// Kind of the jobs that it creates.
    pub kind: Kind,
    /// Queue of the jobs that it creates.
    pub queue: QueueName,
    /// The cron expression.
    pub schedule: String,
    /// How often each occurrence may run.
    #[serde(rename = "type")]
    pub delivery: FormDelivery,
    /// Whether the schedule fires at every match, or only once.
    pub is_recurring: bool,
    /// How many times a failed request is retried.
    pub max_retry_count: u32,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// When the schedule was created.
    #[serde(rename = "created_at")]
    pub created_at: Timestamp,
    /// When the next request is due, whether it is a retry or the next occurrence.
    #[serde(rename = "next_run_at")]
    pub next_run_at: Option<Timestamp>,
    /// Alias of `next_run_at`.
    #[serde(rename = "next_execution_time")]
    pub next_execution_time: Option<Timestamp>,
    /// True if the schedule will not fire again.
    pub finished: bool,
    /// True if the request is left out because the key lacks the scope `read-payload`.
    #[serde(
        default,
        rename = "payload_withheld",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub payload_withheld: bool,
    /// The request: `api`, `method`, `headers`, `body` and `sign`.
    #[serde(flatten)]
    pub request: Map<String, Value>,
}

/// When a scheduler form runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FormSchedule {
    /// Id of the schedule.
    pub id: ScheduleId,
    /// Alias of `id`.
    #[serde(rename = "jobId")]
    pub job_id: ScheduleId,
    /// The cron expression.
    pub schedule: String,
    /// Whether the schedule fires at every match, or only once.
    #[serde(rename = "isRecurring")]
    pub is_recurring: bool,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Time of the last occurrence.
    pub last_at: Option<Timestamp>,
    /// Time of the next occurrence.
    pub next_at: Option<Timestamp>,
    /// When the next request is due, whether it is a retry or the next occurrence.
    pub next_run_at: Option<Timestamp>,
    /// Alias of `next_run_at`.
    pub next_execution_time: Option<Timestamp>,
}

request! {
    /// Result of an HTTP job whose target answered 202 and reports the result later.
    pub struct Completion {
        /// Whether the work succeeded or failed.
        #[schemars(required)]
        pub outcome: CompletionOutcome,
        /// Result of the work: any JSON, at most 1 MiB. Only with `succeeded`.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub result: Json,
        /// What went wrong. Only with `failed`.
        pub error: String,
        /// Whether to retry the request. Only with `failed`. Default: `true`.
        pub retryable: bool,
    }
}

/// Whether the work of an HTTP job succeeded or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum CompletionOutcome {
    /// The work succeeded.
    Succeeded,
    /// The work failed.
    Failed,
}

impl Body for Completion {
    type Checked = (CompletionOutcome, Completion);

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        if let Some(Json(result)) = &self.result {
            let size = result.check_size(PAYLOAD_BYTES_MAX);
            checks.keep(size.map_err(|error| error.within("result")));
        }
        let outcome = checks.required("outcome", self.outcome)?;
        let (has_result, has_error) = (self.result.is_some(), self.error.is_some());
        match outcome {
            CompletionOutcome::Succeeded => {
                for (field, given) in [
                    ("error", has_error),
                    ("retryable", self.retryable.is_some()),
                ] {
                    if given {
                        checks.refuse(field, "is only allowed with the outcome `failed`");
                    }
                }
            }
            CompletionOutcome::Failed if has_result => {
                checks.refuse("result", "is only allowed with the outcome `succeeded`");
            }
            CompletionOutcome::Failed => {}
        }
        Some((outcome, self))
    }
}

/// The job that a target completed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct CompletedJob {
    /// Id of the job.
    pub id: JobId,
}
