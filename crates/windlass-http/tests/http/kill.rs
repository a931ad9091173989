//! A process that is killed after it sent an at-most-once request: it is never sent again.
//!
//! The test starts itself again as the process that will be killed.
#![allow(clippy::print_stdout, reason = "how the two processes meet")]

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use serde_json::json;
use windlass_core::{DeadReason, Delivery, JobId, NewJob, State};
use windlass_engine::{CancellationToken, Engine, Ids, SystemClock, Worker};
use windlass_http::HttpJobs;
use windlass_sqlite::SqliteStore;
use windlass_testkit::child;

use crate::support::{Reply, Target, World, enqueue, http_job, local, t0, worker_config};

const FILE: &str = "WINDLASS_TEST_HTTP_KILL";
const URL: &str = "WINDLASS_TEST_HTTP_URL";

#[tokio::main]
async fn be_killed(file: &Path, url: &str) {
    let store = SqliteStore::open(file, t0(), 1).expect("a store");
    let clock = Arc::new(SystemClock::starting_at(t0()));
    let engine = Arc::new(Engine::new(Arc::new(store), clock, Ids::seeded(1)));
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let job = NewJob {
            delivery,
            ..http_job(json!({"url": url}))
        };
        enqueue(&engine, job).await;
    }
    let http = HttpJobs::new(local()).expect("settings");
    let worker = Worker::new(engine, worker_config(&http)).expect("a worker");
    let never = CancellationToken::new();
    worker
        .run(never.clone(), never)
        .await
        .expect("a store that works");
}

#[test]
fn at_most_once_is_lost_and_not_sent_again_and_at_least_once_is() {
    match (std::env::var(FILE), std::env::var(URL)) {
        (Ok(file), Ok(url)) => be_killed(Path::new(&file), &url),
        _ => kill_and_continue(),
    }
}

#[expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what a test may, its parts may"
)]
#[tokio::main(flavor = "current_thread")]
async fn kill_and_continue() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.db");
    let target = Target::replying(&[
        Reply::Hang(Vec::new()),
        Reply::Hang(Vec::new()),
        Reply::Status(200),
    ])
    .await;
    let mut child =
        child::this_program("kill::at_most_once_is_lost_and_not_sent_again_and_at_least_once_is")
            .env(FILE, &file)
            .env(URL, target.url("/"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
    target.wait_for(2).await;
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    let ids: Vec<JobId> = target
        .seen()
        .iter()
        .map(|seen| seen.headers["windlass-job-id"].parse().unwrap())
        .collect();

    let store = SqliteStore::open(&file, t0(), 2).unwrap();
    let world = World::of(HttpJobs::new(local()).unwrap(), Arc::new(store));
    world.worker.drain(&world.clock).await.unwrap();
    let mut requests = Vec::new();
    for id in ids {
        let job = world.job(id).await;
        let seen = target.seen();
        let name = id.to_string();
        let count = seen
            .iter()
            .filter(|seen| seen.headers["windlass-job-id"] == name)
            .count();
        requests.push((job.delivery, job.state(), count));
    }
    requests.sort_by_key(|(_, _, count)| *count);
    assert_eq!(
        requests,
        [
            (Delivery::AtMostOnce, State::Dead(DeadReason::Lost), 1),
            (Delivery::AtLeastOnce, State::Succeeded, 2),
        ]
    );
}
