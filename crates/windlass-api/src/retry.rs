//! Retry policies as clients write and read them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::retry::{Preset, RetryPolicy};

use crate::read::request;
use crate::value::word_or_object;
use crate::{BoundedInt, Checks, DurationText, Millis};

/// The name of a preset, or a whole policy.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Retry {
    /// A policy by its name.
    Preset(Preset),
    /// A policy in full, or a preset with some values overridden.
    Policy(Box<Policy>),
}

request! {
    /// A retry policy: `max_attempts`, `backoff`, `jitter` and `max_elapsed`, or a `preset` with some
    /// values overridden.
    #[schemars(rename = "RetryPolicy")]
    pub struct Policy {
        /// The preset that everything comes from which is not given here.
        pub preset: Preset,
        /// How many attempts may fail in total; 0 leaves the limit to others.
        pub max_attempts: BoundedInt<0, 1000>,
        /// One less than `max_attempts`.
        pub max_retries: BoundedInt<0, 999>,
        /// How the delay grows. Required unless a `preset` is named.
        pub backoff: Backoff,
        /// How the delay is spread.
        pub jitter: Jitter,
        /// No retry starts later than this after the first attempt.
        pub max_elapsed: DurationText,
        /// The same in milliseconds.
        pub max_elapsed_ms: Millis,
        /// Overrides the `base` of the preset's backoff.
        pub base: DurationText,
        /// The same in milliseconds.
        pub base_ms: Millis,
        /// Overrides the `max` of the preset's backoff.
        pub max: DurationText,
        /// The same in milliseconds.
        pub max_ms: Millis,
        /// Overrides the `multiplier` of the preset's backoff.
        pub multiplier: f64,
    }
}

request! {
    /// How the delay grows with the number of failures. Which fields go with which `type`:
    /// `constant` has `delay`; `linear` has `base`, `step`, `max`; `exponential` has `base`,
    /// `multiplier`, `max`; `polynomial` has `base`, `power`, `max`; `steps` has `delays`.
    pub struct Backoff {
        /// The formula.
        #[serde(rename = "type")]
        #[schemars(required)]
        pub formula: BackoffType,
        /// The delay.
        pub delay: DurationText,
        /// The same in milliseconds.
        pub delay_ms: Millis,
        /// The first delay.
        pub base: DurationText,
        /// The same in milliseconds.
        pub base_ms: Millis,
        /// What each failure adds.
        pub step: DurationText,
        /// The same in milliseconds.
        pub step_ms: Millis,
        /// By what each failure multiplies the delay; 2 if not given.
        pub multiplier: f64,
        /// The power to which the number of failures is raised.
        pub power: f64,
        /// The longest nominal delay; 24 h if not given.
        pub max: DurationText,
        /// The same in milliseconds.
        pub max_ms: Millis,
        /// The delays, of which the last one repeats.
        pub delays: Vec<DurationText>,
        /// The same in milliseconds.
        pub delays_ms: Vec<Millis>,
    }
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

word_or_object!(
    Retry,
    Preset(Preset),
    Policy(Box<Policy>),
    "the name of a preset or a policy"
);
word_or_object!(
    Jitter,
    Name(JitterType),
    Object(JitterObject),
    "the name of a jitter or an object"
);
