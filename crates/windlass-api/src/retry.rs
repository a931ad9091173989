//! Retry policies as clients write and read them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, de};
use windlass_core::retry::{Preset, RetryPolicy};

use crate::{Checks, Millis, Span, Whole};

/// The name of a preset, or a whole policy.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Retry {
    /// A policy by its name.
    Preset(Preset),
    /// A policy in full, or a preset with some values overridden.
    Policy(Box<Policy>),
}

/// A retry policy: `max_attempts`, `backoff`, `jitter` and `max_elapsed`, or a `preset` with some
/// values overridden.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RetryPolicy")]
pub struct Policy {
    /// The preset that everything comes from which is not given here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// How many attempts may fail in total; 0 leaves the limit to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<Whole<0, 1000>>,
    /// One less than `max_attempts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<Whole<0, 999>>,
    /// How the delay grows. Required unless a `preset` is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// How the delay is spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,
    /// No retry starts later than this after the first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_elapsed: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_elapsed_ms: Option<Millis>,
    /// Overrides the `base` of the preset's backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ms: Option<Millis>,
    /// Overrides the `max` of the preset's backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<Millis>,
    /// Overrides the `multiplier` of the preset's backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
}

/// How the delay grows with the number of failures. Which fields go with which `type`:
/// `constant` has `delay`; `linear` has `base`, `step`, `max`; `exponential` has `base`,
/// `multiplier`, `max`; `polynomial` has `base`, `power`, `max`; `steps` has `delays`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// The formula.
    #[serde(rename = "type")]
    #[schemars(required)]
    pub formula: Option<BackoffType>,
    /// The delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Millis>,
    /// The first delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ms: Option<Millis>,
    /// What each failure adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<Millis>,
    /// By what each failure multiplies the delay; 2 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    /// The power to which the number of failures is raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// The longest nominal delay; 24 h if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Span>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<Millis>,
    /// The delays, of which the last one repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<Vec<Span>>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays_ms: Option<Vec<Millis>>,
}

/// How a delay grows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum BackoffType {
    /// It stays the same.
    Constant,
    /// `base + step·(n-1)`.
    Linear,
    /// `base·multiplier^(n-1)`.
    Exponential,
    /// `base·n^power`.
    Polynomial,
    /// The n-th of a list.
    Steps,
}

/// How a delay is spread, by its name or as an object; `proportional` and `upward` need a `ratio`.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Jitter {
    /// By its name.
    Name(JitterType),
    /// With its ratio.
    Object(JitterObject),
}

/// A jitter with its ratio.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct JitterObject {
    /// Which one.
    #[serde(rename = "type")]
    pub kind: JitterType,
    /// From 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// How a delay is spread.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum JitterType {
    /// Not at all.
    None,
    /// By a share of it in both directions.
    Proportional,
    /// From zero to all of it.
    Full,
    /// From half of it to all of it.
    Equal,
    /// By a share of it, upwards.
    Upward,
    /// From `base` to three times the delay before.
    Decorrelated,
}

impl Retry {
    /// The policy that is meant; the problems of its fields are reported within the field that
    /// `checks` is at.
    pub fn check(self, checks: &mut Checks) -> Option<Arc<RetryPolicy>> {
        let policy = match self {
            Retry::Preset(preset) => Ok(preset.policy()),
            Retry::Policy(policy) => RetryPolicy::from_json(&json_of(&policy)),
        };
        checks.keep(policy).map(Arc::new)
    }
}

impl From<&RetryPolicy> for Retry {
    fn from(policy: &RetryPolicy) -> Self {
        match policy.preset() {
            Some(preset) => Retry::Preset(preset),
            None => Retry::Policy(Box::new(Policy::from(policy))),
        }
    }
}

impl From<&RetryPolicy> for Policy {
    fn from(policy: &RetryPolicy) -> Self {
        let read = serde_json::from_value(policy.to_json());
        read.expect("a policy is written as it is read")
    }
}

/// Both forms are the same JSON, and `core` alone knows the rules between its fields.
fn json_of(policy: &Policy) -> serde_json::Value {
    serde_json::to_value(policy).expect("text and numbers are JSON")
}

/// A word, or an object.
struct WordOr<W, O>(&'static str, std::marker::PhantomData<(W, O)>);

impl<'de, W: Deserialize<'de>, O: Deserialize<'de>> de::Visitor<'de> for WordOr<W, O> {
    type Value = Result<W, O>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
        let word: de::value::StrDeserializer<'_, E> = de::IntoDeserializer::into_deserializer(word);
        W::deserialize(word).map(Ok)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        O::deserialize(MapAccessDeserializer::new(map)).map(Err)
    }
}

impl<'de> Deserialize<'de> for Retry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = WordOr("the name of a preset or a policy", std::marker::PhantomData);
        let read = deserializer.deserialize_any(form)?;
        Ok(read.map_or_else(Retry::Policy, Retry::Preset))
    }
}

impl<'de> Deserialize<'de> for Jitter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = WordOr(
            "the name of a jitter or an object",
            std::marker::PhantomData,
        );
        let read = deserializer.deserialize_any(form)?;
        Ok(read.map_or_else(Jitter::Object, Jitter::Name))
    }
}

macro_rules! word_or_object {
    ($type:ident, $word:ty, $object:ty) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let word = generator.subschema_for::<$word>();
                let object = generator.subschema_for::<$object>();
                json_schema!({"anyOf": [word, object]})
            }
        }
    };
}

word_or_object!(Retry, Preset, Policy);
word_or_object!(Jitter, JitterType, JitterObject);
