//! Bulk actions: each with its effect.

use serde_json::{Value, json};

use crate::support::{Answer, Events, Server};

async fn dead(server: &Server, job: &Value) -> String {
    let id = server.job(job).await;
    server
        .run(&json!({"outcome": "failed", "error": "boom", "unrecoverable": true}))
        .await;
    id
}

fn body(action: &str, fields: &Value) -> Value {
    let mut body = json!({"action": action, "filter": {"kind": "a"}, "reason": "why"});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

/// Creates a bulk action and carries it on to its end.
async fn done(server: &Server, action: &str, fields: &Value) -> Answer {
    let answer = server
        .post("/api/v1/bulk-actions", &body(action, fields))
        .await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let id = answer.text_at("/id");
    let location = format!("/api/v1/bulk-actions/{id}");
    assert_eq!(answer.header("location"), Some(location.as_str()));
    let carried = server.client.carry_on_action(id.parse().unwrap(), |_| {});
    carried.await.unwrap();
    server.get(&location).await
}

async fn job(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/jobs/{id}")).await.json
}

fn counts(answer: &Answer) -> [&Value; 4] {
    ["matched", "to_do", "done", "skipped"].map(|name| &answer.json[name])
}

#[tokio::test]
async fn waiting_jobs_are_moved_made_due_and_cancelled() {
    let server = Server::open().await;
    let later = json!({"kind": "a", "delay": "1h", "payload": {"customerId": 7}});
    let id = server.job(&later).await;
    let other = server.job(&json!({"kind": "b", "delay": "1h"})).await;
    let action = done(&server, "reprioritise", &json!({"priority": 9})).await;
    assert_eq!(counts(&action), [1, 0, 1, 0]);
    assert_eq!(action.json["priority"], 9);
    assert_eq!(action.text_at("/state"), "finished");
    let seen = job(&server, &id).await;
    assert_eq!(seen["priority"], 9);
    assert_eq!(seen["last_action"], action.json["id"]);
    assert!(seen.get("revived_by").is_none());
    let action = done(&server, "move", &json!({"queue": "q2"})).await;
    assert_eq!(action.json["queue"], "q2");
    assert_eq!(job(&server, &id).await["queue"], "q2");
    let rename = json!([{"op": "move", "from": "/customerId", "path": "/customer_id"}]);
    let patch =
        json!({"payload": rename, "priority": 1, "queue": "q3", "tags": ["t"], "retry": "patient"});
    let action = done(&server, "patch", &json!({"patch": patch})).await;
    assert_eq!(action.json["patch"], patch);
    let seen = job(&server, &id).await;
    assert_eq!(seen["payload"], json!({"customer_id": 7}));
    assert_eq!(
        (&seen["priority"], &seen["queue"]),
        (&json!(1), &json!("q3"))
    );
    assert_eq!(
        (&seen["tags"], &seen["retry"]),
        (&json!(["t"]), &json!("patient"))
    );
    let action = done(&server, "patch", &json!({"patch": {"payload": rename}})).await;
    assert_eq!(action.json["skipped_by"], json!({"patch": 1}), "{action:?}");
    assert_eq!(action.json["item_failures"][0]["job_id"], id.as_str());
    assert_eq!(action.json["item_failures"][0]["reason"], "patch");
    done(&server, "run_now", &json!({})).await;
    assert_eq!(job(&server, &id).await["state"], "ready");
    done(&server, "cancel", &json!({})).await;
    assert_eq!(job(&server, &id).await["state"], "cancelled");
    let delete = json!({"filter": {"kind": "a", "state": "cancelled"}});
    done(&server, "delete", &delete).await;
    let path = format!("/api/v1/jobs/{id}");
    assert_eq!(server.get(&path).await.status, 404);
    assert_eq!(job(&server, &other).await["state"], "scheduled");
}

#[tokio::test]
async fn dead_jobs_are_revived_as_the_request_says() {
    let server = Server::open().await;
    let new = json!({"kind": "a", "payload": {"n": 1}});
    let id = dead(&server, &new).await;
    let at = "2099-01-01T00:00:00Z";
    let fields = json!({"failures": "keep", "payload_patch": {"m": 2}, "run_at": at});
    let action = done(&server, "revive", &fields).await;
    assert_eq!(counts(&action), [1, 0, 1, 0]);
    assert_eq!(action.json["failures"], "keep");
    assert_eq!(action.json["payload_patch"], json!({"m": 2}));
    assert_eq!(action.json["run_at"], at);
    assert_eq!(action.json["force"], false);
    let seen = job(&server, &id).await;
    assert_eq!(seen["payload"], json!({"n": 1, "m": 2}));
    assert_eq!(
        (&seen["failures"], &seen["run_at"]),
        (&json!(1), &json!(at))
    );
    let id = dead(&server, &json!({"kind": "a", "queue": "default"})).await;
    done(&server, "revive", &json!({})).await;
    let seen = job(&server, &id).await;
    assert_eq!(
        (&seen["failures"], &seen["state"]),
        (&json!(0), &json!("ready"))
    );
}

#[tokio::test]
async fn a_lost_job_is_revived_only_by_force_or_resolved() {
    let server = Server::open().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let new = json!({"kind": "a", "delivery": "at_most_once"});
        ids.push(server.job(&new).await);
    }
    server.claim(&json!({"limit": 2, "lease": "1s"})).await;
    let engine = windlass::admin::engine_of(&server.client);
    let later = server
        .client
        .now()
        .saturating_add(std::time::Duration::from_secs(3600));
    engine.store().sweep(10, later, 1).await.unwrap();
    assert_eq!(job(&server, &ids[0]).await["dead_reason"], "lost");
    let preview = body("revive", &json!({"dry_run": true}));
    let preview = server.post("/api/v1/bulk-actions", &preview).await;
    assert!(preview.text_at("/diff/0/refused").contains("`force`"));
    // The jobs changed in the future of the action, so they are left alone.
    let skipped = done(&server, "resolve", &json!({})).await;
    assert_eq!(
        skipped.json["skipped_by"],
        json!({"changed": 2}),
        "{skipped:?}"
    );
}

#[tokio::test]
async fn a_bulk_action_keeps_to_its_rate_and_can_be_controlled() {
    let server = Server::open().await;
    for _ in 0..3 {
        server.job(&json!({"kind": "a", "delay": "1h"})).await;
    }
    let created = server
        .post("/api/v1/bulk-actions", &body("cancel", &json!({"rate": 1})))
        .await;
    assert_eq!(created.json["rate"], 1, "{created:?}");
    assert_eq!(created.text_at("/state"), "running");
    assert_eq!(created.json["matched"], 3);
    let path = format!("/api/v1/bulk-actions/{}", created.text_at("/id"));
    let paused = server.act(&format!("{path}/pause")).await;
    assert_eq!(paused.text_at("/state"), "paused");
    let resumed = server.act(&format!("{path}/resume")).await;
    assert_eq!(resumed.text_at("/state"), "running");
    let aborted = server.act(&format!("{path}/abort")).await;
    assert_eq!(aborted.text_at("/state"), "aborted");
    let refused = server.act(&format!("{path}/resume")).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (409, "wrong_state")
    );
    let unknown = server.act(&format!("{path}/continue")).await;
    assert_eq!(unknown.status, 404, "only a replay can be continued");
    let replay = path.replace("bulk-actions", "replays");
    assert_eq!(server.get(&replay).await.status, 404);
    let list = server.get("/api/v1/bulk-actions").await;
    assert_eq!(list.json["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_end_of_a_bulk_action_is_an_event_and_its_creation_is_audited_once() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "delay": "1h"})).await;
    let path = "/api/v1/events?event=bulk_action_finished";
    let mut events = Events::listen(&server, path, &[]).await;
    let action = done(&server, "cancel", &json!({})).await;
    let seen = events.until("}").await;
    let id = action.text_at("/id");
    assert!(seen.contains(&format!("\"action_id\":\"{id}\"")), "{seen}");
    let audit = server.get("/api/v1/audit?action=bulk_action.create").await;
    let records = audit.json["data"].as_array().unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0]["target"], id.as_str());
    assert_eq!(records[0]["detail"]["reason"], "why");
}

#[tokio::test]
async fn a_dry_run_says_what_each_action_would_change() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "delay": "1h"})).await;
    let preview = async |action: &str, fields: Value| {
        let mut fields = fields;
        fields["dry_run"] = json!(true);
        let answer = server
            .post("/api/v1/bulk-actions", &body(action, &fields))
            .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json["diff"][0].clone()
    };
    let changes = json!({"priority": {"from": 0, "to": 3}});
    let diff = preview("reprioritise", json!({"priority": 3})).await;
    assert_eq!(diff, json!({"job_id": id, "changes": changes}));
    let diff = preview("move", json!({"queue": "q"})).await;
    let changes = json!({"queue": {"from": "default", "to": "q"}});
    assert_eq!(diff["changes"], changes);
    let diff = preview("run_now", json!({})).await;
    let changes = json!({"from": "scheduled", "to": "ready"});
    assert_eq!(diff["changes"]["state"], changes);
    let diff = preview("cancel", json!({})).await;
    let changes = json!({"from": "scheduled", "to": "cancelled"});
    assert_eq!(diff["changes"]["state"], changes);
    let diff = preview(
        "revive",
        json!({"filter": {"kind": "a", "state": "scheduled"}}),
    )
    .await;
    assert!(
        diff["refused"].as_str().unwrap().contains("waiting"),
        "{diff}"
    );
    server.act(&format!("/api/v1/jobs/{id}/cancel")).await;
    let diff = preview(
        "delete",
        json!({"filter": {"kind": "a", "state": "cancelled"}}),
    )
    .await;
    let changes = json!({"state": {"from": "cancelled", "to": null}});
    assert_eq!(diff, json!({"job_id": id, "changes": changes}));
    let list = server.get("/api/v1/bulk-actions").await;
    assert_eq!(list.json["data"], json!([]), "nothing was created");
}

#[tokio::test]
async fn bad_input_names_its_field() {
    let server = Server::open().await;
    for (action, fields, pointer) in [
        ("explode", json!({}), "/action"),
        ("cancel", json!({"filter": {}}), "/filter"),
        ("cancel", json!({"filter": {"tga": "x"}}), "/filter/tga"),
        ("cancel", json!({"reason": ""}), "/reason"),
        ("cancel", json!({"rate": 0}), "/rate"),
        ("cancel", json!({"force": true}), "/force"),
        ("move", json!({}), "/queue"),
        ("move", json!({"queue": "a/b"}), "/queue"),
        ("reprioritise", json!({"priority": 99_999}), "/priority"),
        ("patch", json!({"patch": {"tags": [""]}}), "/patch/tags/0"),
        ("delete", json!({}), "/filter/state"),
        ("revive", json!({"run_at": "soon"}), "/run_at"),
    ] {
        let refused = server
            .post("/api/v1/bulk-actions", &body(action, &fields))
            .await;
        assert_eq!(
            (refused.status, refused.pointer().as_str()),
            (422, pointer),
            "{action} {fields}"
        );
    }
    let list = server.get("/api/v1/bulk-actions").await;
    assert_eq!(list.json["data"], json!([]));
}

#[tokio::test]
async fn a_repeated_request_creates_one_bulk_action() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "delay": "1h"})).await;
    let text = body("cancel", &json!({})).to_string();
    let headers = [("Idempotency-Key", "one")];
    let post = || {
        server.send(
            "POST",
            "/api/v1/bulk-actions",
            &headers,
            Some(text.as_bytes()),
        )
    };
    let (first, second) = (post().await, post().await);
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(first.body, second.body);
    let list = server.get("/api/v1/bulk-actions").await;
    assert_eq!(list.json["data"].as_array().unwrap().len(), 1);
}
