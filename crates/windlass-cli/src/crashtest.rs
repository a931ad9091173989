//! `windlass crashtest`: kills real processes at random and checks what is left.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use windlass_engine::Ids;
use windlass_sim::crashtest::{
    CrashStore, CrashTest, Report, WorkerProcess, WorkerRole, run_crash_test, run_worker as work,
};

use crate::output::Output;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Starts servers, workers and clients on this machine, kills and stops them at random, and on
PostgreSQL also cuts connections. With --store cluster: it starts a PostgreSQL server with a
synchronous standby from the installed programs, restarts it, and fails over to the standby. Then
all jobs must be finished, and what clients and handlers saw is compared with the store.
Exits with code 1 if something does not hold. Uses only 127.0.0.1. Needs Linux.")]
pub(crate) struct CrashTestCommand {
    /// The store: `sqlite:` (a temporary file), `sqlite:PATH` (a new file), the URL of an empty
    /// PostgreSQL database, or `cluster:` (a temporary PostgreSQL server with a standby).
    #[arg(long, value_name = "URL", default_value = "sqlite:")]
    store: CrashStore,

    /// How many minutes the faults last. Fractions are allowed.
    #[arg(long, value_name = "M", default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,

    /// The number of servers on PostgreSQL. A SQLite store has one.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=16))]
    nodes: u64,

    /// The seed of all choices; random if not given. The moments of the faults still depend on the
    /// machine.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// How many jobs clients enqueue in a second.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,

    /// Also write the report to a file: JSON if its name ends with `.json`, text otherwise.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok();
    let minutes = minutes.filter(|minutes: &f64| (0.05..=1440.0).contains(minutes));
    minutes.ok_or_else(|| "must be a number from 0.05 to 1440".to_owned())
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CrashTestWorker {
    #[arg(long)]
    role: Role,
    /// The URL of the store or the server.
    #[arg(long)]
    connect: String,
    #[arg(long)]
    name: String,
    /// The log of effects.
    #[arg(long)]
    effects: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    rate: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Sdk,
    Rest,
    Raw,
}

pub(crate) fn run(command: &CrashTestCommand, output: &Output) -> anyhow::Result<()> {
    let seed = command.seed.unwrap_or_else(|| Ids::unpredictable().bits());
    let test = CrashTest {
        program: std::env::current_exe().context("cannot find this program")?,
        store: command.store.clone(),
        duration: Duration::from_secs_f64(command.minutes * 60.0),
        nodes: usize::try_from(command.nodes)?,
        seed,
        rate: command.rate,
        repeat: command.repeat(seed),
    };
    // One thread: the processes of the test end with the thread that starts them.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            report = run_crash_test(&test) => Ok(report?),
            _ = terminate.recv() => bail!("interrupted; there is no report"),
            _ = interrupt.recv() => bail!("interrupted; there is no report"),
        }
    })?;
    if let Some(path) = &command.report {
        let is_json = path
            .extension()
            .is_some_and(|extension| extension == "json");
        let text = if is_json {
            serde_json::to_string_pretty(&report)? + "\n"
        } else {
            report.to_string()
        };
        std::fs::write(path, text)
            .with_context(|| format!("cannot write the report to {}", path.display()))?;
    }
    output.print(&report, &report)?;
    fail_if_found(&report)
}

fn fail_if_found(report: &Report) -> anyhow::Result<()> {
    if report.is_clean() {
        return Ok(());
    }
    let missed = report.planted.values().filter(|found| !**found).count();
    bail!(
        "the crash test found {} violations and {} problems, and the checker missed {missed} planted damages; see the report",
        report.violations.len(),
        report.problems.len()
    )
}

impl CrashTestCommand {
    /// The command line with all values.
    fn repeat(&self, seed: u64) -> String {
        let store = match &self.store {
            CrashStore::Sqlite(None) => "sqlite:".to_owned(),
            CrashStore::Sqlite(Some(path)) => format!("sqlite:{}", path.display()),
            CrashStore::Postgres(_) => "URL".to_owned(), // it may contain a password
            CrashStore::OwnCluster => "cluster:".to_owned(),
        };
        let CrashTestCommand {
            minutes,
            nodes,
            rate,
            ..
        } = self;
        format!(
            "windlass crashtest --store {store} --minutes {minutes} --nodes {nodes} --rate {rate} --seed {seed}"
        )
    }
}

pub(crate) fn run_worker(command: CrashTestWorker) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter("warn")
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let connect = command.connect;
    let role = match command.role {
        Role::Sdk => WorkerRole::Sdk { store: connect },
        Role::Rest => WorkerRole::Rest { server: connect },
        Role::Raw => WorkerRole::Raw { server: connect },
    };
    let seed = windlass_sim::history::digest_of(command.name.as_str()) ^ command.seed;
    let process = WorkerProcess {
        role,
        name: command.name,
        log: command.effects,
        seed,
        rate: command.rate,
    };
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    Ok(runtime.block_on(work(process))?)
}
