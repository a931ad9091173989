//! `windlass tail`: events of a server as they happen.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use windlass_api::{Event, EventName, EventParams};
use windlass_core::{Invalid, JobId, Kind, QueueName, ScheduleId, format_duration};

use crate::backend::{Api, ApiArgs, Runner, block_on};
use crate::output::{Cell, Format, FormatArgs, Output, Tone, json_line};

/// How long to wait before the next try after an error.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct TailCommand {
    /// Only these events, separated by commas: `enqueued`, `claimed`, `started`, `succeeded`,
    /// `failed`, `timed_out`, `lost`, `retried`, `snoozed`, `released`, `cancelled`, `dead`,
    /// `revived`, `failure_group_created`, `replay_stopped`, `replay_finished`,
    /// `bulk_action_finished`, `fired`, `skipped`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    event: Vec<EventName>,

    /// Only events of jobs in this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,

    /// Only events of jobs of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,

    /// Only events of the job with this id.
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,

    /// Only events of the schedule with this id.
    #[arg(long, value_name = "ID")]
    schedule: Option<ScheduleId>,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

impl TailCommand {
    fn params(&self) -> EventParams {
        let names: BTreeSet<EventName> = self.event.iter().copied().collect();
        EventParams {
            event: (!names.is_empty()).then_some(names),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            job: self.job,
            schedule: self.schedule,
            last_event_id: None,
        }
    }
}

pub(crate) fn run(command: &TailCommand, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&command.format)?;
    block_on(async {
        let api = command.api.connect().await?;
        let done = tokio::select! {
            done = follow(command, &api, format) => done,
            stopped = tokio::signal::ctrl_c() => Ok(stopped?),
        };
        api.close().await;
        done
    })
}

async fn follow(command: &TailCommand, api: &Api, format: Format) -> anyhow::Result<()> {
    if !matches!(api.runner(), Runner::Server) {
        let rule = "has no events of other processes; follow a running server with `--url`";
        return Err(Invalid::new("--store", rule).into());
    }
    let mut events = api.client().events(&command.params()).await?;
    let mut is_connected = true;
    loop {
        match events.next().await {
            Ok(event) => {
                if !is_connected {
                    note("connected again");
                    is_connected = true;
                }
                let mut stdout = std::io::stdout().lock();
                writeln!(stdout, "{}", printed(&event, format)?)?;
                stdout.flush()?;
            }
            Err(error) if error.is_temporary() => {
                if is_connected {
                    note(&format!("{error}; reconnecting"));
                    is_connected = false;
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints a note for people, on stderr, so that stdout has only events.
fn note(text: &str) {
    // If stderr is closed, no one can read the note.
    let _ = writeln!(std::io::stderr(), "-- {text}");
}

fn printed(event: &Event, format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json | Format::Ndjson => json_line(event)?,
        Format::Id => event.job_id.map(|id| id.to_string()).unwrap_or_default(),
        Format::Table => line(event, Width::Short),
        Format::Wide => line(event, Width::Full),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Short,
    Full,
}

/// Returns an event as a line for people.
fn line(event: &Event, width: Width) -> String {
    let name = Cell::new(format!("{:<10}", event.event.name())).tone(tone(event.event));
    let at = event.at.map(|at| at.to_string()).unwrap_or_default();
    // Fractions of a second are of different lengths: cut them to milliseconds.
    let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
    let time: String = time.trim_end_matches('Z').chars().take(12).collect();
    let mut parts = match width {
        Width::Short => vec![format!("{time:<12}")],
        Width::Full => vec![format!("{at:<27}")],
    };
    parts.push(name.painted());
    let text = |part: &dyn ToString| Cell::new(part.to_string()).into_text();
    parts.extend(event.job_id.map(|id| id.to_string()));
    if let (Some(queue), Some(kind)) = (&event.queue, &event.kind) {
        parts.push(format!("{} {}", text(queue), text(kind)));
    }
    parts.extend(event.schedule.as_ref().map(|name| text(name)));
    parts.extend(event.action_id.map(|id| id.to_string()));
    parts.extend(
        event
            .attempt
            .filter(|n| *n > 0)
            .map(|n| format!("attempt {n}")),
    );
    parts.extend(event.waited_ms.map(|ms| format!("waited {}", span(ms))));
    parts.extend(event.ran_ms.map(|ms| format!("ran {}", span(ms))));
    parts.extend(event.delay_ms.map(|ms| format!("again in {}", span(ms))));
    parts.extend(event.lag_ms.map(|ms| format!("late by {}", span(ms))));
    parts.extend(event.failures.map(|n| format!("{n} failed")));
    parts.extend(event.count.map(|n| format!("{n}")));
    parts.extend(event.dead_reason.as_ref().map(|why| text(why)));
    parts.extend(event.reason.as_ref().map(|why| text(why)));
    parts.extend(event.fingerprint.as_ref().map(|print| text(print)));
    let error = event.error.as_ref().map(|error| match width {
        Width::Short => Cell::short(error, 100).into_text(),
        Width::Full => Cell::new(error.replace('\n', " ")).into_text(),
    });
    parts.extend(error);
    parts.join("  ").trim_end().to_owned()
}

fn span(ms: u64) -> String {
    format_duration(Duration::from_millis(ms))
}

fn tone(event: EventName) -> Tone {
    match event {
        EventName::Succeeded | EventName::ReplayFinished | EventName::BulkActionFinished => {
            Tone::Good
        }
        EventName::Claimed | EventName::Started => Tone::Busy,
        EventName::Failed
        | EventName::TimedOut
        | EventName::Lost
        | EventName::Dead
        | EventName::FailureGroupCreated
        | EventName::ReplayStopped
        | EventName::Missed => Tone::Bad,
        EventName::Retried | EventName::Snoozed | EventName::Released | EventName::Skipped => {
            Tone::Waiting
        }
        EventName::Cancelled => Tone::Faint,
        EventName::Enqueued | EventName::Revived | EventName::Fired => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let event = Event {
            event: EventName::Failed,
            at: Some("2026-01-01T10:00:00.123456Z".parse().unwrap()),
            kind: Some("mail".parse().unwrap()),
            queue: Some("default".parse().unwrap()),
            attempt: Some(2),
            ran_ms: Some(1500),
            error: Some("\u{1b}[31mred\nsecond".to_owned()),
            ..Event::default()
        };
        assert_eq!(
            line(&event, Width::Short),
            "10:00:00.123  failed      default mail  attempt 2  ran 1s 500ms  \\u{1b}[31mred…"
        );
        let wide = line(&event, Width::Full);
        assert!(wide.starts_with("2026-01-01T10:00:00.123456Z  failed"));
        assert!(wide.ends_with("\\u{1b}[31mred second"), "{wide}");
    }
}
