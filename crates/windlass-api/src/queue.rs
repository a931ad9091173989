//! What is set about a queue.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use windlass_core::fairness::{Guards, Rate, Ratio};
use windlass_core::fields::Fields;
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, format_duration};

/// The settings of a queue, over all nodes. What is not set is not bounded, or at its default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueSettings {
    /// At most so many jobs wait in it.
    pub max_depth: Option<u64>,
    /// At most so many run at once.
    pub concurrency: Option<u32>,
    /// At most so many start in each period.
    pub rate: Option<Rate>,
    /// The policy of its jobs that have none of their own.
    pub retry: Option<Arc<RetryPolicy>>,
    /// How fresh work and retries share what is claimed over REST.
    pub guards: Guards,
}

impl QueueSettings {
    /// Reads all of them; what is not given is not set.
    pub fn from_fields(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let mut fields = Fields::of(map);
        let settings = QueueSettings {
            max_depth: count(&mut fields, "max_depth", i64::MAX)?.map(|n| n.unsigned_abs()),
            concurrency: small(&mut fields, "concurrency")?,
            rate: read_rate(&mut fields)?,
            retry: read_retry(&mut fields)?,
            guards: read_guards(&mut fields)?,
        };
        fields.finish()?;
        Ok(settings)
    }

    /// As JSON; what is not set is `null`.
    pub fn to_json(&self) -> Value {
        let ratio = self.guards.retry_fetch_ratio;
        json!({
            "max_depth": self.max_depth,
            "concurrency": self.concurrency,
            "rate": self.rate.map(|rate| json!({
                "count": rate.count, "period": format_duration(rate.period),
            })),
            "retry": self.retry.as_ref().map(|policy| match policy.preset() {
                Some(preset) => Value::from(preset.name()),
                None => policy.to_json(),
            }),
            "retry_fetch_ratio": ratio.map_or_else(|| Value::from("off"), |ratio| ratio.get().into()),
            "fresh_reserve": self.guards.fresh_reserve,
            "max_inflight_retries": self.guards.max_inflight_retries,
        })
    }
}

fn count(fields: &mut Fields<'_>, name: &str, max: i64) -> Result<Option<i64>, Invalid> {
    fields.integer(name, 1, max)
}

fn small(fields: &mut Fields<'_>, name: &str) -> Result<Option<u32>, Invalid> {
    let number = count(fields, name, u32::MAX.into())?;
    Ok(number.and_then(|number| number.try_into().ok()))
}

fn read_rate(fields: &mut Fields<'_>) -> Result<Option<Rate>, Invalid> {
    let Some(value) = fields.value("rate") else {
        return Ok(None);
    };
    let read = || {
        let mut fields = Fields::new(value)?;
        let required = |name: &str| Invalid::new(name, "is required");
        let count = small(&mut fields, "count")?.ok_or_else(|| required("count"))?;
        let period = fields
            .duration("period")?
            .ok_or_else(|| required("period"))?;
        if period.is_zero() {
            return Err(Invalid::new("period", "must be longer than nothing"));
        }
        fields.finish()?;
        Ok(Rate { count, period })
    };
    read().map(Some).map_err(|error| error.within("rate"))
}

fn read_retry(fields: &mut Fields<'_>) -> Result<Option<Arc<RetryPolicy>>, Invalid> {
    let policy = fields.value("retry").map(RetryPolicy::from_json);
    let policy = policy.transpose().map_err(|error| error.within("retry"))?;
    Ok(policy.map(Arc::new))
}

fn read_guards(fields: &mut Fields<'_>) -> Result<Guards, Invalid> {
    let plain = Guards::default();
    let ratio = match fields.value("retry_fetch_ratio") {
        None => plain.retry_fetch_ratio,
        Some(Value::String(off)) if off == "off" => None,
        Some(value) => {
            let wrong = || {
                let rule = "must be a number from 0 to 1, or \"off\"";
                Invalid::new("retry_fetch_ratio", rule)
            };
            Some(Ratio::new(value.as_f64().ok_or_else(wrong)?)?)
        }
    };
    let reserve = fields.integer("fresh_reserve", 0, u32::MAX.into())?;
    Ok(Guards {
        retry_fetch_ratio: ratio,
        fresh_reserve: reserve.and_then(|slots| slots.try_into().ok()),
        max_inflight_retries: small(fields, "max_inflight_retries")?,
        retry_lane: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<QueueSettings, Invalid> {
        QueueSettings::from_fields(value.as_object().unwrap())
    }

    #[test]
    fn settings_are_read_and_written_back() {
        let all = json!({
            "max_depth": 1000, "concurrency": 5, "rate": {"count": 10, "period": "1s"},
            "retry": "patient", "retry_fetch_ratio": 0.5, "fresh_reserve": 2, "max_inflight_retries": 3,
        });
        assert_eq!(read(&all).unwrap().to_json(), all);
        let plain = QueueSettings::default().to_json();
        assert_eq!(read(&plain).unwrap(), QueueSettings::default());
        assert_eq!(plain["retry_fetch_ratio"], 0.2);
        let off = read(&json!({"retry_fetch_ratio": "off"})).unwrap();
        assert_eq!(off.guards.retry_fetch_ratio, None);
        assert_eq!(read(&off.to_json()).unwrap(), off);
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (value, field) in [
            (json!({"max_depth": 0}), "max_depth"),
            (json!({"concurrency": -1}), "concurrency"),
            (json!({"rate": {"count": 1}}), "rate.period"),
            (json!({"rate": {"count": 1, "period": "0s"}}), "rate.period"),
            (json!({"rate": 5}), "rate"),
            (json!({"retry": "never"}), "retry"),
            (json!({"retry_fetch_ratio": 2}), "retry_fetch_ratio"),
            (json!({"retry_fetch_ratio": "on"}), "retry_fetch_ratio"),
            (json!({"max_inflight_retries": 0}), "max_inflight_retries"),
            (json!({"retry_lane": 1}), "retry_lane"),
        ] {
            assert_eq!(read(&value).unwrap_err().field(), field, "{value}");
        }
    }
}
