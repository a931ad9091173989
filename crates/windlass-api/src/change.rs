//! What people change about jobs, one or many.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{Consent, JobId, QueueName, Timestamp};

use crate::read::request;
use crate::value::instant_or_delay;
use crate::{
    Body, BoundedInt, Checks, DurationText, JobFilter, JobState, Json, List, Millis, PageCursor,
    some_even_if_null,
};

/// The default of how many jobs one pass changes.
const PASS_DEFAULT: usize = 100;

request! {
    /// What is to be different about a waiting job; what is not given stays.
    pub struct Edit {
        /// Another payload.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// Another priority.
        pub priority: i16,
        /// Another time.
        pub run_at: Timestamp,
        /// Another time, counted from now.
        pub delay: DurationText,
        /// The same in milliseconds.
        pub delay_ms: Millis,
        /// Another queue.
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
    /// How a dead or cancelled job runs again.
    pub struct Revival {
        /// What happens to its count of failures. `reset`.
        pub failures: FailureCount,
        /// From when it is due; now if not given.
        pub run_at: Timestamp,
        /// The same, counted from now.
        pub delay: DurationText,
        /// The same in milliseconds.
        pub delay_ms: Millis,
        /// Another payload.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// Also revive a lost at-most-once job, which may have run.
        pub force: bool,
    }
}

/// What a revival does with the count of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum FailureCount {
    /// The job has all its attempts again.
    Reset,
    /// They stay: at the limit, the next failure is the last.
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
    /// Which waiting jobs become due now.
    pub struct RunNowByFilter {
        /// The jobs that a filter finds.
        #[schemars(example = serde_json::json!({"queue": "default"}))]
        pub filter: JobFilter,
        /// The jobs with these ids.
        pub ids: List<JobId, 1, 1000>,
        /// One pass changes at most this many. 100.
        pub limit: BoundedInt<1, 1000>,
        /// `next_cursor` of the pass before.
        pub cursor: PageCursor<JobId>,
    }
}

request! {
    /// Which dead jobs run again, and how.
    pub struct ReviveByFilter {
        /// The jobs that a filter finds.
        #[schemars(example = serde_json::json!({"queue": "default"}))]
        pub filter: JobFilter,
        /// The jobs with these ids.
        pub ids: List<JobId, 1, 1000>,
        /// One pass changes at most this many. 100.
        pub limit: BoundedInt<1, 1000>,
        /// `next_cursor` of the pass before.
        pub cursor: PageCursor<JobId>,
        /// What happens to their count of failures. `reset`.
        pub failures: FailureCount,
        /// From when they are due; now if not given.
        pub run_at: Timestamp,
        /// The same, counted from now.
        pub delay: DurationText,
        /// The same in milliseconds.
        pub delay_ms: Millis,
        /// Another payload.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// Also revive lost at-most-once jobs, which may have run.
        pub force: bool,
    }
}

/// The jobs of one pass: those of a filter, or those with some ids.
#[derive(Debug, Clone)]
pub struct Pass {
    /// The filter; asks nothing if there are ids.
    pub filter: JobFilter,
    /// The ids.
    pub ids: Option<Vec<JobId>>,
    /// At most this many jobs.
    pub limit: usize,
    /// Behind what the pass begins.
    pub after: Option<JobId>,
}

impl Body for RunNowByFilter {
    type Checked = Pass;

    fn check(self, checks: &mut Checks) -> Option<Pass> {
        let filter = self.filter.unwrap_or_default();
        let filter = checks.within("filter", |checks| filter.check(checks))?;
        if filter.is_empty() == self.ids.is_none() && !checks.is_refused("filter") {
            let rule = "that asks something, or `ids`, must be given, and only one of them";
            checks.refuse("filter", rule);
        }
        Some(Pass {
            filter,
            ids: self.ids.map(|ids| ids.0),
            limit: self.limit.map_or(PASS_DEFAULT, BoundedInt::to),
            after: self.cursor.map(|after| after.0),
        })
    }
}

impl Body for ReviveByFilter {
    type Checked = (Pass, windlass_core::Revival);

    fn check(self, checks: &mut Checks) -> Option<(Pass, windlass_core::Revival)> {
        let pass = RunNowByFilter {
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
        let (pass, revival) = (pass.check(checks), revival.check(checks));
        let filter = DeadFilter(pass.as_ref()?.filter.clone());
        checks.within("filter", |checks| filter.check(checks));
        Some((pass?, revival?))
    }
}

/// What a client may ask of dead jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DeadFilter(pub JobFilter);

impl Body for DeadFilter {
    type Checked = JobFilter;

    fn check(self, checks: &mut Checks) -> Option<JobFilter> {
        if self.0.state.is_some_and(|state| state != JobState::Dead) {
            checks.refuse("state", "must be `dead` here, or not given");
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
    fn a_revival_has_all_it_may() {
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
    fn a_pass_needs_a_filter_or_ids() {
        for text in ["{}", r#"{"filter":{}}"#, r#"{"filter":null}"#] {
            assert_eq!(refused::<RunNowByFilter>(text), ["filter"], "{text}");
        }
        let wrong = r#"{"filter":{"state":"ready"},"limit":0,"force":1}"#;
        let mut found = refused::<ReviveByFilter>(wrong);
        found.sort();
        assert_eq!(found, ["filter.state", "force", "limit"]);
        let (pass, _) = read_body::<ReviveByFilter>(r#"{"filter":{"queue":"q"}}"#, now()).unwrap();
        assert_eq!(pass.filter.queue.unwrap().as_str(), "q");
    }
}
