//! `windlass bulk`, and changes of jobs by filter, through a running server and on a store.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::command;
use crate::support::failing::{FailingQueue, run_on};

#[test]
fn a_bulk_action_is_started_and_followed() {
    let world = FailingQueue::new(3);
    let start = [
        "bulk",
        "start",
        "--action",
        "revive",
        "--queue",
        "mail",
        "--reason",
        "host is up",
    ];
    let with = |more: &[&'static str]| [&start[..], more].concat();
    let (code, ids, stderr) = world.run(&with(&["--dry-run", "-o", "id"]));
    assert_eq!((code, stderr.as_str()), (0, "would revive 3 jobs\n"));
    assert_eq!(ids.lines().count(), 3);
    let preview = world.json(&with(&["--dry-run"]));
    assert_eq!(
        (&preview["matched"], &preview["complete"]),
        (&json!(3), &json!(true))
    );
    assert_eq!(preview["diff"][0]["changes"]["state"]["to"], "ready");
    let table = world.printed(&with(&["--dry-run"]));
    assert!(table.contains("state: dead → ready"), "{table}");
    let (code, _, stderr) = world.run(&start);
    assert!(
        code == 2 && stderr.contains("`--yes` is required to revive 3 jobs"),
        "{stderr}"
    );
    assert_eq!(world.count("mail", "dead"), 3, "nothing was changed");
    assert_eq!(world.printed(&["bulk", "list"]), "no bulk actions\n");
    let page = world.printed(&with(&["--yes", "--wait"]));
    assert!(
        page.contains("finished") && page.contains("host is up"),
        "{page}"
    );
    assert_eq!(world.count("mail", "ready"), 3);
    let listed = world.json(&["bulk", "list"]);
    assert_eq!(listed, world.server.get("/api/v1/bulk-actions"));
    let id = listed["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(world.printed(&["bulk", "list", "-o", "id"]).trim(), id);
    let table = world.printed(&["bulk", "list"]);
    assert!(
        table.starts_with("ID ") && table.contains("finished"),
        "{table}"
    );
    assert!(!table.contains("FILTER"), "{table}");
    assert!(
        world
            .printed(&["bulk", "list", "-o", "wide"])
            .contains("FILTER")
    );
    let shown = world.json(&["bulk", "show", &id]);
    assert_eq!(
        shown,
        world.server.get(&format!("/api/v1/bulk-actions/{id}"))
    );
    assert_eq!(world.printed(&["bulk", "show", &id, "-o", "id"]).trim(), id);
    assert!(world.printed(&["bulk", "show", &id]).contains("matched"));
    let (code, _, stderr) = world.run(&["bulk", "abort", &id]);
    assert_eq!(code, 1, "it has ended: {stderr}");
    let missing = "0199d2a8-2fd0-7000-8000-000000000001";
    assert_eq!(world.run(&["bulk", "show", missing]).0, 1);
    assert_eq!(world.run(&["bulk", "show", "x"]).0, 2);
}

#[test]
fn every_action_reaches_the_jobs() {
    let world = FailingQueue::new(2);
    let start = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let common = ["bulk", "start", "--reason", "why", "--yes", "--wait"];
        let ended = world.json(&[&common[..], &arguments].concat());
        assert_eq!(ended["state"], "finished", "{ended}");
        ended
    };
    let job = || world.server.get("/api/v1/jobs?limit=1")["data"][0].clone();
    let revived = start(
        "--action revive --queue mail --failures keep --run-at 2099-01-01T00:00:00Z --payload-patch {\"to\":\"bob\"} --force --rate 1000",
    );
    assert_eq!(
        (&revived["done"], &revived["rate"]),
        (&json!(2), &json!(1000))
    );
    assert_eq!(revived["force"], true);
    let changed = job();
    assert_eq!(
        (&changed["failures"], &changed["state"]),
        (&json!(1), &json!("scheduled"))
    );
    assert_eq!(changed["payload"]["to"], "bob");
    start("--action reprioritise --queue mail --priority -7");
    assert_eq!(job()["priority"], -7);
    start("--action run_now --queue mail");
    assert_eq!(job()["state"], "ready");
    start("--action move --queue mail --to-queue post");
    assert_eq!(job()["queue"], "post");
    let file = world.data.path().join("patch.json");
    std::fs::write(&file, r#"{"tags": ["eu"]}"#).unwrap();
    start(&format!(
        "--action patch --queue post --patch-file {}",
        file.display()
    ));
    assert_eq!(job()["tags"], json!(["eu"]));
    start(
        "--action patch --tag eu --patch {\"priority\":3} --payload-patch [{\"op\":\"add\",\"path\":\"/cc\",\"value\":1}]",
    );
    let changed = job();
    assert_eq!(
        (&changed["priority"], &changed["payload"]["cc"]),
        (&json!(3), &json!(1))
    );
    start("--action cancel --queue post");
    assert_eq!(job()["state"], "cancelled");
    let resolved = start("--action resolve --queue post --state cancelled");
    assert_eq!(resolved["done"], 0, "only lost jobs can be resolved");
    let deleted = start("--action delete --queue post --state cancelled");
    assert_eq!(deleted["done"], 2);
    assert!(job().is_null());
}

#[test]
fn invalid_flags_are_named() {
    let world = FailingQueue::new(1);
    for (arguments, flag) in [
        ("--action explode --queue mail --reason r", "--action"),
        ("--action cancel --queue mail", "--reason"),
        ("--action cancel --reason r", "--queue"),
        (
            "--action cancel --queue mail --reason lost",
            "--dead-reason",
        ),
        ("--action delete --queue mail --reason r", "--state"),
        ("--action move --queue mail --reason r", "--to-queue"),
        (
            "--action patch --queue mail --reason r --patch x",
            "--patch",
        ),
        ("--action cancel --queue mail --reason r --rate 0", "--rate"),
        (
            "--action cancel --queue mail --reason r --failed-from soon",
            "--failed-from",
        ),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (code, _, stderr) = world.run(&[&["bulk", "start"], &arguments[..]].concat());
        assert!(
            code == 2 && stderr.contains(flag),
            "{arguments:?}: {stderr}"
        );
    }
    assert_eq!(world.printed(&["bulk", "list"]), "no bulk actions\n");
}

#[test]
fn a_bulk_action_is_paused_resumed_and_aborted() {
    let world = FailingQueue::new(200);
    let start = "bulk start --action revive --queue mail --reason slow --rate 1 --yes -o id";
    let start: Vec<&str> = start.split(' ').collect();
    let id = world.printed(&start).trim().to_owned();
    let paused = world.json(&["bulk", "pause", &id]);
    assert_eq!(paused["state"], "paused");
    let resumed = world.json(&["bulk", "resume", &id]);
    assert_eq!(resumed["state"], "running");
    let page = world.printed(&["bulk", "abort", &id]);
    assert!(page.contains("aborted"), "{page}");
    // The command that waits for an action says so if another person aborts it.
    let id = world.printed(&start).trim().to_owned();
    world.printed(&["bulk", "pause", &id]);
    let (code, stdout, stderr) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.run(&["bulk", "resume", &id, "--wait", "-o", "json"]));
        let path = format!("/api/v1/bulk-actions/{id}");
        while world.server.get(&path)["state"] != "running" {
            std::thread::yield_now();
        }
        world.printed(&["bulk", "abort", &id]);
        waiting.join().expect("its end")
    });
    assert!(code == 1 && stderr.contains("was aborted"), "{stderr}");
    let ended: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(ended["state"], "aborted");
}

#[test]
fn ctrl_c_leaves_the_action_to_the_server() {
    let world = FailingQueue::new(200);
    let start = "bulk start --action revive --queue mail --reason slow --rate 1 --yes --wait --url";
    let start: Vec<&str> = start
        .split(' ')
        .chain([world.server.url.as_str()])
        .collect();
    let mut waiting = command(&start);
    waiting.stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiting = waiting.spawn().expect("it starts");
    // The command waits since it created the action, so before the server changes a job.
    while world.server.get("/api/v1/bulk-actions")["data"][0]["done"].as_u64() < Some(1) {
        std::thread::yield_now();
    }
    let pid = waiting.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill").success());
    let done = waiting.wait_with_output().expect("its end");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("interrupted") && stderr.contains("is not aborted"),
        "{stderr}"
    );
    let actions = world.json(&["bulk", "list"]);
    assert_eq!(actions["data"][0]["state"], "running");
}

#[test]
fn jobs_revive_and_cancel_with_a_filter_are_bulk_actions() {
    let world = FailingQueue::new(2);
    let revived = world.printed(&["jobs", "revive", "--queue", "mail", "--yes"]);
    assert_eq!(revived, "revived 2 jobs\n");
    let cancel = ["jobs", "cancel", "--queue", "mail", "--reason", "deploy"];
    let (code, _, stderr) = world.run(&cancel);
    assert!(code == 2 && stderr.contains("cancel 2 jobs"), "{stderr}");
    let cancelled = world.json(&[&cancel[..], &["--yes"]].concat());
    assert_eq!(
        (&cancelled["done"], &cancelled["reason"]),
        (&json!(2), &json!("deploy"))
    );
    let actions = world.json(&["bulk", "list"]);
    assert_eq!(actions["data"][1]["reason"], "windlass jobs revive");
    let again = ["jobs", "revive", "--state", "cancelled", "--yes"];
    let again = world.printed(&[&again[..], &["--delay", "1h"]].concat());
    assert_eq!(again, "revived 2 jobs\n");
    assert_eq!(world.count("mail", "scheduled"), 2);
    let word = ["jobs", "revive", "--queue", "mail", "--reason", "exhausted"];
    let (code, _, stderr) = world.run(&word);
    assert!(
        code == 2 && stderr.contains("--dead-reason exhausted"),
        "{stderr}"
    );
}

#[test]
fn a_bulk_action_on_an_embedded_store_runs_to_its_end() {
    let FailingQueue { server, data } = FailingQueue::new(500);
    assert!(server.stop().0.success());
    let store = format!("sqlite:{}", data.path().join("windlass.db").display());
    let on_store = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run_on(&["--store", &store], &arguments)
    };
    let start = "bulk start --action revive --queue mail --reason up --yes -o json";
    let (code, ended, stderr) = on_store(start);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let ended: Value = serde_json::from_str(&ended).unwrap();
    assert_eq!(
        (&ended["state"], &ended["done"]),
        (&json!("finished"), &json!(500))
    );
    assert_eq!(ended["created_by"], "store (store)");
    let (code, cancelled, stderr) = on_store("jobs cancel --queue mail --yes");
    assert_eq!(
        (code, cancelled.as_str()),
        (0, "cancelled 500 jobs\n"),
        "{stderr}"
    );
    let (_, audit, _) = on_store("audit list --json");
    let audit: Value = serde_json::from_str(&audit).unwrap();
    let names: Vec<&Value> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| &record["name"])
        .collect();
    assert!(names.contains(&&json!("store")), "{audit}");
}
