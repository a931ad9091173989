//! The reference workers in other languages, against the real server.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use crate::support::{PATIENCE, Server, command, free_address, printed};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The lines that a worker in another language may have.
const LINES_MAX: usize = 120;

fn example(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/workers")
        .join(path)
}

/// The process of a worker, which is killed when this is dropped. Its output goes to a file.
struct Worker(Child);

/// Returns the output of the worker so far.
fn log_of(world: &World) -> String {
    std::fs::read_to_string(world.folder.path().join("log")).expect("its log")
}

impl Worker {
    fn start(language: &str, world: &World) -> Self {
        let folder = world.folder.path();
        let log = File::create(folder.join("log")).expect("a log file");
        let child = Command::new(program(language))
            .arg(with_odd_handler(language, folder))
            .env("WINDLASS_URL", &world.server.url)
            .env("WINDLASS_KEY", &world.work)
            .env("WORKER", "w")
            .env("LEASE_SECONDS", "3")
            .env("GRACE_SECONDS", "0.5")
            .stdout(log)
            .spawn();
        Worker(child.expect("it starts"))
    }

    fn stop(self) -> bool {
        let pid = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .expect("kill")
                .success()
        );
        self.ends()
    }

    /// Waits until the process ends. Returns whether it succeeded.
    fn ends(mut self) -> bool {
        let mut end = None;
        eventually("it ends", || {
            end = self.0.try_wait().expect("its end");
            end.is_some()
        });
        end.expect("its end").success()
    }
}

fn program(language: &str) -> &'static str {
    match language {
        "python" => "python3",
        _ => "node",
    }
}

/// A copy of the worker with one more handler, `odd`, whose result is no JSON.
fn with_odd_handler(language: &str, folder: &Path) -> PathBuf {
    let (path, handlers, odd) = match language {
        "python" => (
            "python/worker.py",
            "HANDLERS = {",
            "\"odd\": lambda payload, job: {1, 2}, ",
        ),
        _ => (
            "node/worker.mjs",
            "const HANDLERS = {",
            " odd: async () => 10n,",
        ),
    };
    let text = std::fs::read_to_string(example(path)).expect("it can be read");
    assert!(text.contains(handlers), "{path}");
    let copy = folder.join(path.rsplit('/').next().unwrap_or_default());
    let text = text.replace(handlers, &format!("{handlers}{odd}"));
    std::fs::write(&copy, text).expect("it can be written");
    copy
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
pub(crate) fn eventually(what: &str, mut look: impl FnMut() -> bool) {
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

/// A server with keys, and a client that may do anything.
struct World {
    folder: TempDir,
    server: Server,
    admin: String,
    work: String,
}

impl World {
    fn new() -> Self {
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
        let address = free_address();
        World {
            server: World::serve(address, data),
            folder,
            admin,
            work,
        }
    }

    fn serve(address: SocketAddr, data: &str) -> Server {
        Server::spawn(command(&[
            "serve",
            "--bind",
            &address.to_string(),
            "--data",
            data,
        ]))
    }

    /// Kills the server and starts another at the same address.
    fn restart(&mut self) {
        let address = self.server.address;
        self.server.signal("KILL");
        let data = self.folder.path().to_str().expect("a plain path");
        // The old process releases its files when it ends.
        let mut started = None;
        eventually("it can be started again", || {
            let gone = self.server.has_ended();
            started = gone.then(|| World::serve(address, data));
            gone
        });
        self.server = started.expect("it is started");
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.server.ask(method, path, Some(&self.admin), body);
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer
    }

    fn enqueue(&self, job: Value) -> String {
        text(&self.ask("POST", "/api/v1/jobs", Some(&job)), "id")
    }

    fn job(&self, id: &str) -> Value {
        self.ask("GET", &format!("/api/v1/jobs/{id}"), None)
    }

    fn state(&self, id: &str) -> String {
        text(&self.job(id), "state")
    }
}

fn the_worker_does_everything(language: &str) {
    let world = World::new();
    let state = |id: &str| world.state(id);

    // It runs jobs and reports results and errors.
    let good = world.enqueue(json!({"kind": "greet", "payload": {"name": "Ann"}}));
    let bad = world.enqueue(json!({"kind": "greet", "max_attempts": 1}));
    let strange = world.enqueue(json!({"kind": "unknown"}));
    let worker = Worker::start(language, &world);
    eventually("it ran", || {
        state(&good) == "succeeded" && state(&bad) == "dead"
    });
    assert_eq!(
        field(&world.job(&good), "result"),
        json!({"greeting": "Hello, Ann!"})
    );
    let error = field(&world.job(&bad), "last_error").to_string();
    assert!(error.contains("Error"), "{error}");
    assert_eq!(
        state(&strange),
        "ready",
        "it claims only what it has a handler for"
    );

    // It renews a lease, and stops a job that was cancelled.
    let long = world.enqueue(json!({"kind": "pause", "payload": {"seconds": 4.5}}));
    let endless = world.enqueue(json!({"kind": "pause", "payload": {"seconds": 3600}}));
    eventually("both started", || {
        state(&long) == "running" && state(&endless) == "running"
    });
    world.ask("POST", &format!("/api/v1/jobs/{endless}/cancel"), None);
    eventually("it ended by itself", || state(&long) == "succeeded");
    assert_eq!(
        field(&world.job(&long), "attempt"),
        1,
        "no attempt was lost"
    );
    eventually("it was called off", || state(&endless) == "cancelled");

    // At shutdown it releases unfinished jobs, without a failure.
    let open = world.enqueue(json!({"kind": "pause", "payload": {"seconds": 3600}}));
    eventually("it started", || state(&open) == "running");
    assert!(worker.stop(), "it ends well");
    assert_given_back(&world, &open);

    // It logs all of that.
    let log = log_of(&world);
    let url = &world.server.url;
    assert!(log.starts_with(&format!(
        "started worker=w server={url} queues=default slots=4\n"
    )));
    for line in [
        format!("claimed id={good} kind=greet attempt=1\n"),
        format!("succeeded id={good} kind=greet attempt=1 status=done\n"),
        format!("failed id={bad} kind=greet attempt=1 status=done error=\""),
        format!("cancelling id={endless} kind=pause attempt=1\n"),
        format!("cancelled id={endless} kind=pause attempt=1 status=done\n"),
        "stopping running=1 grace_seconds=0.5\n".to_owned(),
        format!("released id={open} kind=pause attempt=1 status=done\n"),
    ] {
        assert_eq!(log.matches(&line).count(), 1, "{line} in {log}");
    }
    assert!(log.ends_with("\nstopped\n"), "{log}");
    assert!(!log.contains(&strange), "{log}");
}

fn assert_given_back(world: &World, id: &str) {
    let given_back = world.job(id);
    assert_eq!(
        (field(&given_back, "state"), field(&given_back, "failures")),
        (json!("ready"), json!(0)),
        "{given_back}"
    );
}

/// A result that is too large or not JSON fails its own attempt and nothing else.
fn the_worker_reports_an_invalid_result_as_a_failure(language: &str) {
    let world = World::new();
    let other = world.enqueue(json!({"kind": "pause", "payload": {"seconds": 2}}));
    let name = "x".repeat(70_000);
    let large =
        world.enqueue(json!({"kind": "greet", "payload": {"name": name}, "max_attempts": 1}));
    let odd = world.enqueue(json!({"kind": "odd", "max_attempts": 1}));
    let worker = Worker::start(language, &world);
    for id in [large, odd] {
        eventually("it failed", || world.state(&id) == "dead");
        let job = world.job(&id);
        assert_eq!(field(&job, "dead_reason"), "exhausted");
        let error = field(&job, "last_error").to_string();
        assert!(error.contains("cannot be reported"), "{error}");
    }
    eventually("the other ran", || world.state(&other) == "succeeded");
    assert!(worker.stop(), "it ends well");
}

fn the_worker_obeys_signals(language: &str) {
    let world = World::new();
    let worker = Worker::start(language, &world);
    let signal = |name: &str| world.ask("POST", &format!("/api/v1/workers/w/{name}"), None);
    let workers = || field(&world.ask("GET", "/api/v1/workers", None), "data");
    eventually("it is heard", || workers().to_string().contains("\"w\""));
    let open = world.enqueue(json!({"kind": "pause", "payload": {"seconds": 3600}}));
    eventually("it started", || world.state(&open) == "running");
    signal("pause-claims");
    let id = world.enqueue(json!({"kind": "greet", "payload": {"name": "Ann"}}));
    let sign_of_life = || {
        let workers = workers();
        let mut workers = workers.as_array().expect("a list").iter();
        let worker = workers.find(|worker| text(worker, "name") == "w");
        text(worker.expect("it is listed"), "heartbeat_at")
    };
    let before = sign_of_life();
    eventually("it goes on", || sign_of_life() > before);
    assert_eq!(world.state(&id), "ready", "its claims are paused");
    signal("resume");
    eventually("it ran", || world.state(&id) == "succeeded");
    signal("stop");
    assert!(worker.ends(), "it ends well");
    assert_given_back(&world, &open);
}

fn the_worker_survives_a_server_restart_and_stops_when_its_key_is_revoked(language: &str) {
    let mut world = World::new();
    let long = world.enqueue(json!({"kind": "pause", "payload": {"seconds": 3}}));
    let worker = Worker::start(language, &world);
    eventually("it started", || world.state(&long) == "running");
    world.restart();
    eventually("it ended", || world.state(&long) == "succeeded");
    assert_eq!(field(&world.job(&long), "attempt"), 1, "nothing was lost");
    let keys = field(&world.ask("GET", "/api/v1/keys", None), "data");
    let keys = keys.as_array().expect("a list of keys");
    let key = keys.iter().find(|key| text(key, "name") == "worker");
    let id = text(key.expect("its key"), "id");
    world.ask("DELETE", &format!("/api/v1/keys/{id}"), None);
    assert!(!worker.ends(), "it ends, and tells that something is wrong");
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
fn the_python_worker_reports_an_invalid_result_as_a_failure() {
    the_worker_reports_an_invalid_result_as_a_failure("python");
}

#[test]
fn the_node_worker_reports_an_invalid_result_as_a_failure() {
    the_worker_reports_an_invalid_result_as_a_failure("node");
}

#[test]
fn the_python_worker_obeys_signals() {
    the_worker_obeys_signals("python");
}

#[test]
fn the_node_worker_obeys_signals() {
    the_worker_obeys_signals("node");
}

#[test]
fn the_python_worker_survives_a_server_restart_and_stops_when_its_key_is_revoked() {
    the_worker_survives_a_server_restart_and_stops_when_its_key_is_revoked("python");
}

#[test]
fn the_node_worker_survives_a_server_restart_and_stops_when_its_key_is_revoked() {
    the_worker_survives_a_server_restart_and_stops_when_its_key_is_revoked("node");
}

#[test]
fn a_remote_worker_keeps_its_jobs_during_a_server_restart() {
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
        // Skips the first queue's turn.
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
        for result in settled.as_array().unwrap() {
            assert_eq!(field(result, "status"), "done", "{signal}: {result}");
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
fn reference_workers_are_short_and_have_no_dependencies() {
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
        ["import http.client, json, os, signal, sys, threading, time, urllib.request, uuid"]
    );
    let node = std::fs::read_to_string(example("node/worker.mjs")).unwrap();
    assert!(
        node.lines()
            .filter(|line| line.starts_with("import "))
            .all(|line| line.contains("\"node:"))
    );
}
