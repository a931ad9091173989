//! A server with dead jobs, and workers that run them again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Server, ask, windlass};

/// A server whose queue `mail` has dead jobs of one cause.
pub(crate) struct FailingQueue {
    pub(crate) server: Server,
    pub(crate) data: TempDir,
}

impl FailingQueue {
    pub(crate) fn new(count: usize) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let server = Server::start(data.path(), &[]);
        let job = json!({"kind": "email:send", "queue": "mail", "max_attempts": 1, "payload": {"to": "ann"}});
        server.post("/api/v1/jobs/bulk", &json!({"jobs": vec![job; count]}));
        let claim = json!({"queue": "mail", "worker": "w", "limit": count});
        let claimed = server.post("/api/v1/claim", &claim);
        server.post("/api/v1/settle", &outcomes(&claimed, "failed"));
        FailingQueue { server, data }
    }

    /// Runs a command against the server. Returns its exit code, stdout and stderr.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        run_on(&["--url", &self.server.url], arguments)
    }

    /// Runs a command that must succeed. Returns its stdout.
    pub(crate) fn printed(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    }

    /// Runs a command with `-o json` that must succeed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.printed(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&printed).expect("JSON")
    }

    /// Returns the number of jobs of a queue in a state.
    pub(crate) fn count(&self, queue: &str, state: &str) -> Value {
        let queue = self.server.get(&format!("/api/v1/queues/{queue}"));
        let count = queue.pointer(&format!("/counts/{state}"));
        count.cloned().expect("a count")
    }

    pub(crate) fn fingerprint(&self) -> String {
        let failures = self.server.get("/api/v1/failures");
        let fingerprint = failures.pointer("/data/0/fingerprint");
        let fingerprint = fingerprint.and_then(Value::as_str);
        fingerprint.expect("a fingerprint").to_owned()
    }
}

/// Runs `windlass` with more arguments. Returns its exit code, stdout and stderr.
pub(crate) fn run_on(backend: &[&str], arguments: &[&str]) -> (i32, String, String) {
    let done = windlass(&[arguments, backend].concat());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        done.status.code().expect("an exit code"),
        text(done.stdout),
        text(done.stderr),
    )
}

/// Returns the body that settles all claimed jobs alike.
fn outcomes(claimed: &Value, outcome: &str) -> Value {
    let outcomes = jobs(claimed).iter().map(|job| {
        let (id, attempt) = (job.get("id"), job.get("attempt"));
        match outcome {
            "failed" => {
                json!({"id": id, "attempt": attempt, "outcome": outcome, "error": "smtp: refused"})
            }
            outcome => json!({"id": id, "attempt": attempt, "outcome": outcome}),
        }
    });
    json!({"worker": "w", "outcomes": outcomes.collect::<Vec<Value>>()})
}

fn jobs(claimed: &Value) -> &[Value] {
    let jobs = claimed.get("data").and_then(Value::as_array);
    jobs.expect("jobs")
}

/// A worker of the queue `mail` that reports the same outcome for all jobs. Stops when dropped.
pub(crate) struct RestWorker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RestWorker {
    pub(crate) fn start(server: &Server, outcome: &'static str) -> Self {
        let (address, stop) = (server.address, Arc::new(AtomicBool::new(false)));
        let until = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                work(address, outcome);
            }
        });
        RestWorker {
            stop,
            thread: Some(thread),
        }
    }
}

fn work(address: SocketAddr, outcome: &str) {
    let claim = json!({"queue": "mail", "worker": "w", "limit": 100, "wait": "200ms"});
    let claimed = ask(address, "POST", "/api/v1/claim", None, Some(&claim));
    let (status, claimed) = claimed.expect("an answer");
    assert_eq!(status, 200, "{claimed}");
    if !jobs(&claimed).is_empty() {
        let body = outcomes(&claimed, outcome);
        ask(address, "POST", "/api/v1/settle", None, Some(&body)).expect("an answer");
    }
}

impl Drop for RestWorker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
