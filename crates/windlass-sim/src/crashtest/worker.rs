//! The worker processes of a crash test.

mod raw;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use windlass::events::{Event, JobEvent, Received, Subscription};
use windlass_client::Failure;
use windlass_core::Outcome;

use super::error::{CrashTestError, During as _};
use super::load;
use super::record::{Log, What};
use super::work::{self, Ended, KIND, LEASE, QUEUE, Work};

/// How long a process waits before it tries again what failed at its start.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// How many jobs a worker runs at once.
const SLOTS: u32 = 8;
/// How long a worker waits for its jobs at the end.
const GRACE: Duration = Duration::from_secs(5);

/// What a worker process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerRole {
    /// A worker of the SDK on this PostgreSQL database, which also enqueues jobs.
    Sdk {
        /// The URL of the store.
        store: String,
    },
    /// The remote worker of `windlass-client` on this server.
    Rest {
        /// The URL of the server.
        server: String,
    },
    /// A worker that sends claims, renewals and outcomes itself, and checks the answers.
    Raw {
        /// The URL of the server.
        server: String,
    },
}

/// A worker process.
#[derive(Debug, Clone)]
pub struct WorkerProcess {
    /// What it is.
    pub role: WorkerRole,
    /// Its name; every start has another one.
    pub name: String,
    /// The file that it appends what it sees to.
    pub log: PathBuf,
    /// Makes its choices repeatable.
    pub seed: u64,
    /// How many jobs an SDK worker enqueues in a second.
    pub rate: u32,
}

/// Runs a worker process until SIGTERM. Prints a line when it is ready.
///
/// # Errors
///
/// Fails if the log of effects cannot be opened or the configuration is wrong. While no store or
/// server answers, it tries again.
pub async fn run_worker(process: WorkerProcess) -> Result<(), CrashTestError> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).during("listen for SIGTERM")?;
    let ending = stop.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        ending.cancel();
    });
    let log = Arc::new(Log::open(&process.log, &process.name)?);
    match &process.role {
        WorkerRole::Sdk { store } => sdk(store, &process, &log, stop).await,
        WorkerRole::Rest { server } => rest(server, &process, &log, stop).await,
        WorkerRole::Raw { server } => raw::run(server, &process, &log, stop).await,
    }
}

/// Says that the process is ready.
#[expect(clippy::print_stdout, reason = "the crash test waits for this line")]
fn say_ready() {
    println!("ready");
}

async fn sdk(
    store: &str,
    process: &WorkerProcess,
    log: &Arc<Log>,
    stop: CancellationToken,
) -> Result<(), CrashTestError> {
    let Some(client) = open(store, &stop).await else {
        return Ok(());
    };
    tokio::spawn(log_ends(client.events(), Arc::clone(log)));
    let load = load::Enqueuer::new(&process.name, process.seed, process.rate, log);
    let ended = load::end_of_load(&process.log);
    tokio::spawn(load.run_with_sdk(client.clone(), ended, stop.clone()));
    say_ready();
    while !stop.is_cancelled() {
        let worker = windlass::Worker::new(&client, Arc::clone(log))
            .name(&process.name)
            .queue(QUEUE, SLOTS)
            .lease(LEASE)
            .shutdown_grace(GRACE)
            .handle(handle);
        let stopped = stop.clone();
        let ended = worker.run_until(async move { stopped.cancelled().await });
        if let Err(error) = ended.await {
            tracing::warn!(%error, "the worker ended; retrying");
            tokio::time::sleep(RETRY_WAIT).await;
        }
    }
    Ok(())
}

/// Opens the store, as soon as there is one.
async fn open(store: &str, stop: &CancellationToken) -> Option<windlass::Client> {
    while !stop.is_cancelled() {
        match windlass::Client::open(store).await {
            Ok(client) => return Some(client),
            Err(error) => tracing::warn!(%error, "cannot open the store; retrying"),
        }
        tokio::time::sleep(RETRY_WAIT).await;
    }
    None
}

async fn handle(work: Work, ctx: windlass::Context<Arc<Log>>) -> Result<(), windlass::Failure> {
    let attempt = (ctx.id(), ctx.attempt());
    let payload = ctx.job().payload.as_str();
    match work::run(&work, attempt, payload, &ctx.state).await {
        Ended::Well => Ok(()),
        Ended::Failed => Err("it was asked to fail".into()),
        Ended::Fatally => Err(windlass::Failure::unrecoverable("it was asked to fail")),
    }
}

/// Logs the ends of attempts that the store accepted.
async fn log_ends(mut events: Subscription, log: Arc<Log>) {
    while let Some(received) = events.next().await {
        let Received::Event(event) = received else {
            continue; // missed events are ends that are not checked
        };
        let Event::Job { job, what, .. } = &*event else {
            continue;
        };
        let outcome = match what {
            JobEvent::Succeeded { .. } => Outcome::Succeeded,
            JobEvent::Failed { .. } => Outcome::Failed,
            _ => continue,
        };
        let acknowledged = What::Acknowledged {
            job: job.id,
            attempt: job.attempt,
            outcome,
        };
        if log.write(acknowledged).is_err() {
            return;
        }
    }
}

async fn rest(
    server: &str,
    process: &WorkerProcess,
    log: &Arc<Log>,
    stop: CancellationToken,
) -> Result<(), CrashTestError> {
    say_ready();
    while !stop.is_cancelled() {
        let client = client(server)?;
        let worker = windlass_client::Worker::new(client, &process.name)
            .during("name a worker")?
            .queue(QUEUE.parse().during("name a queue")?)
            .kind(KIND.parse().during("name a kind")?)
            .slots(SLOTS)
            .lease(LEASE)
            .wait(Duration::from_secs(1))
            .grace(GRACE);
        let log = Arc::clone(log);
        let handler = move |attempt: windlass_client::Attempt| {
            let log = Arc::clone(&log);
            async move { handle_remote(&attempt, &log).await }
        };
        if let Err(error) = worker.run(handler, stop.clone()).await {
            tracing::warn!(%error, "the worker ended; retrying");
            tokio::time::sleep(RETRY_WAIT).await;
        }
    }
    Ok(())
}

async fn handle_remote(attempt: &windlass_client::Attempt, log: &Log) -> Result<Value, Failure> {
    let work: Work = attempt.payload()?;
    let payload = attempt.job.payload.as_ref();
    let payload = payload.map_or("null", |payload| payload.0.as_str());
    let (job, number) = (attempt.job.id, attempt.job.attempt);
    let Ok(log) = log.of_attempt(job, number) else {
        return Err(Failure::new("its log cannot be opened"));
    };
    match work::run(&work, (job, number), payload, &log).await {
        Ended::Well => Ok(Value::Null),
        Ended::Failed => Err(Failure::new("it was asked to fail")),
        Ended::Fatally => Err(Failure::new("it was asked to fail").unrecoverable()),
    }
}

/// A client that gives up soon: the test has many servers that do not answer.
pub(super) fn client(server: &str) -> Result<windlass_client::Client, CrashTestError> {
    let client = windlass_client::Client::builder(server);
    let client = client.connect_timeout(Duration::from_secs(2));
    let client = client.timeout(Duration::from_secs(15));
    client.build().during("build a client")
}
