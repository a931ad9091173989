//! `windlass queues`: list, pause, resume, limit and purge queues.

mod purge;
mod set;
mod view;

use clap::{Args, Subcommand};
use windlass_api::{CreateQueue, Page, PauseQueue, Queue, Text};
use windlass_client::Client;
use windlass_core::{Invalid, QueueName};

use crate::backend::{Api, ApiArgs, run_on_api};
use crate::output::{Format, FormatArgs, Output};

use purge::PurgeQueue;
use set::SetQueue;

#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// List all queues by name.
    List(ListQueues),
    /// Show a queue: its jobs, its pause and its settings.
    Show(ShowQueue),
    /// Pause a queue: no worker gets its jobs until it is resumed. Running jobs continue.
    Pause(PauseArgs),
    /// Resume a paused queue.
    Resume(ResumeArgs),
    /// Change settings of a queue. Settings that are not given keep their value.
    Set(SetQueue),
    /// Delete the finished jobs of a queue.
    Purge(PurgeQueue),
}

#[derive(Debug, Args)]
pub(crate) struct ListQueues {
    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowQueue {
    /// The name of the queue.
    queue: QueueName,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The name of the queue.
    queue: QueueName,

    /// Why, for other operators: at most 500 characters. If the queue is paused already, only its
    /// reason changes.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Also pause a queue that does not exist yet.
    #[arg(long)]
    create: bool,

    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The name of the queue.
    queue: QueueName,

    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

impl QueuesCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            QueuesCommand::List(list) => &list.api,
            QueuesCommand::Show(show) => &show.api,
            QueuesCommand::Pause(pause) => &pause.api,
            QueuesCommand::Resume(resume) => &resume.api,
            QueuesCommand::Set(set) => &set.api,
            QueuesCommand::Purge(purge) => &purge.api,
        }
    }
}

pub(crate) fn run(command: &QueuesCommand, output: &Output) -> anyhow::Result<()> {
    run_on_api(command.api(), async |api| {
        run_on(command, api, output).await
    })
}

async fn run_on(command: &QueuesCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        QueuesCommand::List(list) => {
            let format = output.format(&list.format)?;
            let queues = client.queues().limit(1000).all().await?;
            output.print_list(format, &Page::single(queues))
        }
        QueuesCommand::Show(show) => {
            let format = output.format(&show.format)?;
            let queue = client.queue(&show.queue).await?;
            print(output, format, &queue)
        }
        QueuesCommand::Pause(args) => pause(args, client, output).await,
        QueuesCommand::Resume(args) => resume(args, client, output).await,
        QueuesCommand::Set(set) => set::set(set, client, output).await,
        QueuesCommand::Purge(purge) => purge::purge(purge, api, output).await,
    }
}

async fn pause(args: &PauseArgs, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let reason = args.reason.clone().map(Text::new).transpose();
    let reason = reason.map_err(|rule| Invalid::new("--reason", rule))?;
    let (name, create) = (&args.queue, args.create.then_some(true));
    if args.dry_run {
        let text = match client.queue(name).await {
            Err(error) if args.create && error.code() == Some("not_found") => {
                format!("would create and pause queue {name}\n")
            }
            queue => match queue?.paused {
                Some(pause) => format!("queue {name} is paused already, by {}\n", pause.by),
                None => format!("would pause queue {name}\n"),
            },
        };
        return output.print(&serde_json::json!({"dry_run": text.trim()}), text);
    }
    let pause = PauseQueue { reason };
    let queue = client.pause_queue(name, &pause, CreateQueue { create });
    print(output, format, &queue.await?)
}

async fn resume(args: &ResumeArgs, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let name = &args.queue;
    if args.dry_run {
        let text = match client.queue(name).await?.paused {
            Some(pause) => format!("would resume queue {name}, which {} paused\n", pause.by),
            None => format!("queue {name} is not paused\n"),
        };
        return output.print(&serde_json::json!({"dry_run": text.trim()}), text);
    }
    let queue = client.resume_queue(name).await?;
    print(output, format, &queue)
}

fn print(output: &Output, format: Format, queue: &Queue) -> anyhow::Result<()> {
    output.print_one(format, queue, || view::page(queue, format))
}
