//! Two thousand requests at once, without a thread for each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use windlass_core::QueueName;
use windlass_engine::{CancellationToken, Engine, Ids, QueueConfig, SystemClock, Worker};
use windlass_http::HttpJobs;
use windlass_memory::MemoryStore;

use crate::support::{enqueue, http_job, local, worker_config};

const REQUESTS: usize = 2000;

/// The other tests of the program share the processors with these requests.
const PATIENCE: Duration = Duration::from_secs(300);

/// Lets this process have a socket on both sides of every request.
fn make_room_for_sockets() {
    const NEEDED: usize = 2 * REQUESTS + 200;
    let soft_limit = || {
        let limits = std::fs::read_to_string("/proc/self/limits").expect("the limits");
        let mut lines = limits.lines();
        let line = lines.find(|line| line.starts_with("Max open files"));
        let soft = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<usize>().ok());
        soft.expect("the limit of open files")
    };
    if soft_limit() < NEEDED {
        let ours = std::process::id().to_string();
        let more = format!("--nofile={NEEDED}:");
        let mut raise = std::process::Command::new("prlimit");
        let _ = raise.args(["--pid", &ours, &more]).status();
    }
    let limit = soft_limit();
    assert!(
        limit >= NEEDED,
        "{limit} open files are too few: `ulimit -n {NEEDED}`"
    );
}

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    tasks.unwrap_or(0)
}

/// A target that answers nobody until all have come.
async fn start_target(requests: usize) -> (std::net::SocketAddr, Arc<Barrier>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let all_here = Arc::new(Barrier::new(requests + 1));
    let barrier = Arc::clone(&all_here);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let barrier = Arc::clone(&barrier);
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                barrier.wait().await;
                let _ = stream.write_all(b"HTTP/1.1 204 X\r\n\r\n").await;
            });
        }
    });
    (address, all_here)
}

#[tokio::test]
async fn two_thousand_requests_are_in_flight_at_once_without_a_thread_each() {
    make_room_for_sockets();
    let (address, all_here) = start_target(REQUESTS).await;
    let store = Arc::new(MemoryStore::new());
    let engine = Arc::new(Engine::new(
        store,
        Arc::new(SystemClock::new()),
        Ids::seeded(1),
    ));
    let mut ids = BTreeSet::new();
    for _ in 0..REQUESTS {
        let job = http_job(json!({"url": format!("http://{address}/")}));
        ids.insert(enqueue(&engine, job).await);
    }
    let http = HttpJobs::new(local()).unwrap();
    let mut config = worker_config(&http);
    let slots = u32::try_from(REQUESTS).unwrap();
    config.queues = vec![QueueConfig::new(QueueName::default(), slots)];
    let worker = Arc::new(Worker::new(Arc::clone(&engine), config).unwrap());
    let stop = CancellationToken::new();
    let (running, until) = (Arc::clone(&worker), stop.clone());
    let before = threads();
    let running = tokio::spawn(async move { running.run(until, CancellationToken::new()).await });
    let met = tokio::time::timeout(PATIENCE, all_here.wait()).await;
    assert!(met.is_ok(), "all requests are at the target at once");
    assert!(threads() < before + 100, "{} threads", threads());
    let all: Vec<_> = ids.iter().copied().collect();
    let done = async {
        loop {
            let found = engine.store().get(&all).await.unwrap();
            if found
                .iter()
                .flatten()
                .all(|job| job.finished_at().is_some())
            {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, done).await.unwrap();
    let once = |job: &windlass_core::Job| (job.attempt, job.failures) == (1, 0);
    assert!(found.iter().flatten().all(once), "each was sent once");
    stop.cancel();
    running.await.unwrap().unwrap();
}
