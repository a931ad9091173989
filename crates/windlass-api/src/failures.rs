//! The causes of failures: groups of failing jobs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{Fingerprint, GroupMember, JobId, Kind, QueueName, Timestamp};

use crate::read::request;
use crate::{Count, plain_body};

request! {
    /// Filters of failure groups. A group must match all that are given.
    pub struct FailureParams {
        /// Only groups of this queue.
        pub queue: QueueName,
        /// Only groups of this kind.
        pub kind: Kind,
        /// Only groups with this fingerprint.
        pub fingerprint: Fingerprint,
        /// Only groups that have jobs in this state.
        pub state: FailingState,
    }
}

plain_body!(FailureParams);

/// The state of a job in a failure group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum FailingState {
    /// The job is dead.
    Dead,
    /// The job waits or runs, and has failed before.
    Retrying,
}

impl From<FailingState> for GroupMember {
    fn from(state: FailingState) -> Self {
        match state {
            FailingState::Dead => GroupMember::Dead,
            FailingState::Retrying => GroupMember::Retrying,
        }
    }
}

/// The failing jobs of one queue, kind and cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureGroup {
    /// Fingerprint of the cause. Use it as the filter `fingerprint`.
    pub fingerprint: Fingerprint,
    /// Queue of the jobs.
    pub queue: QueueName,
    /// Kind of the jobs.
    pub kind: Kind,
    /// Number of dead jobs.
    pub dead: Count,
    /// Number of jobs that wait or run and have failed before.
    pub retrying: Count,
    /// When the cause was first seen.
    pub first_seen_at: Timestamp,
    /// When the cause was last seen.
    pub last_seen_at: Timestamp,
    /// The job that failed last.
    pub sample: FailureSample,
    /// Failures in each of the last 24 hours, the oldest hour first. The last one is the current
    /// hour.
    pub hours: Vec<Count>,
}

/// One of the jobs of a failure group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureSample {
    /// Id of the job. Null if no job is left.
    pub job_id: Option<JobId>,
    /// Its error. Null if the key lacks the scope `read-payload`.
    pub error: Option<String>,
    /// True if the error is left out because the key lacks the scope `read-payload`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error_withheld: bool,
}
