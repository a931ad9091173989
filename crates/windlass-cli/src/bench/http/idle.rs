//! `windlass bench http --idle`: the cost of long polls that find no job, compared with the same
//! server without long polls.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use windlass_client::{Client, Method};

use super::super::{HttpBench, postgres};
use super::{BenchServer, RestLoad};
use crate::clock;
use crate::output::Output;

/// The queue of the long polls.
const QUEUE: &str = "idle";
/// The queue of the other jobs.
const BACKLOG: &str = "backlog";
/// How long one long poll waits before the client sends the next one, as a worker does.
const WAIT: &str = "30s";
/// How long to wait after the server started or got its backlog before measuring.
const WARM_UP: Duration = Duration::from_secs(3);

/// The measurements.
#[derive(Debug, Serialize)]
struct IdleResults {
    waiters: u32,
    seconds: u32,
    backlog_jobs: u64,
    /// The share of one core that this process uses: server and waiting clients.
    waiting_cpu_percent: f64,
    baseline_cpu_percent: f64,
    /// Only on PostgreSQL.
    waiting_transactions_per_s: Option<f64>,
    baseline_transactions_per_s: Option<f64>,
    /// From the enqueue of one job to the response of the long poll that got it.
    pick_up_ms: f64,
}

pub(super) async fn run(
    bench: &HttpBench,
    folder: &std::path::Path,
    output: &Output,
) -> anyhow::Result<()> {
    let is_postgres = |url: &&String| url.starts_with("postgres");
    let database = match bench.store.as_ref().filter(is_postgres) {
        Some(url) => Some(postgres::Server::connect(url).await?),
        None => None,
    };
    let waiting_max = bench.waiters.max(1000).to_string();
    let bench_server =
        BenchServer::start(bench, folder, [("http.waiting_max", waiting_max)]).await?;
    fill(bench, &bench_server.url).await?;
    let meter = UsageMeter {
        database,
        seconds: bench.seconds,
    };
    let baseline = meter.measure().await?;
    let (claimed, mut jobs) = mpsc::channel(1);
    let mut waiters = JoinSet::new();
    let connections = usize::try_from(bench.waiters)?.max(1);
    let server = Client::builder(&bench_server.url).idle_connections_max(connections);
    let server = server.build()?;
    for number in 0..bench.waiters {
        waiters.spawn(wait_for_jobs(server.clone(), number, claimed.clone()));
    }
    let waiting = meter.measure().await?;
    let started = clock::start();
    let job = json!({"kind": "bench", "queue": QUEUE});
    let _: Value = server
        .call(Method::Post, "/api/v1/jobs", Some(&job))
        .await?;
    let picked_up: Instant = tokio::select! {
        at = jobs.recv() => at.context("no long poll got the job")?,
        Some(ended) = waiters.join_next() => return ended?.context("a long poll failed"),
    };
    waiters.abort_all();
    bench_server.stop().await?;
    let results = IdleResults {
        waiters: bench.waiters,
        seconds: bench.seconds,
        backlog_jobs: bench.jobs,
        waiting_cpu_percent: waiting.cpu_percent,
        baseline_cpu_percent: baseline.cpu_percent,
        waiting_transactions_per_s: waiting.transactions_per_s,
        baseline_transactions_per_s: baseline.transactions_per_s,
        pick_up_ms: picked_up.duration_since(started).as_secs_f64() * 1000.0,
    };
    output.print(&results, &results)
}

/// Enqueues jobs into another queue, half of them ready and half of them scheduled.
async fn fill(bench: &HttpBench, url: &str) -> anyhow::Result<()> {
    let ready = bench.jobs / 2;
    for (jobs, delay) in [(ready, "0s"), (bench.jobs - ready, "1d")] {
        let load = RestLoad {
            url: url.to_owned(),
            clients: bench.clients,
            label: "backlog",
            per_request: bench.batch.into(),
            jobs,
            job: json!({"kind": "bench", "queue": BACKLOG, "delay": delay}),
        };
        load.enqueue().await?;
    }
    Ok(())
}

/// Sends one long poll after the other, as an idle worker does. Reports when it got a job.
async fn wait_for_jobs(
    server: Client,
    number: u32,
    claimed: mpsc::Sender<Instant>,
) -> anyhow::Result<()> {
    let claim = json!({"queues": [QUEUE], "wait": WAIT, "worker": format!("idle-{number}")});
    loop {
        let response: Value = server
            .call(Method::Post, "/api/v1/claim", Some(&claim))
            .await?;
        let jobs = response.get("data").and_then(Value::as_array);
        if jobs.is_some_and(|jobs| !jobs.is_empty()) {
            claimed.send(clock::start()).await?;
        }
    }
}

/// Measures what this process and its database use.
struct UsageMeter {
    database: Option<postgres::Server>,
    seconds: u32,
}

struct Usage {
    cpu_percent: f64,
    transactions_per_s: Option<f64>,
}

impl UsageMeter {
    async fn measure(&self) -> anyhow::Result<Usage> {
        tokio::time::sleep(WARM_UP).await;
        let (cpu, transactions) = (clock::cpu_seconds(), self.transactions().await?);
        let started = clock::start();
        tokio::time::sleep(Duration::from_secs(self.seconds.into())).await;
        let (cpu_after, transactions_after) = (clock::cpu_seconds(), self.transactions().await?);
        let seconds = started.elapsed().as_secs_f64();
        let transactions = transactions.zip(transactions_after);
        Ok(Usage {
            cpu_percent: (cpu_after - cpu) / seconds * 100.0,
            transactions_per_s: transactions.map(|(before, after)| (after - before) / seconds),
        })
    }

    async fn transactions(&self) -> anyhow::Result<Option<f64>> {
        match &self.database {
            Some(database) => Ok(Some(database.transactions().await?)),
            None => Ok(None),
        }
    }
}

impl fmt::Display for IdleResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} long polls for {} s, {} jobs in another queue; client and server are one process",
            self.waiters, self.seconds, self.backlog_jobs
        )?;
        writeln!(f, "                       waiting  no long polls")?;
        writeln!(
            f,
            "share of a core      {:>7.2} %      {:>7.2} %",
            self.waiting_cpu_percent, self.baseline_cpu_percent
        )?;
        if let (Some(waiting), Some(baseline)) = (
            self.waiting_transactions_per_s,
            self.baseline_transactions_per_s,
        ) {
            writeln!(
                f,
                "transactions per s    {waiting:>7.1}        {baseline:>7.1}"
            )?;
        }
        writeln!(f, "a new job is picked up in {:.1} ms", self.pick_up_ms)
    }
}
