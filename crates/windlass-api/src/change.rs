//! Requests that change jobs: edit, revive, run now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{Consent, JobId, QueueName, Timestamp};

use crate::read::request;
use crate::value::instant_or_delay;
use crate::{
    Body, BoundedInt, Checks, DurationText, JobFilter, JobState, Json, List, Millis, PageCursor,
    some_even_if_null,
};

/// How many jobs one batch changes if the request gives no `limit`.
const BATCH_DEFAULT: usize = 100;

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
            consent: match self.force {
                Some(true) => Consent::MayRunTwice,
                Some(false) | None => Consent::NotGiven,
            },
        })
    }
}

request! {
    /// Waiting jobs to make due now: give either `filter` or `ids`.
    pub struct RunNowByFilter {
        /// Selects retries that match all conditions. At least one condition is required.
        #[schemars(example = serde_json::json!({"queue": "default"}))]
        pub filter: JobFilter,
        /// Selects jobs by id: 1 to 1000.
        pub ids: List<JobId, 1, 1000>,
        /// Most jobs to change in one request. Default: 100.
        pub limit: BoundedInt<1, 1000>,
        /// Cursor of the next batch: the `next_cursor` of the previous response.
        pub cursor: PageCursor<JobId>,
    }
}

request! {
    /// Dead jobs to revive, and how: give either `filter` or `ids`.
    pub struct ReviveByFilter {
        /// Selects dead jobs that match all conditions. At least one condition is required.
        #[schemars(example = serde_json::json!({"queue": "default"}))]
        pub filter: JobFilter,
        /// Selects jobs by id: 1 to 1000.
        pub ids: List<JobId, 1, 1000>,
        /// Most jobs to change in one request. Default: 100.
        pub limit: BoundedInt<1, 1000>,
        /// Cursor of the next batch: the `next_cursor` of the previous response.
        pub cursor: PageCursor<JobId>,
        /// What happens to the failure count of each job. Default: `reset`.
        pub failures: FailureCount,
        /// Earliest start of the next attempt. Default: now. Excludes `delay`.
        pub run_at: Timestamp,
        /// Earliest start, counted from now. Excludes `run_at`.
        pub delay: DurationText,
        /// `delay` in milliseconds.
        pub delay_ms: Millis,
        /// New payload of every job. Default: each job keeps its payload.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// Also revive at-most-once jobs that were lost and may have run. Default: `false`.
        pub force: bool,
    }
}

/// The jobs of one batch, selected by a filter or by ids.
#[derive(Debug, Clone)]
pub struct JobBatch {
    /// The filter. Empty if `ids` is given.
    pub filter: JobFilter,
    /// The ids.
    pub ids: Option<Vec<JobId>>,
    /// The most jobs to change.
    pub limit: usize,
    /// The last job of the previous batch.
    pub after: Option<JobId>,
}

impl Body for RunNowByFilter {
    type Checked = JobBatch;

    fn check(self, checks: &mut Checks) -> Option<JobBatch> {
        let filter = self.filter.unwrap_or_default();
        let filter = checks.within("filter", |checks| filter.check(checks))?;
        if filter.is_empty() == self.ids.is_none() && !checks.is_refused("filter") {
            let rule = if self.ids.is_some() {
                "and `ids` exclude each other: give one of them"
            } else {
                "must have at least one condition, unless `ids` is given"
            };
            checks.refuse("filter", rule);
        }
        Some(JobBatch {
            filter,
            ids: self.ids.map(|ids| ids.0),
            limit: self.limit.map_or(BATCH_DEFAULT, BoundedInt::to),
            after: self.cursor.map(|after| after.0),
        })
    }
}

impl Body for ReviveByFilter {
    type Checked = (JobBatch, windlass_core::Revival);

    fn check(self, checks: &mut Checks) -> Option<(JobBatch, windlass_core::Revival)> {
        let batch = RunNowByFilter {
            filter: self.filter,
            ids: self.ids,
            limit: self.limit,
            cursor: self.cursor,
        };
        let revival = Revival {
            failures: self.failures,
            run_at: self.run_at,
            delay: self.delay,
            delay_ms: self.delay_ms,
            payload: self.payload,
            force: self.force,
        };
        let (batch, revival) = (batch.check(checks), revival.check(checks));
        let filter = DeadFilter(batch.as_ref()?.filter.clone());
        checks.within("filter", |checks| filter.check(checks));
        Some((batch?, revival?))
    }
}

/// A filter of dead jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DeadFilter(pub JobFilter);

impl Body for DeadFilter {
    type Checked = JobFilter;

    fn check(self, checks: &mut Checks) -> Option<JobFilter> {
        if self.0.state.is_some_and(|state| state != JobState::Dead) {
            checks.refuse("state", "must be `dead` or omitted");
        }
        self.0.check(checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};
    use std::time::Duration;
    use windlass_core::FailureCount;

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
        let text = r#"{"failures":"keep","delay":"5s","payload":{"b":1, "a":2},"force":true}"#;
        let revival = read_body::<Revival>(text, now()).unwrap();
        assert_eq!(revival.failures, FailureCount::Keep);
        assert_eq!(revival.consent, Consent::MayRunTwice);
        let later = now().saturating_add(Duration::from_secs(5));
        assert_eq!(revival.run_at, Some(later));
        assert_eq!(revival.payload.unwrap().as_str(), r#"{"b":1, "a":2}"#);
        let plain = read_body::<Revival>("{}", now()).unwrap();
        assert_eq!(plain.failures, FailureCount::Reset);
        assert_eq!((plain.consent, plain.run_at), (Consent::NotGiven, None));
        assert!(plain.payload.is_none());
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let both = r#"{"failures":"some","delay":"1s","run_at":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(refused::<Revival>(both), ["failures", "delay"]);
        assert_eq!(refused::<Revival>(r#"{"forced":true}"#), ["forced"]);
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
    fn a_batch_needs_a_filter_or_ids() {
        for text in ["{}", r#"{"filter":{}}"#, r#"{"filter":null}"#] {
            assert_eq!(refused::<RunNowByFilter>(text), ["filter"], "{text}");
        }
        let wrong = r#"{"filter":{"state":"ready"},"limit":0,"force":1}"#;
        let mut fields = refused::<ReviveByFilter>(wrong);
        fields.sort();
        assert_eq!(fields, ["filter.state", "force", "limit"]);
        let (batch, _) = read_body::<ReviveByFilter>(r#"{"filter":{"queue":"q"}}"#, now()).unwrap();
        assert_eq!(batch.filter.queue.unwrap().as_str(), "q");
    }
}
