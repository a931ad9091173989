//! The log lines and status words of the form. Users search for them, so the wording is fixed.

use std::fmt::Display;
use std::time::Duration;

use windlass_core::{Outcome, Timestamp, format_duration};

/// Returns the line for a failed job that is retried:
/// `Job 7 failed, scheduling retry 1/3 in 1s (at 2026-01-01 12:00:01)`.
pub fn retry_line(
    id: impl Display,
    retry: u32,
    max_retries: u32,
    delay: Duration,
    at: Timestamp,
) -> String {
    let delay = format_duration(delay);
    format!(
        "Job {id} failed, scheduling retry {retry}/{max_retries} in {delay} (at {})",
        plain(at)
    )
}

/// Returns the line for a failed job without retries left. Its schedule continues at `next`, or ends.
pub fn gave_up_line(id: impl Display, retries: u32, next: Option<Timestamp>) -> String {
    match next {
        Some(next) => format!(
            "Job {id} failed after {retries} retries, rescheduled for next occurrence: {}",
            plain(next)
        ),
        None => format!("Job {id} failed after {retries} retries, schedule deleted"),
    }
}

/// Returns the status of an attempt in the history of the form.
pub fn status_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "SUCCESS",
        Outcome::Failed | Outcome::TimedOut | Outcome::Lost => "FAILED",
        Outcome::Snoozed => "SNOOZED",
        Outcome::Released => "RELEASED",
        Outcome::Cancelled => "CANCELLED",
    }
}

/// Returns when the schedule runs next: the pending retry, else the next occurrence.
pub fn next_execution_time(
    retry_at: Option<Timestamp>,
    next_occurrence: Option<Timestamp>,
) -> Option<Timestamp> {
    retry_at.or(next_occurrence)
}

/// Formats a time in UTC to the second, such as `2026-01-01 12:00:01`.
fn plain(at: Timestamp) -> String {
    let text = at.to_string();
    let date = text.get(..10).unwrap_or(&text);
    let time = text.get(11..19).unwrap_or("");
    format!("{date} {time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_wording_of_the_lines_is_fixed() {
        assert_eq!(
            retry_line(
                123,
                1,
                3,
                Duration::from_secs(1),
                at("2024-01-01T12:00:01Z")
            ),
            "Job 123 failed, scheduling retry 1/3 in 1s (at 2024-01-01 12:00:01)"
        );
        assert_eq!(
            retry_line(
                123,
                2,
                3,
                Duration::from_secs(2),
                at("2024-01-01T12:00:03.25Z")
            ),
            "Job 123 failed, scheduling retry 2/3 in 2s (at 2024-01-01 12:00:03)"
        );
        assert_eq!(
            gave_up_line(123, 3, Some(at("2024-01-01T13:00:00Z"))),
            "Job 123 failed after 3 retries, rescheduled for next occurrence: 2024-01-01 13:00:00"
        );
        assert_eq!(
            gave_up_line("x", 0, None),
            "Job x failed after 0 retries, schedule deleted"
        );
    }

    #[test]
    fn a_pending_retry_comes_before_the_next_occurrence() {
        let (retry, next) = (at("2024-01-01T12:00:01Z"), at("2024-01-01T12:00:10Z"));
        assert_eq!(next_execution_time(Some(retry), Some(next)), Some(retry));
        assert_eq!(next_execution_time(None, Some(next)), Some(next));
        assert_eq!(next_execution_time(None, None), None);
        assert_eq!(status_of(Outcome::Succeeded), "SUCCESS");
        for outcome in [Outcome::Failed, Outcome::TimedOut, Outcome::Lost] {
            assert_eq!(status_of(outcome), "FAILED");
        }
    }
}
