//! `windlass enqueue --from`: creates a job for each line of a file, in batches.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;
use windlass_api::{BulkAnswer, BulkMode, BulkResult, NewJob, read_body};
use windlass_client::Client;
use windlass_core::Invalid;

use super::{EnqueueCommand, with_key};
use crate::backend::run_on_api;
use crate::body::first_flag;
use crate::clock;
use crate::output::{Format, Output, json_line};
use crate::progress::progress;

/// The most jobs and bytes of one request.
const BATCH_JOBS_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most jobs of one request that creates all of them or none.
const ATOMIC_JOBS_MAX: usize = 10_000;
/// The most bytes of a line.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How many refused lines are printed.
const REFUSALS_SHOWN: u64 = 20;

/// The jobs of a file, read line by line.
struct Lines<R> {
    reader: R,
    number: u64,
}

/// A line with a job, or why it has none.
struct Line {
    number: u64,
    bytes: usize,
    job: Result<NewJob, Invalid>,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line that is not empty.
    fn next(&mut self) -> anyhow::Result<Option<Line>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let limit = u64::try_from(LINE_BYTES_MAX + 1)?;
            let bytes = (&mut self.reader)
                .take(limit)
                .read_until(b'\n', &mut line)?;
            if bytes == 0 {
                return Ok(None);
            }
            self.number += 1;
            let number = self.number;
            if bytes > LINE_BYTES_MAX {
                let rule = format!("line {number} must be at most {LINE_BYTES_MAX} bytes");
                return Err(Invalid::new("--from", rule).into());
            }
            let text = String::from_utf8_lossy(&line); // invalid UTF-8 is not JSON either way
            if !text.trim().is_empty() {
                let job = job_of(&text);
                return Ok(Some(Line { number, bytes, job }));
            }
        }
    }
}

/// Checks a job as the server does. Keeps its payload byte for byte.
fn job_of(text: &str) -> Result<NewJob, Invalid> {
    let checked = read_body::<NewJob>(text, clock::now());
    checked.map_err(|refused| first_flag(refused, str::to_owned))?;
    serde_json::from_str(text).map_err(|error| Invalid::new("", format!("must be JSON: {error}")))
}

/// What happened to the jobs so far.
#[derive(Default)]
struct Totals {
    created: u64,
    duplicates: u64,
    refused: u64,
}

impl Totals {
    /// Counts a refused line. Prints the first ones.
    fn refuse(&mut self, line: u64, why: &str) -> anyhow::Result<()> {
        self.refused += 1;
        if self.refused <= REFUSALS_SHOWN {
            writeln!(std::io::stderr(), "line {line}: {why}")?;
        }
        Ok(())
    }

    fn print(&self, dry_run: bool, output: &Output, format: Format) -> anyhow::Result<()> {
        let Totals {
            created,
            duplicates,
            refused,
        } = self;
        let json = json!({"created": created, "duplicates": duplicates, "refused": refused});
        match format {
            Format::Json => output.print_json(&json)?,
            Format::Ndjson | Format::Id => {}
            Format::Table | Format::Wide => {
                let verb = if dry_run { "would create" } else { "created" };
                let mut text = format!("{verb} {created} jobs");
                if *duplicates > 0 {
                    text.push_str(&format!("; {duplicates} exist already by their unique key"));
                }
                output.print(&json, text + "\n")?;
            }
        }
        if *refused > REFUSALS_SHOWN {
            let more = refused - REFUSALS_SHOWN;
            writeln!(std::io::stderr(), "and {more} more")?;
        }
        let total = created + duplicates + refused;
        anyhow::ensure!(*refused == 0, "{refused} of {total} jobs are refused");
        Ok(())
    }
}

pub(super) fn enqueue(
    command: &EnqueueCommand,
    path: &Path,
    output: &Output,
    format: Format,
) -> anyhow::Result<()> {
    let mut lines = open(path)?;
    if command.dry_run {
        return check(&mut lines, output, format);
    }
    run_on_api(&command.api, async |api| {
        let (client, key) = (api.client(), command.idempotency_key.as_deref());
        if command.all_or_none {
            return all_or_none(&mut lines, &with_key(client, key), output, format).await;
        }
        each(&mut lines, client, key, output, format).await
    })
}

fn open(path: &Path) -> Result<Lines<Box<dyn BufRead>>, Invalid> {
    let reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let file = File::open(path).map_err(|error| {
            let rule = format!("cannot be read from {}: {error}", path.display());
            Invalid::new("--from", rule)
        })?;
        Box::new(BufReader::new(file))
    };
    let number = 0;
    Ok(Lines { reader, number })
}

/// Checks all lines and creates nothing.
fn check(lines: &mut Lines<impl BufRead>, output: &Output, format: Format) -> anyhow::Result<()> {
    let mut totals = Totals::default();
    while let Some(line) = lines.next()? {
        match line.job {
            Ok(_) => totals.created += 1,
            Err(invalid) => totals.refuse(line.number, &invalid.to_string())?,
        }
    }
    totals.print(true, output, format)
}

/// Creates all jobs in one request, or none.
async fn all_or_none(
    lines: &mut Lines<impl BufRead>,
    client: &Client,
    output: &Output,
    format: Format,
) -> anyhow::Result<()> {
    let mut jobs = Vec::new();
    while let Some(line) = lines.next()? {
        let within = |invalid: Invalid| {
            let rule = format!("line {}: {invalid}; no job was created", line.number);
            Invalid::new("--from", rule)
        };
        jobs.push(line.job.map_err(within)?);
        let rule = format!("must be at most {ATOMIC_JOBS_MAX} jobs with `--all-or-none`");
        anyhow::ensure!(jobs.len() <= ATOMIC_JOBS_MAX, Invalid::new("--from", rule));
    }
    let mut totals = Totals::default();
    if !jobs.is_empty() {
        let answer = client.create_jobs(&jobs, BulkMode::AllOrNone).await?;
        let numbers: Vec<u64> = (1..).take(answer.data.len()).collect();
        count(&answer, &numbers, &mut totals, format)?;
    }
    totals.print(false, output, format)
}

/// Creates the jobs in batches. A refused job does not affect the others.
async fn each(
    lines: &mut Lines<impl BufRead>,
    client: &Client,
    key: Option<&str>,
    output: &Output,
    format: Format,
) -> anyhow::Result<()> {
    let (bar, mut totals, mut batch) = (progress("enqueued", None), Totals::default(), 1);
    let (mut jobs, mut numbers, mut bytes) = (Vec::new(), Vec::new(), 0);
    loop {
        let line = lines.next()?;
        let is_last = line.is_none();
        let next = line.as_ref().map_or(0, |line| line.bytes);
        let is_full = jobs.len() >= BATCH_JOBS_MAX || bytes + next > BATCH_BYTES_MAX;
        if !jobs.is_empty() && (is_last || is_full) {
            let key = key.map(|key| format!("{key}-{batch}"));
            let client = with_key(client, key.as_deref());
            let answer = client.create_jobs(&jobs, BulkMode::Each).await;
            let answer = answer.with_context(|| {
                let first = numbers.first().copied().unwrap_or_default();
                format!(
                    "stopped at line {first}; {} jobs were created before",
                    totals.created
                )
            })?;
            count(&answer, &numbers, &mut totals, format)?;
            bar.inc(u64::try_from(jobs.len())?);
            (jobs, numbers, bytes) = (Vec::new(), Vec::new(), 0);
            batch += 1;
        }
        let Some(line) = line else { break };
        match line.job {
            Ok(job) => {
                jobs.push(job);
                numbers.push(line.number);
                bytes += line.bytes;
            }
            Err(invalid) => totals.refuse(line.number, &invalid.to_string())?,
        }
    }
    bar.finish_and_clear();
    totals.print(false, output, format)
}

/// Counts and prints the results of one request. `numbers` are the lines of its jobs.
fn count(
    answer: &BulkAnswer,
    numbers: &[u64],
    totals: &mut Totals,
    format: Format,
) -> anyhow::Result<()> {
    totals.created += answer.created;
    totals.duplicates += answer.duplicates;
    let mut stdout = std::io::stdout().lock();
    for (result, line) in answer.data.iter().zip(numbers) {
        match (format, result) {
            (Format::Id, BulkResult::Stored(receipt)) => writeln!(stdout, "{}", receipt.id)?,
            (Format::Ndjson, result) => writeln!(stdout, "{}", json_line(result)?)?,
            _ => {}
        }
        if let BulkResult::Refused { problem } = result {
            totals.refuse(*line, &problem.detail)?;
        }
    }
    Ok(())
}
