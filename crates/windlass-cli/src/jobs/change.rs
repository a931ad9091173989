//! `windlass jobs cancel|run-now|resolve|delete`, and what all changes of jobs share.

use std::io::BufRead as _;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use windlass_api::{BulkActionName, Job, JobFilter, JobState, NewBulkAction, Page, Reason};
use windlass_client::{Client, Error};
use windlass_core::{DeadReason, Invalid, JobId};

use super::view::state;
use crate::action::{action_body, words};
use crate::backend::{Api, ApiArgs};
use crate::body::flag_of_field;
use crate::bulk::change_all;
use crate::change::{ChangeArgs, reason};
use crate::filter::FilterArgs;
use crate::output::{Cell, Column, Format, FormatArgs, Listed, Output, Tone};
use crate::progress::progress;

/// The most ids that one command takes.
const IDS_MAX: usize = 100_000;

#[derive(Debug, Args)]
pub(crate) struct ChangeJobs {
    /// The ids of the jobs, or `-` to read them from stdin. Without ids, the filters select jobs.
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// With a filter: why, for the audit log and other operators [default: the name of the command].
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// A change of a job that has no options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobChange {
    Cancel,
    RunNow,
    Resolve,
    Delete,
}

impl JobChange {
    fn action(self) -> BulkActionName {
        match self {
            JobChange::Cancel => BulkActionName::Cancel,
            JobChange::RunNow => BulkActionName::RunNow,
            JobChange::Resolve => BulkActionName::Resolve,
            JobChange::Delete => BulkActionName::Delete,
        }
    }

    /// The reason of a bulk action if the operator gives none.
    fn command(self) -> &'static str {
        match self {
            JobChange::Cancel => "windlass jobs cancel",
            JobChange::RunNow => "windlass jobs run-now",
            JobChange::Resolve => "windlass jobs resolve",
            JobChange::Delete => "windlass jobs delete",
        }
    }

    /// Returns why the server would refuse the change.
    fn refusal(self, job: &Job) -> Option<&'static str> {
        let is_waiting = matches!(job.state, JobState::Scheduled | JobState::Ready);
        let is_finished = job.finished_at.is_some();
        let is_lost = job.dead_reason == Some(DeadReason::Lost);
        match self {
            JobChange::Cancel if is_finished => Some("the job has finished"),
            JobChange::RunNow if !is_waiting => Some("only waiting jobs can be made due"),
            JobChange::Resolve if !is_lost => Some("only lost at-most-once jobs can be resolved"),
            JobChange::Delete if !is_finished => Some("only finished jobs can be deleted"),
            _ => None,
        }
    }

    /// Sends the request. Returns the new state, or `None` if the job no longer exists.
    async fn send(self, client: &Client, id: JobId) -> Result<Option<JobState>, Error> {
        let job = match self {
            JobChange::Cancel => client.cancel_job(id).await?,
            JobChange::RunNow => client.run_job_now(id).await?,
            JobChange::Resolve => client.resolve_job(id).await?,
            JobChange::Delete => {
                client.delete_job(id).await?;
                return Ok(None);
            }
        };
        Ok(Some(job.state))
    }
}

/// What happened, or would happen, to one job.
#[derive(Debug, Serialize)]
pub(super) struct ChangedJob {
    id: JobId,
    /// The state after the change, if the job still exists; of a dry run, the state now.
    state: Option<JobState>,
    /// Why the job was not changed, or would not be.
    error: Option<String>,
}

impl Listed for ChangedJob {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<ChangedJob>> {
        vec![
            Column::new("id", |job, _| Cell::new(job.id)),
            Column::new("state", |job, _| match job.state {
                Some(now) => state(now),
                None => Cell::optional(None::<&str>),
            }),
            Column::new("result", |job, _| match &job.error {
                Some(error) => Cell::new(error).tone(Tone::Bad),
                None => Cell::new("ok"),
            }),
        ]
    }

    fn id(&self) -> String {
        self.id.to_string()
    }
}

/// Changes jobs by id or by filter.
pub(super) async fn change(
    change: JobChange,
    args: &ChangeJobs,
    api: &Api,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    if let Some(filter) = filter_instead(&args.ids, args.reason.as_deref(), &args.filter)? {
        let reason = bulk_reason(args.reason.as_deref(), change.command())?;
        let fields = json!({"action": change.action(), "reason": reason});
        let new: NewBulkAction = action_body(fields, &filter, flag_of_field)?;
        return change_all(api, &new, &args.change, output, format).await;
    }
    let (client, ids) = (api.client(), ids(&args.ids)?);
    if args.change.dry_run {
        let forecast = async |id| {
            let job = client.job(id).await?;
            Ok((Some(job.state), change.refusal(&job).map(str::to_owned)))
        };
        return print(output, format, each("checked", &ids, forecast).await?);
    }
    let jobs = format!("{} jobs", ids.len());
    let (verb, done) = words(change.action());
    args.change.confirm(verb, ids.len(), &jobs)?;
    let send = async |id| Ok((change.send(client, id).await?, None));
    print(output, format, each(done, &ids, send).await?)
}

/// Returns the filter, if jobs are selected by filter instead of by id.
pub(super) fn filter_instead(
    ids: &[String],
    reason: Option<&str>,
    filter: &FilterArgs,
) -> Result<Option<JobFilter>, Invalid> {
    match (ids.is_empty(), filter.is_empty()) {
        (true, true) => {
            let rule = "must be given, or a filter such as `--queue`";
            Err(Invalid::new("ID", rule))
        }
        (true, false) => filter.to_filter().map(Some),
        (false, true) if reason.is_some() => {
            let rule = "is only allowed with a filter: a change by id keeps no reason";
            Err(Invalid::new("--reason", rule))
        }
        (false, true) => Ok(None),
        (false, false) => {
            let rule = "and filters exclude each other: give one of them";
            Err(Invalid::new("ID", rule))
        }
    }
}

/// Returns why an operator acts, or `default` if they do not say.
pub(super) fn bulk_reason(given: Option<&str>, default: &str) -> Result<Reason, Invalid> {
    reason(given.unwrap_or(default))
}

/// Returns the ids that are given, or those on stdin: the first word of each line.
pub(super) fn ids(given: &[String]) -> anyhow::Result<Vec<JobId>> {
    let mut texts = Vec::new();
    for text in given {
        if text != "-" {
            texts.push(text.clone());
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            texts.extend(line?.split_whitespace().next().map(str::to_owned));
            let rule = format!("must be at most {IDS_MAX} ids");
            anyhow::ensure!(texts.len() <= IDS_MAX, Invalid::new("ID", rule));
        }
    }
    let parse = |text: &String| text.parse().map_err(|error: Invalid| error.within("ID"));
    let ids: Vec<JobId> = texts.iter().map(parse).collect::<Result<_, _>>()?;
    anyhow::ensure!(
        !ids.is_empty(),
        Invalid::new("ID", "must be at least one id, got none on stdin")
    );
    Ok(ids)
}

/// Sends a request for each job. A refusal that concerns one job does not affect the others.
pub(super) async fn each(
    verb: &'static str,
    ids: &[JobId],
    request: impl AsyncFn(JobId) -> Result<(Option<JobState>, Option<String>), Error>,
) -> anyhow::Result<Vec<ChangedJob>> {
    let bar = progress(verb, Some(ids.len()));
    let mut jobs = Vec::new();
    for id in ids {
        let (state, error) = match request(*id).await {
            Ok(result) => result,
            Err(Error::Refused(problem)) if ids.len() > 1 && is_about_job(problem.status) => {
                (None, Some(problem.detail))
            }
            Err(error) => return Err(error.into()),
        };
        bar.inc(1);
        let id = *id;
        jobs.push(ChangedJob { id, state, error });
    }
    bar.finish_and_clear();
    Ok(jobs)
}

/// Whether a refusal concerns one job, and not the key or the server.
fn is_about_job(status: u16) -> bool {
    matches!(status, 404 | 409 | 422 | 429)
}

/// Prints the jobs. Fails if one of them was not changed.
pub(super) fn print(output: &Output, format: Format, jobs: Vec<ChangedJob>) -> anyhow::Result<()> {
    let count = jobs.len();
    let (failed, done): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.error.is_some());
    let failed_count = failed.len();
    let data = match format {
        Format::Id => done, // the jobs that another command can go on with
        _ => done.into_iter().chain(failed).collect(),
    };
    output.print_list(format, &Page::single(data))?;
    anyhow::ensure!(
        failed_count == 0,
        "{failed_count} of {count} jobs cannot be changed"
    );
    Ok(())
}
