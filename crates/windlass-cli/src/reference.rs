//! Generates pages of `docs/` from the code, so that they stay up to date.

mod commands;

use std::fmt::Write as _;
use std::io::Write as _;

use clap::CommandFactory as _;
use windlass::prometheus::METRICS;
use windlass_core::retry::Preset;
use windlass_server::standalone::config::Config;

use crate::command::{Cli, Page};
use crate::policy::{ExplainedPolicy, ExplanationText};

pub(crate) fn print(page: Page) -> anyhow::Result<()> {
    let text = match page {
        Page::RetryPolicies => retry_policies()?,
        Page::Configuration => configuration(),
        Page::Metrics => metrics()?,
        Page::Cli => commands::page(include_str!("reference/cli.md"), &Cli::command())?,
    };
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Returns `docs/retry-policies.md`: the introduction, then every preset with its table and plot.
fn retry_policies() -> anyhow::Result<String> {
    let mut page = String::from(include_str!("reference/retry-policies.md"));
    writeln!(page, "\n## Presets\n")?;
    writeln!(page, "| preset | max_attempts | backoff | jitter | for |")?;
    writeln!(page, "|---|---|---|---|---|")?;
    for preset in Preset::ALL {
        let policy = preset.policy();
        let limit = policy.max_attempts().map_or(0, |limit| limit.get());
        let (backoff, jitter) = (policy.backoff().words(), policy.jitter().words());
        let purpose = preset.purpose();
        writeln!(
            page,
            "| [`{preset}`](#{preset}) | {limit} | {backoff} | {jitter} | {purpose} |"
        )?;
    }
    for preset in Preset::ALL {
        let explained = ExplainedPolicy::new(preset.name(), None, 1000)?;
        let json = serde_json::to_string(&explained.policy)?;
        writeln!(
            page,
            "\n### {preset}\n\n{}.\n",
            capitalized(preset.purpose())
        )?;
        writeln!(
            page,
            "```json\n{json}\n```\n\n```text\n{}```",
            ExplanationText(&explained)
        )?;
    }
    Ok(page)
}

/// Returns `docs/configuration.md`: the introduction, then every setting.
fn configuration() -> String {
    String::from(include_str!("reference/configuration.md")) + &Config::reference()
}

/// Returns `docs/metrics.md`: the introduction, then every metric.
fn metrics() -> anyhow::Result<String> {
    let mut page = String::from(include_str!("reference/metrics.md"));
    writeln!(page, "| metric | kind | labels | what |\n|---|---|---|---|")?;
    for metric in METRICS {
        let (name, kind, help) = (metric.full_name(), metric.kind.name(), metric.help);
        let labels = metric.labels.iter().map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |")?;
    }
    Ok(page)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
