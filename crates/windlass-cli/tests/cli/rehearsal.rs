//! The rehearsal of `docs/runbooks/rehearsal.md`: 40,000 jobs of six causes die in an outage, and an
//! operator repairs them with at most 12 commands.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of a test: a missing field or a failed command fails it"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Server, ask, command};

/// The kind, the number of jobs, and the error during the outage.
const CAUSES: [(&str, usize, &str); 6] = [
    (
        "invoice:send",
        20_000,
        "POST https://billing.example:443/charge: 502 Bad Gateway",
    ),
    ("crm:sync", 8_000, "KeyError: 'customer_id'"),
    ("email:send", 6_000, "smtp.example:25: connection refused"),
    (
        "email:send",
        3_000,
        "smtp.example:25: 421 too many connections",
    ),
    (
        "report:build",
        2_000,
        "TypeError: cannot read properties of undefined (reading 'rows')",
    ),
    (
        "report:build",
        1_000,
        "could not connect to server: db.example:5432",
    ),
];

const JOBS: usize = 40_000;

/// A worker in another process of the operator's company, which speaks the REST API.
struct Worker {
    address: SocketAddr,
    outage: AtomicBool,
    stop: AtomicBool,
    /// How often each job succeeded.
    succeeded: Mutex<BTreeMap<String, u32>>,
}

impl Worker {
    fn run(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            if self.step() == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn step(&self) -> usize {
        let claim = json!({"worker": "w", "limit": 500});
        let (_, claimed) = self.post("/api/v1/claim", &claim);
        let jobs = claimed["data"].as_array().cloned().unwrap_or_default();
        if jobs.is_empty() {
            return 0;
        }
        let outcomes: Vec<Value> = jobs.iter().map(|job| self.outcome(job)).collect();
        let settle = json!({"worker": "w", "outcomes": outcomes});
        let (status, answer) = self.post("/api/v1/settle", &settle);
        assert_eq!(status, 200, "{answer}");
        jobs.len()
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        ask(self.address, "POST", path, None, Some(body)).expect("an answer")
    }

    fn outcome(&self, job: &Value) -> Value {
        let cause = job["payload"]["cause"].as_u64().expect("a cause");
        let (_, _, error) = CAUSES[usize::try_from(cause).expect("a small number")];
        // The field was renamed: that does not end with the outage.
        let is_broken = cause == 1 && job["payload"].get("customer_id").is_none();
        let (id, attempt) = (&job["id"], &job["attempt"]);
        if is_broken || self.outage.load(Ordering::SeqCst) {
            return json!({"id": id, "attempt": attempt, "outcome": "failed", "error": error});
        }
        let mut succeeded = self.succeeded.lock().expect("no panic");
        *succeeded
            .entry(id.as_str().expect("an id").to_owned())
            .or_default() += 1;
        json!({"id": id, "attempt": attempt, "outcome": "succeeded"})
    }
}

/// The operator's terminal. It counts the commands.
struct Terminal {
    url: String,
    commands: usize,
}

impl Terminal {
    fn run(&mut self, arguments: &[&str]) -> (Option<i32>, String) {
        self.commands += 1;
        let arguments = [arguments, &["--url", &self.url]].concat();
        let done = command(&arguments).output().expect("it starts");
        let stdout = String::from_utf8(done.stdout).expect("text");
        let stderr = String::from_utf8_lossy(&done.stderr);
        (done.status.code(), format!("{stdout}{stderr}"))
    }

    fn json(&mut self, arguments: &[&str]) -> Value {
        self.commands += 1;
        let arguments = [arguments, &["-o", "json", "--url", &self.url]].concat();
        let done = command(&arguments).output().expect("it starts");
        let read = serde_json::from_slice(&done.stdout);
        read.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {done:?}"))
    }
}

/// The jobs die, all of them.
fn outage(server: &Server, worker: &Worker) {
    for (number, (kind, count, _)) in CAUSES.iter().enumerate() {
        let job = |n: usize| {
            let payload = json!({"cause": number, "customerId": n});
            json!({"kind": kind, "max_attempts": 1, "payload": payload})
        };
        let jobs: Vec<Value> = (0..*count).map(job).collect();
        for part in jobs.chunks(10_000) {
            server.post("/api/v1/jobs/bulk", &json!({"jobs": part}));
        }
    }
    while worker.step() > 0 {}
}

fn fingerprint(failures: &[Value], kind: &str, count: usize) -> String {
    let found = failures
        .iter()
        .find(|group| group["kind"] == kind && group["dead"] == count);
    let found = found.unwrap_or_else(|| panic!("{count} jobs of {kind}: {failures:?}"));
    found["fingerprint"]
        .as_str()
        .expect("a fingerprint")
        .to_owned()
}

/// The list inside the answer of a list verb.
fn items(answer: &Value) -> Vec<Value> {
    let list = answer.as_array().or_else(|| answer["data"].as_array());
    list.expect("a list").clone()
}

#[test]
fn forty_thousand_dead_jobs_are_repaired_with_twelve_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &["--log-level", "error"]);
    let worker = Arc::new(Worker {
        address: server.address,
        outage: AtomicBool::new(true),
        stop: AtomicBool::new(false),
        succeeded: Mutex::default(),
    });
    outage(&server, &worker);
    worker.outage.store(false, Ordering::SeqCst);
    let running = Arc::clone(&worker);
    let thread = std::thread::spawn(move || running.run());
    let mut terminal = Terminal {
        url: server.url.clone(),
        commands: 0,
    };

    // What is wrong? Six causes, with exact counts.
    let failures = items(&terminal.json(&["failures", "list"]));
    assert_eq!(failures.len(), 6, "{failures:?}");
    for (kind, count, _) in CAUSES {
        fingerprint(&failures, kind, count);
    }
    let renamed = fingerprint(&failures, "crm:sync", 8_000);
    let (code, page) = terminal.run(&["failures", "show", &renamed]);
    assert_eq!(code, Some(0), "{page}");
    assert!(page.contains("customer_id"), "{page}");

    // A replay of a cause that is still there stops itself after a few jobs.
    let start = |more: &[&'static str]| {
        let mut arguments = vec!["replay", "start"];
        arguments.extend_from_slice(more);
        arguments.extend(["--canary", "20", "--rate", "3000", "--stop-share", "0.2"]);
        arguments.extend(["--reason", "after the outage", "--yes", "--wait"]);
        arguments
    };
    let by_cause = [
        &start(&["--kind", "crm:sync"])[..],
        &["--fingerprint", &renamed],
    ]
    .concat();
    let stopped = terminal.json(&by_cause);
    assert_eq!(stopped["state"], "stopped", "{stopped}");
    assert_eq!(stopped["stop_reason"], "same_fingerprint", "{stopped}");
    // The first failure stops it, so that the canary may not even be complete.
    let revived = stopped["revived"].as_u64().expect("a number");
    assert!((1..=20).contains(&revived), "{stopped}");
    assert_eq!(stopped["to_do"], 8_000 - revived, "{stopped}");
    let id = stopped["id"].as_str().expect("an id").to_owned();
    let (code, shown) = terminal.run(&["replay", "abort", &id]);
    assert_eq!(code, Some(0), "{shown}");

    // Rename the field in all of them, first as a dry run.
    let rename = r#"[{"op": "move", "from": "/customerId", "path": "/customer_id"}]"#;
    let patch = [
        "bulk",
        "start",
        "--action",
        "patch",
        "--state",
        "dead",
        "--fingerprint",
        &renamed,
        "--payload-patch",
        rename,
        "--reason",
        "the field was renamed",
    ];
    let preview = terminal.json(&[&patch[..], &["--dry-run"]].concat());
    assert_eq!(preview["matched"], 8_000, "{preview}");
    let patched = terminal.json(&[&patch[..], &["--yes", "--wait"]].concat());
    assert_eq!(
        (&patched["state"], &patched["done"]),
        (&json!("finished"), &json!(8_000)),
        "{patched}"
    );

    // Now the same replay goes to its end, and so does that of all others.
    let finished = terminal.json(&by_cause);
    assert_eq!(
        (&finished["state"], &finished["recovered"]),
        (&json!("finished"), &json!(8_000)),
        "{finished}"
    );
    let rest = terminal.json(&start(&["--state", "dead"]));
    assert_eq!(
        (&rest["state"], &rest["recovered"]),
        (&json!("finished"), &json!(32_000)),
        "{rest}"
    );

    // Nothing is left.
    let failures = items(&terminal.json(&["failures", "list", "--state", "dead"]));
    assert!(failures.is_empty(), "{failures:?}");
    let (code, stats) = terminal.run(&["stats"]);
    assert_eq!(code, Some(0), "{stats}");
    worker.stop.store(true, Ordering::SeqCst);
    thread.join().expect("the worker works");
    let succeeded = worker.succeeded.lock().expect("no panic");
    assert_eq!(succeeded.len(), JOBS);
    assert!(
        succeeded.values().all(|count| *count == 1),
        "nothing ran twice"
    );
    assert!(terminal.commands <= 12, "{} commands", terminal.commands);
}
