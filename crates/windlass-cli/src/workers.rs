//! `windlass workers` and `windlass nodes`: who runs jobs, and signals to them.

use std::io::Write as _;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use windlass_api::{Page, Worker, WorkerSignal};
use windlass_client::Client;
use windlass_core::WorkerName;

use crate::backend::{Api, ApiArgs, run_on_api};
use crate::output::{
    Cell, Column, Format, FormatArgs, Listed, Output, Tone, details, relative, word,
};

/// The most characters of a list of queues or kinds in a table.
const LIST_CHARS_MAX: usize = 40;

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// List workers by name, with their queues and their last heartbeat.
    List(ListWorkers),
    /// Ask a worker to claim no jobs until it is resumed. Its running jobs continue.
    PauseClaims(OneWorker),
    /// Take back the signal to a worker.
    Resume(OneWorker),
    /// Ask a worker to finish its running jobs and exit.
    Stop(OneWorker),
    /// Remove a worker that has exited from the list.
    Remove(OneWorker),
}

#[derive(Debug, Args)]
pub(crate) struct ListWorkers {
    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct OneWorker {
    /// The name of the worker, from `windlass workers list`.
    name: WorkerName,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    api: ApiArgs,
}

/// A server of the store. Other rows of the list are workers.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
struct Server(Worker);

impl WorkersCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            WorkersCommand::List(list) => &list.api,
            WorkersCommand::PauseClaims(one)
            | WorkersCommand::Resume(one)
            | WorkersCommand::Stop(one)
            | WorkersCommand::Remove(one) => &one.api,
        }
    }
}

pub(crate) fn run(command: &WorkersCommand, output: &Output) -> anyhow::Result<()> {
    run_on_api(command.api(), async |api| {
        run_on(command, api, output).await
    })
}

async fn run_on(command: &WorkersCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        WorkersCommand::List(list) => {
            let format = output.format(&list.format)?;
            let mut workers = all(client).await?;
            workers.retain(|worker| !is_server(worker));
            output.print_list(format, &Page::single(workers))
        }
        WorkersCommand::PauseClaims(one) => {
            print(&client.pause_worker_claims(&one.name).await?, one, output)
        }
        WorkersCommand::Resume(one) => print(&client.resume_worker(&one.name).await?, one, output),
        WorkersCommand::Stop(one) => print(&client.stop_worker(&one.name).await?, one, output),
        WorkersCommand::Remove(one) => {
            client.remove_worker(&one.name).await?;
            let name = &one.name;
            output.print(&json!({"removed": name}), format!("removed {name}\n"))
        }
    }
}

/// `windlass nodes`: lists the servers and their configuration differences.
pub(crate) fn nodes(command: &ListWorkers, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&command.format)?;
    run_on_api(&command.api, async |api| {
        let servers = all(api.client()).await?.into_iter().filter(is_server);
        let servers: Vec<Server> = servers.map(Server).collect();
        let differences = api.client().server_differences().await?;
        if format == Format::Json {
            return output.print_json(&json!({"data": servers, "differences": differences}));
        }
        output.print_list(format, &Page::single(servers))?;
        for difference in differences {
            writeln!(std::io::stderr(), "warning: {difference}")?;
        }
        Ok(())
    })
}

async fn all(client: &Client) -> anyhow::Result<Vec<Worker>> {
    Ok(client.workers().limit(1000).all().await?)
}

fn is_server(worker: &Worker) -> bool {
    worker
        .about
        .get("role")
        .is_some_and(|role| role == "server")
}

fn print(worker: &Worker, one: &OneWorker, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&one.format)?;
    output.print_one(format, worker, || {
        details(vec![
            ("name", Cell::new(&worker.name)),
            ("state", state(worker)),
            ("queues", about(worker, "queues")),
            ("kinds", about(worker, "kinds")),
            ("slots", about(worker, "slots")),
        ])
    })
}

impl Listed for Worker {
    const NOUN: &'static str = "workers";

    fn columns() -> Vec<Column<Worker>> {
        vec![
            Column::new("name", |worker, _| Cell::new(&worker.name)),
            Column::new("state", |worker, _| state(worker)),
            Column::new("heartbeat", |worker, now| {
                Cell::new(relative(worker.heartbeat_at, now))
            }),
            Column::new("slots", |worker, _| about(worker, "slots")),
            Column::new("queues", |worker, _| about(worker, "queues")),
            Column::new("kinds", |worker, _| about(worker, "kinds")),
            Column::wide("version", |worker, _| about(worker, "version")),
        ]
    }

    fn id(&self) -> String {
        self.name.clone()
    }
}

impl Listed for Server {
    const NOUN: &'static str = "nodes";

    fn columns() -> Vec<Column<Server>> {
        vec![
            Column::new("name", |server, _| Cell::new(&server.0.name)),
            Column::new("state", |server, _| state(&server.0)),
            Column::new("heartbeat", |server, now| {
                Cell::new(relative(server.0.heartbeat_at, now))
            }),
            Column::new("version", |server, _| about(&server.0, "version")),
            Column::wide("settings", |server, _| settings(&server.0)),
        ]
    }

    fn id(&self) -> String {
        self.0.name.clone()
    }
}

fn state(worker: &Worker) -> Cell {
    match (worker.alive, worker.signal) {
        (false, _) => Cell::new("gone").tone(Tone::Bad),
        (true, None) => Cell::new("active").tone(Tone::Good),
        (true, Some(WorkerSignal::PauseClaims)) => Cell::new("paused").tone(Tone::Waiting),
        (true, Some(WorkerSignal::Stop)) => Cell::new("stopping").tone(Tone::Waiting),
    }
}

/// Returns what a worker reported about itself: a word, or a list of words.
fn about(worker: &Worker, field: &str) -> Cell {
    match worker.about.get(field) {
        None | Some(Value::Null) => Cell::optional(None::<&str>),
        Some(Value::Array(words)) => {
            let words: Vec<String> = words.iter().map(word).collect();
            Cell::short(&words.join(","), LIST_CHARS_MAX)
        }
        Some(other) => Cell::new(word(other)),
    }
}

/// Returns the settings that a server published, as `name=value`.
fn settings(worker: &Worker) -> Cell {
    let settings = worker.about.get("settings").and_then(Value::as_object);
    Cell::optional(settings.map(|settings| {
        let pair =
            |(name, value): (&String, &Value)| format!("{name}={}", word(value).trim_matches('"'));
        settings.iter().map(pair).collect::<Vec<_>>().join(" ")
    }))
}
