//! `windlass bench run`: jobs through the SDK, from enqueue to handler, and fresh jobs during a
//! retry storm.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use windlass::events::Stopped;
use windlass::retry::{Backoff, Jitter, RetryPolicy};
use windlass::{Client, Context, Failure, Job, Queue, Worker};

use super::postgres;
use super::processes::{self, ProcessesResult};
use super::{RunBench, lock, progress, runtime, store_url};
use crate::clock;
use crate::output::Output;

/// How long a handler of the retry storm takes.
const HANDLER_TIME: Duration = Duration::from_millis(5);
/// How long a job of the retry storm waits for its retry.
const BACKOFF: Duration = Duration::from_secs(1);
/// The number of concurrent handlers in the retry storm.
const STORM_SLOTS: u32 = 10;
/// The number of fresh jobs per second.
pub(super) const FRESH_PER_S: u64 = 50;
/// How often the pick-up by an idle worker is measured.
const PICKUPS: u64 = 200;
/// Fresh jobs that have not run this long after the last enqueue count as missing.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The number of jobs in one bulk enqueue.
const BULK: usize = 1000;

/// The measurements.
#[derive(Debug, Default, Serialize)]
struct RunResults {
    fdatasync_ms: f64,
    /// On PostgreSQL: one insert and its synced commit, without Windlass.
    server_commit_ms: Option<f64>,
    enqueue_one_per_s: f64,
    enqueue_bulk_per_s: f64,
    drain_per_s: f64,
    /// Drains with several worker processes, if they were asked for.
    processes: Vec<ProcessesResult>,
    pickup_ms: Percentiles,
    storm: StormResults,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

#[derive(Debug, Default, Serialize)]
struct StormResults {
    calm_ms: Percentiles,
    storm_ms: Percentiles,
    unguarded_ms: Percentiles,
    handler_ms: f64,
    failures_per_s: f64,
    missing: u64,
}

pub(super) fn run(bench: &RunBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = store_url(bench.store.as_deref(), folder.path());
    let runtime = runtime()?;
    let results = runtime.block_on(measure(bench, &url, folder.path()))?;
    output.print(&results, &results)
}

async fn measure(bench: &RunBench, url: &str, folder: &Path) -> anyhow::Result<RunResults> {
    let client = Client::open(url).await.map_err(open_error)?;
    let mut results = RunResults {
        fdatasync_ms: super::baseline::sync_ms(&folder.join("sync"))?,
        ..RunResults::default()
    };
    if postgres::is_url(url) {
        let server = postgres::Server::connect(url).await?;
        results.server_commit_ms = Some(server.commit_ms().await?);
    }
    results.enqueue_one_per_s = enqueue_one(&client, bench.jobs.min(2000)).await?;
    results.enqueue_bulk_per_s = enqueue_bulk(&client, bench.jobs, "bulk").await?;
    results.drain_per_s = drain(&client, bench).await?;
    results.processes = processes::drain(&client, bench, url).await?;
    results.pickup_ms = pickup(&client).await?;
    results.storm.handler_ms = HANDLER_TIME.as_secs_f64() * 1000.0;
    let calm = storm(&client, bench, "calm", 0, RetryGuards::On).await?;
    results.storm.calm_ms = calm.fresh;
    let guarded = storm(&client, bench, "storm", bench.failing, RetryGuards::On).await?;
    results.storm.storm_ms = guarded.fresh;
    results.storm.failures_per_s = guarded.failures_per_s;
    results.storm.missing = guarded.missing;
    let unguarded = storm(&client, bench, "unguarded", bench.failing, RetryGuards::Off).await?;
    results.storm.unguarded_ms = unguarded.fresh;
    Ok(results)
}

/// Converts the error, so that an invalid argument gets its own exit code.
pub(super) fn open_error(error: windlass::Error) -> anyhow::Error {
    match error {
        windlass::Error::Invalid(invalid) => invalid.into(),
        other => other.into(),
    }
}

/// A job that does nothing.
#[derive(Serialize, Deserialize)]
pub(super) struct Noop {
    pub(super) number: u64,
}

impl Job for Noop {
    const KIND: &'static str = "bench:noop";
}

/// A job that always fails.
#[derive(Serialize, Deserialize)]
struct Failing;

impl Job for Failing {
    const KIND: &'static str = "bench:failing";
}

/// What the handlers report.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// When each job was enqueued.
    sent: Mutex<HashMap<u64, Instant>>,
    /// How long each job took to reach its handler.
    latencies: Mutex<Vec<Duration>>,
    done: AtomicU64,
    expected: AtomicU64,
    all_done: Notify,
    first_failures: AtomicU64,
    failures: AtomicU64,
}

impl Meter {
    fn expect(&self, jobs: u64) {
        self.expected.store(jobs, Ordering::SeqCst);
    }

    fn count(&self) {
        let done = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if done == self.expected.load(Ordering::SeqCst) {
            self.all_done.notify_one();
        }
    }

    pub(super) fn send(&self, number: u64) {
        lock(&self.sent).insert(number, clock::start());
    }

    fn arrive(&self, number: u64) {
        let sent_at = lock(&self.sent).remove(&number);
        if let Some(sent_at) = sent_at {
            lock(&self.latencies).push(sent_at.elapsed());
        }
    }

    /// Whether all jobs that were sent have arrived.
    pub(super) fn is_complete(&self) -> bool {
        lock(&self.sent).is_empty()
    }

    /// Returns the percentiles and the number of missing jobs. A missing job counts with the time
    /// until now.
    pub(super) fn latencies(&self) -> (Percentiles, u64) {
        let missing = lock(&self.sent);
        let mut latencies = lock(&self.latencies);
        latencies.extend(missing.values().map(Instant::elapsed));
        (percentiles(&mut latencies), missing.len() as u64)
    }
}

async fn noop(job: Noop, ctx: Context<Arc<Meter>>) -> Result<(), Failure> {
    ctx.state.arrive(job.number);
    ctx.state.count();
    Ok(())
}

async fn failing(_: Failing, ctx: Context<Arc<Meter>>) -> Result<(), Failure> {
    tokio::time::sleep(HANDLER_TIME).await;
    if ctx.failures() == 0 {
        ctx.state.first_failures.fetch_add(1, Ordering::SeqCst);
    }
    ctx.state.failures.fetch_add(1, Ordering::SeqCst);
    Err("always".into())
}

async fn enqueue_one(client: &Client, jobs: u64) -> anyhow::Result<f64> {
    let bar = progress("enqueue one", jobs);
    let started = clock::start();
    for number in 0..jobs {
        client.enqueue(Noop { number }).queue("one").await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}

pub(super) async fn enqueue_bulk(client: &Client, jobs: u64, queue: &str) -> anyhow::Result<f64> {
    let bar = progress("enqueue bulk", jobs);
    let numbers: Vec<Noop> = (0..jobs).map(|number| Noop { number }).collect();
    let started = clock::start();
    for part in numbers.chunks(BULK) {
        client.enqueue_many(part).queue(queue).await?;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}

/// A worker that runs until `stop`.
pub(super) struct RunningWorker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Stopped, windlass::Error>>,
}

impl RunningWorker {
    pub(super) fn start(
        client: &Client,
        queue: Queue,
        meter: &Arc<Meter>,
        failing_too: bool,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let worker = Worker::new(client, Arc::clone(meter))
            .queue_with(queue)
            .handle(noop);
        let worker = if failing_too {
            worker.handle(failing).no_attempt_cap()
        } else {
            worker
        };
        let worker = worker.shutdown_grace(Duration::from_secs(1));
        let task = tokio::spawn(worker.run_until(stopped));
        RunningWorker { stop, task }
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(()); // fails if the worker did not start; the task returns why
        self.task.await??;
        Ok(())
    }
}

async fn drain(client: &Client, bench: &RunBench) -> anyhow::Result<f64> {
    let meter = Arc::new(Meter::default());
    meter.expect(bench.jobs);
    let bar = progress("drain", bench.jobs);
    let started = clock::start();
    let queue = Queue::new("bulk", bench.concurrency);
    let worker = RunningWorker::start(client, queue, &meter, false);
    show_progress(&bar, &meter).await;
    let took = started.elapsed();
    bar.finish_and_clear();
    worker.stop().await?;
    Ok(bench.jobs as f64 / took.as_secs_f64())
}

/// Shows the progress until all jobs are done.
async fn show_progress(bar: &ProgressBar, meter: &Meter) {
    loop {
        tokio::select! {
            () = meter.all_done.notified() => return,
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                bar.set_position(meter.done.load(Ordering::SeqCst));
            }
        }
    }
}

/// Measures the time from the enqueue call to the handler of an idle worker.
async fn pickup(client: &Client) -> anyhow::Result<Percentiles> {
    let meter = Arc::new(Meter::default());
    let worker = RunningWorker::start(client, Queue::new("pickup", 10), &meter, false);
    let bar = progress("pick up", PICKUPS);
    for number in 0..PICKUPS {
        meter.expect(number + 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
        meter.send(number);
        client.enqueue(Noop { number }).queue("pickup").await?;
        meter.all_done.notified().await;
        bar.inc(1);
    }
    bar.finish_and_clear();
    worker.stop().await?;
    Ok(meter.latencies().0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryGuards {
    On,
    Off,
}

struct StormRun {
    fresh: Percentiles,
    failures_per_s: f64,
    missing: u64,
}

/// Lets jobs that always fail each fail once, then measures fresh jobs in the same queue.
async fn storm(
    client: &Client,
    bench: &RunBench,
    name: &'static str,
    failing: u64,
    guards: RetryGuards,
) -> anyhow::Result<StormRun> {
    let meter = Arc::new(Meter::default());
    let jobs: Vec<Failing> = (0..failing).map(|_| Failing).collect();
    let backoff = Backoff::Constant { delay: BACKOFF };
    let policy = RetryPolicy::new(backoff, Jitter::None)?.with_max_attempts(1000)?;
    for part in jobs.chunks(BULK) {
        let step = client.enqueue_many(part).queue(name).retry(policy.clone());
        step.await?;
    }
    let queue = Queue::new(name, STORM_SLOTS);
    let queue = match guards {
        RetryGuards::On => queue,
        RetryGuards::Off => queue.no_retry_fetch_ratio().fresh_reserve(0),
    };
    let worker = RunningWorker::start(client, queue, &meter, true);
    let bar = progress("all fail once", failing);
    let failed = || meter.first_failures.load(Ordering::SeqCst);
    while failed() < failing {
        bar.set_position(failed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bar.finish_and_clear();

    let fresh = FRESH_PER_S * u64::from(bench.fresh_seconds);
    meter.expect(fresh);
    let bar = progress(name, fresh);
    let failures_before = meter.failures.load(Ordering::SeqCst);
    let started = clock::start();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(FRESH_PER_S)?);
    for number in 0..fresh {
        ticks.tick().await;
        meter.send(number);
        client.enqueue(Noop { number }).queue(name).await?;
        bar.inc(1);
    }
    let failures = meter.failures.load(Ordering::SeqCst) - failures_before;
    let failures_per_s = failures as f64 / started.elapsed().as_secs_f64();
    let _ = tokio::time::timeout(PATIENCE, meter.all_done.notified()).await; // on a timeout, the rest counts as missing
    bar.finish_and_clear();
    let (fresh, missing) = meter.latencies();
    worker.stop().await?;
    Ok(StormRun {
        fresh,
        failures_per_s,
        missing,
    })
}

pub(super) fn percentiles(latencies: &mut [Duration]) -> Percentiles {
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len().saturating_sub(1)) as f64 * share;
        let latency = latencies.get(index.round() as usize);
        latency.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    Percentiles {
        p50: at(0.5),
        p99: at(0.99),
    }
}

impl fmt::Display for RunResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (label, rate) in [
            ("enqueue, one by one", self.enqueue_one_per_s),
            ("enqueue, in bulk", self.enqueue_bulk_per_s),
            ("drain", self.drain_per_s),
        ] {
            writeln!(f, "{label:32} {rate:>12.0} jobs/s")?;
        }
        for result in &self.processes {
            let label = format!("drain, worker processes: {}", result.processes);
            writeln!(f, "{label:32} {:>12.0} jobs/s", result.drain_per_s)?;
        }
        writeln!(f, "{:32} {:>12.2} ms", "fdatasync", self.fdatasync_ms)?;
        if let Some(commit_ms) = self.server_commit_ms {
            writeln!(
                f,
                "{:32} {commit_ms:>12.2} ms",
                "insert and commit, no windlass"
            )?;
        }
        let storm = &self.storm;
        for (label, times) in [
            ("pick-up by an idle worker", self.pickup_ms),
            ("fresh job, no retry storm", storm.calm_ms),
            ("fresh job, retry storm", storm.storm_ms),
            ("fresh job, storm without guards", storm.unguarded_ms),
        ] {
            let Percentiles { p50, p99 } = times;
            writeln!(f, "{label:32} {p50:>12.2} ms p50 {p99:>12.2} ms p99")?;
        }
        let failures = storm.failures_per_s;
        writeln!(
            f,
            "{:32} {failures:>12.0} /s",
            "failures in the retry storm"
        )?;
        writeln!(
            f,
            "{:32} {:>12}",
            "fresh jobs that never ran", storm.missing
        )
    }
}
