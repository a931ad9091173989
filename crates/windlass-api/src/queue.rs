//! Queues and their settings.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use windlass_core::fairness::{self, ClaimSettings, Rate, Ratio, WEIGHT_MAX};
use windlass_core::{QueueName, Timestamp};

use crate::read::{only_object, request};
use crate::value::{Count, either_duration};
use crate::{Body, BoundedInt, Checks, DurationText, Millis, Retry, Text, plain_body};

/// A number that is at least 1.
type AtLeastOne = BoundedInt<1, { u32::MAX as i64 }>;

/// Settings of a queue. They apply across all nodes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// Most jobs that may wait in the queue. Default: no limit.
    pub max_depth: Option<BoundedInt<1, { i64::MAX }>>,
    /// Most jobs of the queue that run at once. Default: no limit.
    pub concurrency: Option<AtLeastOne>,
    /// Most jobs of the queue that start in a period. Default: no limit.
    pub rate: Option<QueueRate>,
    /// Retry policy of jobs that have none of their own and whose kind has none. Default: that of
    /// the server.
    pub retry: Option<Retry>,
    /// Share of the slots for retries while new jobs wait too: 0 to 1, or `off` to order both
    /// strictly by priority. Default: 0.2.
    pub retry_fetch_ratio: Option<FetchRatio>,
    /// Number of slots in each worker that never run a retry. Default: 1 for workers with at least
    /// 4 slots, else 0.
    pub fresh_reserve: Option<BoundedInt<0, { u32::MAX as i64 }>>,
    /// Most retries of the queue that run at once. Default: no limit.
    pub max_inflight_retries: Option<AtLeastOne>,
    /// Number of retries that each worker runs in a separate pool. For remote workers, the most
    /// retries among their running jobs. Default: no separate pool.
    pub retry_lane: Option<AtLeastOne>,
    /// Share of the slots of a worker, relative to the other queues. Default: 1.
    pub weight: Option<BoundedInt<1, { WEIGHT_MAX as i64 }>>,
}

/// How many jobs of a queue may start in a period.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
#[schemars(inline)]
pub struct QueueRate {
    /// Most jobs that start in any window of length `period`.
    #[schemars(required)]
    pub count: Option<AtLeastOne>,
    /// Length of the window. Required; must be longer than 0s.
    pub period: Option<DurationText>,
    /// `period` in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<Millis>,
}

only_object!(QueueRate);

/// A share from 0 to 1, or `off`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchRatio(pub Option<Ratio>);

impl Body for QueueSettings {
    type Checked = fairness::QueueSettings;

    fn check(self, checks: &mut Checks) -> Option<fairness::QueueSettings> {
        let retry = self.retry;
        let retry = checks.within("retry", |checks| retry.map(|retry| retry.check(checks)));
        let rate = self.rate;
        let rate = checks.within("rate", |checks| rate.map(|rate| rate.check(checks)));
        Some(fairness::QueueSettings {
            max_depth: self.max_depth.map(BoundedInt::to),
            concurrency: self.concurrency.map(BoundedInt::to),
            rate: rate.flatten(),
            claims: ClaimSettings {
                retry: retry.flatten(),
                retry_fetch_ratio: self.retry_fetch_ratio.map(|ratio| ratio.0),
                fresh_reserve: self.fresh_reserve.map(BoundedInt::to),
                max_inflight_retries: self.max_inflight_retries.map(BoundedInt::to),
                retry_lane: self.retry_lane.map(BoundedInt::to),
                weight: self.weight.map(BoundedInt::to),
            },
        })
    }
}

impl QueueRate {
    fn check(self, checks: &mut Checks) -> Option<Rate> {
        let count = checks.required("count", self.count);
        let period = either_duration(checks, "period", self.period, self.period_ms);
        if checks.required("period", period)?.is_zero() {
            checks.refuse("period", "must be longer than 0s");
        }
        Some(Rate {
            count: count?.to(),
            period: period?,
        })
    }
}

impl From<&fairness::QueueSettings> for QueueSettings {
    fn from(settings: &fairness::QueueSettings) -> Self {
        let small = |number: u32| BoundedInt::new(number.into());
        let claims = &settings.claims;
        let max_depth = settings.max_depth.and_then(|depth| depth.try_into().ok());
        QueueSettings {
            max_depth: max_depth.and_then(BoundedInt::new),
            concurrency: settings.concurrency.and_then(small),
            rate: settings.rate.map(|rate| QueueRate {
                count: small(rate.count),
                period: Some(DurationText(rate.period)),
                period_ms: None,
            }),
            retry: claims.retry.as_deref().map(Retry::from),
            retry_fetch_ratio: claims.retry_fetch_ratio.map(FetchRatio),
            fresh_reserve: claims.fresh_reserve.and_then(|n| BoundedInt::new(n.into())),
            max_inflight_retries: claims.max_inflight_retries.and_then(small),
            retry_lane: claims.retry_lane.and_then(small),
            weight: claims.weight.and_then(|n| BoundedInt::new(n.into())),
        }
    }
}

impl Serialize for FetchRatio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(ratio) => serializer.serialize_f64(ratio.get()),
            None => serializer.serialize_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for FetchRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NumberOrOther {
            Number(f64),
            Other(serde_json::Value),
        }
        match NumberOrOther::deserialize(deserializer)? {
            NumberOrOther::Number(number) => match Ratio::new(number) {
                Ok(ratio) => Ok(FetchRatio(Some(ratio))),
                Err(invalid) => Err(de::Error::custom(format_args!(
                    "the value {}",
                    invalid.rule()
                ))),
            },
            NumberOrOther::Other(word) if word == "off" => Ok(FetchRatio(None)),
            NumberOrOther::Other(_) => {
                let rule = "the value must be a number from 0 to 1, or \"off\"";
                Err(de::Error::custom(rule))
            }
        }
    }
}

impl JsonSchema for FetchRatio {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FetchRatio".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"enum": ["off"]}],
        })
    }
}

/// A queue.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// Name of the queue.
    pub name: QueueName,
    /// Number of waiting jobs.
    pub depth: Count,
    /// Number of jobs in each state.
    pub counts: QueueCounts,
    /// What this node observed in the last minute.
    pub last_minute: LastMinute,
    /// Since when the oldest ready job is due.
    pub oldest_ready_at: Option<Timestamp>,
    /// How long the oldest ready job has been due, in milliseconds.
    pub oldest_ready_ms: Option<Count>,
    /// Who paused the queue, when and why. Null if it is not paused.
    pub paused: Option<QueuePause>,
    /// Settings of the queue.
    pub settings: QueueSettings,
    /// True if the server cannot read the settings, because a newer version may have written them.
    /// It uses the defaults; if it cannot read `max_depth`, `concurrency` or `rate`, it pauses the
    /// queue. PUT settings replaces them.
    pub settings_unreadable: bool,
}

/// Number of jobs of a queue in each state.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct QueueCounts {
    /// Waiting and not yet due.
    pub scheduled: Count,
    /// Waiting and due.
    pub ready: Count,
    /// Waiting for a retry, whether due or not.
    pub retrying: Count,
    /// Running.
    pub running: Count,
    /// Succeeded and not yet removed.
    pub succeeded: Count,
    /// Dead.
    pub dead: Count,
    /// Cancelled and not yet removed.
    pub cancelled: Count,
}

/// What happened in a queue in the last minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct LastMinute {
    /// Number of created jobs.
    pub enqueued: Count,
    /// Number of attempts that succeeded.
    pub succeeded: Count,
    /// Number of attempts that failed, timed out or were lost.
    pub failed: Count,
    /// Number of retries that were scheduled.
    pub retried: Count,
    /// Number of jobs that died.
    pub dead: Count,
}

/// Who paused a queue, when and why.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct QueuePause {
    /// Name of the key that paused the queue.
    pub by: String,
    /// When the queue was paused.
    pub at: Timestamp,
    /// Why the queue was paused. Null if no reason was given.
    #[serde(default)]
    pub reason: Option<String>,
}

request! {
    /// Why to pause a queue.
    pub struct PauseQueue {
        /// Reason for other operators, at most 500 characters. If the queue is paused already, only
        /// its reason changes. Default: none, or the reason that the pause has.
        pub reason: Text<1, 500>,
    }
}

plain_body!(PauseQueue);

/// Whether to create a missing queue.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateQueue {
    /// Create the queue if it does not exist. Otherwise, the response is 404. Default: `false`.
    pub create: Option<bool>,
}

crate::plain_body!(CreateQueue);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::{BodyRefused, read_body};

    fn read(value: &serde_json::Value) -> Result<fairness::QueueSettings, Vec<String>> {
        let read = read_body::<QueueSettings>(&value.to_string(), Timestamp::UNIX_EPOCH);
        read.map_err(|refused| match refused {
            BodyRefused::Invalid(problems) => problems
                .iter()
                .map(|problem| problem.field().to_owned())
                .collect(),
            BodyRefused::Malformed(malformed) => vec![malformed.to_string()],
        })
    }

    #[test]
    fn all_settings_are_read_and_written_back() {
        let all = json!({
            "max_depth": 5, "concurrency": 2, "rate": {"count": 3, "period": "1m"},
            "retry": "patient", "retry_fetch_ratio": 0.5, "fresh_reserve": 0,
            "max_inflight_retries": 3, "retry_lane": 4, "weight": 5,
        });
        let settings = read(&all).unwrap();
        assert_eq!(settings.rate.unwrap().period, Duration::from_secs(60));
        assert_eq!(settings.claims.fresh_reserve, Some(0));
        assert_eq!(
            serde_json::to_value(QueueSettings::from(&settings)).unwrap(),
            all
        );
        let policy = json!({
            "max_attempts": 3, "backoff": {"type": "constant", "delay": "1s"}, "jitter": {"type": "none"},
        });
        let settings = read(&json!({"retry": policy, "retry_fetch_ratio": "off"})).unwrap();
        let written = serde_json::to_value(QueueSettings::from(&settings)).unwrap();
        assert_eq!(
            (&written["retry"], &written["retry_fetch_ratio"]),
            (&policy, &json!("off"))
        );
        assert_eq!(
            written["max_depth"],
            json!(null),
            "a missing setting is null"
        );
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (value, fields) in [
            (
                json!({"max_depth": 0, "concurrency": -1}),
                &["max_depth", "concurrency"][..],
            ),
            (
                json!({"rate": {"count": 1}, "colour": 1}),
                &["colour", "rate.period"],
            ),
            (
                json!({"rate": {"period": "0s"}}),
                &["rate.count", "rate.period"],
            ),
            (json!({"retry_fetch_ratio": 2}), &["retry_fetch_ratio"]),
            (json!({"retry": "fast"}), &["retry"]),
            (
                json!({"retry": {"backoff": {"type": "odd"}, "jitter": {"type": "odd"}, "x": 1}}),
                &["retry.backoff.type", "retry.jitter.type", "retry.x"],
            ),
            (json!({"retry": {"max_attempts": 3}}), &["retry.backoff"]),
            (
                json!({"retry": {"backoff": {"type": "exponential", "base": "5s", "max": "1s"}}}),
                &["retry.backoff.max"],
            ),
        ] {
            let mut refused = read(&value).unwrap_err();
            let mut fields: Vec<&str> = fields.to_vec();
            refused.sort();
            fields.sort_unstable();
            assert_eq!(refused, fields, "{value}");
        }
    }
}
