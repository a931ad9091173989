//! Presets of retry policies, and explanations of what a policy does.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::retry::{self, AttemptLimit, Explanation, RetryPolicy};
use windlass_core::{Invalid, retry::Preset};

use crate::{Body, BoundedInt, Checks, Count, Policy, Retry, plain_body};

/// How many jobs fail together if the request does not say.
const JOBS_DEFAULT: u64 = 1000;

/// A preset: a retry policy with a name.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Preset")]
pub struct NamedPolicy {
    /// Name of the preset.
    pub name: Preset,
    /// What the preset is for.
    pub purpose: String,
    /// The policy.
    pub policy: Policy,
}

impl NamedPolicy {
    /// All presets.
    pub fn all() -> Vec<Self> {
        let named = |preset: Preset| NamedPolicy {
            name: preset,
            purpose: preset.purpose().to_owned(),
            policy: Policy::from(&preset.policy()),
        };
        Preset::ALL.into_iter().map(named).collect()
    }
}

/// Assumptions of an explanation.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainParams {
    /// How many attempts may fail in total. Default: the limit of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<BoundedInt<1, 1000>>,
    /// How many jobs fail at the same time. Default: 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<BoundedInt<1, { u32::MAX as i64 }>>,
}

plain_body!(ExplainParams);

impl ExplainParams {
    /// Explains a policy.
    pub fn explain(self, policy: &RetryPolicy) -> Result<PolicyExplanation, Invalid> {
        let limit = self.max_attempts.map(BoundedInt::get);
        let limit = limit.map(AttemptLimit::from_max_attempts).transpose()?;
        let policy = match limit.flatten() {
            Some(limit) => policy.clone().with_limit(Some(limit)),
            None => policy.clone(),
        };
        let limit = policy.max_attempts().unwrap_or(AttemptLimit::ONE);
        let jobs = self.jobs.map_or(JOBS_DEFAULT, BoundedInt::to);
        let explanation = retry::explain(&policy, limit, jobs)?;
        Ok(PolicyExplanation::new(&policy, &explanation))
    }
}

/// A retry policy to explain.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The policy, or the name of a preset.
    #[schemars(required)]
    pub policy: Option<Retry>,
    /// How many attempts may fail in total. Default: the limit of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<BoundedInt<1, 1000>>,
    /// How many jobs fail at the same time. Default: 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<BoundedInt<1, { u32::MAX as i64 }>>,
}

impl Body for ExplainRequest {
    type Checked = PolicyExplanation;

    fn check(self, checks: &mut Checks) -> Option<PolicyExplanation> {
        let policy = checks.required("policy", self.policy);
        let policy = checks.within("policy", |checks| policy?.check(checks));
        let params = ExplainParams {
            max_attempts: self.max_attempts,
            jobs: self.jobs,
        };
        checks.keep(params.explain(&*policy?))
    }
}

/// When the attempts of a failing job start. All durations are in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Explanation")]
pub struct PolicyExplanation {
    /// The policy.
    pub policy: Policy,
    /// Start of each attempt.
    pub attempts: Vec<AttemptForecast>,
    /// Start of the last attempt, in milliseconds after the first.
    pub horizon_ms: Range,
    /// Number of attempts in each second if all jobs fail at the same time.
    pub herd: Vec<HerdSecond>,
    /// Number of attempts after the seconds that `herd` lists.
    pub herd_rest: Count,
}

/// When an attempt starts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct AttemptForecast {
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// Delay after the previous attempt, in milliseconds.
    pub delay_ms: Range,
    /// Start, in milliseconds after the first attempt.
    pub at_ms: Range,
}

/// A duration that jitter varies, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Range {
    /// Shortest duration.
    pub min: Count,
    /// Duration without jitter.
    pub nominal: Count,
    /// Longest duration.
    pub max: Count,
}

/// The attempts of one second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct HerdSecond {
    /// The second, counted from 0.
    pub second: Count,
    /// Number of attempts that start in this second.
    pub requests: Count,
}

impl From<retry::Span> for Range {
    fn from(span: retry::Span) -> Self {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Range {
            min: millis(span.min),
            nominal: millis(span.nominal),
            max: millis(span.max),
        }
    }
}

impl PolicyExplanation {
    fn new(policy: &RetryPolicy, explanation: &Explanation) -> Self {
        let attempts = explanation.attempts.iter().map(|forecast| AttemptForecast {
            attempt: forecast.attempt,
            delay_ms: forecast.delay.into(),
            at_ms: forecast.at.into(),
        });
        let herd = explanation.herd.iter().map(|row| HerdSecond {
            second: row.second,
            requests: row.requests,
        });
        PolicyExplanation {
            policy: Policy::from(policy),
            attempts: attempts.collect(),
            horizon_ms: explanation.horizon.into(),
            herd: herd.collect(),
            herd_rest: explanation.herd_rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use windlass_core::Timestamp;

    use super::*;
    use crate::{BodyRefused, read_body};

    fn explained(value: &Value) -> Result<Value, Invalid> {
        let read = read_body::<ExplainRequest>(&value.to_string(), Timestamp::UNIX_EPOCH);
        match read {
            Ok(explanation) => Ok(serde_json::to_value(explanation).unwrap()),
            Err(BodyRefused::Invalid(mut problems)) => Err(problems.remove(0)),
            Err(BodyRefused::Malformed(malformed)) => panic!("{malformed}"),
        }
    }

    #[test]
    fn a_policy_is_explained() {
        let explanation = explained(&json!({"policy": "patient", "jobs": 10})).unwrap();
        assert_eq!(explanation["attempts"].as_array().unwrap().len(), 4);
        assert_eq!(explanation["attempts"][3]["at_ms"]["nominal"], 21_000);
        assert_eq!(explanation["herd"][0], json!({"second": 0, "requests": 10}));
        let more = explained(&json!({"policy": "patient", "max_attempts": 6})).unwrap();
        assert_eq!(more["attempts"].as_array().unwrap().len(), 6);
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (value, field) in [
            (json!({}), "policy"),
            (
                json!({"policy": {"backoff": {"type": "x"}}}),
                "policy.backoff",
            ),
            (json!({"policy": "standard", "jobs": 0}), "jobs"),
            (json!({"policy": "standard", "jobs": 1_000_000}), "jobs"),
            (
                json!({"policy": "standard", "max_attempts": 2000}),
                "max_attempts",
            ),
        ] {
            let refused = explained(&value).unwrap_err();
            assert!(refused.field().starts_with(field), "{value}: {refused}");
        }
    }
}
