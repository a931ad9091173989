//! Retry policies, and what one will do.

use serde::Serialize;
use serde_json::{Map, Value};
use windlass_core::Invalid;
use windlass_core::fields::Fields;
use windlass_core::retry::{
    ATTEMPTS_CEILING, AttemptLimit, Explanation, Preset, RetryPolicy, Span, explain,
};

use crate::Query;

/// So many jobs fail together unless it is said.
const JOBS_DEFAULT: u64 = 1000;

/// What is to be explained.
#[derive(Debug, Clone)]
pub struct ExplainRequest {
    /// The policy.
    pub policy: RetryPolicy,
    /// How many attempts may fail, instead of what the policy says.
    pub max_attempts: Option<AttemptLimit>,
    /// How many jobs fail together.
    pub jobs: u64,
}

impl ExplainRequest {
    /// A preset, with `max_attempts` and `jobs` from a query.
    pub fn from_query(preset: &str, query: &mut Query<'_>) -> Result<Self, Invalid> {
        let preset: Preset = preset.parse()?;
        let limit = query.integer("max_attempts", 1, ATTEMPTS_CEILING.into())?;
        let jobs = query.integer("jobs", 1, u64::from(u32::MAX))?;
        Ok(ExplainRequest {
            policy: preset.policy(),
            max_attempts: limit_of(limit.map(u64::cast_signed))?,
            jobs: jobs.unwrap_or(JOBS_DEFAULT),
        })
    }

    /// Reads `policy` (a preset's name or an object), `max_attempts` and `jobs`.
    pub fn from_fields(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let mut fields = Fields::of(map);
        let policy = fields.value("policy");
        let policy = policy.ok_or_else(|| Invalid::new("policy", "is required"))?;
        let policy = RetryPolicy::from_json(policy).map_err(|error| error.within("policy"))?;
        let limit = fields.integer("max_attempts", 1, ATTEMPTS_CEILING.into())?;
        let jobs = fields.integer("jobs", 1, u32::MAX.into())?;
        fields.finish()?;
        Ok(ExplainRequest {
            policy,
            max_attempts: limit_of(limit)?,
            jobs: jobs.map_or(JOBS_DEFAULT, i64::unsigned_abs),
        })
    }

    /// What it will do.
    pub fn explain(self) -> Result<ExplanationView, Invalid> {
        let policy = match self.max_attempts {
            Some(limit) => self.policy.with_limit(Some(limit)),
            None => self.policy,
        };
        let limit = policy.max_attempts().unwrap_or(AttemptLimit::ONE);
        let explanation = explain(&policy, limit, self.jobs)?;
        Ok(ExplanationView::new(policy, explanation))
    }
}

fn limit_of(limit: Option<i64>) -> Result<Option<AttemptLimit>, Invalid> {
    Ok(limit
        .map(AttemptLimit::from_max_attempts)
        .transpose()?
        .flatten())
}

/// A policy that has a name.
#[derive(Debug, Clone, Serialize)]
pub struct PresetView {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// The policy itself.
    pub policy: RetryPolicy,
}

impl PresetView {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let view = |preset: Preset| PresetView {
            name: preset.name(),
            purpose: preset.purpose(),
            policy: preset.policy(),
        };
        Preset::ALL.into_iter().map(view).collect()
    }
}

/// What a policy will do, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct ExplanationView {
    policy: RetryPolicy,
    attempts: Vec<AttemptForecastView>,
    horizon_ms: SpanView,
    herd: Vec<HerdView>,
    herd_rest: u64,
}

#[derive(Debug, Clone, Serialize)]
struct AttemptForecastView {
    attempt: u32,
    delay_ms: SpanView,
    at_ms: SpanView,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct SpanView {
    min: u64,
    nominal: u64,
    max: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct HerdView {
    second: u64,
    requests: u64,
}

impl From<Span> for SpanView {
    fn from(span: Span) -> Self {
        let millis = |of: std::time::Duration| u64::try_from(of.as_millis()).unwrap_or(u64::MAX);
        SpanView {
            min: millis(span.min),
            nominal: millis(span.nominal),
            max: millis(span.max),
        }
    }
}

impl ExplanationView {
    fn new(policy: RetryPolicy, explanation: Explanation) -> Self {
        let attempts = explanation.attempts.iter().map(|one| AttemptForecastView {
            attempt: one.attempt,
            delay_ms: one.delay.into(),
            at_ms: one.at.into(),
        });
        let herd = explanation.herd.iter().map(|row| HerdView {
            second: row.second,
            requests: row.requests,
        });
        ExplanationView {
            policy,
            attempts: attempts.collect(),
            horizon_ms: explanation.horizon.into(),
            herd: herd.collect(),
            herd_rest: explanation.herd_rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn explained(value: &Value) -> Result<Value, Invalid> {
        let request = ExplainRequest::from_fields(value.as_object().unwrap())?;
        Ok(serde_json::to_value(request.explain()?).unwrap())
    }

    #[test]
    fn a_policy_is_explained() {
        let told = explained(&json!({"policy": "patient", "jobs": 10})).unwrap();
        assert_eq!(told["attempts"].as_array().unwrap().len(), 4);
        assert_eq!(told["attempts"][3]["at_ms"]["nominal"], 21_000);
        assert_eq!(told["herd"][0], json!({"second": 0, "requests": 10}));
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
