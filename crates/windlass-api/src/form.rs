//! The scheduler form, and requests that a target completes later.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass_core::{JobId, Kind, PAYLOAD_BYTES_MAX, QueueName, ScheduleId, Timestamp};

use crate::read::request;
use crate::{Body, BoundedInt, Checks, Job, Json, NewJob, Receipt, some_even_if_null};

request! {
    /// A schedule and a URL in one flat object.
    pub struct SchedulerForm {
        /// A cron expression, or `@every 90s`.
        #[schemars(required, example = "*/10 * * * * *")]
        pub schedule: String,
        /// The URL that is requested.
        #[schemars(required, example = "https://example.com/hook")]
        pub api: String,
        /// How often each occurrence may run. `AT_LEAST_ONCE`.
        #[serde(rename = "type")]
        pub delivery: FormDelivery,
        /// Whether it runs at every match, or at the next one only. True.
        #[serde(rename = "isRecurring")]
        pub is_recurring: bool,
        /// How often a failed request is tried again. 3.
        #[serde(rename = "maxRetryCount")]
        pub max_retry_count: BoundedInt<0, 999>,
        /// The method of the request. `POST`.
        pub method: String,
        /// Headers of the request.
        #[schemars(with = "Option<Map<String, Value>>")]
        pub headers: Json,
        /// The body: text as it is, anything else as JSON.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub body: Json,
        /// The name of the secret that signs each request, or up to 8 names.
        pub sign: Value,
    }
}

/// How often an occurrence may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(inline)]
pub enum FormDelivery {
    /// Until it succeeds or is dead; it may run twice.
    AtLeastOnce,
    /// Never started again once it was started.
    AtMostOnce,
}

/// A job to create, or a schedule of HTTP jobs in the form of one.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum NewJobOrForm {
    /// A job.
    Job(Box<NewJob>),
    /// A form: it has `schedule` or `api`.
    Form(Box<SchedulerForm>),
}

/// What was created.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Created {
    /// A job.
    Job(Box<crate::CreatedJob>),
    /// The id of the job that was there first, for a key that may not read jobs.
    Receipt(Receipt),
    /// A schedule.
    Form(Box<FormView>),
}

/// A job, or a scheduler form over all its occurrences.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum JobOrForm {
    /// A job.
    Job(Box<Job>),
    /// A form.
    Form(Box<FormView>),
}

/// A scheduler form. Its id stands for all its occurrences.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FormView {
    /// The id.
    pub id: ScheduleId,
    /// The same as `id`.
    pub job_id: ScheduleId,
    /// The kind of its jobs.
    pub kind: Kind,
    /// Where they wait.
    pub queue: QueueName,
    /// The cron expression.
    pub schedule: String,
    /// How often each occurrence may run.
    #[serde(rename = "type")]
    pub delivery: FormDelivery,
    /// Whether it runs at every match.
    pub is_recurring: bool,
    /// How often a failed request is tried again.
    pub max_retry_count: u32,
    /// Whether it is paused.
    pub paused: bool,
    /// When it was created.
    #[serde(rename = "created_at")]
    pub created_at: Timestamp,
    /// When it runs next, a retry included.
    #[serde(rename = "next_run_at")]
    pub next_run_at: Option<Timestamp>,
    /// The same as `next_run_at`.
    #[serde(rename = "next_execution_time")]
    pub next_execution_time: Option<Timestamp>,
    /// Whether it will not run again.
    pub finished: bool,
    /// The key may not read payloads.
    #[serde(
        default,
        rename = "payload_withheld",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub payload_withheld: bool,
    /// The request: `api`, `method`, `headers`, `body`, `sign`.
    #[serde(flatten)]
    pub request: Map<String, Value>,
}

/// When a scheduler form runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FormSchedule {
    /// The id of the form.
    pub id: ScheduleId,
    /// The same as `id`.
    #[serde(rename = "jobId")]
    pub job_id: ScheduleId,
    /// The cron expression.
    pub schedule: String,
    /// Whether it runs at every match.
    #[serde(rename = "isRecurring")]
    pub is_recurring: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// The last occurrence.
    pub last_at: Option<Timestamp>,
    /// The next occurrence.
    pub next_at: Option<Timestamp>,
    /// When it runs next, a retry included.
    pub next_run_at: Option<Timestamp>,
    /// The same as `next_run_at`.
    pub next_execution_time: Option<Timestamp>,
}

request! {
    /// How a target completes a request that it took for later.
    pub struct Completion {
        /// How it ended.
        #[schemars(required)]
        pub outcome: CompletionOutcome,
        /// What it leaves: any JSON up to 1 MiB. Goes with `succeeded`.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub result: Json,
        /// What went wrong. Goes with `failed`.
        pub error: String,
        /// Whether a retry can help. Goes with `failed`. True.
        pub retryable: bool,
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum CompletionOutcome {
    /// It is done.
    Succeeded,
    /// It failed.
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
                        checks.refuse(field, "goes with `failed` only");
                    }
                }
            }
            CompletionOutcome::Failed if has_result => {
                checks.refuse("result", "goes with `succeeded` only");
            }
            CompletionOutcome::Failed => {}
        }
        Some((outcome, self))
    }
}

/// The job whose request was completed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct CompletedJob {
    /// The job.
    pub id: JobId,
}
