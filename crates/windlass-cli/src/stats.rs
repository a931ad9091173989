//! `windlass stats`: what happened in the queues.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use windlass_api::{AttemptSplit, DurationText, Page, QueueActivity, StatisticsParams};
use windlass_core::{Invalid, QueueName, Timestamp, format_duration, parse_duration};

use crate::backend::{ApiArgs, run_on_api};
use crate::clock;
use crate::filter::instant;
use crate::output::{Cell, Column, Format, FormatArgs, Listed, Output, Tone};

#[derive(Debug, Args)]
pub(crate) struct StatsCommand {
    /// Only this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,

    /// Start of the range: RFC 3339, or `2h` for two hours ago; at most 30 days ago [default: one
    /// hour before `--to`].
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// End of the range [default: now].
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    /// Length of the steps in `-o json`, such as `1m`: a multiple of 10s, of 1m if the range starts
    /// more than 2 hours ago, of 1h if it starts more than 24 hours ago [default: the shortest
    /// possible].
    #[arg(long, value_name = "DURATION")]
    step: Option<String>,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

impl StatsCommand {
    fn params(&self) -> Result<StatisticsParams, Invalid> {
        let now = clock::now();
        let time = |flag: &str, text: &Option<String>| {
            let time = text.as_deref().map(|text| instant(text, now).parse());
            let time: Result<Option<Timestamp>, Invalid> = time.transpose();
            time.map_err(|error| Invalid::new(flag, error.rule()))
        };
        let step = self.step.as_deref().map(parse_duration).transpose();
        let step = step.map_err(|error| Invalid::new("--step", error.rule()))?;
        Ok(StatisticsParams {
            from: time("--from", &self.from)?,
            to: time("--to", &self.to)?,
            step: step.map(DurationText),
            queue: self.queue.clone(),
        })
    }
}

impl Listed for QueueActivity {
    const NOUN: &'static str = "statistics";

    fn columns() -> Vec<Column<QueueActivity>> {
        vec![
            Column::new("queue", |row, _| Cell::new(&row.queue)),
            Column::new("enqueued", |row, _| Cell::new(row.activity.enqueued)),
            Column::new("started", |row, _| total(row.activity.started)),
            Column::new("succeeded", |row, _| total(row.activity.succeeded)),
            Column::new("failed fresh/retry", |row, _| split(row.activity.failed)),
            Column::wide("timed out", |row, _| split(row.activity.timed_out)),
            Column::wide("lost", |row, _| split(row.activity.lost)),
            Column::wide("snoozed", |row, _| split(row.activity.snoozed)),
            Column::wide("released", |row, _| split(row.activity.released)),
            Column::wide("cancelled", |row, _| split(row.activity.cancelled)),
            Column::wide("retried", |row, _| Cell::new(row.activity.retried)),
            Column::new("dead", |row, _| dead(row.activity.dead)),
            Column::new("wait p50", |row, _| time(row.activity.wait.p50_ms)),
            Column::new("p95", |row, _| time(row.activity.wait.p95_ms)),
            Column::new("p99", |row, _| time(row.activity.wait.p99_ms)),
            Column::new("run p50", |row, _| time(row.activity.run.p50_ms)),
            Column::new("p95", |row, _| time(row.activity.run.p95_ms)),
            Column::new("p99", |row, _| time(row.activity.run.p99_ms)),
        ]
    }

    fn id(&self) -> String {
        self.queue.to_string()
    }
}

fn total(count: AttemptSplit) -> Cell {
    Cell::new(count.fresh.saturating_add(count.retry))
}

fn split(count: AttemptSplit) -> Cell {
    Cell::new(format!("{}/{}", count.fresh, count.retry))
}

fn dead(count: u64) -> Cell {
    let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
    Cell::new(count).tone(tone)
}

fn time(millis: Option<f64>) -> Cell {
    Cell::optional(millis.map(|millis| {
        let span = Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default();
        // Percentiles are estimates: three digits are enough.
        let unit = match span.as_millis() {
            0 => Duration::from_micros(1),
            1..1000 => Duration::from_millis(1),
            _ => Duration::from_millis(100),
        };
        let count = span.as_nanos() / unit.as_nanos();
        format_duration(unit * u32::try_from(count).unwrap_or(u32::MAX))
    }))
}

pub(crate) fn run(command: &StatsCommand, output: &Output) -> anyhow::Result<()> {
    let (format, params) = (output.format(&command.format)?, command.params()?);
    run_on_api(&command.api, async |api| {
        let statistics = api.client().statistics(&params).await?;
        if format == Format::Json {
            return output.print_json(&statistics);
        }
        output.print_list(format, &Page::single(statistics.queues))?;
        if let Some(other) = &statistics.other {
            writeln!(
                std::io::stderr(),
                "other queues: {} enqueued; name one with `--queue`",
                other.enqueued
            )?;
        }
        Ok(())
    })
}
