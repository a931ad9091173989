//! Retry policies as clients write and read them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::retry::{Preset, RetryPolicy};

use crate::read::request;
use crate::value::word_or_object;
use crate::{BoundedInt, Checks, DurationText, Millis};

/// A retry policy, or the name of a preset.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Retry {
    /// The name of a preset.
    Preset(Preset),
    /// A complete policy, or a preset with some values overridden.
    Policy(Box<Policy>),
}

request! {
    /// Retry policy: either `max_attempts`, `backoff`, `jitter` and `max_elapsed`, or a `preset`
    /// with some values overridden.
    #[schemars(rename = "RetryPolicy")]
    pub struct Policy {
        /// Preset that provides the values that are not given.
        pub preset: Preset,
        /// How many attempts may fail in total, at most 1000. Default: 0, which means that the
        /// policy sets no limit.
        pub max_attempts: BoundedInt<0, 1000>,
        /// How many retries may follow the first attempt: one less than `max_attempts`.
        pub max_retries: BoundedInt<0, 999>,
        /// How the delay grows. Required, unless `preset` is given.
        pub backoff: Backoff,
        /// How the delay is randomized.
        pub jitter: Jitter,
        /// No retry starts later than this after the first attempt. Default: no limit.
        pub max_elapsed: DurationText,
        /// `max_elapsed` in milliseconds.
        pub max_elapsed_ms: Millis,
        /// Overrides `base` in the backoff of the preset.
        pub base: DurationText,
        /// `base` in milliseconds.
        pub base_ms: Millis,
        /// Overrides `max` in the backoff of the preset.
        pub max: DurationText,
        /// `max` in milliseconds.
        pub max_ms: Millis,
        /// Overrides `multiplier` in the backoff of the preset.
        pub multiplier: f64,
    }
}

request! {
    /// How the delay grows with the number of failures. Each `type` has its own fields: `constant`
    /// has `delay`; `linear` has `base`, `step`, `max`; `exponential` has `base`, `multiplier`,
    /// `max`; `polynomial` has `base`, `power`, `max`; `steps` has `delays`.
    pub struct Backoff {
        /// Formula of the delay.
        #[serde(rename = "type")]
        #[schemars(required)]
        pub formula: BackoffType,
        /// Delay before every retry. For `constant`.
        pub delay: DurationText,
        /// `delay` in milliseconds.
        pub delay_ms: Millis,
        /// Delay before the first retry.
        pub base: DurationText,
        /// `base` in milliseconds.
        pub base_ms: Millis,
        /// What each failure adds to the delay. For `linear`.
        pub step: DurationText,
        /// `step` in milliseconds.
        pub step_ms: Millis,
        /// Factor by which each failure multiplies the delay. For `exponential`. Default: 2.
        pub multiplier: f64,
        /// Power to which the number of failures is raised. For `polynomial`.
        pub power: f64,
        /// Longest delay before jitter. Default: 24 h.
        pub max: DurationText,
        /// `max` in milliseconds.
        pub max_ms: Millis,
        /// Delay before each retry; the last one repeats. For `steps`.
        pub delays: Vec<DurationText>,
        /// `delays` in milliseconds.
        pub delays_ms: Vec<Millis>,
    }
}

/// How a delay grows. `n` is the number of failures.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum BackoffType {
    /// Always `delay`.
    Constant,
    /// `base + step·(n-1)`.
    Linear,
    /// `base·multiplier^(n-1)`.
    Exponential,
    /// `base·n^power`.
    Polynomial,
    /// The n-th of `delays`.
    Steps,
}

/// How a delay is randomized: the name of a jitter, or an object. `proportional` and `upward` need
/// a `ratio`.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Jitter {
    /// The name of a jitter without a ratio.
    Name(JitterType),
    /// A jitter with its ratio.
    Object(JitterObject),
}

/// A jitter with its ratio.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct JitterObject {
    /// Name of the jitter.
    #[serde(rename = "type")]
    pub kind: JitterType,
    /// Share of the delay, from 0 to 1. Required for `proportional` and `upward`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// How a delay is randomized.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum JitterType {
    /// The delay is not randomized.
    None,
    /// The delay plus or minus up to `ratio` of it.
    Proportional,
    /// From zero to the delay.
    Full,
    /// From half of the delay to the delay.
    Equal,
    /// The delay plus up to `ratio` of it.
    Upward,
    /// From `base` to three times the previous delay.
    Decorrelated,
}

impl Retry {
    /// Returns the policy. Reports problems within the field that `checks` is at.
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
        read.expect("core writes a policy in the form that it reads")
    }
}

/// Only `core` knows the rules between the fields, so it reads the same JSON again.
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
