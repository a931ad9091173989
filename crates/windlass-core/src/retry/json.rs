//! Retry policies as JSON: the name of a preset, a whole policy, or a preset with some values
//! overridden.

mod backoff;
mod jitter;

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};

use super::{ATTEMPTS_CEILING, AttemptLimit, Backoff, Jitter, Preset, RetryPolicy};
use crate::Invalid;
use crate::duration::format_duration;
use crate::fields::Fields;

impl RetryPolicy {
    /// Reads a policy in one of three forms. The error names the field and the rule.
    ///
    /// - `"webhook"`: a preset.
    /// - `{"max_attempts": 5, "backoff": {"type": "exponential", "base": "1s", …}, "jitter": {…}}`:
    ///   a whole policy.
    /// - `{"preset": "full-jitter", "max_retries": 9, "base_ms": 250}`: a preset with some values
    ///   overridden.
    pub fn from_json(value: &Value) -> Result<Self, Invalid> {
        if let Value::String(name) = value {
            return Ok(name.parse::<Preset>()?.policy());
        }
        let mut fields = Fields::new(value)?;
        let preset = fields.parsed("preset", str::parse::<Preset>)?;
        let given = PolicyFields::read(&mut fields)?;
        fields.finish()?;
        given.policy(preset)
    }

    /// Writes the whole policy, without reference to a preset.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        let limit = self.max_attempts().map_or(0, AttemptLimit::get);
        map.insert("max_attempts".into(), limit.into());
        map.insert("backoff".into(), backoff::to_json(self.backoff()));
        map.insert("jitter".into(), jitter::to_json(self.jitter()));
        if let Some(max_elapsed) = self.max_elapsed() {
            map.insert("max_elapsed".into(), format_duration(max_elapsed).into());
        }
        Value::Object(map)
    }
}

impl Serialize for RetryPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.to_json();
        let entries = value.as_object().into_iter().flatten();
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in entries {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for RetryPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        RetryPolicy::from_json(&value).map_err(de::Error::custom)
    }
}

/// The fields of a policy object that were given.
struct PolicyFields {
    limit: Option<Option<AttemptLimit>>,
    backoff: Option<Backoff>,
    jitter: Option<Jitter>,
    max_elapsed: Option<Duration>,
    base: Option<Duration>,
    max: Option<Duration>,
    multiplier: Option<f64>,
}

impl PolicyFields {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Invalid> {
        let max_attempts = fields.integer("max_attempts", 0, ATTEMPTS_CEILING.into())?;
        let max_retries = fields.integer("max_retries", 0, i64::from(ATTEMPTS_CEILING) - 1)?;
        let limit = AttemptLimit::from_either(max_attempts, max_retries)?;
        let limit_given = max_attempts.is_some() || max_retries.is_some();
        Ok(PolicyFields {
            limit: limit_given.then_some(limit),
            backoff: read_part(fields, "backoff", backoff::from_json)?,
            jitter: read_part(fields, "jitter", jitter::from_json)?,
            max_elapsed: fields.duration("max_elapsed")?,
            base: fields.duration("base")?,
            max: fields.duration("max")?,
            multiplier: fields.number("multiplier")?,
        })
    }

    fn policy(self, preset: Option<Preset>) -> Result<RetryPolicy, Invalid> {
        let preset_policy = preset.map(Preset::policy);
        let backoff = match (self.backoff.clone(), &preset_policy) {
            (Some(backoff), _) => backoff,
            (None, Some(policy)) => policy.backoff().clone(),
            (None, None) => {
                let rule = "is required unless `preset` is given";
                return Err(Invalid::new("backoff", rule));
            }
        };
        let overridden = self.override_backoff(backoff, preset)?;
        let preset_jitter = preset_policy.as_ref().map(RetryPolicy::jitter);
        let jitter = self.jitter.or(preset_jitter).unwrap_or(Jitter::None);
        let preset_limit = preset_policy.as_ref().and_then(RetryPolicy::max_attempts);
        let policy = RetryPolicy::new(overridden, jitter)
            .map_err(|error| self.without_prefix(error))?
            .with_limit(self.limit.unwrap_or(preset_limit));
        match self.max_elapsed {
            Some(max_elapsed) => policy.with_max_elapsed(max_elapsed),
            None => Ok(policy),
        }
    }

    /// Applies `base`, `max` and `multiplier`, given next to `preset`, to the backoff of the
    /// preset.
    fn override_backoff(
        &self,
        mut backoff: Backoff,
        preset: Option<Preset>,
    ) -> Result<Backoff, Invalid> {
        let overrides = [
            ("base", self.base.is_some()),
            ("max", self.max.is_some()),
            ("multiplier", self.multiplier.is_some()),
        ];
        let Some((first, _)) = overrides.into_iter().find(|(_, given)| *given) else {
            return Ok(backoff);
        };
        if preset.is_none() || self.backoff.is_some() {
            let rule =
                "is only allowed next to `preset`; in a whole policy put it inside `backoff`";
            return Err(Invalid::new(first, rule));
        }
        match &mut backoff {
            Backoff::Exponential {
                base,
                multiplier,
                max,
            } => {
                *multiplier = self.multiplier.unwrap_or(*multiplier);
                *base = self.base.unwrap_or(*base);
                *max = self.max.unwrap_or(*max);
            }
            Backoff::Polynomial { base, max, .. } if self.multiplier.is_none() => {
                *base = self.base.unwrap_or(*base);
                *max = self.max.unwrap_or(*max);
            }
            _ => {
                let rule = format!(
                    "cannot be overridden: the backoff of this preset is of type {}",
                    backoff::type_name(&backoff)
                );
                return Err(Invalid::new(first, rule));
            }
        }
        Ok(backoff)
    }

    /// Names an overridden value as the user wrote it: next to `preset`, not inside `backoff`.
    fn without_prefix(&self, error: Invalid) -> Invalid {
        match error.field().strip_prefix("backoff.") {
            Some(field) if self.backoff.is_none() => Invalid::new(field, error.rule()),
            _ => error,
        }
    }
}

fn read_part<T>(
    fields: &mut Fields<'_>,
    name: &str,
    read: impl FnOnce(&Value) -> Result<T, Invalid>,
) -> Result<Option<T>, Invalid> {
    let part = fields.value(name).map(read).transpose();
    part.map_err(|error| error.within(name))
}

fn required<T>(value: Option<T>, field: &str) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "is required"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn refused(value: Value) -> Invalid {
        RetryPolicy::from_json(&value).expect_err(&value.to_string())
    }

    #[test]
    fn a_policy_is_written_as_specified_and_read_back() {
        let value = json!({
            "max_attempts": 25,
            "backoff": {"type": "exponential", "base": "200ms", "multiplier": 2.0, "max": "5s"},
            "jitter": {"type": "proportional", "ratio": 0.2},
            "max_elapsed": "1d",
        });
        let policy = RetryPolicy::from_json(&value).unwrap();
        assert_eq!(policy.to_json(), value);
        assert_eq!(serde_json::to_value(&policy).unwrap(), value);
        assert_eq!(
            serde_json::from_value::<RetryPolicy>(value).unwrap(),
            policy
        );
        for preset in Preset::ALL {
            let json = preset.policy().to_json();
            assert_eq!(RetryPolicy::from_json(&json), Ok(preset.policy()));
        }
    }

    #[test]
    fn every_form_is_read_back() {
        for backoff in [
            json!({"type": "constant", "delay": "1m 30s"}),
            json!({"type": "linear", "base": "1s", "step": "2s", "max": "1d"}),
            json!({"type": "polynomial", "base": "1s", "power": 1.5, "max": "7d"}),
            json!({"type": "steps", "delays": ["0s", "1s", "5m"]}),
        ] {
            for jitter in ["none", "full", "equal"] {
                let value =
                    json!({"max_attempts": 0, "backoff": backoff, "jitter": {"type": jitter}});
                assert_eq!(RetryPolicy::from_json(&value).unwrap().to_json(), value);
            }
        }
        for jitter in [
            json!({"type": "upward", "ratio": 0.5}),
            json!({"type": "decorrelated"}),
        ] {
            let backoff =
                json!({"type": "exponential", "base": "1s", "multiplier": 3.0, "max": "1h"});
            let value = json!({"max_attempts": 7, "backoff": backoff, "jitter": jitter});
            assert_eq!(RetryPolicy::from_json(&value).unwrap().to_json(), value);
        }
    }

    #[test]
    fn steps_may_be_milliseconds() {
        let value = json!({"backoff": {"type": "steps", "delays_ms": [5, 1500]}});
        let policy = RetryPolicy::from_json(&value).unwrap();
        assert_eq!(
            policy.to_json()["backoff"]["delays"],
            json!(["5ms", "1s 500ms"])
        );
        for (field, backoff) in [
            (
                "delays_ms",
                json!({"type": "steps", "delays_ms": [5], "delays": ["5ms"]}),
            ),
            (
                "delays_ms[1]",
                json!({"type": "steps", "delays_ms": [5, -1]}),
            ),
        ] {
            assert_eq!(
                refused(json!({"backoff": backoff})).field(),
                format!("backoff.{field}")
            );
        }
    }

    #[test]
    fn omitted_fields_have_their_defaults() {
        let value = json!({"backoff": {"type": "exponential", "base_ms": 200}, "jitter": "full"});
        let policy = RetryPolicy::from_json(&value).unwrap();
        assert_eq!(
            policy.to_json(),
            json!({
                "max_attempts": 0,
                "backoff": {"type": "exponential", "base": "200ms", "multiplier": 2.0, "max": "1d"},
                "jitter": {"type": "full"},
            })
        );
        for kind in ["linear", "polynomial"] {
            let backoff = json!({"type": kind, "base": "1s", "step": "1s", "power": 2});
            let mut backoff = backoff.as_object().unwrap().clone();
            backoff.remove(if kind == "linear" { "power" } else { "step" });
            let policy = RetryPolicy::from_json(&json!({"backoff": backoff})).unwrap();
            assert_eq!(policy.to_json()["backoff"]["max"], "1d");
            assert_eq!(policy.jitter(), Jitter::None);
        }
    }

    #[test]
    fn single_values_of_a_preset_can_be_overridden() {
        let value =
            json!({"preset": "full-jitter", "max_retries": 9, "base_ms": 250, "max_ms": 10_000});
        let policy = RetryPolicy::from_json(&value).unwrap();
        assert_eq!(
            policy.to_json(),
            json!({
                "max_attempts": 10,
                "backoff": {"type": "exponential", "base": "250ms", "multiplier": 2.0, "max": "10s"},
                "jitter": {"type": "full"},
            })
        );
        let value =
            json!({"preset": "standard", "jitter": "none", "multiplier": 3, "max_elapsed": "1h"});
        let policy = RetryPolicy::from_json(&value).unwrap();
        assert_eq!(policy.jitter(), Jitter::None);
        assert_eq!(policy.max_attempts().unwrap().get(), 25);
        assert_eq!(policy.max_elapsed(), Some(Duration::from_secs(3600)));
        assert_eq!(policy.backoff().nominal(2), Duration::from_millis(600));
        let value = json!({"preset": "persistent", "base": "2s", "max": "1d"});
        let policy = RetryPolicy::from_json(&value).unwrap();
        assert_eq!(policy.backoff().nominal(1), Duration::from_secs(2));
        assert_eq!(policy.backoff().nominal(1000), Duration::from_secs(86_400));
        let value = json!({"preset": "webhook", "max_attempts": 0});
        assert_eq!(RetryPolicy::from_json(&value).unwrap().max_attempts(), None);
        let value = json!({"preset": "none", "backoff": {"type": "constant", "delay": "1s"}});
        assert_eq!(
            RetryPolicy::from_json(&value).unwrap().max_attempts(),
            Some(AttemptLimit::ONE)
        );
        assert_eq!(
            RetryPolicy::from_json(&json!("webhook")),
            Ok(Preset::Webhook.policy())
        );
    }

    #[test]
    fn bad_input_is_refused_by_the_name_of_its_field() {
        let exponential = |more: Value| {
            let mut backoff = json!({"type": "exponential", "base": "1s"});
            backoff
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            json!({ "backoff": backoff })
        };
        let with_jitter = |jitter: Value| json!({"preset": "standard", "jitter": jitter});
        for (field, value) in [
            ("", json!(5)),
            ("", json!("standrad")),
            ("backoff", json!({})),
            ("backoff", json!({"backoff": "exponential"})),
            ("backoff.type", json!({"backoff": {}})),
            ("backoff.type", json!({"backoff": {"type": "cubic"}})),
            (
                "backoff.base",
                json!({"backoff": {"type": "linear", "step": "1s"}}),
            ),
            (
                "backoff.step",
                json!({"backoff": {"type": "linear", "base": "1s"}}),
            ),
            (
                "backoff.power",
                json!({"backoff": {"type": "polynomial", "base": "1s"}}),
            ),
            ("backoff.delay", json!({"backoff": {"type": "constant"}})),
            (
                "backoff.delay",
                json!({"backoff": {"type": "constant", "delay": "-1s"}}),
            ),
            (
                "backoff.delay_ms",
                json!({"backoff": {"type": "constant", "delay_ms": -1}}),
            ),
            (
                "backoff.delays",
                json!({"backoff": {"type": "steps", "delays": []}}),
            ),
            ("backoff.delays", json!({"backoff": {"type": "steps"}})),
            (
                "backoff.delays[1]",
                json!({"backoff": {"type": "steps", "delays": ["1s", 5]}}),
            ),
            ("backoff.max", exponential(json!({"max": "500ms"}))),
            (
                "backoff.multiplier",
                exponential(json!({"multiplier": 0.5})),
            ),
            (
                "backoff.multiplier",
                exponential(json!({"multiplier": "2"})),
            ),
            ("backoff.multiplyer", exponential(json!({"multiplyer": 2}))),
            ("jitter.type", with_jitter(json!("some"))),
            ("jitter.type", with_jitter(json!({}))),
            ("jitter.ratio", with_jitter(json!({"type": "proportional"}))),
            ("jitter.ratio", with_jitter(json!("upward"))),
            (
                "jitter.ratio",
                with_jitter(json!({"type": "upward", "ratio": 1.5})),
            ),
            (
                "jitter.ratio",
                with_jitter(json!({"type": "full", "ratio": 0.5})),
            ),
            ("jitter", with_jitter(json!(3))),
            (
                "max_attempts",
                json!({"preset": "standard", "max_attempts": -1}),
            ),
            (
                "max_attempts",
                json!({"preset": "standard", "max_attempts": 1001}),
            ),
            (
                "max_attempts",
                json!({"preset": "standard", "max_attempts": 1e300}),
            ),
            (
                "max_retries",
                json!({"preset": "standard", "max_retries": 1000}),
            ),
            (
                "max_retries",
                json!({"preset": "standard", "max_attempts": 3, "max_retries": 5}),
            ),
            (
                "max_elapsed",
                json!({"preset": "standard", "max_elapsed": "long"}),
            ),
            ("preset", json!({"preset": "fast"})),
            ("max", json!({"preset": "standard", "max_ms": 100})),
            ("base", json!({"preset": "immediate", "base": "1s"})),
            (
                "multiplier",
                json!({"preset": "persistent", "multiplier": 2}),
            ),
            (
                "base",
                json!({"base": "1s", "backoff": {"type": "constant", "delay": "1s"}}),
            ),
            (
                "max",
                json!({"preset": "standard", "max": "1s", "backoff": {"type": "constant", "delay": "1s"}}),
            ),
            (
                "base",
                json!({"preset": "standard", "base": "1s", "backoff": {"type": "exponential", "base": "1s"}}),
            ),
            (
                "max_atempts",
                json!({"preset": "standard", "max_atempts": 3}),
            ),
        ] {
            let refusal = refused(value.clone());
            assert_eq!(refusal.field(), field, "{value}: {refusal}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z0-9 -]{0,8}".prop_map(Value::from),
        ];
        let names =
            "(preset|backoff|jitter|type|base|max|ratio|delays|max_attempts|multiplier)(_ms)?";
        leaf.prop_recursive(3, 16, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(names, inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_json_panics(value in any_json()) {
            let _ = RetryPolicy::from_json(&value);
        }
    }
}
