//! `windlass bench store`: enqueues, claim_rate and settles through the store trait.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use windlass_memory::MemoryStore;
use windlass_postgres::PostgresStore;
use windlass_sqlite::SqliteStore;
use windlass_store::Store;

use super::load::{ClientAction, JobGroup, PAYLOAD, StoreLoad};
use super::{Driver, StoreBench, baseline, postgres, progress, resident_bytes};
use crate::clock;
use crate::output::Output;

/// How often each compared rate is measured. The median counts, because other processes disturb some
/// of the runs.
const RUNS: usize = 3;

/// The measurements. Rates are jobs per second.
#[derive(Debug, Default, Serialize)]
struct StoreResults {
    disk_baseline_per_s: f64,
    sqlite_baseline_per_s: f64,
    postgres_baseline_per_s: f64,
    /// The lifecycle rate divided by the rate of bare SQLite or bare PostgreSQL.
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
        "{} already exists; choose a new file with `--path`",
        path.display()
    );
    let runtime = super::runtime()?;
    if let Some(keys) = bench.keys {
        let results = runtime.block_on(measure_keys(bench, keys, &path))?;
        return output.print(&results, &results);
    }
    let results = runtime.block_on(measure(bench, &path, folder.path()))?;
    output.print(&results, &results)
}

async fn measure(bench: &StoreBench, path: &Path, folder: &Path) -> anyhow::Result<StoreResults> {
    let mut results = StoreResults::default();
    let mut bench_store = BenchStore::new(bench, path).await?;
    let load = StoreLoad::new(bench_store.store(), bench);

    // With no other jobs in the store.
    let jobs = bench.jobs;
    let bar = progress("enqueue", jobs);
    results.enqueue_per_s = load
        .run(ClientAction::Enqueue(JobGroup::Measured), jobs, &bar)
        .await?;
    let bar = progress("claim and settle", jobs);
    results.claim_settle_per_s = load.run(ClientAction::ClaimAndSettle, jobs, &bar).await?;
    results.empty_claim_per_s = claim_rate(&load, jobs).await?;

    // With the backlog and the scheduled jobs in the store.
    let memory_before = resident_bytes();
    let waiting = bench.backlog + bench.future;
    fill(&load, JobGroup::Backlog, bench.backlog, "backlog").await?;
    fill(&load, JobGroup::Future, bench.future, "future").await?;
    if waiting > 0 {
        let growth = resident_bytes().saturating_sub(memory_before);
        results.memory_bytes_per_job = growth as f64 / waiting as f64;
    }
    results.backlog_claim_per_s = claim_rate(&load, jobs).await?;
    let (commits, bytes) = bench_store.written().await?;
    let mut rates = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let bar = progress("lifecycles", jobs);
        rates.push(load.run(ClientAction::Lifecycle, jobs, &bar).await?);
    }
    results.lifecycle_per_s = median(rates);
    let all_jobs = jobs * RUNS as u64;
    let (commits_after, bytes_after) = bench_store.written().await?;
    let commits = commits_after.saturating_sub(commits);
    results.syncs_per_job = commits as f64 / all_jobs as f64;
    results.disk_bytes_per_job = bytes_after.saturating_sub(bytes) as f64 / all_jobs as f64;
    results.longest_pause_ms = bench_store.longest_pause_ms().await?;
    drop(load);

    if bench.driver == Driver::Sqlite {
        results.reopen_ms = bench_store.reopen(path)?;
        let groups = commits / RUNS as u64;
        // A lifecycle writes the job once and its state twice, which is about this many bytes.
        let bytes_per_job = (results.disk_bytes_per_job.max(PAYLOAD.len() as f64)) as u64;
        results.disk_baseline_per_s =
            baseline::disk(&folder.join("disk"), jobs, bytes_per_job, groups)?;
        results.sqlite_baseline_per_s = median(
            (0..RUNS)
                .map(|run| {
                    baseline::sqlite(&folder.join(format!("bare-{run}")), jobs, PAYLOAD, groups)
                })
                .collect::<Result<_, _>>()?,
        );
        results.ratio = results.lifecycle_per_s / results.sqlite_baseline_per_s;
    }
    if let BenchStore::Postgres(_, server) = &bench_store {
        let rate = server.bare_inserts(jobs, bench.batch, PAYLOAD).await?;
        results.postgres_baseline_per_s = rate;
        results.ratio = results.lifecycle_per_s / rate;
    }
    Ok(results)
}

/// Claims and settles with and without concurrency keys. Rates are jobs per second.
#[derive(Debug, Serialize)]
struct KeyResults {
    without_keys_per_s: f64,
    with_keys_per_s: f64,
    ratio: f64,
}

/// Measures both in turn, so that a disturbance hits both.
async fn measure_keys(bench: &StoreBench, keys: u64, path: &Path) -> anyhow::Result<KeyResults> {
    let bench_store = BenchStore::new(bench, path).await?;
    let load = StoreLoad::new(bench_store.store(), bench);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        for (group, rates) in [
            (JobGroup::Measured, &mut without),
            (JobGroup::Keyed(keys), &mut with),
        ] {
            fill(&load, group, bench.jobs, "enqueue").await?;
            let bar = progress("claim and settle", bench.jobs);
            rates.push(
                load.run(ClientAction::ClaimAndSettle, bench.jobs, &bar)
                    .await?,
            );
        }
    }
    let (without_keys_per_s, with_keys_per_s) = (median(without), median(with));
    Ok(KeyResults {
        without_keys_per_s,
        with_keys_per_s,
        ratio: with_keys_per_s / without_keys_per_s,
    })
}

/// Measures claim_rate alone: enqueues before and settles after do not count.
async fn claim_rate(load: &StoreLoad, jobs: u64) -> anyhow::Result<f64> {
    let mut rates = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        fill(load, JobGroup::Measured, jobs, "enqueue").await?;
        let bar = progress("claim", jobs);
        rates.push(load.run(ClientAction::Claim, jobs, &bar).await?);
        load.settle_claimed().await?;
    }
    Ok(median(rates))
}

/// Returns the median.
fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

/// Enqueues jobs without measuring it.
async fn fill(
    load: &StoreLoad,
    group: JobGroup,
    jobs: u64,
    label: &'static str,
) -> anyhow::Result<()> {
    load.run(ClientAction::Enqueue(group), jobs, &progress(label, jobs))
        .await?;
    Ok(())
}

/// A store, with the statistics that only its driver has.
enum BenchStore {
    Memory(Arc<MemoryStore>),
    Sqlite(Option<Arc<SqliteStore>>),
    Postgres(Arc<PostgresStore>, Box<postgres::Server>),
}

impl BenchStore {
    async fn new(bench: &StoreBench, path: &Path) -> anyhow::Result<Self> {
        Ok(match bench.driver {
            Driver::Postgres => {
                let url = bench.url.as_deref().unwrap_or_default();
                let (store, server) = postgres::open(url).await?;
                BenchStore::Postgres(Arc::new(store), Box::new(server))
            }
            Driver::Memory => BenchStore::Memory(Arc::new(MemoryStore::new())),
            Driver::Sqlite => {
                BenchStore::Sqlite(Some(Arc::new(SqliteStore::open(path, clock::now(), 0)?)))
            }
        })
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            BenchStore::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            BenchStore::Sqlite(Some(store)) => Arc::clone(store) as Arc<dyn Store>,
            BenchStore::Postgres(store, _) => Arc::clone(store) as Arc<dyn Store>,
            BenchStore::Sqlite(None) => {
                unreachable!("the store stays open until `reopen`, which comes last")
            }
        }
    }

    /// Returns the number of commits and the stored bytes.
    async fn written(&self) -> anyhow::Result<(u64, u64)> {
        Ok(match self {
            BenchStore::Sqlite(Some(store)) => {
                let stats = store.stats().await?;
                (stats.commits, stats.file_bytes)
            }
            BenchStore::Postgres(_, server) => server.written().await?,
            _ => (0, 0),
        })
    }

    async fn longest_pause_ms(&self) -> anyhow::Result<f64> {
        Ok(match self {
            BenchStore::Sqlite(Some(store)) => {
                store.stats().await?.longest_pause_micros as f64 / 1000.0
            }
            _ => 0.0,
        })
    }

    /// Closes the store and opens it again; returns how long opening took, in milliseconds.
    fn reopen(&mut self, path: &Path) -> anyhow::Result<f64> {
        if let BenchStore::Sqlite(store) = self {
            *store = None;
            let started = clock::start();
            let reopened = SqliteStore::open(path, clock::now(), 0)?;
            let millis = started.elapsed().as_secs_f64() * 1000.0;
            *store = Some(Arc::new(reopened));
            return Ok(millis);
        }
        Ok(0.0)
    }
}

impl fmt::Display for KeyResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (label, rate) in [
            ("claim and settle, no keys", self.without_keys_per_s),
            ("claim and settle, with keys", self.with_keys_per_s),
        ] {
            writeln!(f, "{label:29} {rate:>12.0} jobs/s")?;
        }
        writeln!(f, "{:29} {:>12.3}", "with keys / no keys", self.ratio)
    }
}

impl fmt::Display for StoreResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            ("enqueue", self.enqueue_per_s),
            ("claim and settle", self.claim_settle_per_s),
            ("claim, no other jobs", self.empty_claim_per_s),
            ("claim, with the backlog", self.backlog_claim_per_s),
            ("whole lifecycles", self.lifecycle_per_s),
            ("bare SQLite, inserts only", self.sqlite_baseline_per_s),
            (
                "bare PostgreSQL, inserts only",
                self.postgres_baseline_per_s,
            ),
            ("bare disk, appends only", self.disk_baseline_per_s),
        ];
        for (label, rate) in rates.into_iter().filter(|(_, rate)| *rate > 0.0) {
            writeln!(f, "{label:29} {rate:>12.0} jobs/s")?;
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
        writeln!(
            f,
            "{:29} {:>12.0} ms",
            "reopening the store", self.reopen_ms
        )?;
        writeln!(
            f,
            "{:29} {:>12.1} ms",
            "longest pause of the writer", self.longest_pause_ms
        )
    }
}
