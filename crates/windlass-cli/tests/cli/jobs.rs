//! `windlass jobs`, through a running server and on a store.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Server, command, windlass};

/// A server with one dead job, one that waits for a retry, and one that is scheduled.
struct World {
    server: Server,
    data: tempfile::TempDir,
    dead: String,
    retrying: String,
    scheduled: String,
}

impl World {
    fn new() -> World {
        let data = tempfile::tempdir().expect("a folder");
        let server = Server::start(data.path(), &[]);
        let fail = |job: Value| {
            let id = create(&server, &job);
            let claimed = json!({"queue": job.get("queue"), "worker": "w"});
            server.post("/api/v1/claim", &claimed);
            let outcome = json!({"id": id, "attempt": 1, "outcome": "failed", "error": "smtp: refused\nby \u{1b}[31mhost"});
            server.post(
                "/api/v1/settle",
                &json!({"worker": "w", "outcomes": [outcome]}),
            );
            id
        };
        let dead = json!({"kind": "email:send", "queue": "mail", "max_attempts": 1, "payload": {"to": "ann"}, "tags": ["eu"]});
        let retrying = json!({"kind": "email:send", "queue": "slow", "retry": {"backoff": {"type": "constant", "delay": "1h"}}});
        let scheduled = json!({"kind": "report", "queue": "mail", "delay": "2h"});
        World {
            dead: fail(dead),
            retrying: fail(retrying),
            scheduled: create(&server, &scheduled),
            server,
            data,
        }
    }

    /// Runs a command against the server. Returns its exit code, stdout and stderr.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        run(arguments, &["--url", &self.server.url], "")
    }

    /// Runs a command that must succeed. Returns its stdout.
    fn printed(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    }

    fn state(&self, id: &str) -> Value {
        let job = self.server.get(&format!("/api/v1/jobs/{id}"));
        job.get("state").cloned().expect("a state")
    }
}

fn create(server: &Server, job: &Value) -> String {
    let created = server.post("/api/v1/jobs", job);
    let id = created.get("id").and_then(Value::as_str);
    id.expect("an id").to_owned()
}

fn run(arguments: &[&str], more: &[&str], stdin: &str) -> (i32, String, String) {
    let mut child = command(&[arguments, more].concat());
    let piped = child.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().expect("it starts");
    let input = child
        .stdin
        .take()
        .expect("its stdin")
        .write_all(stdin.as_bytes());
    drop(input); // a command that reads no ids closes the pipe
    let done = child.wait_with_output().expect("its end");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = done.status.code().expect("it ends by itself");
    (code, text(done.stdout), text(done.stderr))
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn jobs_list_prints_every_format() {
    let world = World::new();
    let all = [&world.scheduled, &world.retrying, &world.dead];
    let table = world.printed(&["jobs", "list"]);
    assert!(table.starts_with("ID  "), "{table}");
    let [_, scheduled, retrying, dead] = lines(&table)[..] else {
        panic!("a title and three jobs: {table}");
    };
    assert!(
        scheduled.contains("scheduled") && scheduled.contains("in 1h"),
        "{table}"
    );
    assert!(
        retrying.contains("slow") && retrying.contains("in 59m"),
        "{table}"
    );
    assert!(
        dead.contains(&world.dead) && dead.contains("1/1"),
        "{table}"
    );
    assert!(
        dead.ends_with("smtp: refused…"),
        "only the first line: {table}"
    );
    assert!(!table.contains("PRIORITY"), "{table}");
    let wide = world.printed(&["jobs", "list", "-o", "wide"]);
    assert!(
        wide.contains("PRIORITY") && wide.contains("exhausted"),
        "{wide}"
    );
    assert_eq!(lines(&world.printed(&["jobs", "list", "-o", "id"])), all);
    let ndjson = world.printed(&["jobs", "list", "-o", "ndjson"]);
    let parsed: Vec<Value> = ndjson
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ids: Vec<&str> = parsed
        .iter()
        .map(|job| job["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, all);
    let json = world.printed(&["jobs", "list", "-o", "json"]);
    assert_eq!(json, world.printed(&["--json", "jobs", "list"]));
    let page: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(page["data"][2]["payload"], json!({"to": "ann"}));
    assert!(page["next_cursor"].is_null());
    let (code, _, stderr) = world.run(&["jobs", "list", "--json", "-o", "id"]);
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(
        world.printed(&["jobs", "list", "--queue", "none"]),
        "no jobs\n"
    );
}

#[test]
fn jobs_list_takes_filters_limits_and_cursors() {
    let world = World::new();
    let list = |more: &[&str]| world.printed(&[&["jobs", "list", "-o", "id"], more].concat());
    assert_eq!(list(&["--state", "dead", "--tag", "eu"]).trim(), world.dead);
    assert_eq!(list(&["--payload", "/to=ann"]).trim(), world.dead);
    assert_eq!(
        list(&["--error", "SMTP", "--queue", "slow"]).trim(),
        world.retrying
    );
    assert_eq!(list(&["--created-before", "1h"]), "");
    assert_eq!(list(&["--created-from", "1h"]).lines().count(), 3);
    let (_, first, more) = world.run(&["jobs", "list", "-o", "id", "--limit", "2"]);
    assert_eq!(lines(&first), [&world.scheduled, &world.retrying]);
    let cursor = more
        .trim()
        .strip_prefix("more jobs: --cursor ")
        .expect("a cursor");
    assert_eq!(list(&["--cursor", cursor]).trim(), world.dead);
    for (flag, value) in [
        ("--state", "failed"),
        ("--created-from", "soon"),
        ("--payload", "x"),
    ] {
        let (code, _, stderr) = world.run(&["jobs", "list", flag, value]);
        assert!(code == 2 && stderr.contains(flag), "{stderr}");
    }
}

#[test]
fn jobs_show_history_and_why_explain_a_job() {
    let world = World::new();
    let page = world.printed(&["jobs", "show", &world.retrying]);
    let retry = page.lines().find(|line| line.starts_with("next retry"));
    assert!(
        retry.is_some_and(|line| line.contains("(in 59m)")),
        "{page}"
    );
    assert!(
        page.contains("1, 1 failed") && page.contains("ATTEMPT  OUTCOME"),
        "{page}"
    );
    assert!(
        page.contains("\\u{1b}[31mhost"),
        "control characters are escaped: {page}"
    );
    let dead = world.printed(&["jobs", "show", &world.dead]);
    assert!(
        dead.contains("exhausted") && dead.contains("{\"to\":\"ann\"}"),
        "{dead}"
    );
    assert!(!dead.contains("delivery"), "{dead}");
    let wide = world.printed(&["jobs", "show", &world.dead, "-o", "wide"]);
    assert!(
        wide.contains("delivery") && wide.contains("STARTED AT"),
        "{wide}"
    );
    let job: Value =
        serde_json::from_str(&world.printed(&["jobs", "show", &world.dead, "--json"])).unwrap();
    assert_eq!(job["state"], "dead");
    assert_eq!(
        world
            .printed(&["jobs", "show", &world.dead, "-o", "id"])
            .trim(),
        world.dead
    );
    let history = world.printed(&["jobs", "history", &world.dead]);
    assert!(lines(&history)[1].contains("failed"), "{history}");
    assert_eq!(
        world.printed(&["jobs", "history", &world.scheduled]),
        "no attempts\n"
    );
    let why = world.printed(&["jobs", "why", &world.dead]);
    assert!(
        why.contains("why it died:") && why.contains("windlass jobs revive"),
        "{why}"
    );
    let (code, _, stderr) = world.run(&["jobs", "show", "0199d2a8-2fd0-7000-8000-000000000001"]);
    assert!(code == 1 && stderr.contains("there is no job"), "{stderr}");
    let (code, _, stderr) = world.run(&["jobs", "show", "17"]);
    assert!(code == 2 && stderr.contains("UUID"), "{stderr}");
}

#[test]
fn jobs_revive_and_cancel_take_ids() {
    let world = World::new();
    let dry = world.printed(&["jobs", "revive", &world.dead, "--dry-run"]);
    assert!(dry.contains("ok"), "{dry}");
    assert_eq!(world.state(&world.dead), "dead");
    let revived = world.printed(&[
        "jobs",
        "revive",
        &world.dead,
        "--delay",
        "1h",
        "--failures",
        "keep",
    ]);
    assert!(revived.contains("scheduled"), "{revived}");
    let job = world.server.get(&format!("/api/v1/jobs/{}", world.dead));
    assert_eq!(job["failures"], 1, "it is kept");
    // Several jobs need `--yes`, because no one can answer on a pipe.
    let both = ["jobs", "cancel", &world.dead, &world.scheduled];
    let (code, _, stderr) = world.run(&both);
    assert!(code == 2 && stderr.contains("--yes"), "{stderr}");
    assert_eq!(world.state(&world.scheduled), "scheduled");
    let dry = world.printed(&[&both[..], &["--dry-run"]].concat());
    assert_eq!(dry.matches("ok").count(), 2, "{dry}");
    assert_eq!(world.state(&world.scheduled), "scheduled");
    let (code, ids, stderr) = run(
        &["jobs", "cancel", "-", "--yes", "-o", "id"],
        &["--url", &world.server.url],
        &format!("{}\n\n{} scheduled mail\n", world.dead, world.scheduled),
    );
    assert_eq!(
        (code, lines(&ids)),
        (0, vec![world.dead.as_str(), &world.scheduled]),
        "{stderr}"
    );
    assert_eq!(world.state(&world.scheduled), "cancelled");
    // A job that cannot be changed does not affect the others.
    let mixed = [
        "jobs",
        "revive",
        &world.retrying,
        &world.dead,
        "--yes",
        "--json",
    ];
    let (code, stdout, stderr) = world.run(&mixed);
    assert!(code == 1 && stderr.contains("1 of 2 jobs"), "{stderr}");
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(answer["data"][0]["state"], "ready");
    assert!(answer["data"][1]["error"].is_string(), "{answer}");
    for arguments in [
        &["jobs", "revive"][..],
        &["jobs", "revive", &world.dead, "--queue", "mail"],
        &["jobs", "revive", &world.dead, "--delay", "soon"],
        &["jobs", "cancel", "17"],
        &["jobs", "cancel", "-"],
        &["jobs", "cancel"],
    ] {
        assert_eq!(world.run(arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn jobs_revive_takes_a_filter() {
    let world = World::new();
    let second = json!({"kind": "email:send", "queue": "mail", "max_attempts": 1, "delay": "0s"});
    let second = create(&world.server, &second);
    world
        .server
        .post("/api/v1/claim", &json!({"queue": "mail", "worker": "w"}));
    let outcome = json!({"id": second, "attempt": 1, "outcome": "failed", "error": "again"});
    world.server.post(
        "/api/v1/settle",
        &json!({"worker": "w", "outcomes": [outcome]}),
    );
    let revive = ["jobs", "revive", "--queue", "mail"];
    let (code, sample, stderr) = world.run(&[&revive[..], &["--dry-run", "-o", "id"]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stderr, "would revive 2 jobs\n");
    let mut sample = lines(&sample);
    sample.sort_unstable();
    let mut both = [second.as_str(), &world.dead];
    both.sort_unstable();
    assert_eq!(sample, both);
    let dry = world.printed(&[&revive[..], &["--dry-run", "--json"]].concat());
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!(dry["matched"], 2);
    let (code, _, stderr) = world.run(&revive);
    assert!(code == 2 && stderr.contains("revive 2 jobs"), "{stderr}");
    assert_eq!(world.state(&second), "dead");
    let revived = world.printed(&[&revive[..], &["--yes", "--state", "dead"]].concat());
    assert_eq!(revived, "revived 2 jobs\n");
    assert_eq!(world.state(&second), "ready");
}

#[test]
fn jobs_export_writes_all_pages() {
    let world = World::new();
    let jobs: Vec<Value> = (0..2500)
        .map(|_| json!({"kind": "bulk", "queue": "many", "payload": {"a": 1}}))
        .collect();
    world
        .server
        .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}));
    let all = world.printed(&["jobs", "export", "--queue", "many"]);
    assert_eq!(all.lines().count(), 2500);
    let first: Value = serde_json::from_str(lines(&all)[0]).unwrap();
    assert_eq!(first["payload"], json!({"a": 1}));
    let file = world.data.path().join("jobs.ndjson");
    let path = file.to_str().unwrap();
    let (code, stdout, stderr) =
        world.run(&["jobs", "export", "--queue", "many", "--output", path]);
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("exported 2500 jobs"), "{stderr}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), all);
    let table = world.printed(&["jobs", "export", "--queue", "many", "--format", "csv"]);
    assert_eq!(table.lines().count(), 2501, "with a header");
    let table_path = world.data.path().join("jobs.csv");
    let table_path = table_path.to_str().unwrap();
    let export = ["jobs", "export", "--queue", "many", "--format", "csv"];
    let (code, _, stderr) = world.run(&[&export[..], &["--output", table_path]].concat());
    assert!(
        code == 0 && stderr.contains("exported 2500 jobs"),
        "{stderr}"
    );
    let (code, _, stderr) = world.run(&["jobs", "export", "--output", path]);
    assert!(
        code == 1 && stderr.contains("cannot create"),
        "not overwritten: {stderr}"
    );
}

#[test]
fn jobs_on_a_store_need_no_server() {
    let world = World::new();
    let store = format!("sqlite:{}", world.data.path().join("windlass.db").display());
    let on_store = |arguments: &[&str]| run(arguments, &["--store", &store], "");
    let (code, ids, stderr) = on_store(&["jobs", "list", "--state", "dead", "-o", "id"]);
    let through_server = (code, ids.trim().to_owned());
    assert_eq!(through_server, (0, world.dead.clone()), "{stderr}");
    let World {
        server, data, dead, ..
    } = world;
    assert!(server.stop().0.success());
    let (code, ids, stderr) = on_store(&["jobs", "list", "--state", "dead", "-o", "id"]);
    assert_eq!((code, ids.trim()), (0, dead.as_str()), "{stderr}");
    assert_eq!(on_store(&["jobs", "revive", &dead]).0, 0);
    assert_eq!(
        on_store(&["queues", "pause", "mail", "--reason", "deploy"]).0,
        0
    );
    let (_, audit, _) = run(&["audit", "list", "--json"], &["--store", &store], "");
    let audit: Value = serde_json::from_str(&audit).unwrap();
    let records: Vec<(&str, &str)> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| {
            (
                record["name"].as_str().unwrap(),
                record["action"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(records, [("store", "queue.pause"), ("store", "job.revive")]);
    assert_eq!(audit["data"][0]["detail"]["reason"], "deploy");
    // The store is whole: the next server opens it, and the job is there.
    let again = Server::start(data.path(), &[]);
    assert_eq!(again.get(&format!("/api/v1/jobs/{dead}"))["state"], "ready");
    let missing = data.path().join("typo.db").display().to_string();
    let (code, _, stderr) = run(
        &["jobs", "list"],
        &["--store", &format!("sqlite:{missing}")],
        "",
    );
    assert!(code == 1 && stderr.contains("does not exist"), "{stderr}");
}

#[test]
fn a_failed_request_says_what_to_do() {
    let nowhere = windlass(&["jobs", "list", "--url", "http://127.0.0.1:1"]);
    let stderr = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        stderr.contains("hint: start a server with `windlass serve`"),
        "{stderr}"
    );
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::start(data.path(), &[]);
    let admin = server.post(
        "/api/v1/keys",
        &json!({"name": "admin", "scopes": ["admin"]}),
    );
    let reader = json!({"name": "reader", "scopes": ["read"]});
    let (_, reader) = server.ask("POST", "/api/v1/keys", admin["key"].as_str(), Some(&reader));
    let list = ["queues", "list", "--server", server.url.as_str()];
    let without = windlass(&list);
    let stderr = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(
        stderr.contains("hint: put a valid API key into WINDLASS_KEY"),
        "{stderr}"
    );
    let with_key = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.env("WINDLASS_KEY", reader["key"].as_str().expect("a key"));
        command.env("WINDLASS_URL", &server.url);
        command.output().expect("it starts")
    };
    assert!(
        with_key(&["queues", "list"]).status.success(),
        "the URL is in a variable"
    );
    let refused = with_key(&["queues", "pause", "default"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        stderr.contains("lacks the scope `operate`") && stderr.contains("windlass keys create"),
        "{stderr}"
    );
}

#[test]
fn the_default_server_is_the_one_of_the_configuration() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::start(data.path(), &[]);
    let file = data.path().join("windlass.toml");
    std::fs::write(&file, format!("bind = \"{}\"\n", server.address)).expect("a file");
    let (code, stdout, stderr) = run(
        &["queues", "list", "--config", file.to_str().unwrap()],
        &[],
        "",
    );
    assert_eq!((code, stdout.as_str()), (0, "no queues\n"), "{stderr}");
    let both = [
        "jobs",
        "list",
        "--url",
        "http://127.0.0.1:1",
        "--store",
        "memory:",
    ];
    assert_eq!(windlass(&both).status.code(), Some(2), "one of them");
}
