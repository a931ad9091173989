//! `windlass bench`: figures, each beside something measured in the same run.

mod baseline;
mod http;
mod load;
mod postgres;
mod queues;
mod run;
mod store;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::runtime::{Builder, Runtime};
use windlass_core::Invalid;

use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Durable enqueues, claims and settles from concurrent clients, beside the bare disk, bare SQLite or bare PostgreSQL.
    Store(StoreBench),

    /// Jobs through the Rust SDK: enqueue, drain, pick-up latency, and fresh work in a storm of retries.
    Run(RunBench),

    /// Jobs through the REST interface of a server of its own, beside the same requests answered
    /// without a store. With `--idle`, what long polls cost that find nothing.
    Http(HttpBench),

    /// A worker that discovers its queues: pick-up latency next to a worker of one queue, and the
    /// share of a core that it uses while it is idle.
    Queues(QueuesBench),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct QueuesBench {
    /// The store, as a URL; a temporary SQLite file if not given.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// How many queues there are, each with a job that no worker here runs; 100 of them get other
    /// jobs.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) queues: u64,

    /// For how many seconds each idle worker is measured.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HttpBench {
    /// The store, as a URL; a temporary SQLite file if not given.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// How many jobs are enqueued in batches; with `--idle`, into another queue, half of them ready
    /// and half scheduled.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// How many jobs are in one request.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) batch: u32,

    /// How many clients at once, each with a connection.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: u32,

    /// Measure long polls that find nothing: the share of a core, and on PostgreSQL the
    /// transactions per second.
    #[arg(long)]
    pub(crate) idle: bool,

    /// How many long polls wait.
    #[arg(long, value_name = "N", default_value_t = 200, requires = "idle", value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub(crate) waiters: u32,

    /// For how many seconds they are measured, and the server without them before.
    #[arg(long, value_name = "N", default_value_t = 20, requires = "idle", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunBench {
    /// The store, as a URL: `memory:` or `sqlite:path`; a temporary SQLite file if not given.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// How many jobs are enqueued in bulk and drained.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// How many jobs run at once while draining.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// How many jobs fail again and again in the storm.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) failing: u64,

    /// For how many seconds fresh jobs come, 50 in each.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) fresh_seconds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StoreBench {
    /// Which driver.
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(crate) driver: Driver,

    /// The file to use, which must not be there yet; a temporary one if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<PathBuf>,

    /// The PostgreSQL database to use, which must not hold any jobs yet.
    #[arg(long, value_name = "URL", required_if_eq("driver", "postgres"))]
    pub(crate) url: Option<String>,

    /// How many jobs are measured in each part.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// How many ready jobs wait beside them.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=20_000_000))]
    pub(crate) backlog: u64,

    /// How many jobs wait beside them whose time has not come.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=20_000_000))]
    pub(crate) future: u64,

    /// How many jobs a client handles in one step.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,

    /// How many clients at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: u32,
}

impl StoreBench {
    /// Refuses where the jobs of another driver would be: they would not be measured there.
    fn refuse_unused(&self) -> Result<(), Invalid> {
        if self.url.is_some() && self.driver != Driver::Postgres {
            return Err(Invalid::new("--url", "goes with `--driver postgres`"));
        }
        if self.path.is_some() && self.driver != Driver::Sqlite {
            return Err(Invalid::new("--path", "goes with `--driver sqlite`"));
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
        BenchCommand::Run(bench) => run::run(bench, output),
        BenchCommand::Http(bench) => http::run(bench, output),
        BenchCommand::Queues(bench) => queues::run(bench, output),
    }
}

/// The store that was named, or a new SQLite file in `folder`.
fn store_url(named: Option<&str>, folder: &Path) -> String {
    let in_folder = || format!("sqlite:{}", folder.join("bench.db").display());
    named.map_or_else(in_folder, str::to_owned)
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

fn progress(what: &'static str, jobs: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:18} {wide_bar} {human_pos}/{human_len} {per_sec:>14}");
    let bar = ProgressBar::new(jobs).with_message(what);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
