//! `windlass bench`: measurements, each next to a baseline from the same run.

mod baseline;
mod http;
mod load;
mod operators;
mod pages;
mod postgres;
mod processes;
mod queues;
mod run;
mod schedules;
mod store;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::runtime::{Builder, Runtime};
use windlass_core::Invalid;

use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Durable enqueues, claims and settles from concurrent clients, compared with the bare disk, bare
    /// SQLite or bare PostgreSQL.
    Store(StoreBench),

    /// Jobs through the Rust SDK: enqueue, drain, pick-up latency, and fresh jobs during a retry storm.
    Run(RunBench),

    /// How late schedules fire when many are due in the same second.
    Schedules(SchedulesBench),

    /// A worker process of `windlass bench run --processes`.
    #[command(hide = true)]
    Worker(WorkerBench),

    /// Jobs through the REST API of a server in this process, compared with the same requests without
    /// a store. With `--idle`, the cost of long polls that find no job.
    Http(HttpBench),

    /// A worker that discovers its queues: pick-up latency compared with a worker of one queue, and
    /// the share of a core that it uses while idle.
    Queues(QueuesBench),

    /// What operators do with many dead jobs: failure groups, lists, counts, and bulk actions next to
    /// fresh jobs.
    Operators(OperatorsBench),

    /// The server time of every page of the dashboard, with many jobs and causes.
    Pages(PagesBench),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SchedulesBench {
    /// The store, as a URL; a temporary SQLite file if not given. It must not hold any schedules yet.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The number of schedules. Their occurrences are spread evenly over one second.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) schedules: u32,

    /// How often each schedule fires, every 15 seconds.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerBench {
    /// The store, as a URL.
    #[arg(long, value_name = "URL")]
    pub(crate) store: String,

    /// The queue.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: String,

    /// The number of concurrent jobs.
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PagesBench {
    /// The store, as a URL; a temporary SQLite file if not given. It must not hold any jobs yet.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The number of dead jobs. A hundredth more waits.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) jobs: u64,

    /// The number of causes of the dead jobs.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) groups: u64,

    /// How often to load each page.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) reads: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OperatorsBench {
    /// The store, as a URL; a temporary SQLite file if not given. It must not hold any jobs yet.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The number of dead jobs. They have up to 1,000 causes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) jobs: u64,

    /// How often to read each page.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) reads: u32,

    /// How many seconds to enqueue fresh jobs, 50 per second, and the longest time of a bulk action.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct QueuesBench {
    /// The store, as a URL; a temporary SQLite file if not given.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The number of queues. Each holds a job that no worker runs; 100 of them get more jobs.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) queues: u64,

    /// How many seconds to measure each idle worker.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HttpBench {
    /// The store, as a URL; a temporary SQLite file if not given.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The number of jobs to enqueue in batches. With `--idle` they go to another queue, half of them
    /// ready and half scheduled.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// The number of jobs in one request.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) batch: u32,

    /// The number of concurrent clients, each with a connection.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: u32,

    /// Measure long polls that find no job: the share of a core, and on PostgreSQL the transactions
    /// per second.
    #[arg(long)]
    pub(crate) idle: bool,

    /// The number of long polls.
    #[arg(long, value_name = "N", default_value_t = 200, requires = "idle", value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub(crate) waiters: u32,

    /// How many seconds to measure the server without long polls, and again with them.
    #[arg(long, value_name = "N", default_value_t = 20, requires = "idle", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunBench {
    /// The store, as a URL: `memory:`, `sqlite:path` or `postgres://…`; a temporary SQLite file if
    /// not given.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Also drain with these numbers of worker processes, for example `1,2,4`. Needs a PostgreSQL
    /// store.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) processes: Vec<u32>,

    /// The number of jobs to enqueue in bulk and drain.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// The number of concurrent jobs while draining, in each process.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// The number of jobs that fail on every attempt in the retry storm.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) failing: u64,

    /// How many seconds to enqueue fresh jobs, 50 per second.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) fresh_seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StoreBench {
    /// The driver to measure.
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(crate) driver: Driver,

    /// The SQLite file to create; a temporary one if not given. It must not exist yet.
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<PathBuf>,

    /// The PostgreSQL database to use. It must not hold any jobs yet.
    #[arg(long, value_name = "URL", required_if_eq("driver", "postgres"))]
    pub(crate) url: Option<String>,

    /// The number of jobs in each measurement.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// The number of other ready jobs in the store.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=20_000_000))]
    pub(crate) backlog: u64,

    /// The number of other jobs in the store that are scheduled for later.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=20_000_000))]
    pub(crate) future: u64,

    /// The number of jobs that a client handles in one call.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,

    /// The number of concurrent clients.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: u32,

    /// Measures only this: claims and settles of jobs over this many concurrency keys with limit 1,
    /// compared with the same jobs without keys.
    #[arg(long, value_name = "N", conflicts_with_all = ["backlog", "future"], value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) keys: Option<u64>,
}

impl RunBench {
    /// Refuses processes that could not share the store.
    fn refuse_unshared(&self) -> Result<(), Invalid> {
        let is_shared = self.store.as_deref().is_some_and(postgres::is_url);
        if !self.processes.is_empty() && !is_shared {
            return Err(Invalid::new("--processes", "needs a PostgreSQL store"));
        }
        Ok(())
    }
}

impl StoreBench {
    /// Refuses options of another driver, which would have no effect.
    fn refuse_unused(&self) -> Result<(), Invalid> {
        if self.url.is_some() && self.driver != Driver::Postgres {
            return Err(Invalid::new("--url", "needs `--driver postgres`"));
        }
        if self.path.is_some() && self.driver != Driver::Sqlite {
            return Err(Invalid::new("--path", "needs `--driver sqlite`"));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// In memory: nothing is durable.
    Memory,
    /// An embedded SQLite file.
    Sqlite,
    /// A PostgreSQL database.
    Postgres,
}

pub(crate) fn run(command: &BenchCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        BenchCommand::Store(bench) => {
            bench.refuse_unused()?;
            store::run(bench, output)
        }
        BenchCommand::Run(bench) => {
            bench.refuse_unshared()?;
            run::run(bench, output)
        }
        BenchCommand::Schedules(bench) => schedules::run(bench, output),
        BenchCommand::Worker(bench) => processes::run_worker(bench),
        BenchCommand::Http(bench) => http::run(bench, output),
        BenchCommand::Queues(bench) => queues::run(bench, output),
        BenchCommand::Operators(bench) => operators::run(bench, output),
        BenchCommand::Pages(bench) => pages::run(bench, output),
    }
}

/// Returns the given store, or a new SQLite file in `folder`.
fn store_url(given: Option<&str>, folder: &Path) -> String {
    let in_folder = || format!("sqlite:{}", folder.join("bench.db").display());
    given.map_or_else(in_folder, str::to_owned)
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

fn progress(label: &'static str, jobs: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:18} {wide_bar} {human_pos}/{human_len} {per_sec:>14}");
    let bar = ProgressBar::new(jobs).with_message(label);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Locks a mutex even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the memory that this process uses, or 0 on systems other than Linux.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
