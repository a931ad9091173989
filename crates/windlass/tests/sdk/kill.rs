//! A worker that is killed with `kill -9`: its jobs are found, and each attempt is accounted.
//!
//! The test starts itself again as the worker that will be killed.
#![cfg(feature = "sqlite")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test may"
)]

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Client, Context, DeadReason, Failure, Job, JobId, Outcome, State, Worker};
use windlass_testkit::child;

const FILE: &str = "WINDLASS_TEST_KILL";

#[derive(Serialize, Deserialize)]
struct Hang;

impl Job for Hang {
    const KIND: &'static str = "hang";
}

/// In the worker that will be killed it never ends; in the next one it is done at once.
async fn hang(_: Hang, ctx: Context) -> Result<(), Failure> {
    if std::env::var(FILE).is_ok() {
        println!("started {}", ctx.id());
        std::future::pending::<()>().await;
    }
    Ok(())
}

#[tokio::main]
async fn be_killed(url: &str) {
    let client = Client::open(url).await.unwrap();
    let worker = Worker::new(&client, ()).name("victim").handle(hang);
    worker
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
}

/// Starts the worker and waits until it has started so many jobs; then kills it.
fn start_and_kill(url: &str, jobs: usize) {
    let mut child = child::this_program("kill::what_a_killed_worker_had_is_lost_and_runs_again")
        .env(FILE, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let started = lines
        .map(Result::unwrap)
        .filter(|line| line.contains("started "));
    assert_eq!(started.take(jobs).count(), jobs);
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
}

#[test]
fn what_a_killed_worker_had_is_lost_and_runs_again() {
    if let Ok(url) = std::env::var(FILE) {
        return be_killed(&url);
    }
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let (again, once): (Vec<JobId>, JobId) = runtime.block_on(async {
        let client = Client::open(&url).await.unwrap();
        let mut again = Vec::new();
        for _ in 0..3 {
            again.push(client.enqueue(Hang).await.unwrap().id);
        }
        (again, client.enqueue(Hang).at_most_once().await.unwrap().id)
    });
    start_and_kill(&url, 4);
    runtime.block_on(async {
        let client = Client::open(&url).await.unwrap();
        let state = client.state(once).await.unwrap();
        assert_eq!(
            state,
            Some(State::Dead(DeadReason::Lost)),
            "never started again"
        );
        let waiting = client.clone();
        let ids = again.clone();
        let all_over = async move {
            for id in ids {
                waiting.wait(id, Duration::from_secs(60)).await.unwrap();
            }
        };
        Worker::new(&client, ())
            .handle(hang)
            .run_until(all_over)
            .await
            .unwrap();
        for id in again {
            let rows = client.attempts(id, 10).await.unwrap();
            let told: Vec<_> = rows.iter().map(|row| (row.attempt, row.outcome)).collect();
            assert_eq!(told, [(2, Outcome::Succeeded), (1, Outcome::Lost)]);
            assert_eq!(rows[1].worker.as_ref().unwrap().as_str(), "victim");
            let job = client.get(id).await.unwrap().unwrap();
            assert_eq!((job.attempt, job.failures), (2, 1));
        }
    });
}
