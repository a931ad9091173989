//! `windlass worker run`: a worker with a simple handler, to try things.

mod exec;
mod handler;

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use windlass_client::{Attempt, Worker};
use windlass_core::{Invalid, Kind, QueueName, format_duration, parse_duration};

use crate::backend::{Api, ApiArgs, block_on};
use crate::clock;
use crate::output::{Cell, Output, took};

use exec::FixedCommand;
use handler::{Handler, Share};

/// Short, so that a cancelled job stops within a few seconds: a worker learns about it when it
/// renews its leases, after a third of this.
const LEASE: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Claim jobs and run a simple handler for each, until SIGTERM or Ctrl-C.
    Run(Box<RunWorker>),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Commands of `exec` get the payload as JSON on stdin. Lines that they write to stderr are the log of
the attempt. What they write to stdout is the result of the job: JSON, or any other text of at most
64 KiB. The exit code is the outcome: 0 is success, 100 is a failure that no retry can help, and every
other code is a failure that is retried by the policy of the job. A cancelled command gets SIGTERM, and
SIGKILL after 5 s, with all processes of its group. Its environment has WINDLASS_JOB_ID,
WINDLASS_JOB_KIND, WINDLASS_JOB_QUEUE and WINDLASS_JOB_ATTEMPT, and lacks WINDLASS_KEY.")]
pub(crate) struct RunWorker {
    /// What to do with each job: `echo` (return the payload), `sleep`, `fail`, `flaky` (fail
    /// sometimes), or `exec` (run the command after `--`).
    #[arg(value_name = "HANDLER", hide_possible_values = true)]
    handler: HandlerName,

    /// Claim from this queue. Repeat it for more queues [default: default].
    #[arg(long, value_name = "QUEUE")]
    queue: Vec<QueueName>,

    /// Claim only jobs of this kind. Repeat it for more kinds [default: all kinds except HTTP jobs].
    #[arg(long, value_name = "KIND")]
    kind: Vec<Kind>,

    /// How many jobs run at once, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: u32,

    /// How long each job takes, such as `500ms`. Only with `sleep` (default: 1s), `fail` and `flaky`
    /// (default: 0s).
    #[arg(long, value_name = "DURATION")]
    duration: Option<String>,

    /// The share of attempts that fail, 0 to 1. Only with `flaky` [default: 0.5].
    #[arg(long, value_name = "SHARE")]
    share: Option<Share>,

    /// The name of the worker [default: worker-run and the process id].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// How long running jobs may take after SIGTERM or Ctrl-C. Then they are given back.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    grace: String,

    #[command(flatten)]
    api: ApiArgs,

    /// The command of `exec` and its arguments. It is the same for all jobs.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HandlerName {
    Echo,
    Sleep,
    Fail,
    Flaky,
    Exec,
}

impl RunWorker {
    /// Returns the handler that the flags describe. A flag that the handler ignores is an error.
    fn handler(&self) -> Result<Handler, Invalid> {
        let duration = self.duration.as_deref().map(parse_duration).transpose();
        let duration = duration.map_err(|error| Invalid::new("--duration", error.rule()))?;
        let name = self.handler;
        let refuse = |flag: &str, given: bool, allowed: &[HandlerName], only: &str| {
            if given && !allowed.contains(&name) {
                return Err(Invalid::new(flag, format!("is only allowed with {only}")));
            }
            Ok(())
        };
        let (sleep, fail, flaky) = (HandlerName::Sleep, HandlerName::Fail, HandlerName::Flaky);
        let waiting = [sleep, fail, flaky];
        refuse(
            "--duration",
            duration.is_some(),
            &waiting,
            "`sleep`, `fail` and `flaky`",
        )?;
        refuse("--share", self.share.is_some(), &[flaky], "`flaky`")?;
        let has_command = !self.command.is_empty();
        refuse("COMMAND", has_command, &[HandlerName::Exec], "`exec`")?;
        let wait = duration.unwrap_or_default();
        Ok(match name {
            HandlerName::Echo => Handler::Echo,
            HandlerName::Sleep => Handler::Sleep(duration.unwrap_or(Duration::from_secs(1))),
            HandlerName::Fail => Handler::Fail(wait),
            HandlerName::Flaky => Handler::Flaky(wait, self.share.unwrap_or_default()),
            HandlerName::Exec => Handler::Exec(FixedCommand::new(&self.command)?),
        })
    }

    fn worker(&self, api: &Api) -> Result<Worker, Invalid> {
        let grace = parse_duration(&self.grace);
        let grace = grace.map_err(|error| Invalid::new("--grace", error.rule()))?;
        let name = self.name.clone();
        let name = name.unwrap_or_else(|| format!("worker-run-{}", std::process::id()));
        let worker = Worker::new(api.client().clone(), &name);
        let worker = worker.map_err(|error| Invalid::new("--name", error.rule()))?;
        let worker = worker.slots(self.concurrency).lease(LEASE).grace(grace);
        let worker = self.queue.iter().cloned().fold(worker, Worker::queue);
        Ok(self.kind.iter().cloned().fold(worker, Worker::kind))
    }
}

pub(crate) fn run(command: &WorkerCommand, output: &Output) -> anyhow::Result<()> {
    let WorkerCommand::Run(command) = command;
    let handler = command.handler()?;
    // The worker logs what it cannot return: for example, that the server is unreachable.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();
    block_on(async {
        let api = command.api.connect().await?;
        let done = match command.worker(&api) {
            Ok(worker) => run_on(command, worker, handler, output).await,
            Err(error) => Err(error.into()),
        };
        api.close().await;
        done
    })
}

async fn run_on(
    command: &RunWorker,
    worker: Worker,
    handler: Handler,
    output: &Output,
) -> anyhow::Result<()> {
    let (mut terminated, mut interrupted) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let stop = CancellationToken::new();
    let (handler, printer) = (Arc::new(handler), output.clone());
    let running = worker.run(
        move |attempt| handle(Arc::clone(&handler), printer.clone(), attempt),
        stop.clone(),
    );
    tokio::pin!(running);
    let queues = if command.queue.is_empty() {
        "default".to_owned()
    } else {
        let names: Vec<&str> = command.queue.iter().map(QueueName::as_str).collect();
        names.join(", ")
    };
    output.print_line(
        &json!({"event": "started", "queues": queues}),
        format!("claiming from {queues}; stop with Ctrl-C"),
    )?;
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    stop.cancel();
    output.print_line(
        &json!({"event": "stopping"}),
        "finishing the running jobs; a second signal stops at once",
    )?;
    // At the second signal, dropping the worker kills running commands. Their leases expire.
    tokio::select! {
        ended = running => Ok(ended?),
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    }
}

async fn handle(
    handler: Arc<Handler>,
    output: Output,
    attempt: Attempt,
) -> windlass_client::Handled {
    let (job, started) = (attempt.job.clone(), clock::now());
    let handled = handler.run(attempt).await;
    let error = handled.as_ref().err();
    let error = error.map(|failure| failure.message().to_owned());
    let took = took(started, clock::now());
    let outcome = if error.is_some() {
        "failed"
    } else {
        "succeeded"
    };
    let text = format!(
        "{} {} attempt {}: {outcome} after {took}",
        job.kind, job.id, job.attempt
    );
    let text = match &error {
        Some(error) => format!("{text}: {error}"),
        None => text,
    };
    let text = Cell::new(text).into_text();
    let line = json!({"event": outcome, "job_id": job.id, "kind": job.kind, "attempt": job.attempt, "took": took, "error": error});
    // The outcome counts, even if no one reads the line.
    let _ = output.print_line(&line, text);
    handled
}

/// Returns the sentence about how long a handler waits.
fn waits(duration: Duration) -> String {
    format!("waiting {}", format_duration(duration))
}
