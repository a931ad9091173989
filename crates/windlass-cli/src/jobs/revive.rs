//! `windlass jobs revive`: runs dead or cancelled jobs again.

use std::io::Write as _;

use clap::{Args, ValueEnum};
use serde_json::json;
use windlass_api::{
    BoundedInt, DurationText, FailureCount, Job, JobFilter, JobState, Page, Revival, ReviveByFilter,
};
use windlass_client::Client;
use windlass_core::{Invalid, Timestamp, parse_duration};

use super::change::{each, ids, print};
use crate::backend::ApiArgs;
use crate::change::ChangeArgs;
use crate::filter::FilterArgs;
use crate::output::{Format, FormatArgs, Output};
use crate::progress::progress;

/// The most jobs that are counted before a change by filter. Further jobs are changed too.
const COUNTED_MAX: usize = 10_000;
/// How many of the matching jobs a dry run lists.
const SAMPLE: usize = 10;
/// The number of jobs of each request.
const BATCH: u16 = 1000;

#[derive(Debug, Args)]
pub(crate) struct ReviveJobs {
    /// The ids of the jobs, or `-` to read them from stdin. Without ids, the filters select dead
    /// jobs.
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// What happens to the failure count of each job: `reset` gives it all its attempts again, `keep`
    /// changes nothing.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "reset",
        hide_possible_values = true
    )]
    failures: Failures,

    /// The earliest start, such as 2026-01-01T00:00:00Z [default: now].
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    run_at: Option<Timestamp>,

    /// The earliest start, counted from now, such as `10m`.
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,

    /// Also revive at-most-once jobs that were lost and may have run.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// What a revival does to the failure count.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Failures {
    Reset,
    Keep,
}

impl ReviveJobs {
    fn revival(&self) -> Result<Revival, Invalid> {
        let delay = self.delay.as_deref().map(parse_duration).transpose();
        let delay = delay.map_err(|error| Invalid::new("--delay", error.rule()))?;
        Ok(Revival {
            failures: Some(match self.failures {
                Failures::Reset => FailureCount::Reset,
                Failures::Keep => FailureCount::Keep,
            }),
            run_at: self.run_at,
            delay: delay.map(DurationText),
            force: Some(self.force),
            ..Revival::default()
        })
    }

    /// Returns the filter of dead jobs.
    fn dead_filter(&self) -> Result<JobFilter, Invalid> {
        let filter = self.filter.to_filter()?;
        match filter.state {
            None | Some(JobState::Dead) => Ok(JobFilter {
                state: None,
                ..filter
            }),
            Some(_) => {
                let rule = "must be `dead`: a filter selects only dead jobs; give other jobs by id";
                Err(Invalid::new("--state", rule))
            }
        }
    }
}

pub(super) async fn revive(
    revive: &ReviveJobs,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&revive.format)?;
    let revival = revive.revival()?;
    if revive.ids.is_empty() {
        return revive_by_filter(revive, revival, client, output).await;
    }
    if !revive.filter.is_empty() {
        let rule = "and filters exclude each other: give one of them";
        return Err(Invalid::new("ID", rule).into());
    }
    let ids = ids(&revive.ids)?;
    if revive.change.dry_run {
        let forecast = async |id| {
            let why = client.why(id).await?;
            let error = match &why.revive {
                Some(forecast) if forecast.allowed => None,
                Some(forecast) => {
                    let texts: Vec<&str> = forecast
                        .refusals
                        .iter()
                        .map(|one| one.text.as_str())
                        .collect();
                    Some(texts.join("; "))
                }
                None => Some("only dead and cancelled jobs can be revived".to_owned()),
            };
            Ok((why.state, error))
        };
        return print(output, format, each("checked", &ids, forecast).await?);
    }
    let jobs = format!("{} jobs", ids.len());
    revive.change.confirm("revive", ids.len(), &jobs)?;
    let revive = async |id| Ok((client.revive_job(id, &revival).await?.state, None));
    print(output, format, each("revived", &ids, revive).await?)
}

async fn revive_by_filter(
    revive: &ReviveJobs,
    revival: Revival,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&revive.format)?;
    let filter = revive.dead_filter()?;
    if filter.is_empty() {
        let rule = "must be given, or a filter such as `--queue`";
        return Err(Invalid::new("ID", rule).into());
    }
    if format == Format::Id && !revive.change.dry_run {
        let rule = "must not be `id` with a filter: the server returns only the number of jobs";
        return Err(Invalid::new("-o", rule).into());
    }
    let (count, sample, jobs) = count(client, &filter).await?;
    if revive.change.dry_run {
        if format == Format::Json {
            return output.print_json(&json!({"count": count, "sample": sample}));
        }
        writeln!(std::io::stderr(), "would revive {jobs}")?;
        return output.print_list(format, &Page::single(sample));
    }
    revive.change.confirm("revive", count, &jobs)?;
    let mut which = ReviveByFilter {
        filter: Some(filter),
        limit: BoundedInt::new(BATCH.into()),
        failures: revival.failures,
        run_at: revival.run_at,
        delay: revival.delay,
        force: revival.force,
        ..ReviveByFilter::default()
    };
    let bar = progress("revived", Some(count));
    let (mut changed, mut conflicts) = (0, 0);
    loop {
        let answer = client.revive_jobs(&which).await?;
        changed += answer.changed;
        conflicts += answer.conflicts;
        bar.set_position(u64::try_from(changed).unwrap_or(u64::MAX));
        match answer.next_cursor {
            Some(cursor) => which.cursor = Some(serde_json::from_value(json!(cursor))?),
            None => break,
        }
    }
    bar.finish_and_clear();
    let mut text = format!("revived {changed} jobs\n");
    if conflicts > 0 {
        text.push_str(&format!(
            "{conflicts} jobs could not be revived; `windlass jobs why ID` says why\n"
        ));
    }
    let answer = json!({"changed": changed, "conflicts": conflicts});
    match format {
        Format::Json => output.print_json(&answer),
        Format::Ndjson => Ok(writeln!(std::io::stdout(), "{answer}")?),
        Format::Table | Format::Wide | Format::Id => output.print(&answer, text),
    }
}

/// Returns how many dead jobs match, the newest of them, and the number as text.
async fn count(client: &Client, filter: &JobFilter) -> anyhow::Result<(usize, Vec<Job>, String)> {
    let (mut count, mut sample) = (0, Vec::new());
    let mut pages = client.dead_letters(filter).limit(BATCH.into());
    while let Some(page) = pages.next_page().await? {
        count += page.data.len();
        let wanted = SAMPLE.saturating_sub(sample.len());
        sample.extend(page.data.into_iter().take(wanted));
        if count >= COUNTED_MAX && page.next_cursor.is_some() {
            return Ok((count, sample, format!("at least {count} jobs")));
        }
    }
    let jobs = if count == 1 {
        "1 job".to_owned()
    } else {
        format!("{count} jobs")
    };
    Ok((count, sample, jobs))
}
