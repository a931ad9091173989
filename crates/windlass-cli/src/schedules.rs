//! `windlass schedules`: list, create, change and preview schedules.

mod backfill;
mod fields;
mod next;
mod preview;
mod view;
mod write;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use windlass_api::ScheduleView;
use windlass_client::Client;
use windlass_core::ScheduleName;

use crate::backend::{Api, ApiArgs, run_on_api};
use crate::change::ChangeArgs;
use crate::list::ListArgs;
use crate::output::{FormatArgs, Output};

use backfill::BackfillSchedule;
use next::NextOccurrences;
use preview::PreviewSchedule;
use write::{EditSchedule, PutSchedule};

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    /// List schedules by name: those that will fire again, are paused, or cannot be read.
    List(ListSchedules),
    /// Show a schedule with its latest occurrences, even if it will not fire again.
    Show(OneSchedule),
    /// Create a schedule, or replace the schedule of this name.
    Put(Box<PutSchedule>),
    /// Change fields of a schedule. Fields that are not given keep their value.
    Edit(Box<EditSchedule>),
    /// Show when a schedule will fire, or when a rule would.
    Preview(PreviewSchedule),
    /// Print the next occurrences of a cron expression, `@every 90s`, or `at 2026-11-01T05:30:00Z`.
    /// Needs no server.
    Next(NextOccurrences),
    /// List the past occurrences of a schedule: those that fired and those that were skipped.
    Occurrences(ListOccurrences),
    /// Pause a schedule: it does not fire until it is resumed.
    Pause(OneSchedule),
    /// Resume a paused schedule. Occurrences during the pause are recorded as skipped.
    Resume(OneSchedule),
    /// Create a job of a schedule now, in addition to its occurrences.
    RunNow(OneSchedule),
    /// Create the jobs of past occurrences that did not fire, at most 1000.
    Backfill(BackfillSchedule),
    /// Delete schedules. Their jobs stay.
    Delete(DeleteSchedules),
    /// Print a payload that a change of a schedule replaced, by its hash in the audit log.
    ReplacedPayload(ReplacedPayloadArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListSchedules {
    #[command(flatten)]
    list: ListArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct OneSchedule {
    /// The name or the id of the schedule.
    name: String,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListOccurrences {
    /// The name or the id of the schedule.
    name: String,

    #[command(flatten)]
    list: ListArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteSchedules {
    /// The names or ids of the schedules.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplacedPayloadArgs {
    /// The name of the schedule.
    name: ScheduleName,

    /// The SHA-256 hash of the payload, from `windlass audit list`.
    sha256: String,

    #[command(flatten)]
    api: ApiArgs,
}

impl SchedulesCommand {
    /// Returns how to reach the API; `None` for a command that needs none.
    fn api(&self) -> Option<&ApiArgs> {
        Some(match self {
            SchedulesCommand::List(list) => &list.api,
            SchedulesCommand::Show(one)
            | SchedulesCommand::Pause(one)
            | SchedulesCommand::Resume(one)
            | SchedulesCommand::RunNow(one) => &one.api,
            SchedulesCommand::Put(put) => &put.api,
            SchedulesCommand::Edit(edit) => &edit.api,
            SchedulesCommand::Preview(preview) => &preview.api,
            SchedulesCommand::Occurrences(list) => &list.api,
            SchedulesCommand::Backfill(backfill) => &backfill.api,
            SchedulesCommand::Delete(delete) => &delete.api,
            SchedulesCommand::ReplacedPayload(replaced) => &replaced.api,
            SchedulesCommand::Next(_) => return None,
        })
    }
}

pub(crate) fn run(command: &SchedulesCommand, output: &Output) -> anyhow::Result<()> {
    match (command, command.api()) {
        (SchedulesCommand::Next(next), _) => next::next(next, output),
        (_, None) => Ok(()),
        (command, Some(api)) => run_on_api(api, async |api| run_on(command, api, output).await),
    }
}

async fn run_on(command: &SchedulesCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        SchedulesCommand::List(args) => {
            let format = output.format(&args.format)?;
            let page = args.list.read(|| client.schedules()).await?;
            output.print_list(format, &page)
        }
        SchedulesCommand::Show(one) => view::show(one, client, output).await,
        SchedulesCommand::Put(put) => write::put(put, client, output).await,
        SchedulesCommand::Edit(edit) => write::edit(edit, client, output).await,
        SchedulesCommand::Preview(preview) => preview::preview(preview, client, output).await,
        SchedulesCommand::Next(next) => next::next(next, output),
        SchedulesCommand::Occurrences(args) => {
            let format = output.format(&args.format)?;
            let page = args.list.read(|| client.occurrences(&args.name)).await?;
            output.print_list(format, &page)
        }
        SchedulesCommand::Pause(one) => {
            let schedule = client.pause_schedule(&one.name).await?;
            view::print(
                &ScheduleView::Readable(Box::new(schedule)),
                &one.format,
                output,
            )
        }
        SchedulesCommand::Resume(one) => {
            let schedule = client.resume_schedule(&one.name).await?;
            view::print(
                &ScheduleView::Readable(Box::new(schedule)),
                &one.format,
                output,
            )
        }
        SchedulesCommand::RunNow(one) => run_now(one, client, output).await,
        SchedulesCommand::Backfill(args) => backfill::backfill(args, client, output).await,
        SchedulesCommand::Delete(args) => delete(args, client, output).await,
        SchedulesCommand::ReplacedPayload(args) => {
            let replaced = client.replaced_schedule_payload(&args.name, &args.sha256);
            let replaced = replaced.await?;
            output.print(&replaced, format!("{}\n", replaced.payload.as_str()))
        }
    }
}

async fn run_now(one: &OneSchedule, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&one.format)?;
    let id = client.run_schedule_now(&one.name).await?;
    let created = view::CreatedBySchedule { job_id: id };
    output.print_one(format, &created, || format!("created job {id}\n"))
}

async fn delete(args: &DeleteSchedules, client: &Client, output: &Output) -> anyhow::Result<()> {
    let schedules = match args.names.as_slice() {
        [name] => format!("schedule {name}"),
        names => format!("{} schedules", names.len()),
    };
    if args.change.dry_run {
        for name in &args.names {
            client.schedule(name).await?; // fails if it does not exist
        }
        let text = format!("would delete {schedules}\n");
        return output.print(&serde_json::json!({"dry_run": text.trim()}), text);
    }
    args.change
        .confirm("delete", args.names.len(), &schedules)?;
    for (done, name) in args.names.iter().enumerate() {
        let deleted = client.delete_schedule(name).await;
        deleted.with_context(|| format!("cannot delete {name}; {done} schedules were deleted"))?;
    }
    let text: String = args
        .names
        .iter()
        .map(|name| format!("deleted {name}\n"))
        .collect();
    output.print(&serde_json::json!({"deleted": args.names}), text)
}
