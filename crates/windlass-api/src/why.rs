//! Why a job is not running, or is dead.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{DeadReason, JobId, Timestamp};

use crate::{JobState, Retry};

/// Why a job is not running.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// Id of the job.
    pub id: JobId,
    /// State of the job.
    pub state: JobState,
    /// Reasons why the job is not running, the most important first.
    pub reasons: Vec<WhyReason>,
    /// Why the job is dead. Only for dead jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub death: Option<Death>,
    /// What reviving the job would do. Only for dead and cancelled jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revive: Option<RevivalForecast>,
    /// The attempts that the job still has. Only for waiting and running jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<RetryPlan>,
}

/// The attempts that a job still has, if each of them fails.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct RetryPlan {
    /// Retry policy that applies.
    pub policy: PolicyInForce,
    /// How many attempts may fail in total.
    pub max_attempts: u32,
    /// The attempts, the next one first. At most 100.
    pub attempts: Vec<PlannedAttempt>,
}

/// An attempt that follows if every attempt before it fails, as if attempts took no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct PlannedAttempt {
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// Earliest start: jitter draws the shortest delays.
    pub earliest_at: Timestamp,
    /// Start without jitter.
    pub nominal_at: Timestamp,
    /// Latest start: jitter draws the longest delays.
    pub latest_at: Timestamp,
}

/// A reason.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct WhyReason {
    /// Code of the reason, for programs. Codes never change.
    pub code: String,
    /// The reason as a sentence, for people.
    pub text: String,
}

/// Why a job is dead.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Death {
    /// The reason.
    pub reason: DeadReason,
    /// The reason as a sentence.
    pub text: String,
    /// When the job died.
    pub at: Option<Timestamp>,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of failed attempts.
    pub failures: u32,
    /// How many attempts may fail in total.
    pub max_attempts: u32,
    /// No attempt starts after this time.
    pub deadline: Option<Timestamp>,
    /// Error of the last failed attempt.
    pub last_error: Option<String>,
    /// True if the error is left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// When the last failed attempt ended.
    pub failed_at: Option<Timestamp>,
    /// Retry policy that applied.
    pub policy: PolicyInForce,
}

/// What reviving a job would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct RevivalForecast {
    /// Whether the job can be revived.
    pub allowed: bool,
    /// Why the job cannot be revived.
    pub refusals: Vec<WhyReason>,
    /// Earliest start of the next attempt.
    pub run_at: Timestamp,
    /// No attempt would start after this time.
    pub deadline: Option<Timestamp>,
    /// Number of attempts that the job would have.
    pub attempts_left: u32,
    /// Retry policy that would apply.
    pub policy: PolicyInForce,
}

/// Retry policy that applies to a job claimed through this server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct PolicyInForce {
    /// Where the policy comes from.
    pub source: PolicyFrom,
    /// The policy. Null if there is none.
    pub retry: Option<Retry>,
}

/// Where the retry policy of a job comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PolicyFrom {
    /// The job itself.
    Job,
    /// The kind of the job.
    Kind,
    /// The settings of the queue.
    Queue,
    /// The default of the server.
    Default,
    /// There is no policy: the job is dead after its first failure.
    None,
}
