//! What is set about a queue.

use serde_json::{Map, Value, json};
use windlass_core::fairness::{ClaimSettings, Guards, Rate};
use windlass_core::fields::Fields;
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
    /// How every worker claims its jobs.
    pub claims: ClaimSettings,
}

impl QueueSettings {
    /// Reads all of them; what is not given is not set.
    pub fn from_fields(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let mut fields = Fields::of(map);
        let settings = QueueSettings {
            max_depth: count(&mut fields, "max_depth", i64::MAX)?.map(|n| n.unsigned_abs()),
            concurrency: small(&mut fields, "concurrency")?,
            rate: read_rate(&mut fields)?,
            claims: ClaimSettings::read(&mut fields)?,
        };
        fields.finish()?;
        Ok(settings)
    }

    /// As JSON; what is not set is `null`.
    pub fn to_json(&self) -> Value {
        let rate = self.rate.map(|rate| {
            let period = format_duration(rate.period);
            json!({"count": rate.count, "period": period})
        });
        let mut fields = self.claims.to_json();
        fields.insert("max_depth".to_owned(), json!(self.max_depth));
        fields.insert("concurrency".to_owned(), json!(self.concurrency));
        fields.insert("rate".to_owned(), json!(rate));
        Value::Object(fields)
    }

    /// The guards of a claim by one who has none of his own.
    pub fn guards(&self) -> Guards {
        self.claims.over(Guards::default())
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
            "retry_lane": 4,
        });
        assert_eq!(read(&all).unwrap().to_json(), all);
        let plain = QueueSettings::default().to_json();
        assert_eq!(read(&plain).unwrap(), QueueSettings::default());
        assert_eq!(plain["retry_fetch_ratio"], Value::Null);
        assert_eq!(QueueSettings::default().guards(), Guards::default());
        let off = read(&json!({"retry_fetch_ratio": "off"})).unwrap();
        assert_eq!(off.guards().retry_fetch_ratio, None);
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
            (json!({"retry_lane": 0}), "retry_lane"),
        ] {
            assert_eq!(read(&value).unwrap_err().field(), field, "{value}");
        }
    }
}
