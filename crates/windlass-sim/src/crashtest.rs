//! The crash test: real servers, workers and clients on this machine, which are killed and stopped
//! at random. Then everything must be finished, and nothing that was acknowledged may be missing.
//!
//! What clients and handlers see goes into a log that no store knows about. After the faults, the
//! checker compares it with the final state of the store.

mod cluster;
mod error;
mod history;
mod load;
mod nemesis;
mod planted;
mod process;
mod proxy;
mod record;
mod report;
mod stage;
mod target;
mod work;
mod worker;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::{Outcome, Timestamp};
use windlass_postgres::PostgresStore;
use windlass_sqlite::SqliteStore;
use windlass_store::Store;

pub use error::CrashTestError;
pub use report::{Enqueues, Faults, Report};
pub use worker::{WorkerProcess, WorkerRole, run_worker};

use crate::checker::check_observed;
use crate::history::{EnqueueAnswer, Event, Final, History};
use error::During as _;
use nemesis::Nemesis;
use stage::Stage;

/// How long all processes may take to be ready again after the faults.
const HEAL_MAX: Duration = Duration::from_secs(120);
/// How long the remaining jobs may take.
const DRAIN_MAX: Duration = Duration::from_secs(180);

/// A crash test before it runs.
#[derive(Debug, Clone)]
pub struct CrashTest {
    /// The binary `windlass`.
    pub program: PathBuf,
    /// The store that the test runs on.
    pub store: CrashStore,
    /// How long faults happen.
    pub duration: Duration,
    /// The number of servers.
    pub nodes: usize,
    /// Makes the choices repeatable. The moments of the faults still depend on the machine.
    pub seed: u64,
    /// How many jobs to enqueue in a second.
    pub rate: u32,
    /// The command that repeats the test, for the report.
    pub repeat: String,
}

/// The store of a crash test. It must not hold any jobs yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrashStore {
    /// A SQLite file, which must not exist. `None` is a temporary file.
    Sqlite(Option<PathBuf>),
    /// A database on a PostgreSQL server, by its URL. The server itself is left alone.
    Postgres(String),
    /// A PostgreSQL server with a standby, from the installed programs. It is killed, too.
    OwnCluster,
}

impl FromStr for CrashStore {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match url.split_once(':') {
            Some(("sqlite", "")) => Ok(CrashStore::Sqlite(None)),
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                Ok(CrashStore::Sqlite(Some(path.into())))
            }
            Some(("postgres" | "postgresql", _)) => Ok(CrashStore::Postgres(url.to_owned())),
            Some(("cluster", "")) => Ok(CrashStore::OwnCluster),
            _ => Err(
                "must be sqlite:, sqlite:PATH, postgres://user@host/database or cluster:"
                    .to_owned(),
            ),
        }
    }
}

/// Runs a crash test: faults, then a drain, then the check.
///
/// Must run on the main thread of the process: the processes of the test end with the thread that
/// started them.
///
/// # Errors
///
/// Fails if the test cannot be run, for example because the store holds jobs already. What the test
/// finds is in the report.
pub async fn run_crash_test(test: &CrashTest) -> Result<Report, CrashTestError> {
    let mut stage = Stage::set(test).await?;
    stage.start().await?;
    let mut nemesis = Nemesis::new(test.seed);
    let load = stage.start_load(test)?;
    let started = Instant::now();
    nemesis.run(&mut stage, test.duration).await?;
    let faults_ended = Instant::now();
    stage.heal(HEAL_MAX).await?;
    stage.stop_load(load).await?;
    stage.drain(DRAIN_MAX).await?;
    let drained = Instant::now();
    stage.stop().await?;
    let last = read_store(stage.store_url()).await?;
    let records = record::read(&stage.log)?;
    let history = history::join(records, last);
    let violations = check_observed(&history);
    let mut report = Report {
        repeat: test.repeat.clone(),
        seed: test.seed,
        store: stage.store_name().to_owned(),
        nodes: stage.servers.len(),
        fault_seconds: faults_ended.duration_since(started).as_secs(),
        drain_seconds: drained.duration_since(faults_ended).as_secs(),
        faults: nemesis.faults,
        violations: violations
            .iter()
            .map(|found| found.describe(&history))
            .collect(),
        problems: std::mem::take(&mut stage.problems),
        largest_log_bytes: stage.largest_log(),
        planted: planted::find_planted(&history),
        ..Report::default()
    };
    count(&history, &mut report);
    stage.end(&mut report).await?;
    Ok(report)
}

/// Reads all jobs, attempts and schedules, without a server.
async fn read_store(url: &str) -> Result<Final, CrashTestError> {
    let now = now();
    let store: Arc<dyn Store> = match url.strip_prefix("sqlite:") {
        Some(path) => Arc::new(SqliteStore::open(path, now, 0).during("open the store")?),
        None => {
            let options = windlass_postgres::Options::parse(url).during("read the URL")?;
            let store = PostgresStore::connect(options).await;
            Arc::new(store.during("open the store")?)
        }
    };
    let last = crate::simulation::reading::read_all(&*store, now).await;
    last.during("read the jobs")
}

fn count(history: &History, report: &mut Report) {
    for entry in &history.entries {
        match &entry.event {
            Event::Submitted { jobs, .. } => report.enqueues.unknown += jobs.len() as u64,
            Event::Answered {
                answers: Some(answers),
                ..
            } => {
                let created = answers.iter().filter(|one| **one == EnqueueAnswer::Created);
                let created = created.count() as u64;
                report.enqueues.acknowledged += created;
                report.enqueues.refused_or_duplicate += answers.len() as u64 - created;
                report.enqueues.unknown -= answers.len() as u64;
            }
            Event::Started { .. } => report.starts += 1,
            Event::Effect { .. } => report.effects += 1,
            Event::SettleAcknowledged { .. } => report.acknowledged_ends += 1,
            _ => {}
        }
    }
    let Some(last) = &history.last else { return };
    for job in &last.jobs {
        *report.jobs.entry(job.state().to_string()).or_default() += 1;
    }
    for row in last.attempts.iter().flatten() {
        let name = Outcome::name(row.outcome).to_owned();
        *report.attempts.entry(name).or_default() += 1;
    }
}

/// The wall clock: the processes of a crash test run in real time.
#[expect(clippy::disallowed_methods, reason = "no engine, so no engine clock")]
pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}
