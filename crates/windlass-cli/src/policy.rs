//! `windlass policy`: lists and explains retry policies.

mod plot;
mod text;

use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;
use windlass_api::Page;
use windlass_core::Invalid;
use windlass_core::retry::{AttemptLimit, Explanation, Preset, RetryPolicy, Span, explain};

pub(crate) use text::ExplanationText;

use crate::output::{Cell, Column, FormatArgs, Listed, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the presets.
    List(FormatArgs),

    /// Show when each attempt starts, and the load when many jobs fail together.
    Explain {
        /// The name of a preset, or a policy as JSON.
        policy: String,

        /// The number of attempts that may fail in total, 0 to 1000 [default: 0, the limit of the
        /// policy].
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        max_attempts: Option<i64>,

        /// The number of jobs that fail together.
        #[arg(long, value_name = "N", default_value_t = 1000)]
        jobs: u64,
    },
}

pub(crate) fn run(command: PolicyCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        PolicyCommand::List(args) => {
            let presets = Preset::ALL.into_iter().map(PresetJson::new).collect();
            output.print_list(output.format(&args)?, &Page::single(presets))
        }
        PolicyCommand::Explain {
            policy,
            max_attempts,
            jobs,
        } => {
            let explained = ExplainedPolicy::new(&policy, max_attempts, jobs)?;
            output.print(&ExplainJson::new(&explained), ExplanationText(&explained))
        }
    }
}

/// A policy, the number of failing jobs, and the resulting attempts and load.
pub(crate) struct ExplainedPolicy {
    pub(crate) policy: RetryPolicy,
    pub(crate) jobs: u64,
    pub(crate) explanation: Explanation,
}

impl ExplainedPolicy {
    pub(crate) fn new(text: &str, max_attempts: Option<i64>, jobs: u64) -> Result<Self, Invalid> {
        let mut policy = parse_policy(text)?;
        // 0 means unset: the policy keeps its own limit.
        let given_limit = max_attempts
            .map(AttemptLimit::from_max_attempts)
            .transpose()?;
        if let Some(limit) = given_limit.flatten() {
            policy = policy.with_limit(Some(limit));
        }
        // A job without any limit has one attempt: Windlass retries only on request.
        let limit = policy.max_attempts().unwrap_or(AttemptLimit::ONE);
        let explanation = explain(&policy, limit, jobs)?;
        Ok(ExplainedPolicy {
            policy,
            jobs,
            explanation,
        })
    }
}

/// Parses the name of a preset, or a policy as JSON.
fn parse_policy(text: &str) -> Result<RetryPolicy, Invalid> {
    let text = text.trim();
    if !text.starts_with(['{', '[', '"']) {
        let preset: Preset = text
            .parse()
            .map_err(|error: Invalid| error.within("policy"))?;
        return Ok(preset.policy());
    }
    let value: Value = serde_json::from_str(text)
        .map_err(|error| Invalid::new("policy", format!("must be valid JSON: {error}")))?;
    RetryPolicy::from_json(&value).map_err(|error| match error.field() {
        "" => error.within("policy"),
        _ => error,
    })
}

#[derive(Serialize)]
struct PresetJson {
    name: &'static str,
    purpose: &'static str,
    policy: RetryPolicy,
}

impl PresetJson {
    fn new(preset: Preset) -> Self {
        PresetJson {
            name: preset.name(),
            purpose: preset.purpose(),
            policy: preset.policy(),
        }
    }
}

impl Listed for PresetJson {
    const NOUN: &'static str = "presets";

    fn columns() -> Vec<Column<PresetJson>> {
        vec![
            Column::new("preset", |preset, _| Cell::new(preset.name)),
            Column::new("attempts", |preset, _| {
                Cell::optional(preset.policy.max_attempts())
            }),
            Column::new("backoff", |preset, _| {
                Cell::new(preset.policy.backoff().words())
            }),
            Column::new("jitter", |preset, _| {
                Cell::new(preset.policy.jitter().words())
            }),
            Column::new("for", |preset, _| Cell::new(preset.purpose)),
        ]
    }

    fn id(&self) -> String {
        self.name.to_owned()
    }
}

#[derive(Serialize)]
struct ExplainJson<'a> {
    policy: &'a RetryPolicy,
    attempts: Vec<AttemptJson>,
    horizon_ms: SpanJson,
    herd: Vec<HerdJson>,
    herd_rest: u64,
}

#[derive(Serialize)]
struct AttemptJson {
    attempt: u32,
    delay_ms: SpanJson,
    at_ms: SpanJson,
}

#[derive(Serialize)]
struct SpanJson {
    min: u128,
    nominal: u128,
    max: u128,
}

#[derive(Serialize)]
struct HerdJson {
    second: u64,
    requests: u64,
}

impl<'a> ExplainJson<'a> {
    fn new(explained: &'a ExplainedPolicy) -> Self {
        let explanation = &explained.explanation;
        let attempts = explanation.attempts.iter().map(|attempt| AttemptJson {
            attempt: attempt.attempt,
            delay_ms: SpanJson::new(attempt.delay),
            at_ms: SpanJson::new(attempt.at),
        });
        let herd = explanation.herd.iter().map(|row| HerdJson {
            second: row.second,
            requests: row.requests,
        });
        ExplainJson {
            policy: &explained.policy,
            attempts: attempts.collect(),
            horizon_ms: SpanJson::new(explanation.horizon),
            herd: herd.collect(),
            herd_rest: explanation.herd_rest,
        }
    }
}

impl SpanJson {
    fn new(span: Span) -> Self {
        let millis = |duration: Duration| duration.as_millis();
        SpanJson {
            min: millis(span.min),
            nominal: millis(span.nominal),
            max: millis(span.max),
        }
    }
}
