//! Kills servers while a replay runs. Each job is revived exactly once, no matter who carries the replay
//! on.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of a test: a missing field fails it, and a clock bounds its waits"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_testkit::cluster;

use crate::support::{PATIENCE, Server, ask, command, free_address};

const JOBS: usize = 1000;
const KILLS: usize = 10;

fn serve(address: SocketAddr, more: &[&str]) -> Server {
    let bind = address.to_string();
    let arguments = ["serve", "--bind", &bind, "--log-level", "error"];
    Server::spawn(command(&[&arguments, more].concat()))
}

/// Makes dead jobs, and starts a replay of them. Returns its path.
fn start_replay(server: &Server) -> String {
    let jobs: Vec<Value> = (0..JOBS)
        .map(|number| json!({"kind": "k", "max_attempts": 1, "payload": number}))
        .collect();
    server.post("/api/v1/jobs/bulk", &json!({"jobs": jobs}));
    let (mut dead, mut number) = (0, 0);
    while dead < JOBS {
        dead += settle_next(&[server.address], "failed", number);
        number += 1;
    }
    let replay = server.post(
        "/api/v1/replays",
        &json!({
            "filter": {"kind": "k", "state": "dead"}, "reason": "repaired", "rate": 500,
            "canary": {"jobs": 20, "timeout": "60s"}, "max_pending": 300,
        }),
    );
    assert_eq!(replay["matched"], JOBS, "{replay}");
    format!("/api/v1/replays/{}", replay["id"].as_str().expect("an id"))
}

/// Claims some jobs and reports the same outcome for all. Returns how many were settled.
///
/// Repeats each request with the same ids until a server answers, as a good worker does.
fn settle_next(addresses: &[SocketAddr], outcome: &str, number: u64) -> usize {
    let claim_id = format!("00000000-0000-7000-8000-{number:012x}");
    let claim = json!({"worker": "w", "limit": 100, "claim_id": claim_id});
    let claimed = answered(addresses, "/api/v1/claim", &claim);
    let jobs = claimed["data"].as_array().expect("jobs");
    let report = |job: &Value| {
        let mut report = json!({"id": job["id"], "attempt": job["attempt"], "outcome": outcome});
        if outcome == "failed" {
            report["error"] = json!("x");
        }
        report
    };
    let outcomes: Vec<Value> = jobs.iter().map(report).collect();
    if !outcomes.is_empty() {
        let settle = json!({"worker": "w", "outcomes": outcomes});
        answered(addresses, "/api/v1/settle", &settle);
    }
    jobs.len()
}

/// Sends a request until a server answers it.
fn answered(addresses: &[SocketAddr], path: &str, body: &Value) -> Value {
    let started = Instant::now();
    for address in addresses.iter().cycle() {
        match ask(*address, "POST", path, None, Some(body)) {
            Ok((200, answer)) => return answer,
            Ok((503, _)) | Err(_) => std::thread::sleep(Duration::from_millis(5)),
            Ok((status, answer)) => panic!("{path}: {status} {answer}"),
        }
        assert!(started.elapsed() < PATIENCE * 4, "no server answers");
    }
    unreachable!("a cycle does not end")
}

/// A worker that runs jobs until the test ends, through whichever server answers.
fn worker(addresses: Vec<SocketAddr>, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        for number in 1_000_000.. {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            if settle_next(&addresses, "succeeded", number) == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    })
}

/// Waits until the replay has revived this many jobs, or has ended.
fn wait_for(address: SocketAddr, path: &str, revived: usize) -> Value {
    let started = Instant::now();
    loop {
        if let Ok((200, replay)) = ask(address, "GET", path, None, None) {
            let enough = replay["revived"]
                .as_u64()
                .is_some_and(|n| n >= revived as u64);
            if enough || replay["state"] != "running" {
                return replay;
            }
        }
        assert!(
            started.elapsed() < PATIENCE * 4,
            "the replay does not go on"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_for_end(address: SocketAddr, path: &str) -> Value {
    let started = Instant::now();
    loop {
        let (_, replay) = ask(address, "GET", path, None, None).expect("an answer");
        if replay["state"] != "running" {
            return replay;
        }
        assert!(started.elapsed() < PATIENCE * 4, "{replay}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn check(replay: &Value) {
    assert_eq!(replay["state"], "finished", "{replay}");
    assert_eq!(replay["matched"], JOBS, "{replay}");
    assert_eq!(replay["revived"], JOBS, "each job once: {replay}");
    assert_eq!(
        (&replay["skipped"], &replay["to_do"]),
        (&json!(0), &json!(0)),
        "{replay}"
    );
    let ended =
        replay["recovered"].as_u64().unwrap_or(0) + replay["failed_again"].as_u64().unwrap_or(0);
    assert_eq!(ended, JOBS as u64, "{replay}");
}

#[test]
fn a_replay_survives_ten_kills_and_revives_each_job_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let address = free_address();
    let start = || serve(address, &["--data", &data]);
    let mut server = start();
    let path = start_replay(&server);
    let stop = Arc::new(AtomicBool::new(false));
    let worker = worker(vec![address], &stop);
    for kill in 0..KILLS {
        wait_for(address, &path, JOBS * kill / KILLS + kill * 7 + 1);
        server.signal("KILL");
        server.wait();
        server = start();
    }
    let replay = wait_for_end(address, &path);
    stop.store(true, Ordering::SeqCst);
    worker.join().expect("the worker works");
    check(&replay);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_carries_a_replay_on_and_revives_each_job_once() {
    let url = cluster::empty_database().await;
    let addresses = [free_address(), free_address()];
    let start = |address| serve(address, &["--store", &url]);
    let mut servers = addresses.map(start);
    let path = start_replay(&servers[0]);
    let stop = Arc::new(AtomicBool::new(false));
    let worker = worker(addresses.to_vec(), &stop);
    // The first kill hits the node that creates the replay, and the others in turn.
    for kill in 0..4 {
        let (killed, other) = (kill % 2, (kill + 1) % 2);
        wait_for(addresses[other], &path, JOBS * kill / 4 + 30);
        servers[killed].signal("KILL");
        while !servers[killed].has_ended() {
            std::thread::yield_now();
        }
        servers[killed] = start(addresses[killed]);
    }
    let replay = wait_for_end(addresses[0], &path);
    stop.store(true, Ordering::SeqCst);
    worker.join().expect("the worker works");
    check(&replay);
}
