//! The columns of jobs and attempts.

use windlass_api::{Attempt, Job, JobState};
use windlass_core::{Outcome, Timestamp};

use crate::output::{Cell, Column, Listed, Tone, relative, took, word};

/// The most characters of an error in a table.
const ERROR_CHARS_MAX: usize = 60;

impl Listed for Job {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<Job>> {
        vec![
            Column::new("id", |job, _| Cell::new(job.id)),
            Column::new("state", |job, _| state(job.state)),
            Column::new("queue", |job, _| Cell::new(&job.queue)),
            Column::new("kind", |job, _| Cell::new(&job.kind)),
            Column::new("failures", |job, _| Cell::new(failures(job))),
            Column::new("created", |job, now| {
                Cell::new(relative(job.created_at, now))
            }),
            Column::new("next or end", |job, now| {
                Cell::optional(next_or_end(job).map(|at| relative(at, now)))
            }),
            Column::wide("priority", |job, _| Cell::new(job.priority)),
            Column::wide("worker", |job, _| Cell::optional(job.worker.as_ref())),
            Column::wide("tags", |job, _| {
                let tags: Vec<String> = job.tags.iter().map(ToString::to_string).collect();
                Cell::optional((!tags.is_empty()).then(|| tags.join(",")))
            }),
            Column::wide("reason", |job, _| Cell::optional(job.dead_reason)),
            Column::new("last error", |job, _| error(job.last_error.as_deref())),
        ]
    }

    fn id(&self) -> String {
        self.id.to_string()
    }
}

impl Listed for Attempt {
    const NOUN: &'static str = "attempts";

    fn columns() -> Vec<Column<Attempt>> {
        vec![
            Column::new("attempt", |attempt, _| Cell::new(attempt.attempt)),
            Column::new("outcome", |attempt, _| outcome(attempt.outcome)),
            Column::new("started", |attempt, now| {
                Cell::new(relative(attempt.started_at, now))
            }),
            Column::new("took", |attempt, _| {
                Cell::new(took(attempt.started_at, attempt.finished_at))
            }),
            Column::wide("started at", |attempt, _| Cell::new(attempt.started_at)),
            Column::new("worker", |attempt, _| {
                Cell::optional(attempt.worker.as_ref())
            }),
            Column::new("error", |attempt, _| {
                let text = attempt.error.as_ref().map(ToString::to_string);
                error(text.as_deref())
            }),
        ]
    }

    fn id(&self) -> String {
        self.attempt.to_string()
    }
}

pub(crate) fn state(state: JobState) -> Cell {
    let tone = match state {
        JobState::Scheduled | JobState::Ready => Tone::Waiting,
        JobState::Running => Tone::Busy,
        JobState::Succeeded => Tone::Good,
        JobState::Dead => Tone::Bad,
        JobState::Cancelled => Tone::Faint,
    };
    Cell::new(word(&state)).tone(tone)
}

fn outcome(outcome: Outcome) -> Cell {
    let tone = match outcome {
        Outcome::Succeeded => Tone::Good,
        Outcome::Snoozed | Outcome::Released | Outcome::Cancelled => Tone::Faint,
        _ => Tone::Bad,
    };
    Cell::new(word(&outcome)).tone(tone)
}

/// Returns how many attempts failed, and how many may if the job says so.
fn failures(job: &Job) -> String {
    match job.max_attempts {
        Some(max) => format!("{}/{max}", job.failures),
        None => job.failures.to_string(),
    }
}

/// Returns when a waiting job is due, or when a job finished.
fn next_or_end(job: &Job) -> Option<Timestamp> {
    job.run_at.or(job.finished_at)
}

fn error(text: Option<&str>) -> Cell {
    text.map_or_else(
        || Cell::optional(None::<&str>),
        |text| Cell::short(text, ERROR_CHARS_MAX),
    )
}
