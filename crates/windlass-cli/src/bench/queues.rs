//! `windlass bench queues`: a worker that discovers its queues, compared with a worker of one named
//! queue.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use windlass::{Client, Context, Failure, Job, Worker};

use super::run::{Percentiles, open_error, percentiles};
use super::{QueuesBench, lock, progress, runtime, store_url};
use crate::clock;
use crate::output::Output;

/// How often the pick-up by each worker is measured.
const PICKUPS: u64 = 300;
/// The number of queues that get jobs.
const BUSY_QUEUES: u64 = 100;
/// How long to wait after a worker started before measuring its processor time.
const WARM_UP: Duration = Duration::from_secs(3);

/// The measurements.
#[derive(Debug, Serialize)]
struct QueuesResults {
    queues: u64,
    seconds: u32,
    one_queue_ms: Percentiles,
    discovered_ms: Percentiles,
    /// The median pick-up time of discovered queues divided by that of one queue.
    pick_up_ratio: f64,
    /// The share of one core that this process uses.
    one_queue_idle_cpu_percent: f64,
    discovered_idle_cpu_percent: f64,
}

pub(super) fn run(bench: &QueuesBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = store_url(bench.store.as_deref(), folder.path());
    let runtime = runtime()?;
    let results = runtime.block_on(measure(bench, &url))?;
    output.print(&results, &results)
}

async fn measure(bench: &QueuesBench, url: &str) -> anyhow::Result<QueuesResults> {
    let client = Client::open(url).await.map_err(open_error)?;
    fill(&client, bench.queues).await?;
    let single = |worker: Worker<Arc<Meter>>| worker.queue("single", 10);
    let (one_queue_ms, one_cpu) =
        measure_worker(&client, bench, single, |_| "single".to_owned()).await?;
    let all = |worker: Worker<Arc<Meter>>| worker.all_queues(10);
    let step = (bench.queues / BUSY_QUEUES).max(1);
    let busy = |number: u64| queue(number * 37 % BUSY_QUEUES * step);
    let (discovered_ms, cpu) = measure_worker(&client, bench, all, busy).await?;
    Ok(QueuesResults {
        queues: bench.queues,
        seconds: bench.seconds,
        one_queue_ms,
        discovered_ms,
        pick_up_ratio: discovered_ms.p50 / one_queue_ms.p50.max(f64::MIN_POSITIVE),
        one_queue_idle_cpu_percent: one_cpu,
        discovered_idle_cpu_percent: cpu,
    })
}

fn queue(number: u64) -> String {
    format!("tenant-{number:05}")
}

/// Enqueues a job into each queue, of a kind that no worker has a handler for.
async fn fill(client: &Client, queues: u64) -> anyhow::Result<()> {
    let bar = progress("fill", queues);
    let mut filling = JoinSet::new();
    for number in 0..queues {
        if filling.len() >= 64 {
            filling.join_next().await.transpose()?.transpose()?;
        }
        let client = client.clone();
        filling.spawn(async move {
            let other = client.enqueue_json("bench:other", &json!(null));
            other.queue(&queue(number)).await
        });
        bar.inc(1);
    }
    while filling
        .join_next()
        .await
        .transpose()?
        .transpose()?
        .is_some()
    {}
    bar.finish_and_clear();
    Ok(())
}

/// A job that does nothing.
#[derive(Serialize, Deserialize)]
struct Noop;

impl Job for Noop {
    const KIND: &'static str = "bench:noop";
}

/// When the last job was enqueued, and how long each job took to reach its handler.
#[derive(Debug, Default)]
struct Meter {
    times: Mutex<(Option<Instant>, Vec<Duration>)>,
    picked_up: Notify,
}

impl Meter {
    fn start(&self) {
        self.times().0 = Some(clock::start());
    }

    fn times(&self) -> MutexGuard<'_, (Option<Instant>, Vec<Duration>)> {
        lock(&self.times)
    }
}

async fn noop(_: Noop, context: Context<Arc<Meter>>) -> Result<(), Failure> {
    let meter = &context.state;
    let mut times = meter.times();
    let took = times.0.take().map(|sent| sent.elapsed());
    times.1.extend(took);
    drop(times);
    meter.picked_up.notify_one();
    Ok(())
}

/// Returns how long a worker takes to pick up jobs, and the share of a core that it uses while idle.
async fn measure_worker(
    client: &Client,
    bench: &QueuesBench,
    configure: impl FnOnce(Worker<Arc<Meter>>) -> Worker<Arc<Meter>>,
    queue_of: impl Fn(u64) -> String,
) -> anyhow::Result<(Percentiles, f64)> {
    let meter = Arc::new(Meter::default());
    let worker = configure(Worker::new(client, Arc::clone(&meter)).handle(noop));
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let running = tokio::spawn(worker.run_until(async move { stopped.notified().await }));
    tokio::time::sleep(WARM_UP).await;
    let (used, started) = (clock::cpu_seconds(), clock::start());
    tokio::time::sleep(Duration::from_secs(bench.seconds.into())).await;
    let cpu = (clock::cpu_seconds() - used) / started.elapsed().as_secs_f64() * 100.0;
    let bar = progress("pick up", PICKUPS);
    for number in 0..PICKUPS {
        tokio::time::sleep(Duration::from_millis(5)).await;
        meter.start();
        client.enqueue(Noop).queue(&queue_of(number)).await?;
        meter.picked_up.notified().await;
        bar.inc(1);
    }
    bar.finish_and_clear();
    stop.notify_one();
    running.await??;
    Ok((percentiles(&mut meter.times().1), cpu))
}

impl fmt::Display for QueuesResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (label, times) in [
            ("pick-up, one queue", self.one_queue_ms),
            ("pick-up, discovered queues", self.discovered_ms),
        ] {
            let (p50, p99) = (times.p50, times.p99);
            writeln!(f, "{label:32} {p50:>12.2} ms p50 {p99:>12.2} ms p99")?;
        }
        writeln!(f, "{:32} {:>12.2}", "ratio at p50", self.pick_up_ratio)?;
        for (label, percent) in [
            ("idle, one queue", self.one_queue_idle_cpu_percent),
            ("idle, all queues", self.discovered_idle_cpu_percent),
        ] {
            writeln!(f, "{label:32} {percent:>12.2} % of a core")?;
        }
        writeln!(f, "{:32} {:>12}", "queues", self.queues)
    }
}
