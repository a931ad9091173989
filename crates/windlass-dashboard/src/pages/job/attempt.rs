//! One attempt: its error chain, the phases of its request, the answer, and its log lines.

use std::time::Duration;

use serde_json::Value;
use windlass_api::{Attempt, Job};
use windlass_core::{Outcome, Timestamp};

use super::{outcome_look, pretty};
use crate::frame::Look;
use crate::show;

/// The most headers that the page shows.
const HEADERS_SHOWN: usize = 40;

/// An attempt as the page shows it.
pub(super) struct AttemptView {
    pub(super) number: u32,
    pub(super) look: Look,
    pub(super) started_at: Timestamp,
    pub(super) worker: Option<String>,
    pub(super) ran: String,
    /// The message of the error, then its causes.
    pub(super) chain: Vec<String>,
    pub(super) error_withheld: bool,
    /// What to show if there is no error.
    pub(super) note: Option<&'static str>,
    pub(super) request: Option<RequestView>,
    pub(super) log: Vec<String>,
    pub(super) progress: Option<String>,
    pub(super) previous: Option<u32>,
    pub(super) next: Option<u32>,
}

/// The request of an HTTP job.
pub(super) struct RequestView {
    pub(super) status: Option<u16>,
    pub(super) status_words: &'static str,
    pub(super) is_error: bool,
    pub(super) version: Option<String>,
    pub(super) phases: Vec<PhaseView>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<String>,
    pub(super) body_bytes: Option<u64>,
    pub(super) body_cut: bool,
}

/// A phase of a request, as a bar of a waterfall.
pub(super) struct PhaseView {
    pub(super) name: &'static str,
    pub(super) from: f64,
    pub(super) width: f64,
    pub(super) text: String,
    pub(super) longest: bool,
}

impl AttemptView {
    pub(super) fn new(attempt: &Attempt, all: &[Attempt], job: &Job) -> Self {
        let chain = attempt.error.as_ref().map(|error| {
            let causes = error.causes().iter().map(String::as_str);
            let texts = std::iter::once(error.message()).chain(causes);
            texts.map(show::visible).collect()
        });
        let numbers = |keep: fn(u32, u32) -> bool| {
            let own = attempt.attempt;
            all.iter()
                .map(|other| other.attempt)
                .filter(move |other| keep(*other, own))
        };
        let request = attempt.http.as_ref().map(RequestView::new);
        AttemptView {
            number: attempt.attempt,
            look: outcome_look(attempt.outcome),
            started_at: attempt.started_at,
            worker: attempt
                .worker
                .as_ref()
                .map(|worker| show::visible(worker.as_str())),
            ran: show::duration(attempt.finished_at.since(attempt.started_at)),
            chain: chain.unwrap_or_default(),
            error_withheld: attempt.error_withheld,
            note: note(attempt.outcome, job),
            request,
            log: log_lines(attempt.log.as_ref(), attempt.started_at),
            progress: attempt
                .progress
                .as_ref()
                .map(|value| pretty(&value.to_string())),
            previous: numbers(|other, own| other < own).max(),
            next: numbers(|other, own| other > own).min(),
        }
    }
}

fn note(outcome: Outcome, job: &Job) -> Option<&'static str> {
    match outcome {
        Outcome::Succeeded => Some("The attempt succeeded."),
        Outcome::TimedOut => {
            Some("The attempt ran longer than its timeout, so the worker stopped it.")
        }
        Outcome::Lost => {
            Some("The lease ended without a report. The worker died, hung or lost its connection.")
        }
        Outcome::Snoozed => Some("The handler asked to run again later. This is not a failure."),
        Outcome::Released => Some(
            "The worker gave the job back, for example because it stopped. This is not a failure.",
        ),
        Outcome::Cancelled => Some("The handler stopped because someone cancelled the job."),
        Outcome::Failed if job.error_withheld => Some("The error needs the scope read-payload."),
        Outcome::Failed => None,
    }
}

/// Returns the lines of a log, each with the time since the attempt started.
fn log_lines(log: Option<&Value>, started_at: Timestamp) -> Vec<String> {
    let lines = log.and_then(Value::as_array).into_iter().flatten();
    let line = |value: &Value| {
        let text = value.get("line").and_then(Value::as_str)?;
        let at: Timestamp = value.get("at")?.as_str()?.parse().ok()?;
        let after = show::duration(at.since(started_at));
        Some(format!("{after}  {}", show::visible(text)))
    };
    lines.filter_map(line).collect()
}

impl RequestView {
    fn new(http: &Value) -> Self {
        let status = http.get("status").and_then(Value::as_u64);
        let status = status.and_then(|status| u16::try_from(status).ok());
        let text = |name: &str| http.get(name).and_then(Value::as_str).map(show::visible);
        let headers = http.get("headers").and_then(Value::as_object);
        let headers: Vec<(String, String)> = headers
            .into_iter()
            .flatten()
            .take(HEADERS_SHOWN)
            .map(|(name, value)| {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                (show::visible(name), show::visible(&value))
            })
            .collect();
        RequestView {
            status,
            status_words: status.map_or("no answer", status_words),
            is_error: status.is_none_or(|status| !(200..300).contains(&status)),
            version: text("version"),
            phases: phases(http.get("timings_ms")),
            headers,
            body: http
                .get("body")
                .and_then(Value::as_str)
                .filter(|body| !body.is_empty())
                .map(pretty),
            body_bytes: http.get("body_bytes").and_then(Value::as_u64),
            body_cut: http
                .get("body_cut")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
        }
    }
}

/// The phases of a request one after another. The time to the first byte includes connecting.
fn phases(timings: Option<&Value>) -> Vec<PhaseView> {
    let Some(timings) = timings else {
        return Vec::new();
    };
    let millis = |name: &str| {
        timings
            .get(name)
            .and_then(Value::as_f64)
            .unwrap_or(0.0)
            .max(0.0)
    };
    let (resolve, connect, tls) = (millis("resolve"), millis("connect"), millis("tls"));
    let total = millis("total");
    let connected = resolve + connect + tls;
    let has_answer = timings.get("first_byte").is_some();
    let first_byte = if has_answer {
        millis("first_byte")
    } else {
        total
    };
    let durations = [
        ("Resolve", resolve),
        ("Connect", connect),
        ("TLS", tls),
        ("Waiting", (first_byte - connected).max(0.0)),
        (
            "Answer",
            if has_answer {
                (total - first_byte).max(0.0)
            } else {
                0.0
            },
        ),
    ];
    let sum: f64 = durations.iter().map(|(_, took)| took).sum();
    if sum <= 0.0 {
        return Vec::new();
    }
    let longest = durations.iter().map(|(_, took)| *took).fold(0.0, f64::max);
    let mut begin = 0.0;
    let mut views = Vec::new();
    for (name, took) in durations {
        if took > 0.0 {
            views.push(PhaseView {
                name,
                from: begin / sum * 100.0,
                width: took / sum * 100.0,
                text: phase_text(took),
                longest: took >= longest,
            });
        }
        begin += took;
    }
    views
}

fn phase_text(millis: f64) -> String {
    if millis < 1.0 {
        return format!("{millis:.1}\u{a0}ms");
    }
    if millis < 10_000.0 {
        return format!("{}\u{a0}ms", show::grouped(millis.round() as u64));
    }
    show::duration(Duration::from_micros((millis * 1000.0) as u64))
}

/// The usual reason phrase of a status.
fn status_words(status: u16) -> &'static str {
    let status = axum::http::StatusCode::from_u16(status).ok();
    status
        .and_then(|status| status.canonical_reason())
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn phases_follow_one_another_and_fill_the_width() {
        let timings = json!({"resolve": 3.0, "connect": 21.0, "tls": 44.0, "first_byte": 2061.0, "total": 2104.0});
        let phases = phases(Some(&timings));
        let names: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["Resolve", "Connect", "TLS", "Waiting", "Answer"]);
        let end = phases.last().map(|phase| phase.from + phase.width).unwrap();
        assert!((end - 100.0).abs() < 1e-9);
        let longest: Vec<&str> = phases
            .iter()
            .filter(|one| one.longest)
            .map(|one| one.name)
            .collect();
        assert_eq!(longest, ["Waiting"]);
        assert_eq!(phases[3].text, "1,993\u{a0}ms");
    }

    #[test]
    fn a_request_without_an_answer_has_no_answer_phase() {
        let phases = phases(Some(&json!({"resolve": 1.0, "total": 30_000.0})));
        let names: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["Resolve", "Waiting"]);
        assert!(super::phases(Some(&json!({}))).is_empty());
    }

    #[test]
    fn an_answer_keeps_hostile_text_visible() {
        let request = RequestView::new(
            &json!({"status": 503, "body": "a\u{202e}b", "headers": {"retry-after": "180"}}),
        );
        assert_eq!(request.body.as_deref(), Some("a‹U+202E›b"));
        assert_eq!(
            request.headers,
            [("retry-after".to_owned(), "180".to_owned())]
        );
        assert_eq!(request.status_words, "Service Unavailable");
    }
    #[test]
    fn a_log_line_shows_when_it_was_written_after_the_start() {
        let started_at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let log =
            json!([{"at": "2026-01-01T00:00:00.046Z", "line": "a\u{7}b"}, {"line": "no time"}]);
        assert_eq!(log_lines(Some(&log), started_at), ["46\u{a0}ms  a␇b"]);
    }
}
