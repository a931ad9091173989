//! How attempts ended, as workers in any language report it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    AttemptError, DeadReason, Failure, FailureClass, JobId, LOG_LINE_CHARS_MAX, Timestamp,
    WorkerName, WorkerReport,
};

use crate::claim::{AttemptNumber, LeaseRef, LostReason};
use crate::read::request;
use crate::value::{either_duration, instant_or_delay, word_or_object};
use crate::{Body, Checks, DurationText, JobState, Json, List, Millis, Text, some_even_if_null};

request! {
    /// How attempts ended.
    pub struct Outcomes {
        /// Who ran them.
        pub worker: WorkerName,
        /// How each ended.
        #[schemars(required)]
        pub outcomes: List<AttemptOutcome, 1, 1000>,
    }
}

request! {
    /// How one attempt ended.
    pub struct AttemptOutcome {
        /// The job.
        pub id: JobId,
        /// The same as `id`.
        pub job_id: JobId,
        /// Which of its attempts.
        #[schemars(required)]
        pub attempt: AttemptNumber,
        /// How it ended.
        #[schemars(required)]
        pub outcome: OutcomeWord,
        /// What it leaves. Goes with `succeeded`.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub result: Json,
        /// What went wrong. Required with `failed`.
        pub error: ErrorText,
        /// No retry can help. Goes with `failed`.
        pub unrecoverable: bool,
        /// The shortest wait before the next attempt. Goes with `failed`.
        pub retry_after: DurationText,
        /// The same in milliseconds.
        pub retry_after_ms: Millis,
        /// From when it runs again. It or `delay` is required with `snoozed`.
        pub until: Timestamp,
        /// The same, counted from now.
        pub delay: DurationText,
        /// The same in milliseconds.
        pub delay_ms: Millis,
        /// Whether the handler had started. Goes with `released`. True.
        pub started: bool,
        /// Lines that are kept with the attempt, each cut after 1000 characters.
        pub log: List<Text<0, { usize::MAX }>, 0, 100>,
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OutcomeWord {
    /// The job is done.
    Succeeded,
    /// It failed.
    Failed,
    /// It took longer than the timeout of the job.
    TimedOut,
    /// It is to run again later.
    Snoozed,
    /// The worker gives it back.
    Released,
    /// It stopped because the job was cancelled.
    Cancelled,
}

/// An error as text, or with its causes.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum ErrorText {
    /// Its message.
    Message(String),
    /// With its causes.
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
    /// What failed.
    pub message: String,
    /// Why, from the outside in.
    #[serde(default)]
    pub causes: Vec<String>,
}

/// How one attempt ended, with what goes with it.
#[derive(Debug, Clone)]
pub struct ReportedOutcome {
    /// Which attempt.
    pub lease: LeaseRef,
    /// How.
    pub reported: WorkerReport,
    /// Lines that are kept with it.
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
        for (field, given, word, needed) in [
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
            if given && outcome.is_some_and(|outcome| outcome != needed) {
                checks.refuse(field, format!("goes with `{word}` only"));
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
        let cut = |line: Text<0, { usize::MAX }>| {
            let line = line.into_string();
            line.chars().take(LOG_LINE_CHARS_MAX).collect()
        };
        let log = self.log.map(|log| log.0).unwrap_or_default();
        Some(ReportedOutcome {
            lease: lease?,
            reported,
            log: log.into_iter().map(cut).collect(),
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

/// What happened to each outcome, in order.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SettleAnswer {
    /// What happened to each.
    pub data: Vec<Settled>,
}

/// What happened to one outcome.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Settled {
    /// The job.
    pub id: JobId,
    /// Which of its attempts.
    pub attempt: u32,
    /// Whether it counts.
    pub status: SettleStatus,
    /// Why the lease is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// The state of the job now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// When it runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// Why it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_reason: Option<DeadReason>,
    /// How many of its attempts failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
}

/// What happened to an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SettleStatus {
    /// It counts.
    Done,
    /// It was reported before.
    Repeated,
    /// The attempt took longer than the timeout of its job: it counts as timed out.
    TimedOut,
    /// The attempt is no longer the worker's.
    LeaseLost,
    /// The store does not take it.
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
                json!({"outcome": "succeeded", "log": vec!["x"; 101]}),
                "log",
            ),
        ] {
            let refused = read(outcome.clone()).unwrap_err();
            assert_eq!(refused, [format!("outcomes[0].{field}")], "{outcome}");
        }
    }
}
