//! `windlass failures`: the causes of failures.

use clap::{Args, Subcommand};
use windlass_api::{FailingState, FailureGroup, FailureParams, Page};
use windlass_client::Client;
use windlass_core::{Fingerprint, Kind, QueueName};

use crate::backend::{Api, ApiArgs, run_on_api};
use crate::clock;
use crate::list::ListArgs;
use crate::output::{
    Cell, Column, Format, FormatArgs, Listed, Output, Tone, details, relative, with_relative,
};

/// The most characters of an error in a table.
const ERROR_CHARS_MAX: usize = 60;

#[derive(Debug, Subcommand)]
pub(crate) enum FailuresCommand {
    /// List causes of failures with their dead and retrying jobs, the most jobs first.
    List(ListFailures),
    /// Show a cause: its queues and kinds, its failures by hour and a sample.
    Show(ShowFailure),
}

#[derive(Debug, Args)]
pub(crate) struct ListFailures {
    /// Only failures in this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,

    /// Only failures of jobs of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,

    /// Only the cause with this fingerprint.
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<Fingerprint>,

    /// Only causes that have jobs in this state: dead or retrying.
    #[arg(long, value_name = "STATE", hide_possible_values = true)]
    state: Option<StateFlag>,

    #[command(flatten)]
    list: ListArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StateFlag {
    Dead,
    Retrying,
}

#[derive(Debug, Args)]
pub(crate) struct ShowFailure {
    /// The fingerprint of the cause, from `windlass failures list`.
    fingerprint: Fingerprint,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

impl Listed for FailureGroup {
    const NOUN: &'static str = "failures";

    fn columns() -> Vec<Column<FailureGroup>> {
        vec![
            Column::new("cause", |group, _| Cell::new(group.fingerprint)),
            Column::new("queue", |group, _| Cell::new(&group.queue)),
            Column::new("kind", |group, _| Cell::new(&group.kind)),
            Column::new("dead", |group, _| dead(group)),
            Column::new("retrying", |group, _| Cell::new(group.retrying)),
            Column::wide("last 24h", |group, _| {
                Cell::new(group.hours.iter().sum::<u64>())
            }),
            Column::wide("first seen", |group, now| {
                Cell::new(relative(group.first_seen_at, now))
            }),
            Column::new("last seen", |group, now| {
                Cell::new(relative(group.last_seen_at, now))
            }),
            Column::wide("sample", |group, _| Cell::optional(group.sample.job_id)),
            Column::new("sample error", |group, _| match &group.sample.error {
                Some(error) => Cell::short(error, ERROR_CHARS_MAX),
                None => Cell::optional(None::<&str>),
            }),
        ]
    }

    fn id(&self) -> String {
        self.fingerprint.to_string()
    }
}

fn dead(group: &FailureGroup) -> Cell {
    let tone = if group.dead > 0 {
        Tone::Bad
    } else {
        Tone::Plain
    };
    Cell::new(group.dead).tone(tone)
}

pub(crate) fn run(command: &FailuresCommand, output: &Output) -> anyhow::Result<()> {
    let api = match command {
        FailuresCommand::List(list) => &list.api,
        FailuresCommand::Show(show) => &show.api,
    };
    run_on_api(api, async |api| run_on(command, api, output).await)
}

async fn run_on(command: &FailuresCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    match command {
        FailuresCommand::List(args) => {
            let format = output.format(&args.format)?;
            let params = FailureParams {
                queue: args.queue.clone(),
                kind: args.kind.clone(),
                fingerprint: args.fingerprint,
                state: args.state.map(|state| match state {
                    StateFlag::Dead => FailingState::Dead,
                    StateFlag::Retrying => FailingState::Retrying,
                }),
            };
            let page = args.list.read(|| api.client().failures(&params)).await?;
            output.print_list(format, &page)
        }
        FailuresCommand::Show(args) => show(args, api.client(), output).await,
    }
}

/// Prints the groups of a fingerprint: one for each queue and kind.
async fn show(args: &ShowFailure, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let params = FailureParams {
        fingerprint: Some(args.fingerprint),
        ..FailureParams::default()
    };
    let groups = client.failures(&params).limit(1000).all().await?;
    anyhow::ensure!(
        !groups.is_empty(),
        "there are no failures with the fingerprint {}; `windlass failures list` lists all causes",
        args.fingerprint
    );
    match format {
        Format::Table | Format::Wide => {
            let pages: Vec<String> = groups.iter().map(page).collect();
            let fingerprint = args.fingerprint;
            let text = pages.join("\n");
            let hint = format!(
                "\n`windlass jobs list --fingerprint {fingerprint}` lists the jobs,\n`windlass replay start --fingerprint {fingerprint} --reason TEXT` revives the dead ones step by step\n"
            );
            output.print(&groups, text + &hint)
        }
        format => output.print_list(format, &Page::single(groups)),
    }
}

/// Returns the page of a group.
fn page(group: &FailureGroup) -> String {
    let now = clock::now();
    let hours: Vec<String> = group.hours.iter().map(ToString::to_string).collect();
    let sample = &group.sample;
    let hidden = sample
        .error_withheld
        .then(|| Cell::new("hidden: the API key lacks the scope `read-payload`"));
    let rows = [
        ("cause", Some(Cell::new(group.fingerprint))),
        ("queue", Some(Cell::new(&group.queue))),
        ("kind", Some(Cell::new(&group.kind))),
        ("dead", Some(dead(group))),
        ("retrying", Some(Cell::new(group.retrying))),
        (
            "first seen",
            Some(Cell::new(with_relative(group.first_seen_at, now))),
        ),
        (
            "last seen",
            Some(Cell::new(with_relative(group.last_seen_at, now))),
        ),
        ("failures by hour", Some(Cell::new(hours.join(" ")))),
        ("sample", sample.job_id.map(Cell::new)),
        (
            "sample error",
            sample.error.as_ref().map(Cell::new).or(hidden),
        ),
    ];
    let given = rows
        .into_iter()
        .filter_map(|(name, cell)| Some((name, cell?)));
    details(given.collect())
}
