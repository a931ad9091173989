//! `windlass bench http --idle`: what long polls cost that find nothing, next to the same server
//! without any.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use windlass_client::{Client, Method};

use super::super::{HttpBench, postgres};
use super::{Load, Measured};
use crate::clock;
use crate::output::Output;

/// Where the long polls wait.
const QUEUE: &str = "idle";
/// Where other jobs wait meanwhile.
const BACKLOG: &str = "backlog";
/// How long one long poll waits before it is asked again, as a worker would.
const WAIT: &str = "30s";
/// A server that was just started or has just taken a backlog settles for this long before it is
/// measured.
const SETTLE: Duration = Duration::from_secs(3);

/// What was measured.
#[derive(Debug, Serialize)]
struct Figures {
    waiters: u32,
    seconds: u32,
    backlog_jobs: u64,
    /// Of one core, by this process: server and waiting clients.
    waiting_cpu_percent: f64,
    baseline_cpu_percent: f64,
    /// On PostgreSQL.
    waiting_transactions_per_s: Option<f64>,
    baseline_transactions_per_s: Option<f64>,
    /// From the enqueue of one job to the answer of the long poll that got it.
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
    let measured = Measured::start(bench, folder, [("http.waiting_max", waiting_max)]).await?;
    fill(bench, &measured.url).await?;
    let meter = Meter {
        database,
        seconds: bench.seconds,
    };
    let baseline = meter.measure().await?;
    let (claimed, mut jobs) = mpsc::channel(1);
    let mut waiters = JoinSet::new();
    let connections = usize::try_from(bench.waiters)?.max(1);
    let server = Client::builder(&measured.url).idle_connections_max(connections);
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
        at = jobs.recv() => at.context("a long poll gets the job")?,
        Some(ended) = waiters.join_next() => return ended?.context("a long poll failed"),
    };
    waiters.abort_all();
    measured.stop().await?;
    let figures = Figures {
        waiters: bench.waiters,
        seconds: bench.seconds,
        backlog_jobs: bench.jobs,
        waiting_cpu_percent: waiting.cpu_percent,
        baseline_cpu_percent: baseline.cpu_percent,
        waiting_transactions_per_s: waiting.transactions_per_s,
        baseline_transactions_per_s: baseline.transactions_per_s,
        pick_up_ms: picked_up.duration_since(started).as_secs_f64() * 1000.0,
    };
    output.print(&figures, &figures)
}

/// Lets jobs wait in another queue: half of them ready, half of them scheduled.
async fn fill(bench: &HttpBench, url: &str) -> anyhow::Result<()> {
    let ready = bench.jobs / 2;
    for (jobs, delay) in [(ready, "0s"), (bench.jobs - ready, "1d")] {
        let load = Load {
            url: url.to_owned(),
            clients: bench.clients,
            what: "backlog",
            per_request: bench.batch.into(),
            jobs,
            job: json!({"kind": "bench", "queue": BACKLOG, "delay": delay}),
        };
        load.enqueue().await?;
    }
    Ok(())
}

/// Asks again and again, as an idle worker does; reports when it got a job.
async fn wait_for_jobs(
    server: Client,
    number: u32,
    claimed: mpsc::Sender<Instant>,
) -> anyhow::Result<()> {
    let claim = json!({"queues": [QUEUE], "wait": WAIT, "worker": format!("idle-{number}")});
    loop {
        let answer: Value = server
            .call(Method::Post, "/api/v1/claim", Some(&claim))
            .await?;
        let jobs = answer.get("data").and_then(Value::as_array);
        if jobs.is_some_and(|jobs| !jobs.is_empty()) {
            claimed.send(clock::start()).await?;
        }
    }
}

/// Looks at what this process and its database do.
struct Meter {
    database: Option<postgres::Server>,
    seconds: u32,
}

struct Usage {
    cpu_percent: f64,
    transactions_per_s: Option<f64>,
}

impl Meter {
    async fn measure(&self) -> anyhow::Result<Usage> {
        tokio::time::sleep(SETTLE).await;
        let (cpu, transactions) = (cpu_seconds(), self.transactions().await?);
        let started = clock::start();
        tokio::time::sleep(Duration::from_secs(self.seconds.into())).await;
        let (cpu_after, transactions_after) = (cpu_seconds(), self.transactions().await?);
        let seconds = started.elapsed().as_secs_f64();
        let each = transactions.zip(transactions_after);
        Ok(Usage {
            cpu_percent: (cpu_after - cpu) / seconds * 100.0,
            transactions_per_s: each.map(|(before, after)| (after - before) / seconds),
        })
    }

    async fn transactions(&self) -> anyhow::Result<Option<f64>> {
        match &self.database {
            Some(database) => Ok(Some(database.transactions().await?)),
            None => Ok(None),
        }
    }
}

/// The processor time of this process, as Linux counts it; elsewhere none.
pub(in crate::bench) fn cpu_seconds() -> f64 {
    /// Linux counts in hundredths of a second, on every platform that Rust knows.
    const TICKS_PER_S: f64 = 100.0;
    /// Behind the name in parentheses, user and system time are the 12th and 13th field.
    const USER: usize = 11;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(USER).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_S
}

impl fmt::Display for Figures {
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
                "transactions a second {waiting:>7.1}        {baseline:>7.1}"
            )?;
        }
        writeln!(f, "a new job is picked up in {:.1} ms", self.pick_up_ms)
    }
}
