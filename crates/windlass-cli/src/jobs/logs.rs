//! `windlass jobs logs`: the log of an attempt, also while it runs.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use windlass_api::{BoundedInt, DurationText, JobLog, LogLine, LogParams};
use windlass_client::Client;
use windlass_core::{Invalid, JobId};

use crate::backend::ApiArgs;
use crate::output::{Cell, Format, FormatArgs, Output, word};

/// How long one request waits for new lines.
const WAIT: Duration = Duration::from_secs(10);
/// How long to wait before the next request after an error.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct JobLogs {
    /// The id of the job.
    id: JobId,

    /// Wait for new lines, and continue with the next attempts, until the job has finished.
    #[arg(long, short)]
    follow: bool,

    /// Only this attempt, counted from 1 [default: the latest; with `--follow`, the latest and those
    /// after it].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Where the next request continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    attempt: Option<u32>,
    after: u64,
}

pub(super) async fn logs(
    command: &JobLogs,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&command.format)?;
    if format == Format::Id {
        return Err(Invalid::new("-o", "must not be `id`, because lines have no id").into());
    }
    let mut position = Position {
        attempt: command.attempt,
        after: 0,
    };
    let mut is_first = true;
    if format == Format::Json && !command.follow {
        let log = client.job_log(command.id, &position.params(None)).await?;
        return output.print_json(&log);
    }
    loop {
        let log = match client.job_log(command.id, &command.params(position)).await {
            Err(error) if command.follow && error.is_temporary() => {
                note(format, &format!("{error}; retrying"));
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            }
            log => log?,
        };
        print(&log, position.after, format)?;
        if is_first && log.data.is_empty() {
            note_empty(format, &log);
        }
        is_first = false;
        match command.next(&log, position) {
            Some(next) => {
                if next.attempt != Some(log.attempt) && log.outcome.is_some() {
                    note_end(format, &log);
                }
                position = next;
            }
            None => {
                if command.follow {
                    note_end(format, &log);
                }
                return Ok(());
            }
        }
    }
}

impl Position {
    fn params(self, wait: Option<Duration>) -> LogParams {
        LogParams {
            attempt: self.attempt.and_then(|n| BoundedInt::new(n.into())),
            after: Some(self.after),
            wait: wait.map(DurationText),
            ..LogParams::default()
        }
    }
}

impl JobLogs {
    fn params(&self, position: Position) -> LogParams {
        position.params(self.follow.then_some(WAIT))
    }

    /// Returns where to continue after this part of a log; `None` at the end.
    fn next(&self, log: &JobLog, position: Position) -> Option<Position> {
        let attempt = (log.attempt > 0).then_some(log.attempt);
        let same = Position {
            attempt: position.attempt.or(attempt),
            after: log.next_after,
        };
        let is_finished = log.state.is_finished();
        if !log.data.is_empty() {
            return Some(same);
        }
        if !self.follow {
            return None;
        }
        let has_next = log.latest_attempt > log.attempt || !is_finished;
        match log.outcome {
            Some(_) if self.attempt.is_some() || !has_next => None,
            Some(_) => Some(Position {
                attempt: Some(log.attempt + 1),
                after: 0,
            }),
            None if is_finished => None,
            None => Some(same),
        }
    }
}

fn print(log: &JobLog, after: u64, format: Format) -> anyhow::Result<()> {
    if let Some(first) = log.data.first()
        && first.number > after + 1
    {
        let lost = first.number - after - 1;
        note(format, &format!("{lost} older lines were dropped"));
    }
    let mut stdout = std::io::stdout().lock();
    for line in &log.data {
        writeln!(stdout, "{}", printed(line, log, format))?;
    }
    Ok(stdout.flush()?)
}

fn printed(line: &LogLine, log: &JobLog, format: Format) -> String {
    let LogLine { number, at, line } = line;
    match format {
        Format::Json | Format::Ndjson => {
            json!({"attempt": log.attempt, "number": number, "at": at, "line": line}).to_string()
        }
        Format::Wide => {
            let text = Cell::new(line).into_text();
            format!("{at}  {}:{number}  {text}", log.attempt)
        }
        Format::Table | Format::Id => format!("{at}  {}", Cell::new(line).into_text()),
    }
}

fn note_empty(format: Format, log: &JobLog) {
    let text = match log.attempt {
        attempt if attempt == 0 || attempt > log.latest_attempt => {
            format!(
                "the attempt has not started; the job is {}",
                word(&log.state)
            )
        }
        attempt => format!("attempt {attempt} has not logged anything"),
    };
    note(format, &text);
}

fn note_end(format: Format, log: &JobLog) {
    let text = match &log.outcome {
        Some(outcome) => format!(
            "attempt {}: {}; the job is {}",
            log.attempt,
            word(outcome),
            word(&log.state)
        ),
        None => format!("the job is {}", word(&log.state)),
    };
    note(format, &text);
}

/// Prints a note for people, on stderr, so that stdout has only lines of the log.
fn note(format: Format, text: &str) {
    if !matches!(format, Format::Json | Format::Ndjson) {
        // If stderr is closed, no one can read the note.
        let _ = writeln!(std::io::stderr(), "-- {text}");
    }
}
