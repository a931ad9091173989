//! Requests that change jobs: edit, revive, run now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::retry::AttemptLimit;
use windlass_core::{Consent, JobId, QueueName, RevivalChanges, Timestamp};

use crate::read::request;
use crate::value::instant_or_delay;
use crate::{Body, BoundedInt, Checks, DurationText, Json, List, Millis, Retry, some_even_if_null};

request! {
    /// Changes to a waiting job. Fields that are not given keep their value.
    pub struct Edit {
        /// New payload. At most 1 MiB unless configured.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// New priority, from -32768 to 32767. Workers claim higher priorities first.
        pub priority: i16,
        /// New earliest start. Excludes `delay`.
        pub run_at: Timestamp,
        /// New earliest start, counted from now. Excludes `run_at`.
        pub delay: DurationText,
        /// `delay` in milliseconds.
        pub delay_ms: Millis,
        /// Name of the queue to move the job to.
        pub queue: QueueName,
    }
}

impl Body for Edit {
    type Checked = windlass_core::Edit;

    fn check(self, checks: &mut Checks) -> Option<windlass_core::Edit> {
        let delay = ("delay", self.delay, self.delay_ms);
        if let Some(queue) = &self.queue {
            checks.keep(queue.check_unreserved());
        }
        Some(windlass_core::Edit {
            payload: self.payload.map(|payload| payload.0),
            priority: self.priority,
            run_at: instant_or_delay(checks, ("run_at", self.run_at), delay),
            queue: self.queue,
        })
    }
}

request! {
    /// How to run a dead or cancelled job again.
    pub struct Revival {
        /// What happens to the failure count of the job. Default: `reset`.
        pub failures: FailureCount,
        /// Earliest start of the next attempt. Default: now. Excludes `delay`.
        pub run_at: Timestamp,
        /// Earliest start, counted from now. Excludes `run_at`.
        pub delay: DurationText,
        /// `delay` in milliseconds.
        pub delay_ms: Millis,
        /// New payload. Default: the job keeps its payload.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// Also revive an at-most-once job that was lost and may have run. Default: `false`.
        pub force: bool,
        /// New limit of attempts that may fail in all. With `failures: keep`, those that failed
        /// before count. Default: the job keeps its limit.
        pub max_attempts: BoundedInt<1, 1000>,
        /// New retry policy: the name of a preset, or a policy. Default: the job keeps its policy.
        pub retry: Retry,
        /// Name of the queue to move the job to. Default: the job stays in its queue.
        pub queue: QueueName,
        /// New priority, from -32768 to 32767. Default: the job keeps its priority.
        pub priority: i16,
    }
}

/// Checks the fields of jobs that a revival changes.
pub(crate) fn revival_changes(
    checks: &mut Checks,
    max_attempts: Option<BoundedInt<1, 1000>>,
    retry: Option<Retry>,
    queue: Option<QueueName>,
    priority: Option<i16>,
) -> RevivalChanges {
    let limit = max_attempts.map(|max| AttemptLimit::from_max_attempts(max.get()));
    let retry = checks.within("retry", |checks| retry.map(|retry| retry.check(checks)));
    if let Some(queue) = &queue {
        checks.keep(queue.check_unreserved());
    }
    RevivalChanges {
        max_attempts: limit.and_then(|limit| checks.keep(limit)).flatten(),
        retry: retry.flatten().map(|retry| (*retry).clone()),
        queue,
        priority,
    }
}

/// What reviving a job does to its failure count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum FailureCount {
    /// Set it to 0, so that the job has all its attempts again.
    Reset,
    /// Keep it. If the job has already used all its attempts, its next failure is final.
    Keep,
}

impl From<&windlass_core::BulkRevival> for FailureCount {
    fn from(revival: &windlass_core::BulkRevival) -> Self {
        if revival.keep_failures {
            FailureCount::Keep
        } else {
            FailureCount::Reset
        }
    }
}

impl Body for Revival {
    type Checked = windlass_core::Revival;

    fn check(self, checks: &mut Checks) -> Option<windlass_core::Revival> {
        let delay = ("delay", self.delay, self.delay_ms);
        Some(windlass_core::Revival {
            failures: match self.failures {
                Some(FailureCount::Keep) => windlass_core::FailureCount::Keep,
                Some(FailureCount::Reset) | None => windlass_core::FailureCount::Reset,
            },
            run_at: instant_or_delay(checks, ("run_at", self.run_at), delay),
            payload: self.payload.map(|payload| payload.0),
            payload_patch: None,
            consent: match self.force {
                Some(true) => Consent::MayRunTwice,
                Some(false) | None => Consent::NotGiven,
            },
            changes: revival_changes(
                checks,
                self.max_attempts,
                self.retry,
                self.queue,
                self.priority,
            ),
        })
    }
}

request! {
    /// Waiting jobs to make due now.
    pub struct RunNow {
        /// Ids of the jobs: 1 to 1000.
        #[schemars(required)]
        pub ids: List<JobId, 1, 1000>,
    }
}

impl Body for RunNow {
    type Checked = Vec<JobId>;

    fn check(self, checks: &mut Checks) -> Option<Vec<JobId>> {
        Some(checks.required("ids", self.ids)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};
    use std::time::Duration;
    use windlass_core::FailureCount;
    use windlass_core::retry::Preset;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn refused<B: Body>(text: &str) -> Vec<String> {
        match read_body::<B>(text, now()) {
            Err(BodyRefused::Invalid(problems)) => {
                let field = |problem: &windlass_core::Invalid| problem.field().to_owned();
                problems.iter().map(field).collect()
            }
            _ => panic!("not refused: {text}"),
        }
    }

    #[test]
    fn a_revival_reads_all_fields() {
        let text = r#"{"failures":"keep","delay":"5s","payload":{"b":1, "a":2},"force":true,
            "max_attempts":7,"retry":"patient","queue":"slow","priority":-3}"#;
        let revival = read_body::<Revival>(text, now()).unwrap();
        let changes = &revival.changes;
        assert_eq!(changes.max_attempts.unwrap().get(), 7);
        assert_eq!(changes.retry, Some(Preset::Patient.policy()));
        assert_eq!(changes.queue.as_ref().unwrap().as_str(), "slow");
        assert_eq!(changes.priority, Some(-3));
        assert_eq!(revival.failures, FailureCount::Keep);
        assert_eq!(revival.consent, Consent::MayRunTwice);
        let later = now().saturating_add(Duration::from_secs(5));
        assert_eq!(revival.run_at, Some(later));
        assert_eq!(revival.payload.unwrap().as_str(), r#"{"b":1, "a":2}"#);
        let plain = read_body::<Revival>("{}", now()).unwrap();
        assert_eq!(plain.failures, FailureCount::Reset);
        assert_eq!((plain.consent, plain.run_at), (Consent::NotGiven, None));
        assert!(plain.payload.is_none());
        assert_eq!(plain.changes, RevivalChanges::default());
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let both = r#"{"failures":"some","delay":"1s","run_at":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(refused::<Revival>(both), ["failures", "delay"]);
        assert_eq!(refused::<Revival>(r#"{"forced":true}"#), ["forced"]);
        let reserved = r#"{"max_attempts":0,"retry":"often","queue":"windlass.hooks"}"#;
        assert_eq!(
            refused::<Revival>(reserved),
            ["max_attempts", "retry", "queue"]
        );
        assert_eq!(refused::<Edit>(r#"{"queue":"windlass.x"}"#), ["queue"]);
        assert_eq!(refused::<Edit>(r#"{"priority":40000}"#), ["priority"]);
    }

    #[test]
    fn an_edit_changes_only_what_it_names() {
        let text = r#"{"priority":-3,"queue":"q","payload":null}"#;
        let edit = read_body::<Edit>(text, now()).unwrap();
        assert_eq!((edit.priority, edit.run_at), (Some(-3), None));
        assert_eq!(edit.queue.unwrap().as_str(), "q");
        assert_eq!(edit.payload.unwrap().as_str(), "null");
    }

    #[test]
    fn a_batch_needs_ids() {
        assert_eq!(refused::<RunNow>("{}"), ["ids"]);
        assert_eq!(refused::<RunNow>(r#"{"ids":[]}"#), ["ids"]);
        let id = JobId::from_u128(7);
        let ids = read_body::<RunNow>(&format!(r#"{{"ids":["{id}"]}}"#), now()).unwrap();
        assert_eq!(ids, [id]);
    }
}
