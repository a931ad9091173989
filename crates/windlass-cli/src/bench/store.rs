//! `windlass bench store`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use windlass_memory::MemoryStore;
use windlass_postgres::PostgresStore;
use windlass_sqlite::SqliteStore;
use windlass_store::Store;

use super::load::{Kinds, Load, PAYLOAD, Step};
use super::{Driver, StoreBench, baseline, postgres, progress};
use crate::clock;
use crate::output::Output;

/// What is compared is measured so often, and the middle figure taken: a machine is seldom alone.
const LOOKS: usize = 3;

/// What was measured; rates are jobs per second.
#[derive(Debug, Default, Serialize)]
struct Figures {
    disk_baseline_per_s: f64,
    sqlite_baseline_per_s: f64,
    postgres_baseline_per_s: f64,
    /// Lifecycles beside bare SQLite, or bare PostgreSQL.
    ratio: f64,
    enqueue_per_s: f64,
    claim_settle_per_s: f64,
    lifecycle_per_s: f64,
    empty_claim_per_s: f64,
    backlog_claim_per_s: f64,
    syncs_per_job: f64,
    disk_bytes_per_job: f64,
    memory_bytes_per_job: f64,
    reopen_ms: f64,
    longest_pause_ms: f64,
}

pub(super) fn run(bench: &StoreBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = bench
        .path
        .clone()
        .unwrap_or_else(|| folder.path().join("bench.db"));
    anyhow::ensure!(
        !path.exists(),
        "{} is there already: name a new file",
        path.display()
    );
    let runtime = super::runtime()?;
    let figures = runtime.block_on(measure(bench, &path, folder.path()))?;
    output.print(&figures, &figures)
}

async fn measure(bench: &StoreBench, path: &Path, folder: &Path) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    let mut opened = Opened::new(bench, path).await?;
    let load = Load::new(opened.store(), bench);

    // Nothing else waits.
    let jobs = bench.jobs;
    let bar = progress("enqueue", jobs);
    figures.enqueue_per_s = load.run(Step::Enqueue(Kinds::Measured), jobs, &bar).await?;
    let bar = progress("claim and settle", jobs);
    figures.claim_settle_per_s = load.run(Step::ClaimAndSettle, jobs, &bar).await?;
    figures.empty_claim_per_s = claims(&load, jobs).await?;

    // Beside all that waits.
    let memory_before = resident_bytes();
    let waiting = bench.backlog + bench.future;
    fill(&load, Kinds::Backlog, bench.backlog, "backlog").await?;
    fill(&load, Kinds::Future, bench.future, "future").await?;
    if waiting > 0 {
        figures.memory_bytes_per_job = (resident_bytes() - memory_before).max(0.0) / waiting as f64;
    }
    figures.backlog_claim_per_s = claims(&load, jobs).await?;
    let (commits, bytes) = opened.written().await?;
    let mut rates = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let bar = progress("lifecycles", jobs);
        rates.push(load.run(Step::Lifecycle, jobs, &bar).await?);
    }
    figures.lifecycle_per_s = middle(rates);
    let all_jobs = jobs * LOOKS as u64;
    let (commits_after, bytes_after) = opened.written().await?;
    let commits = commits_after.saturating_sub(commits);
    figures.syncs_per_job = commits as f64 / all_jobs as f64;
    figures.disk_bytes_per_job = bytes_after.saturating_sub(bytes) as f64 / all_jobs as f64;
    figures.longest_pause_ms = opened.longest_pause_ms().await?;
    drop(load);

    if bench.driver == Driver::Sqlite {
        figures.reopen_ms = opened.reopen(path)?;
        let groups = commits / LOOKS as u64;
        // A lifecycle writes the job once and where it stands twice: about this much.
        let bytes_per_job = (figures.disk_bytes_per_job.max(PAYLOAD.len() as f64)) as u64;
        figures.disk_baseline_per_s =
            baseline::disk(&folder.join("disk"), jobs, bytes_per_job, groups)?;
        figures.sqlite_baseline_per_s = middle(
            (0..LOOKS)
                .map(|look| {
                    baseline::sqlite(&folder.join(format!("bare-{look}")), jobs, PAYLOAD, groups)
                })
                .collect::<Result<_, _>>()?,
        );
        figures.ratio = figures.lifecycle_per_s / figures.sqlite_baseline_per_s;
    }
    if let Opened::Postgres(_, server) = &opened {
        let rate = server.bare_inserts(jobs, bench.batch, PAYLOAD).await?;
        figures.postgres_baseline_per_s = rate;
        figures.ratio = figures.lifecycle_per_s / rate;
    }
    Ok(figures)
}

/// Claims of jobs that were enqueued before and are settled after.
async fn claims(load: &Load, jobs: u64) -> anyhow::Result<f64> {
    let mut rates = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        fill(load, Kinds::Measured, jobs, "enqueue").await?;
        let bar = progress("claim", jobs);
        rates.push(load.run(Step::Claim, jobs, &bar).await?);
        load.settle_claimed().await?;
    }
    Ok(middle(rates))
}

/// The middle one of several figures.
fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Lets jobs wait, which is not measured.
async fn fill(load: &Load, kinds: Kinds, jobs: u64, what: &'static str) -> anyhow::Result<()> {
    load.run(Step::Enqueue(kinds), jobs, &progress(what, jobs))
        .await?;
    Ok(())
}

/// A store with what only its driver tells.
enum Opened {
    Memory(Arc<MemoryStore>),
    Sqlite(Option<Arc<SqliteStore>>),
    Postgres(Arc<PostgresStore>, Box<postgres::Server>),
}

impl Opened {
    async fn new(bench: &StoreBench, path: &Path) -> anyhow::Result<Self> {
        Ok(match bench.driver {
            Driver::Postgres => {
                let url = bench.url.as_deref().unwrap_or_default();
                let (store, server) = postgres::open(url).await?;
                Opened::Postgres(Arc::new(store), Box::new(server))
            }
            Driver::Memory => Opened::Memory(Arc::new(MemoryStore::new())),
            Driver::Sqlite => {
                Opened::Sqlite(Some(Arc::new(SqliteStore::open(path, clock::now(), 0)?)))
            }
        })
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Opened::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Opened::Sqlite(Some(store)) => Arc::clone(store) as Arc<dyn Store>,
            Opened::Postgres(store, _) => Arc::clone(store) as Arc<dyn Store>,
            Opened::Sqlite(None) => unreachable!("it is open until it is reopened, at the end"),
        }
    }

    /// Commits, and bytes that are stored.
    async fn written(&self) -> anyhow::Result<(u64, u64)> {
        Ok(match self {
            Opened::Sqlite(Some(store)) => {
                let stats = store.stats().await?;
                (stats.commits, stats.file_bytes)
            }
            Opened::Postgres(_, server) => server.written().await?,
            _ => (0, 0),
        })
    }

    async fn longest_pause_ms(&self) -> anyhow::Result<f64> {
        Ok(match self {
            Opened::Sqlite(Some(store)) => {
                store.stats().await?.longest_pause_micros as f64 / 1000.0
            }
            _ => 0.0,
        })
    }

    /// Closes the store and opens it again; how long the opening took.
    fn reopen(&mut self, path: &Path) -> anyhow::Result<f64> {
        if let Opened::Sqlite(store) = self {
            *store = None;
            let started = clock::start();
            let again = SqliteStore::open(path, clock::now(), 0)?;
            let millis = started.elapsed().as_secs_f64() * 1000.0;
            *store = Some(Arc::new(again));
            return Ok(millis);
        }
        Ok(0.0)
    }
}

/// The memory this process holds, where the system tells it.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| {
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<f64>()
            .ok()
    });
    kilobytes.unwrap_or(0.0) * 1024.0
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            ("enqueue", self.enqueue_per_s),
            ("claim and settle", self.claim_settle_per_s),
            ("claim, nothing else waits", self.empty_claim_per_s),
            ("claim beside the backlog", self.backlog_claim_per_s),
            ("whole lifecycles", self.lifecycle_per_s),
            ("bare SQLite, inserts only", self.sqlite_baseline_per_s),
            (
                "bare PostgreSQL, inserts only",
                self.postgres_baseline_per_s,
            ),
            ("bare disk, appends only", self.disk_baseline_per_s),
        ];
        for (what, rate) in rates.into_iter().filter(|(_, rate)| *rate > 0.0) {
            writeln!(f, "{what:29} {rate:>12.0} jobs/s")?;
        }
        writeln!(f, "{:29} {:>12.3}", "lifecycles / bare inserts", self.ratio)?;
        writeln!(f, "{:29} {:>12.4}", "syncs per job", self.syncs_per_job)?;
        writeln!(
            f,
            "{:29} {:>12.0}",
            "disk bytes per job", self.disk_bytes_per_job
        )?;
        writeln!(
            f,
            "{:29} {:>12.0}",
            "memory bytes per waiting job", self.memory_bytes_per_job
        )?;
        writeln!(f, "{:29} {:>12.0} ms", "opening again", self.reopen_ms)?;
        writeln!(
            f,
            "{:29} {:>12.1} ms",
            "longest pause of the writer", self.longest_pause_ms
        )
    }
}
