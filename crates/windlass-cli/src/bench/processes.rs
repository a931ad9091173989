//! Drains with several worker processes on one PostgreSQL database, to show how nodes scale.
//!
//! The processes run `windlass bench worker`. Each one prints `ready` once its store is open, starts
//! its worker when it reads a line, and stops at the end of its input.

use std::io::{BufRead as _, Write as _};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use windlass::{Client, Queue};
use windlass_core::QueueName;

use super::run::{Meter, RunningWorker, enqueue_bulk, open_error};
use super::{RunBench, WorkerBench, progress, runtime};
use crate::clock;

/// How often the parent counts the remaining jobs.
const COUNT_INTERVAL: Duration = Duration::from_millis(25);
/// How long the processes may take to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A drain with some worker processes.
#[derive(Debug, Serialize)]
pub(super) struct ProcessesResult {
    pub(super) processes: u32,
    pub(super) drain_per_s: f64,
}

/// Drains `--jobs` jobs with each of the numbers of processes.
pub(super) async fn drain(
    client: &Client,
    bench: &RunBench,
    url: &str,
) -> anyhow::Result<Vec<ProcessesResult>> {
    let mut results = Vec::new();
    for processes in &bench.processes {
        let queue = format!("processes-{processes}");
        enqueue_bulk(client, bench.jobs, &queue).await?;
        let mut workers = Vec::new();
        for _ in 0..*processes {
            workers.push(WorkerProcess::start(url, &queue, bench.concurrency)?);
        }
        for worker in &mut workers {
            worker.ready().await?;
        }
        let started = clock::start();
        for worker in &mut workers {
            worker.input.write_all(b"go\n").await?;
        }
        wait_until_empty(client, bench.jobs, &queue).await?;
        let took = started.elapsed();
        for worker in workers {
            worker.stop().await?;
        }
        results.push(ProcessesResult {
            processes: *processes,
            drain_per_s: bench.jobs as f64 / took.as_secs_f64(),
        });
    }
    Ok(results)
}

async fn wait_until_empty(client: &Client, jobs: u64, queue: &str) -> anyhow::Result<()> {
    let engine = windlass::admin::engine_of(client);
    let queue = QueueName::new(queue)?;
    let bar = progress("drain, processes", jobs);
    loop {
        let counts = engine.store().counts(engine.now()).await?;
        let left = counts
            .get(&queue)
            .map_or(0, |counts| counts.ready + counts.running);
        bar.set_position(jobs.saturating_sub(left));
        if left == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

struct WorkerProcess {
    child: Child,
    input: ChildStdin,
}

impl WorkerProcess {
    fn start(url: &str, queue: &str, concurrency: u32) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "worker", "--store", url, "--queue", queue])
            .args(["--concurrency", &concurrency.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().expect("it is piped");
        Ok(WorkerProcess { child, input })
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let output = self.child.stdout.take().expect("it is piped");
        let mut line = String::new();
        let mut output = BufReader::new(output);
        tokio::time::timeout(READY_TIMEOUT, output.read_line(&mut line)).await??;
        anyhow::ensure!(line == "ready\n", "a worker process did not start");
        Ok(())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.input);
        let status = tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await??;
        anyhow::ensure!(status.success(), "a worker process failed: {status}");
        Ok(())
    }
}

/// Runs `windlass bench worker`.
pub(super) fn run_worker(bench: &WorkerBench) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let client = Client::open(&bench.store).await.map_err(open_error)?;
        std::io::stdout().lock().write_all(b"ready\n")?;
        if !tokio::task::spawn_blocking(read_line).await?? {
            return Ok(());
        }
        let queue = Queue::new(&bench.queue, bench.concurrency);
        let worker = RunningWorker::start(&client, queue, &Arc::new(Meter::default()), false);
        while tokio::task::spawn_blocking(read_line).await?? {}
        worker.stop().await
    })
}

/// Waits for a line of input. Returns false at the end of the input.
fn read_line() -> std::io::Result<bool> {
    Ok(std::io::stdin().lock().read_line(&mut String::new())? > 0)
}
