//! `windlass failures` and `windlass stats`, through a running server.

use serde_json::{Value, json};

use crate::support::failing::{FailingQueue, run_on};

#[test]
fn failures_are_listed_in_every_format() {
    let world = FailingQueue::new(2);
    let cause = world.fingerprint();
    let table = world.printed(&["failures", "list"]);
    assert!(table.starts_with("CAUSE "), "{table}");
    let row = table.lines().nth(1).expect("a row");
    for text in [&cause, "mail", "email:send", " 2 ", "smtp: refused"] {
        assert!(row.contains(text), "{text}: {table}");
    }
    assert!(!table.contains("FIRST SEEN"), "{table}");
    let wide = world.printed(&["failures", "list", "-o", "wide"]);
    assert!(wide.contains("FIRST SEEN"), "{wide}");
    let id = world.printed(&["failures", "list", "-o", "id"]);
    assert_eq!(id.trim(), cause);
    let rest = world.server.get("/api/v1/failures");
    assert_eq!(world.json(&["failures", "list"]), rest);
    let line = world.printed(&["failures", "list", "-o", "ndjson"]);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line, rest["data"][0]);
    assert_eq!(world.json(&["failures", "show", &cause]), rest);
    let page = world.printed(&["failures", "show", &cause]);
    assert!(
        page.contains("failures by hour") && page.contains("windlass replay start --fingerprint"),
        "{page}"
    );
    let (code, _, stderr) = world.run(&["failures", "show", "2123456789abcdef"]);
    assert!(code == 1 && stderr.contains("no failures"), "{stderr}");
    assert_eq!(world.run(&["failures", "show", "x"]).0, 2);
}

#[test]
fn failures_are_filtered_by_every_flag() {
    let world = FailingQueue::new(1);
    let other = json!({"kind": "report", "queue": "slow", "retry": {"backoff": {"type": "constant", "delay": "1h"}}});
    let id = world.server.post("/api/v1/jobs", &other)["id"].clone();
    let claim = json!({"queue": "slow", "worker": "w"});
    world.server.post("/api/v1/claim", &claim);
    let outcome = json!({"id": id, "attempt": 1, "outcome": "failed", "error": "disk is full"});
    let settle = json!({"worker": "w", "outcomes": [outcome]});
    world.server.post("/api/v1/settle", &settle);
    let queues = |more: &[&str]| -> Vec<String> {
        let page = world.json(&[&["failures", "list"], more].concat());
        let groups = page["data"].as_array().expect("groups").iter();
        let queues = groups.map(|group| group["queue"].as_str().expect("a queue").to_owned());
        queues.collect()
    };
    assert_eq!(queues(&[]).len(), 2);
    assert_eq!(queues(&["--queue", "slow"]), ["slow"]);
    assert_eq!(queues(&["--kind", "email:send"]), ["mail"]);
    assert_eq!(queues(&["--state", "dead"]), ["mail"]);
    assert_eq!(queues(&["--state", "retrying"]), ["slow"]);
    let slow = world.json(&["failures", "list", "--queue", "slow"]);
    let cause = slow["data"][0]["fingerprint"].as_str().unwrap();
    assert_eq!(queues(&["--fingerprint", cause]), ["slow"]);
    let (_, first, more) = world.run(&["failures", "list", "--limit", "1", "-o", "id"]);
    let cursor = more.trim().strip_prefix("more failures: --cursor ");
    let second = world.printed(&["failures", "list", "--cursor", cursor.unwrap(), "-o", "id"]);
    assert_ne!(first, second);
    for flag in ["--queue", "--kind", "--fingerprint", "--state"] {
        let (code, _, stderr) = world.run(&["failures", "list", flag, "a/b c"]);
        assert!(code == 2 && stderr.contains(flag), "{flag}: {stderr}");
    }
    // The same conditions select jobs.
    let jobs = |more: &[&str]| {
        let ids = world.printed(&[&["jobs", "list", "-o", "id"], more].concat());
        ids.lines().count()
    };
    assert_eq!(jobs(&["--fingerprint", cause]), 1);
    assert_eq!(jobs(&["--retrying"]), 1);
    assert_eq!(jobs(&["--retrying", "false"]), 1);
    assert_eq!(jobs(&["--failed-from", "1h"]), 2);
    assert_eq!(jobs(&["--failed-before", "1h"]), 0);
    assert_eq!(jobs(&["--dead-reason", "exhausted"]), 1);
    assert_eq!(jobs(&["--order", "finished_at"]), 1, "only finished jobs");
    assert_eq!(jobs(&["--order", "created"]), 2);
    assert_eq!(world.run(&["jobs", "list", "--order", "size"]).0, 2);
}

#[test]
fn stats_show_totals_by_queue() {
    let FailingQueue { server, data } = FailingQueue::new(2);
    assert!(server.stop().0.success()); // it writes its statistics
    let data = data.path().display().to_string();
    let run = |arguments: &[&str]| run_on(&["--data", &data], &[&["stats"], arguments].concat());
    let printed = |arguments: &[&str]| {
        let (code, stdout, stderr) = run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    };
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&printed(&[arguments, &["-o", "json"]].concat())).unwrap()
    };
    let table = printed(&[]);
    assert!(table.starts_with("QUEUE "), "{table}");
    let row = table.lines().nth(1).expect("a row");
    assert!(row.starts_with("mail ") && row.contains("2/0"), "{table}");
    assert!(!table.contains("RETRIED"), "{table}");
    assert!(printed(&["-o", "wide"]).contains("RETRIED"));
    assert_eq!(printed(&["-o", "id"]), "mail\n");
    let statistics = json(&[]);
    assert_eq!(statistics["totals"]["enqueued"], 2);
    let failed = json!({"fresh": 2, "retry": 0});
    assert_eq!(statistics["queues"][0]["failed"], failed);
    let line: Value = serde_json::from_str(&printed(&["-o", "ndjson"])).unwrap();
    assert_eq!(line["queue"], "mail");
    assert_eq!(printed(&["--queue", "none"]), "no statistics\n");
    let earlier = ["--from", "1h 30m", "--to", "1h"];
    assert_eq!(printed(&earlier), "no statistics\n");
    assert_eq!(json(&["--step", "5m"])["step"], "5m");
    for (flag, value) in [
        ("--from", "soon"),
        ("--to", "soon"),
        ("--step", "x"),
        ("--queue", "a/b"),
    ] {
        let (code, _, stderr) = run(&[flag, value]);
        assert!(code == 2 && stderr.contains(flag), "{flag}: {stderr}");
    }
    let (code, _, stderr) = run(&["--step", "7s"]);
    assert!(code == 2 && stderr.contains("step"), "{stderr}");
}
