//! Runs many HTTP jobs at once against a target that responds after a second. Prints how long all of
//! them take and how many threads the process has.
//!
//! `cargo run --release -p windlass-http --example crowd -- 2000`
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use windlass_core::{NewJob, PAYLOAD_BYTES_MAX, Payload, QueueName, WorkerName};
use windlass_engine::{
    CancellationToken, Clock as _, Engine, Ids, QueueConfig, SystemClock, Worker, WorkerConfig,
};
use windlass_http::{HttpConfig, HttpJobs};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{Enqueue, Store};

/// A target that responds to each request after a second.
async fn start_target() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while stream
                    .read_buf(&mut request)
                    .await
                    .is_ok_and(|read| read > 0)
                {
                    if request.ends_with(b"\r\n\r\n") {
                        request.clear();
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        if stream.write_all(b"HTTP/1.1 204 X\r\n\r\n").await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    Ok(address)
}

async fn run(
    name: &str,
    store: Arc<dyn Store>,
    jobs: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let address = start_target().await?;
    let clock = Arc::new(SystemClock::new());
    let engine = Arc::new(Engine::new(store, Arc::clone(&clock) as _, Ids::seeded(1)));
    let payload = json!({"url": format!("http://{address}/")}).to_string();
    let now = engine.now();
    let mut ids = Vec::new();
    let mut new = Vec::new();
    for _ in 0..jobs {
        let job = NewJob {
            payload: Payload::parse(&payload, PAYLOAD_BYTES_MAX)?,
            ..NewJob::new(windlass_http::http_kind())
        };
        let job = job.into_job(engine.ids().job(now), now)?;
        ids.push(job.id);
        new.push(job);
    }
    for part in new.chunks(1000) {
        engine
            .store()
            .enqueue(Enqueue::all(part.to_vec()), now)
            .await?;
    }
    let http = HttpJobs::new(HttpConfig {
        allow: vec!["127.0.0.0/8".parse()?],
        ..HttpConfig::default()
    })?;
    let mut config = WorkerConfig::new(WorkerName::new("crowd")?);
    config.queues = vec![QueueConfig::new(QueueName::default(), u32::try_from(jobs)?)];
    http.register(&mut config);
    let worker = Worker::new(Arc::clone(&engine), config)?;
    let stop = CancellationToken::new();
    let started = clock.now();
    let watching = async {
        loop {
            let mut finished_jobs = 0;
            for part in ids.chunks(1000) {
                let jobs = engine.store().get(part).await?;
                let is_finished = |job: &&windlass_core::Job| job.finished_at().is_some();
                finished_jobs += jobs.iter().flatten().filter(is_finished).count();
            }
            if finished_jobs == ids.len() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = clock.now().since(started);
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        println!(
            "{name}: {jobs} requests of 1 s in {:.2} s, {} connections, {threads} threads",
            took.as_secs_f64(),
            http.connections_opened(),
        );
        stop.cancel();
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    let (watched, _) = tokio::join!(watching, worker.run(stop.clone(), CancellationToken::new()));
    watched
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let jobs = std::env::args()
        .nth(1)
        .map_or(Ok(2000), |text| text.parse())?;
    run("memory", Arc::new(MemoryStore::new()), jobs).await?;
    let folder = tempfile::tempdir()?;
    let now = SystemClock::new().now();
    let store = SqliteStore::open(folder.path().join("jobs.db"), now, 1)?;
    run("sqlite", Arc::new(store), jobs).await
}
