//! Queues: how they are, and what is set about them.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use windlass_core::fairness::{self, ClaimSettings, Rate, Ratio, WEIGHT_MAX};
use windlass_core::{JobId, QueueName, Timestamp, string_enum};

use crate::value::{Count, either_duration};
use crate::{Body, BoundedInt, Checks, DurationText, JobState, Millis, PageCursor, Retry};

/// A number of jobs that is at least 1.
type AtLeastOne = BoundedInt<1, { u32::MAX as i64 }>;

/// The settings of a queue, over all nodes. What is not set is not bounded, or at its default.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// At most this many jobs wait in it.
    pub max_depth: Option<BoundedInt<1, { i64::MAX }>>,
    /// At most this many run at once.
    pub concurrency: Option<AtLeastOne>,
    /// At most this many start in each period.
    pub rate: Option<QueueRate>,
    /// The policy of its jobs that have none of their own, and no kind with one.
    pub retry: Option<Retry>,
    /// The share of the slots that retries get while fresh jobs wait too; `off` for strict priority
    /// over both.
    pub retry_fetch_ratio: Option<FetchRatio>,
    /// This many slots of a worker never hold a retry.
    pub fresh_reserve: Option<BoundedInt<0, { u32::MAX as i64 }>>,
    /// At most this many retries run at once in the queue, across all nodes.
    pub max_inflight_retries: Option<AtLeastOne>,
    /// In each worker, this many retries run at once in a pool of their own; over REST, at most this
    /// many of its jobs are retries.
    pub retry_lane: Option<AtLeastOne>,
    /// Its share of a worker's slots next to other queues; 1 if not set.
    pub weight: Option<BoundedInt<1, { WEIGHT_MAX as i64 }>>,
}

/// How many jobs of a queue may start in each period.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct QueueRate {
    /// At most this many.
    #[schemars(required)]
    pub count: Option<AtLeastOne>,
    /// In any window of this length.
    pub period: Option<DurationText>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<Millis>,
}

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
            checks.refuse("period", "must be longer than nothing");
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
    /// Its name.
    pub name: QueueName,
    /// How many jobs wait in it.
    pub depth: Count,
    /// How many of its jobs are in each state.
    pub counts: QueueCounts,
    /// What this node saw in the last minute.
    pub last_minute: LastMinute,
    /// Since when its oldest ready job is due.
    pub oldest_ready_at: Option<Timestamp>,
    /// For how long that is, in milliseconds.
    pub oldest_ready_ms: Option<Count>,
    /// Who paused it, if it is paused.
    pub paused: Option<QueuePause>,
    /// What is set about it.
    pub settings: QueueSettings,
    /// The server cannot read all settings of the queue: a newer version may have written them.
    /// Defaults hold for what it cannot read; PUT settings replaces them.
    pub settings_unreadable: bool,
}

/// How many jobs of a queue are in each state.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct QueueCounts {
    /// Waiting, and not due yet.
    pub scheduled: Count,
    /// Waiting, and due.
    pub ready: Count,
    /// Waiting for a retry, due or not.
    pub retrying: Count,
    /// Running.
    pub running: Count,
    /// Succeeded, and not removed yet.
    pub succeeded: Count,
    /// Dead.
    pub dead: Count,
    /// Cancelled, and not removed yet.
    pub cancelled: Count,
}

/// How often each thing happened in a queue in the last minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct LastMinute {
    /// Jobs that were enqueued.
    pub enqueued: Count,
    /// Attempts that succeeded.
    pub succeeded: Count,
    /// Attempts that failed, timed out or were lost.
    pub failed: Count,
    /// Retries that were scheduled.
    pub retried: Count,
    /// Jobs that died.
    pub dead: Count,
}

/// A pause of a queue.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct QueuePause {
    /// Who paused it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// Parameters of routes that may set up a queue.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateQueue {
    /// Set up a queue that does not exist yet; without it, such a queue is 404.
    pub create: Option<bool>,
}

/// Which jobs of a queue are removed. It must be spelled out: one state, and what stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeQueue {
    /// Jobs in this state.
    #[schemars(required)]
    pub state: Option<PurgedState>,
    /// Only jobs that finished before this instant.
    pub finished_before: Option<Timestamp>,
    /// One pass removes at most this many. 1000.
    pub limit: Option<BoundedInt<1, 1000>>,
    /// `next_cursor` of the pass before.
    pub cursor: Option<PageCursor<JobId>>,
}

/// A state from which jobs can be removed.
#[derive(Debug, Clone, Copy)]
pub enum PurgedState {
    /// Succeeded.
    Succeeded,
    /// Dead.
    Dead,
    /// Cancelled.
    Cancelled,
}

string_enum!(PurgedState {
    Succeeded = "succeeded",
    Dead = "dead",
    Cancelled = "cancelled",
});

impl From<PurgedState> for JobState {
    fn from(state: PurgedState) -> Self {
        match state {
            PurgedState::Succeeded => JobState::Succeeded,
            PurgedState::Dead => JobState::Dead,
            PurgedState::Cancelled => JobState::Cancelled,
        }
    }
}

impl Body for PurgeQueue {
    type Checked = (PurgedState, Self);

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        Some((checks.required("state", self.state)?, self))
    }
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
        assert_eq!(written["max_depth"], json!(null), "what is not set is null");
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
            let mut found = read(&value).unwrap_err();
            let mut fields: Vec<&str> = fields.to_vec();
            found.sort();
            fields.sort_unstable();
            assert_eq!(found, fields, "{value}");
        }
    }
}
