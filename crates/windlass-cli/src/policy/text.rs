//! Formats a policy and its explanation for people.

use std::fmt;
use std::time::Duration;

use windlass_core::format_duration;
use windlass_core::retry::{AttemptForecast, Preset, Span};

use super::{ExplainedPolicy, plot};

/// The table lists this many attempts. If there are more, it ends with the last one.
const ATTEMPTS_SHOWN: usize = 30;

/// Formats an explanation: the policy, a table of attempts, a timeline, and the load per second.
pub(crate) struct ExplanationText<'a>(pub(crate) &'a ExplainedPolicy);

impl fmt::Display for ExplanationText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedPolicy {
            policy,
            jobs,
            explanation,
        } = self.0;
        let name = policy.preset().map_or("this policy", Preset::name);
        let count = explanation.attempts.len();
        let attempts = if count == 1 { "attempt" } else { "attempts" };
        writeln!(f, "{name}: at most {count} {attempts}")?;
        writeln!(f, "  backoff  {}", policy.backoff().words())?;
        writeln!(f, "  jitter   {}", policy.jitter().words())?;
        if let Some(max_elapsed) = policy.max_elapsed() {
            writeln!(
                f,
                "  until    {} after the first start",
                format_duration(max_elapsed)
            )?;
        }
        writeln!(f)?;
        f.write_str(&attempt_table(&explanation.attempts))?;
        let horizon = explanation.horizon;
        writeln!(
            f,
            "\nThe last attempt starts {} after the first.",
            describe_span(horizon)
        )?;
        if count > 1 {
            f.write_str(&plot::timeline(&explanation.attempts))?;
        }
        if let Some(peak) = explanation.herd.iter().map(|row| row.requests).max() {
            let who = match jobs {
                1 => "1 job fails".to_owned(),
                _ => format!("{jobs} jobs fail together"),
            };
            writeln!(
                f,
                "\nWhen {who}, about {peak} attempts start in the busiest second:"
            )?;
            f.write_str(&plot::herd(&explanation.herd))?;
        }
        Ok(())
    }
}

fn attempt_table(attempts: &[AttemptForecast]) -> String {
    let header = [
        "attempt",
        "min delay",
        "nominal",
        "max delay",
        "earliest start",
        "nominal",
        "latest start",
    ]
    .map(str::to_owned);
    let hidden = attempts.len().saturating_sub(ATTEMPTS_SHOWN + 1);
    let row = |attempt: &AttemptForecast| {
        let Span { min, nominal, max } = attempt.delay;
        let at = attempt.at;
        let times = [min, nominal, max, at.min, at.nominal, at.max].map(short);
        let [a, b, c, d, e, f] = times;
        [attempt.attempt.to_string(), a, b, c, d, e, f]
    };
    let gap = (hidden > 0).then(|| ["…"; 7].map(str::to_owned));
    let shown = attempts
        .iter()
        .take(attempts.len() - hidden - usize::from(hidden > 0))
        .map(row);
    let last = attempts.last().filter(|_| hidden > 0).map(row);
    table(std::iter::once(header).chain(shown).chain(gap).chain(last))
}

fn describe_span(span: Span) -> String {
    if span.min == span.max {
        return short(span.nominal);
    }
    format!(
        "{} to {} (nominally {})",
        short(span.min),
        short(span.max),
        short(span.nominal)
    )
}

/// Formats a duration for a table, rounded down to its two largest units.
pub(super) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |whole: u64, unit: &str, part: u64, part_unit: &str| {
        if part == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit} {part}{part_unit}")
        }
    };
    match seconds {
        0 if duration.is_zero() => "0s".to_owned(),
        0 if duration < Duration::from_millis(1) => format!("{}us", duration.as_micros()),
        0 => format!("{}ms", duration.as_millis()),
        1..60 => {
            let decimals = format!("{:02}", duration.subsec_millis() / 10);
            let decimals = decimals.trim_end_matches('0');
            let point = if decimals.is_empty() { "" } else { "." };
            format!("{seconds}{point}{decimals}s")
        }
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// Aligns columns to their longest cell, without spaces at the end of a line.
fn table<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_tables_have_at_most_two_units() {
        for (millis, text) in [
            (0, "0s"),
            (160, "160ms"),
            (1000, "1s"),
            (4899, "4.89s"),
            (11_200, "11.2s"),
            (1050, "1.05s"),
            (60_000, "1m"),
            (101_200, "1m 41s"),
            (7_500_000, "2h 5m"),
            (1_738_800_000, "20d 3h"),
        ] {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
        assert_eq!(short(Duration::from_micros(7)), "7us");
    }
}
