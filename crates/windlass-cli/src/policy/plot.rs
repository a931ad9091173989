//! Small plots for the terminal.

use std::fmt::Write as _;
use std::time::Duration;

use windlass_core::retry::{AttemptForecast, Herd};

use super::text::short;

const WIDTH: usize = 60;
const TIMELINE_ROWS: usize = 12;
const HERD_ROWS: u64 = 20;

/// Plots when each attempt may start: `─` from the earliest to the latest time, `●` the nominal time.
pub(super) fn timeline(attempts: &[AttemptForecast]) -> String {
    let horizon = attempts.last().map_or(Duration::ZERO, |last| last.at.max);
    if horizon.is_zero() {
        return String::new();
    }
    let column = |at: Duration| {
        (at.as_secs_f64() / horizon.as_secs_f64() * (WIDTH - 1) as f64).round() as usize
    };
    let mut plot = String::from("\n");
    // With many attempts, plot only every n-th: the plot shows the shape, the table has the numbers.
    let step = attempts.len().div_ceil(TIMELINE_ROWS);
    for attempt in attempts.iter().step_by(step) {
        let (from, nominal, to) = (
            column(attempt.at.min),
            column(attempt.at.nominal),
            column(attempt.at.max),
        );
        let line: String = (0..=to)
            .map(|position| match position {
                _ if position == nominal => '●',
                _ if position >= from => '─',
                _ => ' ',
            })
            .collect();
        push_line(&mut plot, &format!("{:>7} ", attempt.attempt), &line);
    }
    let end = short(horizon);
    let _ = writeln!(plot, "        0s{end:>width$}", width = WIDTH - 2);
    plot
}

/// Plots how many requests start in each second, or in each of at most [`HERD_ROWS`] equal spans.
pub(super) fn herd(herd: &[Herd]) -> String {
    let Some(last) = herd.last() else {
        return String::new();
    };
    let span = (last.second + 1).div_ceil(HERD_ROWS);
    let rows = last.second / span + 1;
    let sums: Vec<(u64, u64)> = (0..rows)
        .map(|row| {
            let within = herd.iter().filter(|entry| entry.second / span == row);
            (row * span, within.map(|entry| entry.requests).sum())
        })
        .collect();
    let largest = sums.iter().map(|(_, sum)| *sum).max().unwrap_or(1).max(1);
    let mut plot = String::from("\n");
    for (second, sum) in sums {
        let length = (u128::from(sum) * WIDTH as u128).div_ceil(u128::from(largest));
        let bar = "█".repeat(usize::try_from(length).unwrap_or(WIDTH));
        let from = short(Duration::from_secs(second));
        push_line(
            &mut plot,
            &format!("{from:>7} "),
            format!("{bar} {sum}").trim_start(),
        );
    }
    if span > 1 {
        let _ = writeln!(
            plot,
            "        (each row: {})",
            short(Duration::from_secs(span))
        );
    }
    plot
}

fn push_line(plot: &mut String, label: &str, line: &str) {
    plot.push_str(format!("{label}{line}").trim_end());
    plot.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ExplainedPolicy;

    #[test]
    fn a_timeline_marks_earliest_nominal_and_latest() {
        let explained = ExplainedPolicy::new("aggressive", None, 0).unwrap();
        let plot = timeline(&explained.explanation.attempts);
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines[1], "      1 ●");
        assert_eq!(lines[3].chars().filter(|c| *c == '─').count(), WIDTH - 1);
        assert!(
            lines[3].ends_with('●'),
            "the latest time is the nominal time"
        );
        assert!(lines[4].ends_with("300ms"));
    }

    #[test]
    fn attempts_at_once_have_no_timeline() {
        let explained = ExplainedPolicy::new("immediate", None, 0).unwrap();
        assert_eq!(timeline(&explained.explanation.attempts), "");
    }

    #[test]
    fn a_herd_is_summed_into_a_bounded_number_of_rows() {
        let explained = ExplainedPolicy::new("persistent", None, 10).unwrap();
        let plot = super::herd(&explained.explanation.herd);
        assert!(plot.lines().count() <= 22);
        let sum: u64 = plot
            .lines()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(sum, 250);
    }
}
