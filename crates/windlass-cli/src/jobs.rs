//! `windlass jobs`: list, explain, export and change jobs.

mod change;
mod export;
mod logs;
mod read;
mod revive;
mod show;
mod view;

use clap::{Args, Subcommand, ValueEnum};
use windlass_core::JobId;

use crate::backend::{Api, ApiArgs, block_on};
use crate::filter::FilterArgs;
use crate::list::ListArgs;
use crate::output::{FormatArgs, Output};

use change::CancelJobs;
use export::ExportJobs;
use logs::JobLogs;
use revive::ReviveJobs;

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
    Cancel(Box<CancelJobs>),
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

impl JobsCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            JobsCommand::List(list) => &list.api,
            JobsCommand::Show(show) | JobsCommand::Why(show) => &show.api,
            JobsCommand::History(history) => &history.api,
            JobsCommand::Logs(logs) => &logs.api,
            JobsCommand::Revive(revive) => &revive.api,
            JobsCommand::Cancel(cancel) => &cancel.api,
            JobsCommand::Export(export) => &export.api,
        }
    }
}

pub(crate) fn run(command: &JobsCommand, output: &Output) -> anyhow::Result<()> {
    block_on(async {
        let api = command.api().connect().await?;
        let done = run_on(command, &api, output).await;
        api.close().await;
        done
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
        JobsCommand::Cancel(cancel) => change::cancel(cancel, api, output).await,
        JobsCommand::Export(export) => export::export(export, client).await,
    }
}
