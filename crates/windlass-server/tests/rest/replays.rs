//! Replays: created, carried on by a real worker, controlled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass::{Context, Failure, Job, Worker};
use windlass_server::access::Scope;

use crate::support::{Events, PATIENCE, Server};

#[derive(serde::Serialize, serde::Deserialize)]
struct Import {
    number: u32,
}

impl Job for Import {
    const KIND: &'static str = "import";
}

async fn import(job: Import, ctx: Context<Arc<AtomicBool>>) -> Result<(), Failure> {
    if ctx.state.load(Ordering::SeqCst) {
        let error = format!("no connection for import {}", job.number);
        return Err(Failure::unrecoverable(error));
    }
    Ok(())
}

/// A worker of the server's store. Its jobs fail while `is_broken` is set.
struct Working {
    is_broken: Arc<AtomicBool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Working {
    fn start(server: &Server) -> Self {
        let is_broken = Arc::new(AtomicBool::new(true));
        let stop = CancellationToken::new();
        let worker = Worker::new(&server.client, Arc::clone(&is_broken)).handle(import);
        let until = stop.clone();
        let task = tokio::spawn(async move {
            let until = async move { until.cancelled().await };
            worker.run_until(until).await.unwrap();
        });
        Working {
            is_broken,
            stop,
            task,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Lets jobs die.
async fn dead_imports(server: &Server, count: u32) {
    let imports: Vec<Import> = (0..count).map(|number| Import { number }).collect();
    let receipts = server.client.enqueue_many(&imports).await.unwrap();
    for receipt in receipts {
        server.client.wait(receipt.id, PATIENCE).await.unwrap();
    }
}

/// Dead jobs without a worker.
async fn dead(server: &Server, count: u32) -> Vec<String> {
    let mut ids = Vec::new();
    for number in 0..count {
        let job = json!({"kind": "a", "payload": {"n": number}, "max_attempts": 1});
        ids.push(server.job(&job).await);
        server
            .run(&json!({"outcome": "failed", "error": "boom"}))
            .await;
    }
    ids
}

async fn created(server: &Server, body: &Value) -> String {
    let answer = server.post("/api/v1/replays", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let id = answer.text_at("/id");
    let location = format!("/api/v1/replays/{id}");
    assert_eq!(answer.header("location"), Some(location.as_str()));
    id
}

#[tokio::test]
async fn a_replay_revives_all_jobs_of_a_cause_and_finishes() {
    let server = Server::open().await;
    let working = Working::start(&server);
    dead_imports(&server, 30).await;
    let group = server.get("/api/v1/failures").await;
    assert_eq!(group.json["data"][0]["dead"], 30, "{group:?}");
    let cause = group.text_at("/data/0/fingerprint");
    working.is_broken.store(false, Ordering::SeqCst);
    let path = "/api/v1/events?event=replay_finished";
    let mut events = Events::listen(&server, path, &[]).await;
    let body = json!({
        "filter": {"fingerprint": cause}, "canary": {"jobs": 5}, "rate": 1000, "reason": "db1 is up",
    });
    let id = created(&server, &body).await;
    let seen = events.until("}").await;
    assert!(seen.contains(&format!("\"action_id\":\"{id}\"")), "{seen}");
    let replay = server.get(&format!("/api/v1/replays/{id}")).await;
    for (field, value) in [
        ("state", json!("finished")),
        ("phase", json!("rate")),
        ("matched", json!(30)),
        ("to_do", json!(0)),
        ("revived", json!(30)),
        ("skipped", json!(0)),
        ("skipped_by", json!({})),
        ("pending", json!(0)),
        ("recovered", json!(30)),
        ("failed_again", json!(0)),
        ("gone", json!(0)),
        ("waiting_for", json!(null)),
        ("waiting_queue", json!(null)),
        ("stop_reason", json!(null)),
        ("filter", json!({"state": "dead", "fingerprint": cause})),
        ("canary", json!({"jobs": 5, "timeout": "5m"})),
        ("rate", json!(1000)),
        ("max_pending", json!(2000)),
        ("stop", json!({"failed_share": 0.2, "min_sample": 50})),
        ("failures", json!("reset")),
        ("reason", json!("db1 is up")),
        ("item_failures", json!([])),
    ] {
        assert_eq!(replay.json[field], value, "{field}");
    }
    assert!(replay.json["ended_at"].is_string());
    let jobs = server
        .get(&format!("/api/v1/jobs?replay={id}&limit=100"))
        .await;
    assert_eq!(jobs.json["data"].as_array().unwrap().len(), 30);
    assert_eq!(jobs.json["data"][0]["revived_by"], id.as_str());
    assert_eq!(jobs.json["data"][0]["last_action"], id.as_str());
    let group = server.get("/api/v1/failures?state=dead").await;
    assert_eq!(group.json["data"], json!([]));
    working.stop().await;
}

#[tokio::test]
async fn a_replay_stops_itself_when_jobs_fail_again() {
    let server = Server::open().await;
    let working = Working::start(&server);
    dead_imports(&server, 30).await;
    let path = "/api/v1/events?event=replay_stopped,replay_finished";
    let mut events = Events::listen(&server, path, &[]).await;
    let body = json!({"filter": {"kind": "import"}, "canary": {"jobs": 5}, "reason": "try"});
    let id = created(&server, &body).await;
    let seen = events.until("}").await;
    assert!(seen.contains("event: replay_stopped"), "{seen}");
    assert!(seen.contains("\"reason\":\"same_fingerprint\""), "{seen}");
    let path = format!("/api/v1/replays/{id}");
    let stopped = server.get(&path).await;
    assert_eq!(stopped.text_at("/state"), "stopped");
    assert_eq!(stopped.text_at("/phase"), "canary");
    assert_eq!(stopped.text_at("/stop_reason"), "same_fingerprint");
    let number = |name: &str| stopped.json[name].as_u64().unwrap();
    assert!(number("failed_again") > 0 && number("revived") <= 5);
    assert_eq!(number("to_do") + number("revived"), 30);
    let metrics = server.get("/metrics").await;
    assert!(metrics.text().contains("windlass_replays_stopped_total 1"));
    for wrong in ["pause", "resume"] {
        let refused = server.act(&format!("{path}/{wrong}")).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (409, "wrong_state")
        );
    }
    working.is_broken.store(false, Ordering::SeqCst);
    let continued = server.act(&format!("{path}/continue")).await;
    assert_eq!(continued.status, 200, "{continued:?}");
    assert_eq!(continued.json["stop_reason"], Value::Null);
    let seen = events.until("}").await;
    assert!(seen.contains("event: replay_finished"), "{seen}");
    let finished = server.get(&path).await;
    assert_eq!(finished.json["revived"], 30, "{finished:?}");
    working.stop().await;
}

#[tokio::test]
async fn commands_apply_to_some_states_only() {
    let server = Server::open().await;
    dead(&server, 1).await;
    let id = created(&server, &json!({"filter": {"kind": "a"}, "reason": "r"})).await;
    let command = |word: &'static str| {
        let (server, path) = (&server, format!("/api/v1/replays/{id}/{word}"));
        async move { server.act(&path).await }
    };
    assert_eq!(command("continue").await.status, 409);
    assert_eq!(command("pause").await.text_at("/state"), "paused");
    assert_eq!(command("continue").await.status, 409);
    assert_eq!(command("resume").await.text_at("/state"), "running");
    let aborted = command("abort").await;
    assert_eq!(aborted.text_at("/state"), "aborted");
    assert_eq!(aborted.json["to_do"], 1, "it was never touched");
    for word in ["pause", "resume", "abort", "continue"] {
        let refused = command(word).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (409, "wrong_state")
        );
    }
    let missing = "/api/v1/replays/01900000-0000-7000-8000-000000000000";
    for path in [missing, "/api/v1/replays/x"] {
        assert_eq!(server.get(path).await.status, 404);
        assert_eq!(server.act(&format!("{path}/pause")).await.status, 404);
    }
    let bulk = format!("/api/v1/bulk-actions/{id}");
    assert_eq!(server.get(&bulk).await.status, 404, "it is a replay");
    assert_eq!(server.act(&format!("{bulk}/pause")).await.status, 404);
    let audit = server.get("/api/v1/audit?action=replay.").await;
    let actions: Vec<&str> = audit.json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["action"].as_str().unwrap())
        .collect();
    let expected = [
        "replay.abort",
        "replay.resume",
        "replay.pause",
        "replay.create",
    ];
    assert_eq!(actions, expected, "each once");
}

#[tokio::test]
async fn replays_are_listed_newest_first_with_pages() {
    let server = Server::open().await;
    dead(&server, 1).await;
    let mut ids = Vec::new();
    for reason in ["a", "b", "c"] {
        let body = json!({"filter": {"kind": "a"}, "reason": reason});
        ids.push(created(&server, &body).await);
    }
    server
        .act(&format!("/api/v1/replays/{}/abort", ids[1]))
        .await;
    let first = server.get("/api/v1/replays?limit=2").await;
    assert_eq!(first.text_at("/data/0/id"), ids[2]);
    assert_eq!(first.text_at("/data/1/id"), ids[1]);
    let cursor = first.text_at("/next_cursor");
    let rest = server
        .get(&format!("/api/v1/replays?limit=2&cursor={cursor}"))
        .await;
    assert_eq!(rest.text_at("/data/0/id"), ids[0]);
    assert_eq!(rest.json["next_cursor"], Value::Null);
    let bulk = server.get("/api/v1/bulk-actions").await;
    assert_eq!(bulk.json["data"], json!([]));
}

#[tokio::test]
async fn a_dry_run_shows_what_would_happen_and_creates_nothing() {
    let server = Server::open().await;
    let ids = dead(&server, 2).await;
    let body = json!({
        "filter": {"kind": "a"}, "reason": "r", "dry_run": true,
        "payload_patch": [{"op": "test", "path": "/n", "value": 1}, {"op": "add", "path": "/m", "value": 2}],
    });
    let preview = server.post("/api/v1/replays", &body).await;
    assert_eq!(preview.status, 200, "{preview:?}");
    assert_eq!(preview.json["matched"], 2);
    assert_eq!(preview.json["complete"], true);
    assert_eq!(preview.text_at("/samples/0/id"), ids[1]);
    let diff = &preview.json["diff"];
    assert_eq!(
        diff[0]["changes"]["state"],
        json!({"from": "dead", "to": "ready"})
    );
    assert_eq!(
        diff[0]["changes"]["payload"],
        json!({"from": {"n": 1}, "to": {"n": 1, "m": 2}})
    );
    assert_eq!(diff[1]["job_id"], ids[0].as_str());
    assert!(
        diff[1]["refused"]
            .as_str()
            .unwrap()
            .contains("does not apply")
    );
    assert_eq!(server.get("/api/v1/replays").await.json["data"], json!([]));
    let audit = server.get("/api/v1/audit?action=replay.").await;
    assert_eq!(audit.json["data"], json!([]));
    let none = json!({"filter": {"kind": "b"}, "reason": "r", "dry_run": true});
    let preview = server.post("/api/v1/replays", &none).await;
    assert_eq!(preview.json["matched"], 0);
}

#[tokio::test]
async fn a_repeated_request_creates_one_replay() {
    let server = Server::open().await;
    dead(&server, 1).await;
    let body = json!({"filter": {"kind": "a"}, "reason": "r"}).to_string();
    let headers = [("Idempotency-Key", "one")];
    let post = || server.send("POST", "/api/v1/replays", &headers, Some(body.as_bytes()));
    let (first, second) = (post().await, post().await);
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.body, second.body);
    let list = server.get("/api/v1/replays").await;
    assert_eq!(list.json["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn every_problem_of_a_body_is_named() {
    let server = Server::open().await;
    let body = json!({
        "filter": {"kind": "a b", "state": "odd"}, "canary": {"jobs": 0, "timeout": "soon"}, "rate": 0,
        "stop": {"failed_share": 1.5}, "failures": "maybe", "payload_patch": [1], "speed": 1,
    });
    let refused = server.post("/api/v1/replays", &body).await;
    assert_eq!(refused.status, 422);
    let errors = refused.json["errors"].as_array().unwrap();
    let mut pointers: Vec<&str> = errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    pointers.sort_unstable();
    let expected = [
        "/canary/jobs",
        "/canary/timeout",
        "/failures",
        "/filter/kind",
        "/filter/state",
        "/payload_patch",
        "/rate",
        "/reason",
        "/speed",
        "/stop/failed_share",
    ];
    assert_eq!(pointers, expected);
}

#[tokio::test]
async fn who_may_not_read_payloads_sees_none_of_them() {
    let mut server = Server::closed().await;
    let admin = server.new_key(&[Scope::Admin]).await;
    let operator = server.new_key(&[Scope::Read, Scope::Operate]).await;
    server.key = Some(admin);
    dead(&server, 1).await;
    let secret = json!({"card": "4111"});
    let body = json!({
        "filter": {"kind": "a", "error": "boom", "payload_path": "/n", "payload_value": "0"},
        "payload_patch": secret, "reason": "r",
    });
    let id = created(&server, &body).await;
    let path = format!("/api/v1/replays/{id}");
    let shown = server.get(&path).await;
    assert_eq!(shown.json["payload_patch"], secret);
    assert_eq!(shown.json["filter"]["error"], "boom");
    server.key = Some(operator);
    let hidden = server.get(&path).await;
    assert!(hidden.json.get("payload_patch").is_none(), "{hidden:?}");
    assert_eq!(hidden.json["filter"]["error"], "…");
    assert_eq!(hidden.json["filter"]["payload_value"], "…");
    let refused = server.post("/api/v1/replays", &body).await;
    assert_eq!(refused.status, 403, "it filters by payload");
    let body =
        json!({"filter": {"kind": "a"}, "payload_patch": secret, "reason": "r", "dry_run": true});
    let preview = server.post("/api/v1/replays", &body).await;
    assert_eq!(preview.status, 200);
    assert!(!preview.text().contains("4111"), "{}", preview.text());
    assert_eq!(preview.json["samples"][0]["payload_withheld"], true);
}
