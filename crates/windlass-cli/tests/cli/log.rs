//! The log of a server.

use crate::support::Server;
use serde_json::json;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn log_lines_are_text_or_json_and_have_no_payload() {
    let folder = folder();
    let server = Server::start(
        folder.path(),
        &["--log-format", "json", "--log-level", "trace"],
    );
    server.post(
        "/api/v1/jobs",
        &json!({"kind": "a", "payload": {"card": "4111-secret"}}),
    );
    let (_, log) = server.stop();
    assert!(log.lines().count() > 0);
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        assert!(
            line["level"].is_string() && line["timestamp"].is_string(),
            "{line}"
        );
    }
    assert!(!log.contains("4111-secret"));
    let quiet = Server::start(folder.path(), &["--log-level", "error"]);
    let (_, log) = quiet.stop();
    assert_eq!(log, "");
}

#[test]
fn failures_of_remote_workers_are_logged_and_a_bulk_logs_no_warning() {
    let folder = folder();
    let server = Server::start(folder.path(), &["--log-format", "json"]);
    let jobs = vec![json!({"kind": "a", "queue": "other"}); 6000];
    server.post("/api/v1/jobs/bulk", &json!({ "jobs": jobs }));
    server.post(
        "/api/v1/jobs",
        &json!({"kind": "pay", "payload": {"card": "4111-secret"}, "max_attempts": 1}),
    );
    let claimed = server.post("/api/v1/claim", &json!({"worker": "w1"}));
    let job = &claimed["data"][0];
    let error = "card '4111-secret' was declined";
    let outcome = json!({"id": job["id"], "attempt": 1, "outcome": "failed", "error": error});
    server.post(
        "/api/v1/settle",
        &json!({"worker": "w1", "outcomes": [outcome]}),
    );
    let (_, log) = server.stop();
    assert!(
        !log.contains("4111-secret") && !log.contains("too fast"),
        "{log}"
    );
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    let failed = |line: &&serde_json::Value| line["message"] == "attempt failed";
    let found: Vec<_> = lines.iter().filter(failed).collect();
    let [line] = &found[..] else { panic!("{log}") };
    for (name, value) in [
        ("job.id", job["id"].clone()),
        ("kind", "pay".into()),
        ("queue", "default".into()),
        ("attempt", 1.into()),
        ("worker", "w1".into()),
        ("outcome", "failed".into()),
        ("error", "card \"…\" was declined".into()),
        ("next", "dead".into()),
        ("reason", "exhausted".into()),
    ] {
        assert_eq!(line[name], value, "{name} in {line}");
    }
}

#[test]
fn the_log_has_the_cause_of_a_failed_request_with_its_request_id() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    assert!(server.stop().0.success());
    let store = rusqlite::Connection::open(folder.path().join("windlass.db")).unwrap();
    let damaged = store.execute(
        "update documents set value = '{}' where collection = 'audit'",
        [],
    );
    assert_eq!(damaged, Ok(1));
    drop(store);
    let log_level = ["--log-format", "json", "--log-level", "error"];
    let server = Server::start(folder.path(), &log_level);
    let asked = [
        server.ask("GET", "/api/v1/audit", None, None),
        server.ask("GET", "/api/v1/audit/verify", None, None),
    ];
    let (_, log) = server.stop();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    for (status, answer) in asked {
        assert_eq!(status, 500, "{answer}");
        let line = lines
            .iter()
            .find(|line| line["span"]["request_id"] == answer["request_id"]);
        let cause = line.expect("a line of this request")["cause"].to_string();
        assert!(cause.contains("a record of the audit log"), "{cause}");
    }
}

#[test]
fn a_blocked_log_delays_no_request_and_dropped_lines_are_counted() {
    // The test does not read stderr before the end, and a pipe holds little.
    let folder = folder();
    let server = Server::start(folder.path(), &["--log-level", "trace"]);
    let enough = (0..200).find(|_| {
        let jobs: Vec<_> = (0..200).map(|_| json!({"kind": "a"})).collect();
        server.post("/api/v1/jobs/bulk", &json!({ "jobs": jobs }));
        for _ in 0..100 {
            server.get("/livez");
        }
        let metrics = server.text("/metrics");
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("windlass_log_lines_dropped_total "));
        line.is_some_and(|count| count != "0")
    });
    assert!(enough.is_some(), "the log never blocked");
    let (status, log) = server.stop();
    assert!(status.success());
    assert!(log.contains("dropped log lines"), "{log}");
}

#[test]
fn a_crash_leaves_no_core_dump() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<&str> = core.expect("a line").split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"]);
}
