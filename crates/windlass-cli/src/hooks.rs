//! `windlass hooks`: list, show, put, test and delete hooks.

mod view;

use clap::{Args, Subcommand};
use serde_json::json;
use windlass_api::{DurationText, List, Page, PutHook, Text};
use windlass_client::Client;
use windlass_core::{HookEvent, HookName, Invalid, Kind, QueueName, parse_duration};

use crate::backend::{Api, ApiArgs, block_on};
use crate::output::{FormatArgs, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum HooksCommand {
    /// List all hooks by name.
    List(ListHooks),
    /// Show a hook and its last reports.
    Show(HookArgs),
    /// Create a hook, or replace the hook of this name.
    Put(PutArgs),
    /// Report the event `test`, so that you can check the target.
    Test(HookArgs),
    /// Delete a hook. Reports that are enqueued already are still sent.
    Delete(HookArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListHooks {
    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HookArgs {
    /// The name of the hook.
    name: HookName,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The name of the hook.
    name: HookName,

    /// The URL that gets the reports, by POST.
    #[arg(long = "to", value_name = "URL")]
    to: String,

    /// The secret that signs the reports; create it with `windlass secrets put`. Can be given up to
    /// 8 times.
    #[arg(long, value_name = "SECRET", required = true)]
    sign: Vec<String>,

    /// The events to report: dead, failure_group_created, replay_stopped, queue_stalled. Separate
    /// several with commas.
    #[arg(
        long = "on",
        value_name = "EVENT",
        value_delimiter = ',',
        required = true
    )]
    on: Vec<HookEvent>,

    /// Report only events of this queue.
    #[arg(long)]
    queue: Option<QueueName>,

    /// Report only events of jobs of this kind.
    #[arg(long)]
    kind: Option<Kind>,

    /// Include the error text of failures. It may contain personal data.
    #[arg(long)]
    include_error_text: bool,

    /// Report a queue that has ready jobs and started none for this time [default: 5m].
    #[arg(long, value_name = "DURATION")]
    stalled_after: Option<String>,

    /// Pause the hook: it reports nothing.
    #[arg(long)]
    paused: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

impl HooksCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            HooksCommand::List(list) => &list.api,
            HooksCommand::Put(put) => &put.api,
            HooksCommand::Show(hook) | HooksCommand::Test(hook) | HooksCommand::Delete(hook) => {
                &hook.api
            }
        }
    }
}

pub(crate) fn run(command: &HooksCommand, output: &Output) -> anyhow::Result<()> {
    block_on(async {
        let api = command.api().connect().await?;
        let done = run_on(command, &api, output).await;
        api.close().await;
        done
    })
}

async fn run_on(command: &HooksCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        HooksCommand::List(list) => {
            let format = output.format(&list.format)?;
            output.print_list(format, &Page::single(client.hooks().await?))
        }
        HooksCommand::Show(HookArgs { name, format, .. }) => {
            let format = output.format(format)?;
            let hook = client.hook(name).await?;
            output.print_one(format, &hook, || view::page(&hook))
        }
        HooksCommand::Put(args) => put(args, client, output).await,
        HooksCommand::Test(HookArgs { name, .. }) => {
            let job_id = client.test_hook(name).await?;
            let text = format!(
                "enqueued the report {job_id}; see its result with `windlass hooks show {name}`\n"
            );
            output.print(&json!({"job_id": job_id}), text)
        }
        HooksCommand::Delete(HookArgs { name, .. }) => {
            client.delete_hook(name).await?;
            output.print(&json!({"name": name}), format!("deleted {name}\n"))
        }
    }
}

async fn put(args: &PutArgs, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let sign = args.sign.iter().cloned().map(Text::new);
    let sign: Result<Vec<_>, String> = sign.collect();
    let sign = sign.map_err(|rule| Invalid::new("--sign", rule))?;
    let stalled_after = args.stalled_after.as_deref().map(parse_duration);
    let stalled_after = stalled_after.transpose();
    let stalled_after = stalled_after.map_err(|error| error.within("--stalled-after"))?;
    let put = PutHook {
        url: Some(args.to.clone()),
        sign: Some(List(sign)),
        events: Some(List(args.on.clone())),
        queue: args.queue.clone(),
        kind: args.kind.clone(),
        include_error_text: args.include_error_text.then_some(true),
        stalled_after: stalled_after.map(DurationText),
        stalled_after_ms: None,
        paused: args.paused.then_some(true),
    };
    let hook = client.put_hook(&args.name, &put).await?;
    output.print_one(format, &hook, || view::hook(&hook))
}
