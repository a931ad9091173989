//! `windlass replay`, through a running server and on a store.

use serde_json::{Value, json};
use windlass_testkit::cluster;

use crate::support::failing::{FailingQueue, RestWorker, run_on};

#[test]
fn a_replay_finishes_if_its_jobs_succeed() {
    let world = FailingQueue::new(12);
    let cause = world.fingerprint();
    let start = [
        "replay",
        "start",
        "--fingerprint",
        &cause,
        "--reason",
        "host is up",
        "--canary",
        "5",
    ];
    let (code, _, stderr) = world.run(&[&start[..], &["--dry-run", "-o", "id"]].concat());
    assert_eq!((code, stderr.as_str()), (0, "would revive 12 jobs\n"));
    let preview = world.json(&[&start[..], &["--dry-run"]].concat());
    assert_eq!(preview["matched"], 12);
    let (code, _, stderr) = world.run(&start);
    assert!(code == 2 && stderr.contains("--yes"), "{stderr}");
    assert_eq!(world.printed(&["replay", "list"]), "no replays\n");
    assert_eq!(world.count("mail", "dead"), 12, "nothing was changed");
    let worker = RestWorker::start(&world.server, "succeeded");
    let ended = world.json(&[&start[..], &["--yes", "--wait"]].concat());
    drop(worker);
    assert_eq!(
        (&ended["state"], &ended["recovered"]),
        (&json!("finished"), &json!(12))
    );
    let id = ended["id"].as_str().unwrap();
    assert_eq!(ended, world.server.get(&format!("/api/v1/replays/{id}")));
    assert_eq!(world.json(&["replay", "show", id]), ended);
    assert_eq!(
        world.json(&["replay", "list"]),
        world.server.get("/api/v1/replays")
    );
    assert_eq!(world.printed(&["replay", "list", "-o", "id"]).trim(), id);
    let line: Value =
        serde_json::from_str(&world.printed(&["replay", "list", "-o", "ndjson"])).unwrap();
    assert_eq!(line, ended);
    let table = world.printed(&["replay", "list"]);
    assert!(
        table.contains("finished") && !table.contains("FILTER"),
        "{table}"
    );
    assert!(
        world
            .printed(&["replay", "list", "-o", "wide"])
            .contains("FILTER")
    );
    let page = world.printed(&["replay", "show", id]);
    assert!(
        page.contains("recovered") && !page.contains("max pending"),
        "{page}"
    );
    let wide = world.printed(&["replay", "show", id, "-o", "wide"]);
    assert!(wide.contains("max pending"), "{wide}");
    let jobs = world.printed(&["jobs", "list", "--replay", id, "-o", "id"]);
    assert_eq!(jobs.lines().count(), 12);
    let (code, _, stderr) = world.run(&["replay", "continue", id]);
    assert_eq!(code, 1, "it has ended: {stderr}");
}

#[test]
fn a_replay_that_stops_says_why_and_goes_on_when_continued() {
    let world = FailingQueue::new(12);
    let worker = RestWorker::start(&world.server, "failed");
    let start = "replay start --queue mail --reason again --canary 4 --yes --wait -o json";
    let start: Vec<&str> = start.split(' ').collect();
    let (code, stopped, stderr) = world.run(&start);
    drop(worker);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains("stopped: jobs failed again with the cause") && stderr.contains("continue"),
        "{stderr}"
    );
    let stopped: Value = serde_json::from_str(&stopped).unwrap();
    assert_eq!(stopped["state"], "stopped");
    let id = stopped["id"].as_str().unwrap();
    let page = world.printed(&["replay", "show", id]);
    assert!(page.contains("stopped: jobs failed again"), "{page}");
    let worker = RestWorker::start(&world.server, "succeeded");
    let ended = world.json(&["replay", "continue", id, "--wait"]);
    drop(worker);
    assert_eq!(ended["state"], "finished", "{ended}");
}

#[test]
fn every_rule_of_a_replay_has_a_flag() {
    let world = FailingQueue::new(3);
    let start = "replay start --queue mail --reason r --canary 2 --canary-timeout 2m --rate 7 --max-pending 9 --stop-share 0.5 --stop-min-sample 11 --stop-same-fingerprint 2 --failures keep --payload-patch {\"to\":\"bob\"} --force --yes";
    let start: Vec<&str> = start.split(' ').collect();
    let replay = world.json(&start);
    for (field, value) in [
        ("canary", json!({"jobs": 2, "timeout": "2m"})),
        ("rate", json!(7)),
        ("max_pending", json!(9)),
        (
            "stop",
            json!({"failed_share": 0.5, "min_sample": 11, "same_fingerprint": 2}),
        ),
        ("failures", json!("keep")),
        ("payload_patch", json!({"to": "bob"})),
        ("force", json!(true)),
        ("state", json!("running")),
    ] {
        assert_eq!(replay[field], value, "{field}");
    }
    let id = replay["id"].as_str().unwrap();
    assert_eq!(world.json(&["replay", "pause", id])["state"], "paused");
    assert_eq!(world.json(&["replay", "resume", id])["state"], "running");
    assert_eq!(world.json(&["replay", "abort", id])["state"], "aborted");
    for (arguments, flag) in [
        ("--queue mail --reason r --canary 0", "--canary"),
        (
            "--queue mail --reason r --canary-timeout x",
            "--canary-timeout",
        ),
        ("--queue mail --reason r --stop-share 2", "--stop-share"),
        ("--queue mail --reason r --failures none", "--failures"),
        (
            "--queue mail --reason r --payload-patch [1]",
            "--payload-patch",
        ),
        ("--reason r", "--queue"),
        ("--queue mail", "--reason"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (code, _, stderr) = world.run(&[&["replay", "start"], &arguments[..]].concat());
        assert!(
            code == 2 && stderr.contains(flag),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn a_replay_on_an_embedded_store_does_what_it_can_without_a_worker() {
    let FailingQueue { server, data } = FailingQueue::new(6);
    assert!(server.stop().0.success());
    let store = format!("sqlite:{}", data.path().join("windlass.db").display());
    let start = "replay start --queue mail --reason up --canary 2 --yes --wait -o json";
    let start: Vec<&str> = start.split(' ').collect();
    let (code, replay, stderr) = run_on(&["--store", &store], &start);
    assert_eq!(code, 0, "{stderr}");
    let warning = "warning: no worker runs; revived jobs wait until one starts\n";
    assert_eq!(stderr, warning);
    let replay: Value = serde_json::from_str(&replay).unwrap();
    assert_eq!(
        (&replay["state"], &replay["pending"]),
        (&json!("running"), &json!(2))
    );
    // A server goes on with it.
    let server = crate::support::Server::start(data.path(), &[]);
    let worker = RestWorker::start(&server, "succeeded");
    let path = format!("/api/v1/replays/{}", replay["id"].as_str().unwrap());
    while server.get(&path)["state"] != "finished" {
        std::thread::yield_now();
    }
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_other_processes_run_actions() {
    let url = cluster::empty_database().await;
    let key = crate::support::printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--store", &url,
    ]);
    let start = "bulk start --action cancel --queue mail --reason r --yes -o json";
    let start: Vec<&str> = start.split(' ').collect();
    let (code, action, stderr) = run_on(&["--store", &url], &start);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("warning: no worker or server runs on this store"),
        "{stderr}"
    );
    let action: Value = serde_json::from_str(&action).unwrap();
    assert_eq!(
        (&action["state"], &action["created_by"]),
        (&json!("running"), &json!("store (store)"))
    );
    let folder = tempfile::tempdir().expect("a folder");
    let server = crate::support::Server::start(folder.path(), &["--store", &url]);
    let with_wait = [&start[..], &["--wait"]].concat();
    let (code, ended, stderr) = run_on(&["--store", &url], &with_wait);
    assert_eq!((code, stderr.as_str()), (0, ""), "a server runs");
    let ended: Value = serde_json::from_str(&ended).unwrap();
    assert_eq!(ended["state"], "finished");
    let path = format!("/api/v1/bulk-actions/{}", action["id"].as_str().unwrap());
    let first = server.ask("GET", &path, Some(key.trim()), None).1;
    assert_eq!(first["state"], "finished", "it was older");
}
