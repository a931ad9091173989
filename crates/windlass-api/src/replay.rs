//! Replays: dead jobs revived step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    ActionId, ActionState, BulkChange, BulkRevival, Filter, Phase, QueueName, ReplayRules,
    SkipReason, StopReason, Timestamp, WaitingFor,
};

use crate::action::{Reason, action_filter, payload_patch};
use crate::change::revival_changes;
use crate::read::request;
use crate::value::either_duration;
use crate::{
    ActionPreview, Body, BoundedInt, Checks, Count, DurationText, FailureCount, ItemFailure,
    JobFilter, Json, Millis, Retry,
};

request! {
    /// A replay to create: which dead jobs to revive, how fast, and when to stop.
    pub struct NewReplay {
        /// Selects jobs that match all conditions. At least one condition is required. Only dead
        /// jobs match unless `state` is given.
        #[schemars(with = "JobFilter", example = serde_json::json!({"queue": "default"}))]
        pub filter: JobFilter,
        /// The first jobs to revive. The others follow when these have succeeded.
        pub canary: Canary,
        /// Jobs to revive per second after the canary. Default: 100.
        pub rate: BoundedInt<1, { u32::MAX as i64 }>,
        /// Most revived jobs without an outcome. Default: the larger of the canary and what 2 s of
        /// the rate revive.
        pub max_pending: BoundedInt<1, { u32::MAX as i64 }>,
        /// When the replay stops itself.
        pub stop: StopRules,
        /// What happens to the failure count of each job. Default: `reset`.
        pub failures: FailureCount,
        /// Patch of each payload: a JSON Patch (RFC 6902) if it is a list, otherwise a merge patch
        /// (RFC 7396). A job to which it does not apply is skipped.
        pub payload_patch: Json,
        /// Also revive at-most-once jobs that were lost and may have run. Default: `false`.
        pub force: bool,
        /// New limit of attempts of each job that may fail in all. With `failures: keep`, those
        /// that failed before count. Default: each job keeps its limit.
        pub max_attempts: BoundedInt<1, 1000>,
        /// New retry policy of each job. Default: each job keeps its policy.
        pub retry: Retry,
        /// Queue to move each job to. Default: each job stays in its queue.
        pub queue: QueueName,
        /// New priority of each job, from -32768 to 32767. Default: each job keeps its priority.
        pub priority: i16,
        /// Why, for the audit log and other operators: 1 to 500 characters.
        #[schemars(required)]
        pub reason: Reason,
        /// Return what the replay would do, and create nothing. Default: `false`.
        pub dry_run: bool,
    }
}

request! {
    /// The first jobs of a replay.
    pub struct Canary {
        /// Number of jobs. Default: 20.
        pub jobs: BoundedInt<1, { u32::MAX as i64 }>,
        /// How long the canary may take. A job without an outcome then counts as failed again.
        /// Default: 5 min.
        pub timeout: DurationText,
        /// `timeout` in milliseconds.
        pub timeout_ms: Millis,
    }
}

request! {
    /// When a replay stops itself.
    pub struct StopRules {
        /// Stop when a larger share of the jobs than this fails again, from 0 to 1. Default: 0.2.
        pub failed_share: f64,
        /// Fewest outcomes after the canary that the share is computed over. Default: 50.
        pub min_sample: BoundedInt<1, { u32::MAX as i64 }>,
        /// Stop when this many jobs fail again with the cause that they had died of; 0 is never.
        /// Default: 1 in the canary, never after it.
        pub same_fingerprint: BoundedInt<0, { u32::MAX as i64 }>,
    }
}

/// A checked replay.
#[derive(Debug, Clone)]
pub struct CheckedReplay {
    /// Which jobs.
    pub filter: Filter,
    /// How to proceed, and when to stop.
    pub rules: ReplayRules,
    /// How to revive each job.
    pub revival: BulkRevival,
    /// Why.
    pub reason: String,
    /// Whether to create nothing.
    pub dry_run: bool,
}

impl Body for NewReplay {
    type Checked = CheckedReplay;

    fn check(self, checks: &mut Checks) -> Option<CheckedReplay> {
        let revival = BulkRevival {
            keep_failures: self.failures == Some(FailureCount::Keep),
            payload_patch: payload_patch(checks, "payload_patch", self.payload_patch),
            run_at: None,
            force: self.force.unwrap_or_default(),
            changes: revival_changes(
                checks,
                self.max_attempts,
                self.retry,
                self.queue,
                self.priority,
            ),
        };
        let change = BulkChange::Revive(revival.clone());
        let filter = action_filter(checks, self.filter, &change);
        let canary = self.canary.unwrap_or_default();
        let timeout = checks.within("canary", |checks| {
            either_duration(checks, "timeout", canary.timeout, canary.timeout_ms)
        });
        let (stop, default) = (self.stop.unwrap_or_default(), ReplayRules::default());
        let rules = ReplayRules {
            canary_jobs: canary.jobs.map_or(default.canary_jobs, BoundedInt::to),
            canary_timeout_ms: timeout.map_or(default.canary_timeout_ms, millis),
            rate: self.rate.map_or(default.rate, BoundedInt::to),
            max_pending: self.max_pending.map(BoundedInt::to),
            failed_share: stop.failed_share.unwrap_or(default.failed_share),
            min_sample: stop.min_sample.map_or(default.min_sample, BoundedInt::to),
            same_fingerprint: stop.same_fingerprint.map(BoundedInt::to),
        };
        checks.keep(rules.check());
        let reason = checks.required("reason", self.reason);
        Some(CheckedReplay {
            filter: filter?,
            rules,
            revival,
            reason: reason?.into_string(),
            dry_run: self.dry_run.unwrap_or_default(),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<&ReplayRules> for Canary {
    fn from(rules: &ReplayRules) -> Self {
        let timeout = Duration::from_millis(rules.canary_timeout_ms);
        Canary {
            jobs: BoundedInt::new(rules.canary_jobs.into()),
            timeout: Some(DurationText(timeout)),
            timeout_ms: None,
        }
    }
}

impl From<&ReplayRules> for StopRules {
    fn from(rules: &ReplayRules) -> Self {
        StopRules {
            failed_share: Some(rules.failed_share),
            min_sample: BoundedInt::new(rules.min_sample.into()),
            same_fingerprint: rules
                .same_fingerprint
                .and_then(|count| BoundedInt::new(count.into())),
        }
    }
}

/// A replay. `matched` is the sum of `to_do`, `revived` and `skipped`; `revived` is the sum of
/// `pending`, `recovered`, `failed_again` and `gone`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Replay {
    /// Id of the replay.
    pub id: ActionId,
    /// State of the replay.
    pub state: ActionState,
    /// Phase of the replay: the first jobs, or the others at a rate.
    pub phase: Phase,
    /// Number of jobs that matched when the replay was created. Grows while `waiting_for` is
    /// `counting`.
    pub matched: Count,
    /// Number of jobs that it has not touched yet.
    pub to_do: Count,
    /// Number of jobs that it revived.
    pub revived: Count,
    /// Number of jobs that it left alone.
    pub skipped: Count,
    /// Number of jobs that it left alone, by reason.
    pub skipped_by: BTreeMap<SkipReason, Count>,
    /// Number of revived jobs without an outcome.
    pub pending: Count,
    /// Number of revived jobs that have succeeded.
    pub recovered: Count,
    /// Number of revived jobs that failed first and have not succeeded since.
    pub failed_again: Count,
    /// Number of revived jobs that were cancelled, removed or revived by someone else before they
    /// had an outcome.
    pub gone: Count,
    /// What the replay waits for. Null if it does not wait.
    pub waiting_for: Option<WaitingFor>,
    /// Queue that it waits for, if it is paused or full.
    pub waiting_queue: Option<QueueName>,
    /// Why the replay stopped itself.
    pub stop_reason: Option<StopReason>,
    /// Which jobs it revives.
    pub filter: JobFilter,
    /// The first jobs.
    pub canary: Canary,
    /// Jobs to revive per second after the canary.
    pub rate: u32,
    /// Most revived jobs without an outcome.
    pub max_pending: Count,
    /// When it stops itself.
    pub stop: StopRules,
    /// What happens to the failure count of each job.
    pub failures: FailureCount,
    /// Patch of each payload. Only with the scope `read-payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_patch: Option<Json>,
    /// Whether it also revives at-most-once jobs that were lost and may have run.
    pub force: bool,
    /// New limit of attempts of each job, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<BoundedInt<1, 1000>>,
    /// New retry policy of each job, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Queue that each job moves to, if it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// New priority of each job, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// Why, in the words of the operator.
    pub reason: String,
    /// When it was created. Jobs that are newer, or whose state changed later, are left alone.
    pub created_at: Timestamp,
    /// Who created it.
    pub created_by: String,
    /// When it ended. Null until then.
    pub ended_at: Option<Timestamp>,
    /// The first 100 jobs that could not be revived.
    pub item_failures: Vec<ItemFailure>,
}

/// The created replay, or what it would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ReplayAnswer {
    /// The created replay.
    Created(Box<Replay>),
    /// What the replay would do, because `dry_run` was set.
    Preview(ActionPreview),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};

    fn read(text: &str) -> Result<CheckedReplay, Vec<String>> {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        read_body::<NewReplay>(text, now).map_err(|refused| match refused {
            BodyRefused::Invalid(problems) => {
                let mut fields: Vec<_> = problems
                    .iter()
                    .map(|problem| problem.field().to_owned())
                    .collect();
                fields.sort();
                fields
            }
            BodyRefused::Malformed(malformed) => vec![malformed.to_string()],
        })
    }

    #[test]
    fn every_option_is_read() {
        let replay = read(
            r#"{"filter":{"queue":"q"},"canary":{"jobs":3,"timeout":"2m"},"rate":7,"max_pending":9,
                "stop":{"failed_share":0.5,"min_sample":11,"same_fingerprint":2},"failures":"keep",
                "payload_patch":{"a":1},"force":true,"max_attempts":4,"retry":"patient",
                "queue":"slow","priority":2,"reason":"why","dry_run":true}"#,
        );
        let replay = replay.unwrap();
        let rules = ReplayRules {
            canary_jobs: 3,
            canary_timeout_ms: 120_000,
            rate: 7,
            max_pending: Some(9),
            failed_share: 0.5,
            min_sample: 11,
            same_fingerprint: Some(2),
        };
        assert_eq!(replay.rules, rules);
        assert!(replay.revival.keep_failures && replay.revival.force && replay.dry_run);
        assert!(replay.revival.payload_patch.is_some());
        let changes = &replay.revival.changes;
        assert_eq!(
            (changes.max_attempts.unwrap().get(), changes.priority),
            (4, Some(2))
        );
        assert_eq!(changes.queue.as_ref().unwrap().as_str(), "slow");
        assert!(changes.retry.is_some());
        assert_eq!(replay.reason, "why");
        assert_eq!(replay.filter.queue.unwrap().as_str(), "q");
        let state = replay.filter.state.unwrap();
        assert_eq!(state.name(), "dead", "by default");
        let in_millis = r#"{"filter":{"queue":"q"},"canary":{"timeout_ms":5},"reason":"r"}"#;
        assert_eq!(read(in_millis).unwrap().rules.canary_timeout_ms, 5);
    }

    #[test]
    fn a_short_replay_has_the_defaults() {
        let replay = read(r#"{"filter":{"queue":"q"},"reason":"r"}"#).unwrap();
        assert_eq!(replay.rules, ReplayRules::default());
        assert_eq!(replay.revival, BulkRevival::default());
        assert!(!replay.dry_run);
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let text = r#"{"filter":{"queue":"a/b","state":"odd"},"canary":{"jobs":0,"timeout":"x"},"rate":0,
            "stop":{"failed_share":2,"min_sample":0},"failures":"none","payload_patch":[1],"more":1}"#;
        let fields = read(text).unwrap_err();
        let expected = [
            "canary.jobs",
            "canary.timeout",
            "failures",
            "filter.queue",
            "filter.state",
            "more",
            "payload_patch",
            "rate",
            "reason",
            "stop.failed_share",
            "stop.min_sample",
        ];
        assert_eq!(fields, expected);
        assert_eq!(read(r#"{"reason":"r"}"#).unwrap_err(), ["filter"]);
        assert_eq!(
            read(r#"{"filter":{},"reason":""}"#).unwrap_err(),
            ["filter", "reason"]
        );
        let both =
            r#"{"filter":{"queue":"q"},"reason":"r","canary":{"timeout":"1s","timeout_ms":1}}"#;
        assert_eq!(read(both).unwrap_err(), ["canary.timeout_ms"]);
    }
}
