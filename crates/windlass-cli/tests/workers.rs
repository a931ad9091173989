//! The reference workers in other languages, against the real server.

mod support;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use support::{PATIENCE, Server, printed};

/// The lines that a worker in another language may have.
const LINES_MAX: usize = 100;

fn example(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/workers")
        .join(path)
}

/// A worker's process, killed with its owner.
struct Worker(Child);

impl Worker {
    fn start(language: &str, server: &Server, key: &str) -> Self {
        let (program, path) = match language {
            "python" => ("python3", "python/worker.py"),
            _ => ("node", "node/worker.mjs"),
        };
        let child = Command::new(program)
            .arg(example(path))
            .env("WINDLASS_URL", &server.url)
            .env("WINDLASS_KEY", key)
            .env("WORKER", format!("{language}-worker"))
            .env("LEASE_SECONDS", "3")
            .env("GRACE_SECONDS", "0.5")
            .stdout(Stdio::null())
            .spawn();
        Worker(child.expect("it starts"))
    }

    fn stop(mut self) -> bool {
        let pid = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .expect("kill")
                .success()
        );
        self.0.wait().expect("its end").success()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "real processes are waited for in real time"
)]
fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn field(object: &Value, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
}

fn text(object: &Value, name: &str) -> String {
    let text = field(object, name).as_str().map(str::to_owned);
    text.expect("a text")
}

fn the_worker_does_everything(language: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("a plain path");
    let key = |name: &str, scopes: &str| {
        printed(&[
            "keys", "create", "--name", name, "--scope", scopes, "--data", data,
        ])
        .trim()
        .to_owned()
    };
    let (admin, work) = (key("admin", "admin"), key("worker", "work"));
    let server = Server::start(folder.path(), &[]);
    let ask = |method: &str, path: &str, body: Option<&Value>| {
        let (status, answer) = server.ask(method, path, Some(&admin), body);
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer
    };
    let enqueue = |job: Value| text(&ask("POST", "/api/v1/jobs", Some(&job)), "id");
    let job = |id: &str| ask("GET", &format!("/api/v1/jobs/{id}"), None);
    let state = |id: &str| text(&job(id), "state");

    // It runs jobs, and tells results and errors.
    let good = enqueue(json!({"kind": "greet", "payload": {"name": "Ann"}}));
    let bad = enqueue(json!({"kind": "greet", "max_attempts": 1}));
    let strange = enqueue(json!({"kind": "unknown"}));
    let worker = Worker::start(language, &server, &work);
    eventually("it ran", || {
        state(&good) == "succeeded" && state(&bad) == "dead"
    });
    assert_eq!(
        field(&job(&good), "result"),
        json!({"greeting": "Hello, Ann!"})
    );
    assert!(
        field(&job(&bad), "last_error")
            .to_string()
            .contains("Error"),
        "{}",
        job(&bad)
    );
    assert_eq!(
        state(&strange),
        "ready",
        "it claims only what it has a handler for"
    );

    // It keeps a lease alive for longer than the lease is, and hears that a job is called off.
    let long = enqueue(json!({"kind": "pause", "payload": {"seconds": 4.5}}));
    let endless = enqueue(json!({"kind": "pause", "payload": {"seconds": 3600}}));
    eventually("both started", || {
        state(&long) == "running" && state(&endless) == "running"
    });
    ask("POST", &format!("/api/v1/jobs/{endless}/cancel"), None);
    eventually("it ended by itself", || state(&long) == "succeeded");
    assert_eq!(field(&job(&long), "attempt"), 1, "no attempt was lost");
    eventually("it was called off", || state(&endless) == "cancelled");

    // At the end it gives back what is not over, without a failure.
    let open = enqueue(json!({"kind": "pause", "payload": {"seconds": 3600}}));
    eventually("it started", || state(&open) == "running");
    assert!(worker.stop(), "it ends well");
    let given_back = job(&open);
    assert_eq!(
        (field(&given_back, "state"), field(&given_back, "failures")),
        (json!("ready"), json!(0)),
        "{given_back}"
    );
}

#[test]
fn the_python_worker_claims_runs_renews_settles_and_stops() {
    the_worker_does_everything("python");
}

#[test]
fn the_node_worker_claims_runs_renews_settles_and_stops() {
    the_worker_does_everything("node");
}

#[test]
fn a_worker_elsewhere_keeps_its_jobs_over_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    for signal in ["TERM", "KILL"] {
        for queue in ["a", "b", "a", "b"] {
            let delivery = if queue == "a" {
                "at_most_once"
            } else {
                "at_least_once"
            };
            let job = json!({"kind": "k", "queue": queue, "delivery": delivery});
            server.post("/api/v1/jobs", &job);
        }
        // So that it is not the first queue's turn.
        server.post("/api/v1/jobs", &json!({"kind": "k", "queue": "a"}));
        server.post(
            "/api/v1/claim",
            &json!({"queues": ["a", "b"], "worker": "other"}),
        );
        let claim = json!({"queues": ["a", "b"], "limit": 3, "worker": "w", "claim_id": signal, "lease": "1h"});
        let claimed = field(&server.post("/api/v1/claim", &claim), "data");
        server.signal(signal);
        server.wait();
        server = Server::start(folder.path(), &[]);
        let again = field(&server.post("/api/v1/claim", &claim), "data");
        assert_eq!(ids(&again), ids(&claimed), "the same claim: {signal}");
        let outcome =
            |id: &String| json!({"id": id, "attempt": 1, "outcome": "succeeded", "result": signal});
        let outcomes: Vec<Value> = ids(&claimed).iter().map(outcome).collect();
        assert_eq!(outcomes.len(), 3);
        let body = json!({"worker": "w", "outcomes": outcomes});
        let settled = field(&server.post("/api/v1/settle", &body), "data");
        for told in settled.as_array().unwrap() {
            assert_eq!(field(told, "status"), "done", "{signal}: {told}");
        }
        let rest = json!({"queues": ["a", "b"], "limit": 9, "worker": "w"});
        let rest = field(&server.post("/api/v1/claim", &rest), "data");
        assert_eq!(ids(&rest).len(), 1, "{signal}: {rest}");
    }
}

/// The ids of jobs, in order.
fn ids(jobs: &Value) -> Vec<String> {
    let jobs = jobs.as_array().expect("a list of jobs");
    let mut ids: Vec<String> = jobs.iter().map(|job| text(job, "id")).collect();
    ids.sort();
    ids
}

#[test]
fn reference_workers_stay_short_and_need_nothing() {
    for path in ["python/worker.py", "node/worker.mjs"] {
        let text = std::fs::read_to_string(example(path)).unwrap();
        assert!(
            text.lines().count() <= LINES_MAX,
            "{path}: {}",
            text.lines().count()
        );
    }
    let python = std::fs::read_to_string(example("python/worker.py")).unwrap();
    let imports: Vec<_> = python
        .lines()
        .filter(|line| line.starts_with("import "))
        .collect();
    assert_eq!(
        imports,
        ["import json, os, signal, sys, threading, time, urllib.error, urllib.request, uuid"]
    );
    let node = std::fs::read_to_string(example("node/worker.mjs")).unwrap();
    assert!(
        node.lines()
            .filter(|line| line.starts_with("import "))
            .all(|line| line.contains("\"node:"))
    );
}
