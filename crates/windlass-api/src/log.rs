//! The log of an attempt.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{JobId, Outcome, Timestamp};

use crate::claim::AttemptNumber;
use crate::read::request;
use crate::value::either_duration;
use crate::{Body, BoundedInt, Checks, Count, DurationText, JobState, Millis};

request! {
    /// Which lines of a log to return.
    pub struct LogParams {
        /// Number of the attempt. Default: the latest attempt. If the attempt has not started yet,
        /// the response has no lines.
        pub attempt: AttemptNumber,
        /// Only lines after the line with this number: the `next_after` of the previous response.
        /// Default: 0, which returns all lines.
        pub after: Count,
        /// Most lines to return. Default: 1000.
        pub limit: BoundedInt<1, 1000>,
        /// If there are no such lines yet, wait for one until the attempt has ended, at most this
        /// long: at most 60 s unless configured. Default: no waiting.
        pub wait: DurationText,
        /// `wait` in milliseconds.
        pub wait_ms: Millis,
    }
}

/// Parameters of a log that were checked.
#[derive(Debug, Clone)]
pub struct CheckedLogParams {
    /// The attempt, or the latest one.
    pub attempt: Option<u32>,
    /// Only lines after this number.
    pub after: u64,
    /// The most lines to return.
    pub limit: usize,
    /// How long to wait for a line.
    pub wait: Duration,
}

impl Body for LogParams {
    type Checked = CheckedLogParams;

    fn check(self, checks: &mut Checks) -> Option<CheckedLogParams> {
        let wait = either_duration(checks, "wait", self.wait, self.wait_ms);
        Some(CheckedLogParams {
            attempt: self.attempt.map(BoundedInt::to),
            after: self.after.unwrap_or(0),
            limit: self.limit.map_or(1000, BoundedInt::to),
            wait: wait.unwrap_or_default(),
        })
    }
}

/// A part of the log of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct JobLog {
    /// Id of the job.
    pub job_id: JobId,
    /// Number of the attempt. 0 if no attempt has started.
    pub attempt: u32,
    /// The lines, oldest first.
    pub data: Vec<LogLine>,
    /// The value of `after` that returns the lines after these.
    pub next_after: Count,
    /// How many of the oldest lines of the attempt were dropped, because the server keeps the last
    /// 1000 lines and 64 KiB.
    pub dropped: Count,
    /// How the attempt ended. Null while it runs, and if it has not started. After it has ended, an
    /// empty `data` means that there are no more lines.
    pub outcome: Option<Outcome>,
    /// Number of the latest attempt of the job.
    pub latest_attempt: u32,
    /// State of the job.
    pub state: JobState,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct LogLine {
    /// Number of the line in its attempt, counted from 1. Dropped lines count.
    pub number: Count,
    /// When the handler wrote it, or when the server received it from a remote worker.
    pub at: Timestamp,
    /// Text of the line.
    pub line: String,
}
