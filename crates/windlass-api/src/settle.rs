//! Results of attempts, as remote workers report them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    AttemptError, DeadReason, Failure, FailureClass, JobId, Timestamp, WorkerName, WorkerReport,
};

use crate::claim::{AttemptNumber, LeaseRef, LostReason};
use crate::read::request;
use crate::value::{either_duration, instant_or_delay, word_or_object};
use crate::{Body, Checks, DurationText, JobState, Json, List, Millis, Text, some_even_if_null};

request! {
    /// Results of attempts.
    pub struct Outcomes {
        /// Name of the worker. Default: a name derived from the API key.
        pub worker: WorkerName,
        /// Result of each attempt: 1 to 1000.
        #[schemars(required)]
        pub outcomes: List<AttemptOutcome, 1, 1000>,
    }
}

request! {
    /// Result of one attempt.
    pub struct AttemptOutcome {
        /// Id of the job. Required, unless `job_id` is given.
        pub id: JobId,
        /// Alias of `id`.
        pub job_id: JobId,
        /// Number of the attempt, counted from 1, as in the claimed job.
        #[schemars(required)]
        pub attempt: AttemptNumber,
        /// How the attempt ended.
        #[schemars(required)]
        pub outcome: OutcomeWord,
        /// Result of the job: any JSON, at most 64 KiB. Only with `succeeded`.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub result: Json,
        /// What went wrong. Required with `failed`, and only allowed with it.
        pub error: ErrorText,
        /// True if no retry can help: the job is dead. Only with `failed`. Default: `false`.
        pub unrecoverable: bool,
        /// Minimum delay before the next attempt. Only with `failed`.
        pub retry_after: DurationText,
        /// `retry_after` in milliseconds.
        pub retry_after_ms: Millis,
        /// Earliest start of the next attempt. With `snoozed`, either `until` or `delay` is
        /// required.
        pub until: Timestamp,
        /// Earliest start of the next attempt, counted from now. Excludes `until`.
        pub delay: DurationText,
        /// `delay` in milliseconds.
        pub delay_ms: Millis,
        /// Whether the handler had started. Only with `released`. Default: `true`.
        pub started: bool,
        /// Last lines of the attempt's log: at most 1000. Each is cut to 1000 characters.
        pub log: List<Text<0, { usize::MAX }>, 0, 1000>,
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OutcomeWord {
    /// The attempt succeeded.
    Succeeded,
    /// The attempt failed.
    Failed,
    /// The attempt took longer than the timeout of the job.
    TimedOut,
    /// The handler asks to run the job again later. This is not a failure.
    Snoozed,
    /// The worker gives the job back without a result.
    Released,
    /// The handler stopped because the job was cancelled.
    Cancelled,
}

/// An error: its message, or an object with its causes.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum ErrorText {
    /// The message of the error.
    Message(String),
    /// The error with its causes.
    Causes(ErrorCauses),
}

word_or_object!(
    ErrorText,
    Message(String),
    Causes(ErrorCauses),
    "text or an object"
);

/// An error with its causes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ErrorCauses {
    /// Message of the error.
    pub message: String,
    /// Causes of the error, the outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
}

/// A result of an attempt that was checked.
#[derive(Debug, Clone)]
pub struct ReportedOutcome {
    /// The attempt.
    pub lease: LeaseRef,
    /// How the attempt ended.
    pub reported: WorkerReport,
    /// Log lines to keep with the attempt.
    pub log: Vec<String>,
}

impl Body for Outcomes {
    type Checked = (Option<WorkerName>, Vec<ReportedOutcome>);

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        let outcomes = checks.required("outcomes", self.outcomes)?.0;
        let outcomes = checks.each("outcomes", outcomes, |checks, one| one.check(checks));
        Some((self.worker, outcomes?))
    }
}

impl AttemptOutcome {
    fn check(self, checks: &mut Checks) -> Option<ReportedOutcome> {
        let lease = LeaseRef::check(checks, self.id, self.job_id, self.attempt);
        let retry_after =
            either_duration(checks, "retry_after", self.retry_after, self.retry_after_ms);
        let delay = ("delay", self.delay, self.delay_ms);
        let until = instant_or_delay(checks, ("until", self.until), delay);
        let outcome = checks.required("outcome", self.outcome);
        for (field, is_given, word, needed) in [
            (
                "result",
                self.result.is_some(),
                "succeeded",
                OutcomeWord::Succeeded,
            ),
            ("error", self.error.is_some(), "failed", OutcomeWord::Failed),
            (
                "unrecoverable",
                self.unrecoverable.is_some(),
                "failed",
                OutcomeWord::Failed,
            ),
            (
                "retry_after",
                retry_after.is_some(),
                "failed",
                OutcomeWord::Failed,
            ),
            ("until", until.is_some(), "snoozed", OutcomeWord::Snoozed),
            (
                "started",
                self.started.is_some(),
                "released",
                OutcomeWord::Released,
            ),
        ] {
            if is_given && outcome.is_some_and(|outcome| outcome != needed) {
                checks.refuse(field, format!("is only allowed with the outcome `{word}`"));
            }
        }
        let reported = match outcome? {
            OutcomeWord::Succeeded => WorkerReport::Succeeded(self.result.map(|result| result.0)),
            OutcomeWord::Failed => WorkerReport::Failed(Failure {
                class: match self.unrecoverable {
                    Some(true) => FailureClass::Unrecoverable,
                    Some(false) | None => FailureClass::Retryable,
                },
                retry_after,
                ..Failure::retryable(checks.required("error", self.error)?.into())
            }),
            OutcomeWord::TimedOut => WorkerReport::TimedOut,
            OutcomeWord::Snoozed => WorkerReport::Snoozed(checks.required("until", until)?),
            OutcomeWord::Released => WorkerReport::Released {
                started: self.started.unwrap_or(true),
            },
            OutcomeWord::Cancelled => WorkerReport::Cancelled,
        };
        let log = self.log.map(|log| log.0).unwrap_or_default();
        Some(ReportedOutcome {
            lease: lease?,
            reported,
            log: log.into_iter().map(Text::into_string).collect(),
        })
    }
}

impl From<ErrorText> for AttemptError {
    fn from(error: ErrorText) -> Self {
        match error {
            ErrorText::Message(message) => AttemptError::new(message),
            ErrorText::Causes(error) => AttemptError::with_causes(&error.message, &error.causes),
        }
    }
}

/// Response of a settle request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SettleAnswer {
    /// What the server did with each result, in the order of the request.
    pub data: Vec<Settled>,
}

/// What the server did with one result.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Settled {
    /// Id of the job.
    pub id: JobId,
    /// Number of the attempt.
    pub attempt: u32,
    /// Whether the server accepted the result.
    pub status: SettleStatus,
    /// Why the lease is lost. Only with `lease_lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// State of the job now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// When the job runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// Why the job is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_reason: Option<DeadReason>,
    /// Number of failed attempts of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
}

/// Whether the server accepted a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SettleStatus {
    /// The server stored the result.
    Done,
    /// The same attempt was already settled. Nothing changed.
    Repeated,
    /// The result came after the timeout of the job, so the attempt counts as timed out.
    TimedOut,
    /// The worker no longer holds the lease. Nothing changed.
    LeaseLost,
    /// The database refused the result. Nothing changed; settle the attempt again later.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};
    use serde_json::{Value, json};
    use std::time::Duration;

    fn read(outcome: Value) -> Result<ReportedOutcome, Vec<String>> {
        let mut outcome = outcome;
        let more = outcome.as_object_mut().unwrap();
        more.insert("id".into(), json!(JobId::from_u128(7)));
        more.insert("attempt".into(), json!(1));
        let text = json!({"worker": "w", "outcomes": [outcome]}).to_string();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        match read_body::<Outcomes>(&text, now) {
            Ok((worker, mut outcomes)) => {
                assert_eq!(worker.unwrap().as_str(), "w");
                Ok(outcomes.remove(0))
            }
            Err(BodyRefused::Invalid(problems)) => {
                let field = |problem: &windlass_core::Invalid| problem.field().to_owned();
                Err(problems.iter().map(field).collect())
            }
            Err(BodyRefused::Malformed(malformed)) => panic!("{malformed}"),
        }
    }

    #[test]
    fn every_outcome_is_read_with_what_goes_with_it() {
        let done = read(json!({"outcome": "succeeded", "result": {"n": 1}, "log": ["a"]})).unwrap();
        assert_eq!(done.log, ["a"]);
        assert!(
            matches!(done.reported, WorkerReport::Succeeded(Some(result)) if result.as_str() == "{\"n\":1}")
        );
        let failed = read(json!({
            "outcome": "failed", "error": {"message": "m", "causes": ["c"]},
            "unrecoverable": true, "retry_after": "5s",
        }));
        let WorkerReport::Failed(failure) = failed.unwrap().reported else {
            panic!("a failure");
        };
        assert_eq!(failure.error.to_string(), "m: c");
        assert_eq!(failure.class, FailureClass::Unrecoverable);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(5)));
        let snoozed = read(json!({"outcome": "snoozed", "delay": "1m"}));
        assert!(
            matches!(snoozed.unwrap().reported, WorkerReport::Snoozed(at) if at.to_string() == "2026-01-01T00:01:00Z")
        );
        let released = read(json!({"outcome": "released", "started": false}));
        assert!(matches!(
            released.unwrap().reported,
            WorkerReport::Released { started: false }
        ));
        for (word, reported) in [
            ("cancelled", WorkerReport::Cancelled),
            ("timed_out", WorkerReport::TimedOut),
        ] {
            assert_eq!(read(json!({"outcome": word})).unwrap().reported, reported);
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (outcome, field) in [
            (json!({"outcome": "done"}), "outcome"),
            (json!({}), "outcome"),
            (json!({"outcome": "failed"}), "error"),
            (json!({"outcome": "failed", "error": 5}), "error"),
            (json!({"outcome": "failed", "error": {}}), "error.message"),
            (
                json!({"outcome": "failed", "error": {"message": "x", "text": "x"}}),
                "error.text",
            ),
            (
                json!({"outcome": "failed", "error": "x", "result": 1}),
                "result",
            ),
            (json!({"outcome": "snoozed"}), "until"),
            (json!({"outcome": "succeeded", "error": "x"}), "error"),
            (json!({"outcome": "succeeded", "log": [5]}), "log[0]"),
            (
                json!({"outcome": "succeeded", "log": vec!["x"; 1001]}),
                "log",
            ),
        ] {
            let refused = read(outcome.clone()).unwrap_err();
            assert_eq!(refused, [format!("outcomes[0].{field}")], "{outcome}");
        }
    }
}
