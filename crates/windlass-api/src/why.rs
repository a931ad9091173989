//! Why a job is not running, or dead.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{DeadReason, JobId, Timestamp};

use crate::{JobState, Retry};

/// Why a job is not running.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// The job.
    pub id: JobId,
    /// Its state.
    pub state: JobState,
    /// The reasons, the one to look at first in front.
    pub reasons: Vec<WhyReason>,
    /// Why it is dead. Only of a dead job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub death: Option<Death>,
    /// What reviving it would do. Only of a dead or cancelled job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revive: Option<RevivalForecast>,
}

/// One reason.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct WhyReason {
    /// For programs; never changes.
    pub code: String,
    /// For people.
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
    /// When it died.
    pub at: Option<Timestamp>,
    /// How many attempts it had.
    pub attempts: u32,
    /// How many of them failed.
    pub failures: u32,
    /// How many may fail.
    pub max_attempts: u32,
    /// No attempt starts after it.
    pub deadline: Option<Timestamp>,
    /// Why the last failed attempt did.
    pub last_error: Option<String>,
    /// There is an error, and the key may not read its text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
    /// When the last failed attempt ended.
    pub failed_at: Option<Timestamp>,
    /// The policy that decided.
    pub policy: PolicyInForce,
}

/// What reviving a job would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct RevivalForecast {
    /// Whether it is possible.
    pub allowed: bool,
    /// Why not.
    pub refusals: Vec<WhyReason>,
    /// When it would be due.
    pub run_at: Timestamp,
    /// No attempt would start after it.
    pub deadline: Option<Timestamp>,
    /// How many attempts it would have.
    pub attempts_left: u32,
    /// The policy that would decide.
    pub policy: PolicyInForce,
}

/// The policy that a claim through this server gives a job.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct PolicyInForce {
    /// Where it comes from.
    pub source: PolicyFrom,
    /// The policy.
    pub retry: Option<Retry>,
}

/// Where the policy of a job comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PolicyFrom {
    /// The job has its own.
    Job,
    /// Its kind has one.
    Kind,
    /// Its queue has one.
    Queue,
    /// The default of the server.
    Default,
    /// There is none: it fails at once.
    None,
}
