//! `windlass jobs show`: a page about one job.

use windlass_api::{Attempt, BoundedInt, HistoryParams, Job, JobState};
use windlass_client::Client;

use super::ShowJob;
use super::view::state;
use crate::clock;
use crate::output::{Cell, Format, Output, details, list_table, with_relative, word};

/// How many attempts the page shows; `-o wide` shows up to 1000.
const ATTEMPTS_SHOWN: i64 = 10;

pub(super) async fn show(show: &ShowJob, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&show.format)?;
    let job = client.job(show.id).await?;
    let attempts = match format {
        Format::Table => attempts(client, &job, ATTEMPTS_SHOWN).await?,
        Format::Wide => attempts(client, &job, 1000).await?,
        Format::Json | Format::Ndjson | Format::Id => Vec::new(),
    };
    output.print_one(format, &job, || page(&job, &attempts, format))
}

async fn attempts(client: &Client, job: &Job, limit: i64) -> anyhow::Result<Vec<Attempt>> {
    let params = HistoryParams {
        limit: BoundedInt::new(limit),
        ..HistoryParams::default()
    };
    Ok(client.job_history_with(job.id, &params).await?)
}

pub(super) fn page(job: &Job, attempts: &[Attempt], format: Format) -> String {
    let wide = format == Format::Wide;
    let mut rows = summary(job);
    if wide {
        rows.extend(more(job));
    }
    let mut text = details(rows);
    let parts = [("payload", &job.payload), ("result", &job.result)];
    for (title, json) in parts {
        let json = json.as_ref().map(|json| json.0.as_str());
        if let Some(json) = json.filter(|json| *json != "null") {
            let json = Cell::new(json).into_text();
            text.push_str(&format!("\n{title}\n{json}\n"));
        }
    }
    if job.payload_withheld {
        text.push_str(
            "\npayload and result are hidden: the API key lacks the scope `read-payload`\n",
        );
    }
    if !attempts.is_empty() {
        text.push('\n');
        text.push_str(&list_table(attempts, wide));
    }
    text
}

/// Returns the lines that every page has.
fn summary(job: &Job) -> Vec<(&'static str, Cell)> {
    let now = clock::now();
    let time = |at| Cell::new(with_relative(at, now));
    let attempts = match job.max_attempts {
        Some(max) => format!(
            "{}, {} failed, at most {max} may fail",
            job.attempt, job.failures
        ),
        None => format!("{}, {} failed", job.attempt, job.failures),
    };
    let waits = matches!(job.state, JobState::Scheduled | JobState::Ready);
    let due = if job.failures > 0 {
        "next retry"
    } else {
        "due"
    };
    let rows = [
        ("id", Some(Cell::new(job.id))),
        ("kind", Some(Cell::new(&job.kind))),
        ("queue", Some(Cell::new(&job.queue))),
        ("state", Some(state(job.state))),
        ("died because of", job.dead_reason.map(Cell::new)),
        (due, job.run_at.filter(|_| waits).map(time)),
        ("attempts", Some(Cell::new(attempts))),
        ("priority", Some(Cell::new(job.priority))),
        ("created", Some(time(job.created_at))),
        ("started", job.started_at.map(time)),
        ("finished", job.finished_at.map(time)),
        ("deadline", job.deadline.map(time)),
        ("worker", job.worker.as_ref().map(Cell::new)),
        ("lease until", job.lease_until.map(time)),
        ("progress", job.progress.as_ref().map(Cell::new)),
        ("last error", job.last_error.as_ref().map(Cell::new)),
    ];
    let given = rows
        .into_iter()
        .filter_map(|(name, cell)| Some((name, cell?)));
    given.collect()
}

/// Returns the lines of `-o wide`.
fn more(job: &Job) -> Vec<(&'static str, Cell)> {
    let json = |value: String| Cell::new(value);
    let rows = [
        ("delivery", Some(json(word(&job.delivery)))),
        ("timeout", Some(json(word(&job.timeout)))),
        (
            "retry policy",
            job.retry.as_ref().map(|retry| json(word(retry))),
        ),
        ("unique key", job.unique_key.as_ref().map(Cell::new)),
        (
            "unique for",
            job.unique_for.as_ref().map(|span| json(word(span))),
        ),
        (
            "concurrency key",
            job.concurrency_key.as_ref().map(Cell::new),
        ),
        ("limit", job.limit.map(Cell::new)),
        (
            "tags",
            (!job.tags.is_empty()).then(|| json(word(&job.tags))),
        ),
        (
            "meta",
            (!job.meta.is_empty()).then(|| json(word(&job.meta))),
        ),
        ("schedule", job.schedule_id.map(Cell::new)),
        ("scheduled for", job.scheduled_for.map(Cell::new)),
        (
            "cancel requested",
            job.cancel_requested.then(|| Cell::new("yes")),
        ),
    ];
    let given = rows
        .into_iter()
        .filter_map(|(name, cell)| Some((name, cell?)));
    given.collect()
}
