//! `windlass jobs`: list, explain, export and change jobs.

mod change;
mod clone;
mod edit;
mod export;
mod logs;
mod read;
mod revive;
mod show;
mod view;
mod wait;

use clap::{Args, Subcommand, ValueEnum};
use windlass_core::JobId;

use crate::backend::{Api, ApiArgs, run_on_api};
use crate::filter::FilterArgs;
use crate::list::ListArgs;
use crate::output::{FormatArgs, Output};

pub(crate) use view::state;

use change::{ChangeJobs, JobChange};
use clone::CloneJob;
use edit::EditJob;
use export::ExportJobs;
use logs::JobLogs;
use revive::ReviveJobs;
use wait::WaitForJob;

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List jobs.
    List(Box<ListJobs>),
    /// Show a job with its latest attempts and its next retry.
    Show(ShowJob),
    /// List the attempts of a job that have ended, newest first.
    History(JobHistory),
    /// Print what an attempt of a job logged, also while it runs.
    Logs(JobLogs),
    /// Explain why a job is not running, or why it is dead.
    Why(ShowJob),
    /// Run dead or cancelled jobs again, by id or by filter.
    Revive(Box<ReviveJobs>),
    /// Cancel jobs, by id or by filter. The worker of a running job is asked to stop it.
    Cancel(Box<ChangeJobs>),
    /// Make waiting jobs due now, by id or by filter.
    RunNow(Box<ChangeJobs>),
    /// Mark lost at-most-once jobs as succeeded, by id or by filter, without running them again.
    Resolve(Box<ChangeJobs>),
    /// Delete finished jobs and their history, by id or by filter.
    Delete(Box<ChangeJobs>),
    /// Change the payload, priority, time or queue of a waiting job.
    Edit(EditJob),
    /// Create a new job like an existing one.
    Clone(Box<CloneJob>),
    /// Wait until a job has finished. Exit code 1 if it did not succeed.
    Wait(WaitForJob),
    /// Print a payload that an edit or a revival replaced, by its hash in the audit log.
    ReplacedPayload(ReplacedPayloadArgs),
    /// Write all matching jobs as JSON, one on each line.
    Export(Box<ExportJobs>),
}

#[derive(Debug, Args)]
pub(crate) struct ListJobs {
    #[command(flatten)]
    format: FormatArgs,

    /// What to sort by: `created` (newest first) or `finished_at` (finished last first, and only
    /// finished jobs).
    #[arg(
        long,
        value_name = "ORDER",
        default_value = "created",
        hide_possible_values = true
    )]
    order: Order,

    #[command(flatten)]
    list: ListArgs,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    Created,
    #[value(name = "finished_at")]
    FinishedAt,
}

#[derive(Debug, Args)]
pub(crate) struct ShowJob {
    /// The id of the job.
    id: JobId,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct JobHistory {
    /// The id of the job.
    id: JobId,

    /// The largest number of attempts to list, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplacedPayloadArgs {
    /// The id of the job.
    id: JobId,

    /// The SHA-256 hash of the payload, from `windlass audit list`.
    sha256: String,

    #[command(flatten)]
    api: ApiArgs,
}

impl JobsCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            JobsCommand::List(list) => &list.api,
            JobsCommand::Show(show) | JobsCommand::Why(show) => &show.api,
            JobsCommand::History(history) => &history.api,
            JobsCommand::Logs(logs) => &logs.api,
            JobsCommand::Revive(revive) => &revive.api,
            JobsCommand::Cancel(change)
            | JobsCommand::RunNow(change)
            | JobsCommand::Resolve(change)
            | JobsCommand::Delete(change) => &change.api,
            JobsCommand::Edit(edit) => &edit.api,
            JobsCommand::Clone(clone) => &clone.api,
            JobsCommand::Wait(wait) => &wait.api,
            JobsCommand::ReplacedPayload(replaced) => &replaced.api,
            JobsCommand::Export(export) => &export.api,
        }
    }
}

pub(crate) fn run(command: &JobsCommand, output: &Output) -> anyhow::Result<()> {
    run_on_api(command.api(), async |api| {
        run_on(command, api, output).await
    })
}

async fn run_on(command: &JobsCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        JobsCommand::List(list) => read::list(list, client, output).await,
        JobsCommand::Show(show) => show::show(show, client, output).await,
        JobsCommand::History(history) => read::history(history, client, output).await,
        JobsCommand::Logs(logs) => logs::logs(logs, client, output).await,
        JobsCommand::Why(why) => read::why(why, client, output).await,
        JobsCommand::Revive(revive) => revive::revive(revive, api, output).await,
        JobsCommand::Cancel(args) => change::change(JobChange::Cancel, args, api, output).await,
        JobsCommand::RunNow(args) => change::change(JobChange::RunNow, args, api, output).await,
        JobsCommand::Resolve(args) => change::change(JobChange::Resolve, args, api, output).await,
        JobsCommand::Delete(args) => change::change(JobChange::Delete, args, api, output).await,
        JobsCommand::Edit(edit) => edit::edit(edit, client, output).await,
        JobsCommand::Clone(clone) => clone::clone(clone, client, output).await,
        JobsCommand::Wait(wait) => wait::wait(wait, client, output).await,
        JobsCommand::ReplacedPayload(args) => {
            let replaced = client.replaced_payload(args.id, &args.sha256).await?;
            output.print(&replaced, format!("{}\n", replaced.payload.as_str()))
        }
        JobsCommand::Export(export) => export::export(export, client).await,
    }
}
