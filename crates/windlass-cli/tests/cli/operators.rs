//! `windlass workers`, `nodes`, `queues purge`, `audit list` and `doctor --url`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::failing::FailingQueue;
use crate::support::{PATIENCE, Server};

fn server() -> (Server, tempfile::TempDir) {
    let data = tempfile::tempdir().expect("a folder");
    (Server::start(data.path(), &[]), data)
}

fn signal(server: &Server) -> Value {
    let workers = server.get("/api/v1/workers");
    let rows = workers.get("data").and_then(Value::as_array);
    let mut rows = rows.expect("a list").iter();
    let worker = rows.find(|worker| worker.get("name") == Some(&json!("mailer-1")));
    worker.map_or(json!("none"), |worker| json!(worker.get("signal")))
}

#[test]
fn workers_are_listed_and_signalled() {
    let (server, _data) = server();
    let worker = json!({"name": "mailer-1", "queues": ["mail"], "slots": 4, "version": "2.1"});
    server.post("/api/v1/workers", &worker);
    let list = server.printed(&["workers", "list"]);
    let row = list
        .lines()
        .find(|line| line.starts_with("mailer-1"))
        .expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        (words[1], words.contains(&"mail")),
        ("active", true),
        "{list}"
    );
    assert!(
        server
            .printed(&["workers", "list", "-o", "wide"])
            .contains("2.1")
    );
    assert!(
        server
            .printed(&["workers", "pause-claims", "mailer-1"])
            .contains("paused")
    );
    assert_eq!(signal(&server), "pause_claims");
    assert!(
        server
            .printed(&["workers", "resume", "mailer-1"])
            .contains("active")
    );
    assert_eq!(signal(&server), Value::Null);
    assert!(
        server
            .printed(&["workers", "stop", "mailer-1"])
            .contains("stopping")
    );
    assert_eq!(signal(&server), "stop");
    server.printed(&["workers", "remove", "mailer-1"]);
    assert_eq!(signal(&server), "none");
    server.refused(1, &["workers", "stop", "mailer-1"]);
}

#[test]
fn nodes_are_the_servers_of_the_store() {
    let (server, _data) = server();
    let mut left = PATIENCE;
    while server.printed(&["nodes", "-o", "id"]).is_empty() {
        const BETWEEN: Duration = Duration::from_millis(20);
        assert!(!left.is_zero(), "the server sends no heartbeat");
        left = left.saturating_sub(BETWEEN);
        std::thread::sleep(BETWEEN);
    }
    let nodes = server.json(&["nodes"]);
    let rows = nodes["data"].as_array().expect("a list");
    assert_eq!((rows.len(), &nodes["differences"]), (1, &json!([])));
    assert_eq!(rows[0]["about"]["role"], "server");
    let name = server.printed(&["nodes", "-o", "id"]);
    assert!(
        !server
            .printed(&["workers", "list", "-o", "id"])
            .contains(&name)
    );
    assert!(
        server
            .printed(&["nodes", "-o", "wide"])
            .contains("jobs.lease=30s")
    );
}

#[test]
fn a_purge_deletes_the_finished_jobs_of_one_queue() {
    let queue = FailingQueue::new(3);
    let mail = json!({"kind": "email:send", "queue": "mail"});
    queue.server.post("/api/v1/jobs", &mail);
    let purge = ["queues", "purge", "mail", "--state", "dead"];
    let (code, stdout, stderr) = queue.run(&[&purge[..], &["--dry-run"]].concat());
    assert!(
        code == 0 && stderr.contains("would delete 3 jobs"),
        "{stdout}{stderr}"
    );
    let (code, _, stderr) = queue.run(&purge);
    assert!(
        code == 2 && stderr.contains("`--yes` is required to delete 3 jobs of queue mail"),
        "{stderr}"
    );
    assert_eq!(queue.count("mail", "dead"), 3);
    let done = queue.printed(&[&purge[..], &["--yes", "--reason", "cleanup"]].concat());
    assert_eq!(done, "deleted 3 jobs\n");
    assert_eq!(
        (queue.count("mail", "dead"), queue.count("mail", "ready")),
        (json!(0), json!(1))
    );
    let actions = queue.json(&["bulk", "list"]);
    assert_eq!(actions["data"][0]["reason"], "cleanup");
    assert_eq!(
        queue
            .run(&["queues", "purge", "mail", "--state", "ready"])
            .0,
        2
    );
    assert_eq!(
        queue
            .run(&["queues", "purge", "mial", "--state", "dead", "--yes"])
            .0,
        1
    );
    let records = queue.printed(&["audit", "list", "--action", "bulk_action.", "-o", "wide"]);
    assert!(
        records.starts_with("NUMBER  WHEN") && records.contains("HASH"),
        "{records}"
    );
}

#[test]
fn doctor_reports_version_scopes_clock_and_nodes_of_a_server() {
    let (server, _data) = server();
    let everything = server.printed(&["doctor"]);
    for text in [
        "ok       server",
        "ok       version",
        "ok       clock",
        "ok       nodes",
        "scopes enqueue, work, read, read-payload, operate, admin",
    ] {
        assert!(everything.contains(text), "{text}: {everything}");
    }
    assert_eq!(
        server.get("/api/v1/jobs")["data"],
        json!([]),
        "it creates nothing"
    );
    let admin = server.printed(&["keys", "create", "--name", "a", "--scope", "admin"]);
    let new = json!({"name": "r", "scopes": ["read", "enqueue"]});
    let (_, created) = server.ask("POST", "/api/v1/keys", Some(admin.trim()), Some(&new));
    let mut doctor = crate::support::command(&["doctor", "--url", &server.url]);
    let key = created["key"].as_str().expect("a key");
    let done = doctor.env("WINDLASS_KEY", key).output().expect("it runs");
    let output = String::from_utf8_lossy(&done.stdout);
    assert!(
        output.contains("it has the scopes enqueue, read\n"),
        "{output}"
    );
}
