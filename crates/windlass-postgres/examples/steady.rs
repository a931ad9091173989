//! Puts a PostgreSQL store under steady load, and prints claim times and the size of the table
//! `jobs`.
//!
//! `cargo run --release -p windlass-postgres --example steady -- URL [SECONDS] [--hold]`
//!
//! The database must be empty. With `--hold`, another session keeps a transaction open after the
//! first tenth of the time, like a forgotten session or a long report: PostgreSQL then cannot clean
//! up anything that is deleted later.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it prints what it measures"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use windlass_core::fairness::{Credit, Guards, Pool, Slots};
use windlass_core::{Job, JobId, Kind, NewJob, QueueName, Random, Report, Timestamp, WorkerName};
use windlass_postgres::{Options, PostgresStore};
use windlass_store::{
    AttemptId, AttemptReport, Claim, ClaimRetry, Enqueue, Kinds, Store, WorkerLocation,
};

/// The number of jobs in one request.
const BATCH: u32 = 100;
/// The number of jobs that always wait.
const WAITING: u64 = 20_000;
/// The number of jobs per second.
const RATE: u64 = 5_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .ok_or("usage: steady URL [SECONDS] [--hold]")?;
    let rest: Vec<String> = arguments.collect();
    let hold = rest.iter().any(|argument| argument == "--hold");
    let seconds = rest
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(600);
    let options = Options::parse(&url)?;
    PostgresStore::migrate(&options).await?;
    let (client, connection) = options.server.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let store = Arc::new(PostgresStore::connect(options).await?);
    let serial = Arc::new(AtomicU64::new(1));
    for _ in 0..WAITING / u64::from(BATCH) {
        enqueue(&store, &serial).await?;
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut worker = tokio::spawn(work(
        Arc::clone(&store),
        Arc::clone(&serial),
        Arc::clone(&over),
    ));
    let part = Duration::from_secs((seconds / 10).max(1));
    println!(
        "{:>8} {:>10} {:>10} {:>10} {:>12}",
        "seconds", "jobs/s", "p50 ms", "p99 ms", "table MiB"
    );
    let (holder, held) = client_of(&url).await?;
    for tenth in 1..=10 {
        tokio::time::sleep(part).await;
        over.store(true, Ordering::Relaxed);
        let mut times = worker.await??;
        over.store(false, Ordering::Relaxed);
        worker = tokio::spawn(work(
            Arc::clone(&store),
            Arc::clone(&serial),
            Arc::clone(&over),
        ));
        times.sort_unstable();
        let at = |share: usize| {
            times
                .get(times.len() * share / 100)
                .map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        let bytes: i64 = client
            .query_one("select pg_total_relation_size('windlass.jobs')", &[])
            .await?
            .get(0);
        println!(
            "{:>8} {:>10.0} {:>10.2} {:>10.2} {:>12.1}",
            tenth * part.as_secs(),
            times.len() as f64 * f64::from(BATCH) / part.as_secs_f64(),
            at(50),
            at(99),
            bytes as f64 / 1048576.0,
        );
        if tenth == 1 && hold {
            holder
                .batch_execute(
                    "begin isolation level repeatable read; select count(*) from windlass.jobs",
                )
                .await?;
            println!("another connection holds a transaction open from here on");
        }
    }
    over.store(true, Ordering::Relaxed);
    worker.await??;
    drop(holder);
    held.abort();
    Ok(())
}

async fn client_of(
    url: &str,
) -> Result<(tokio_postgres::Client, tokio::task::JoinHandle<()>), Failure> {
    let (client, connection) = Options::parse(url)?
        .server
        .connect(tokio_postgres::NoTls)
        .await?;
    let task = tokio::spawn(async move {
        let _ = connection.await; // it ends with the program
    });
    Ok((client, task))
}

/// Claims, settles and enqueues jobs at a steady rate until the end. Returns the time of each
/// claim.
async fn work(
    store: Arc<PostgresStore>,
    serial: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::new();
    let mut beat = tokio::time::interval(Duration::from_secs(1) * BATCH / u32::try_from(RATE)?);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !over.load(Ordering::Relaxed) {
        beat.tick().await;
        let claim = claim(serial.fetch_add(1, Ordering::Relaxed))?;
        let started = Instant::now();
        let jobs = store.claim(&claim, now()).await?.jobs;
        times.push(started.elapsed());
        let reports = jobs.iter().map(|job| AttemptReport {
            attempt_id: AttemptId {
                job: job.id,
                attempt: job.attempt,
            },
            report: Report::Succeeded(None),
            random: 0,
            detail: None,
        });
        store.settle(reports.collect(), now()).await?;
        enqueue(&store, &serial).await?;
    }
    Ok(times)
}

async fn enqueue(store: &PostgresStore, serial: &AtomicU64) -> Result<(), Failure> {
    let now = now();
    let mut random = Random::new(serial.fetch_add(1, Ordering::Relaxed));
    let jobs: Result<Vec<Job>, windlass_core::Invalid> = (0..BATCH)
        .map(|_| NewJob::new(Kind::new("steady")?).into_job(JobId::new(now, random.bits()), now))
        .collect();
    store.enqueue(Enqueue::all(jobs?), now).await?;
    Ok(())
}

fn claim(number: u64) -> Result<Claim, windlass_core::Invalid> {
    let slots = Slots {
        total: BATCH,
        free: BATCH,
        retries_running: 0,
    };
    Ok(Claim {
        id: u128::from(number),
        queue: QueueName::default(),
        kinds: Kinds::ALL,
        jobs: None,
        except: std::collections::BTreeSet::new(),
        plan: Guards::default().plan(Pool::Main, slots, Credit::default()),
        worker: WorkerName::new("steady")?,
        worker_location: WorkerLocation::Local,
        lease: Duration::from_secs(60),
        retry: ClaimRetry::default(),
    })
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(0)).unwrap_or(Timestamp::UNIX_EPOCH)
}
