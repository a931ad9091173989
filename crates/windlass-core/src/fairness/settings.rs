//! Claim settings that operators set per queue. They apply to every worker of the queue.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Guards, Rate, Ratio, RetryLane};
use crate::Invalid;
use crate::fields::Fields;
use crate::retry::RetryPolicy;

/// The largest weight of a queue.
pub const WEIGHT_MAX: u32 = 1000;

/// The settings of a queue, over all workers and nodes. What is not set is not bounded, or at its
/// default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueSettings {
    /// At most this many jobs wait in it: a further enqueue is refused.
    pub max_depth: Option<u64>,
    /// At most this many of its jobs run at once.
    pub concurrency: Option<u32>,
    /// At most this many of its jobs start in each period.
    pub rate: Option<Rate>,
    /// How every worker claims its jobs.
    pub claims: ClaimSettings,
}

/// How a queue is claimed, as operators set it. `None` keeps the worker's own setting.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClaimSettings {
    /// The retry policy of jobs that get none from the job or its kind.
    pub retry: Option<Arc<RetryPolicy>>,
    /// The share of the slots that retries get while new jobs and retries both wait; `Some(None)`
    /// claims strictly by priority.
    pub retry_fetch_ratio: Option<Option<Ratio>>,
    /// How many slots of a worker never run a retry.
    pub fresh_reserve: Option<u32>,
    /// The most retries that run at once in the queue, across all nodes.
    pub max_inflight_retries: Option<u32>,
    /// In each worker, run retries in a separate pool of this size.
    pub retry_lane: Option<u32>,
    /// The share of a worker's slots, relative to the weights of its other queues.
    pub weight: Option<u32>,
}

impl ClaimSettings {
    /// Reads the settings from the fields of an object. `null` means not set.
    pub fn read(fields: &mut Fields<'_>) -> Result<Self, Invalid> {
        let policy = fields.value("retry").map(RetryPolicy::from_json);
        let policy = policy.transpose().map_err(|error| error.within("retry"))?;
        Ok(ClaimSettings {
            retry: policy.map(Arc::new),
            retry_fetch_ratio: read_ratio(fields)?,
            fresh_reserve: number(fields, "fresh_reserve", 0, u32::MAX)?,
            max_inflight_retries: number(fields, "max_inflight_retries", 1, u32::MAX)?,
            retry_lane: number(fields, "retry_lane", 1, u32::MAX)?,
            weight: number(fields, "weight", 1, WEIGHT_MAX)?,
        })
    }

    /// Reads the stored settings of a queue. Ignores unknown fields: the same object holds other
    /// settings, and a newer version may add more.
    pub fn from_stored(stored: &Value) -> Result<Self, Invalid> {
        ClaimSettings::read(&mut Fields::new(stored)?)
    }

    /// Writes the fields that [`ClaimSettings::read`] reads; `null` means not set.
    pub fn to_json(&self) -> Map<String, Value> {
        let retry = self.retry.as_ref().map(|policy| match policy.preset() {
            Some(preset) => Value::from(preset.name()),
            None => policy.to_json(),
        });
        let ratio = self.retry_fetch_ratio.map(|ratio| match ratio {
            Some(ratio) => ratio.get().into(),
            None => Value::from("off"),
        });
        let fields = [
            ("retry", json!(retry)),
            ("retry_fetch_ratio", json!(ratio)),
            ("fresh_reserve", json!(self.fresh_reserve)),
            ("max_inflight_retries", json!(self.max_inflight_retries)),
            ("retry_lane", json!(self.retry_lane)),
            ("weight", json!(self.weight)),
        ];
        let named = fields.map(|(name, value)| (name.to_owned(), value));
        named.into_iter().collect()
    }

    /// Applies these settings on top of a worker's own guards.
    pub fn over(&self, own: Guards) -> Guards {
        let lane = |concurrency| RetryLane {
            concurrency,
            rate: own.retry_lane.and_then(|lane| lane.rate),
        };
        Guards {
            retry_fetch_ratio: self.retry_fetch_ratio.unwrap_or(own.retry_fetch_ratio),
            fresh_reserve: self.fresh_reserve.or(own.fresh_reserve),
            max_inflight_retries: self.max_inflight_retries.or(own.max_inflight_retries),
            retry_lane: self.retry_lane.map(lane).or(own.retry_lane),
        }
    }
}

fn read_ratio(fields: &mut Fields<'_>) -> Result<Option<Option<Ratio>>, Invalid> {
    match fields.value("retry_fetch_ratio") {
        None => Ok(None),
        Some(Value::String(off)) if off == "off" => Ok(Some(None)),
        Some(value) => {
            let rule = "must be a number from 0 to 1, or \"off\"";
            let wrong = || Invalid::new("retry_fetch_ratio", rule);
            Ok(Some(Some(Ratio::new(value.as_f64().ok_or_else(wrong)?)?)))
        }
    }
}

fn number(fields: &mut Fields<'_>, name: &str, min: i64, max: u32) -> Result<Option<u32>, Invalid> {
    let number = fields.integer(name, min, max.into())?;
    Ok(number.and_then(|number| number.try_into().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn read(value: &Value) -> Result<ClaimSettings, Invalid> {
        let mut fields = Fields::new(value)?;
        let settings = ClaimSettings::read(&mut fields)?;
        fields.finish()?;
        Ok(settings)
    }

    #[test]
    fn settings_are_read_written_back_and_laid_over_those_of_a_worker() {
        let all = json!({
            "retry": "patient", "retry_fetch_ratio": 0.5, "fresh_reserve": 2, "max_inflight_retries": 3, "retry_lane": 4, "weight": 5,
        });
        let settings = read(&all).unwrap();
        assert_eq!(Value::Object(settings.to_json()), all);
        let rate = Some(Rate {
            count: 9,
            period: Duration::from_secs(1),
        });
        let own = Guards {
            retry_fetch_ratio: None,
            fresh_reserve: Some(7),
            max_inflight_retries: Some(8),
            retry_lane: Some(RetryLane {
                concurrency: 1,
                rate,
            }),
        };
        let expected = Guards {
            retry_fetch_ratio: Some(Ratio::new(0.5).unwrap()),
            fresh_reserve: Some(2),
            max_inflight_retries: Some(3),
            retry_lane: Some(RetryLane {
                concurrency: 4,
                rate,
            }),
        };
        assert_eq!(settings.over(own), expected);
        assert_eq!(ClaimSettings::default().over(own), own, "nothing is set");
        let nothing = ClaimSettings::default();
        assert_eq!(read(&Value::Object(nothing.to_json())).unwrap(), nothing);
        for weight in [0, 1001] {
            assert_eq!(
                read(&json!({"weight": weight})).unwrap_err().field(),
                "weight"
            );
        }
        let off = read(&json!({"retry_fetch_ratio": "off"})).unwrap();
        assert_eq!(off.over(Guards::default()).retry_fetch_ratio, None);
    }
}
