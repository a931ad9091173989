//! Hooks: made, shown, tested and removed; and the queue that is reserved for their reports.

use serde_json::{Value, json};

use crate::support::Server;

/// A server with a secret that may sign for one host.
async fn server() -> Server {
    let server = Server::open().await;
    let secret = json!({
        "value": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "hosts": ["ops.example.com"],
    });
    let put = server.put("/api/v1/secrets/ops-key", &secret).await;
    assert_eq!(put.status, 204, "{put:?}");
    server
}

fn hook() -> Value {
    json!({
        "url": "https://ops.example.com/windlass?token=t", "sign": ["ops-key"],
        "events": ["dead", "queue_stalled"],
    })
}

const PATH: &str = "/api/v1/hooks/ops";

#[tokio::test]
async fn a_hook_is_made_changed_shown_and_removed() {
    let server = server().await;
    let made = server.put(PATH, &hook()).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.json["stalled_after"], "5m");
    assert_eq!(made.json["include_error_text"], false);
    let mut other = hook();
    other["queue"] = json!("mail");
    other["paused"] = json!(true);
    let changed = server.put(PATH, &other).await;
    assert_eq!(
        (changed.status, &changed.json["queue"]),
        (200, &json!("mail"))
    );
    assert_eq!(changed.json["created_at"], made.json["created_at"]);
    let listed = server.get("/api/v1/hooks").await;
    assert_eq!(listed.json["data"], json!([changed.json]));
    let shown = server.get(PATH).await;
    assert_eq!(
        (&shown.json["paused"], &shown.json["reports"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(server.delete(PATH).await.status, 204);
    assert_eq!(server.get(PATH).await.status, 404);
    assert_eq!(server.delete(PATH).await.status, 404);
    let audit = server.get("/api/v1/audit?action=hook.").await;
    let actions: Vec<_> = audit.json["data"].as_array().unwrap().iter().collect();
    assert_eq!(actions.len(), 3);
    assert_eq!(actions[2]["detail"]["host"], "ops.example.com");
    assert!(
        !audit.json.to_string().contains("token="),
        "a URL may hold a secret"
    );
}

#[tokio::test]
async fn a_test_is_a_job_that_the_hook_shows() {
    let server = server().await;
    server.put(PATH, &hook()).await;
    let tested = server.act("/api/v1/hooks/ops/test").await;
    assert_eq!(tested.status, 201, "{tested:?}");
    let id = &tested.json["job_id"];
    let job = server
        .get(&format!("/api/v1/jobs/{}", id.as_str().unwrap()))
        .await;
    assert_eq!(
        (&job.json["queue"], &job.json["kind"]),
        (&json!("windlass.hooks"), &json!("http"))
    );
    assert_eq!(job.json["payload"]["body"]["event"], "test");
    assert_eq!(job.json["payload"]["sign"], json!(["ops-key"]));
    let shown = server.get(PATH).await;
    let report = &shown.json["reports"][0];
    assert_eq!((&report["job_id"], &report["event"]), (id, &json!("test")));
    assert_eq!(report["state"], "ready");
    assert_eq!(server.act("/api/v1/hooks/nobody/test").await.status, 404);
}

#[tokio::test]
async fn a_hook_that_could_not_be_sent_is_refused() {
    let server = server().await;
    let with = |field: &str, value: Value| {
        let mut hook = hook();
        hook[field] = value;
        hook
    };
    for (body, pointer) in [
        (with("url", json!("https://ops.example.com:22/")), "/url"),
        (with("url", json!("https://user@ops.example.com/")), "/url"),
        (with("url", json!("https://elsewhere.example/")), "/sign"),
        (with("sign", json!(["nobody"])), "/sign"),
        (with("sign", json!([])), "/sign"),
        (with("events", json!(["died"])), "/events/0"),
        (with("queue", json!("windlass.hooks")), "/queue"),
        (with("kind", json!("a")), "/kind"),
        (with("stalled_after", json!("5s")), "/stalled_after"),
        (with("headers", json!({})), "/headers"),
    ] {
        let refused = server.put(PATH, &body).await;
        assert_eq!(
            (refused.status, refused.pointer()),
            (422, pointer.to_owned()),
            "{body}"
        );
    }
    assert_eq!(server.put("/api/v1/hooks/a%20b", &hook()).await.status, 422);
}

#[tokio::test]
async fn no_one_else_puts_jobs_into_a_reserved_queue() {
    let server = server().await;
    let queue = "windlass.hooks";
    let new = json!({"kind": "a", "queue": queue});
    let refused = server.post("/api/v1/jobs", &new).await;
    assert_eq!(
        (refused.status, refused.pointer()),
        (422, "/queue".to_owned())
    );
    let bulk = server
        .post("/api/v1/jobs/bulk", &json!({"jobs": [new]}))
        .await;
    assert_eq!(
        (bulk.status, bulk.pointer()),
        (422, "/jobs/0/queue".to_owned())
    );
    let schedule = json!({"name": "s", "every": "1h", "job": new});
    let refused = server.post("/api/v1/schedules", &schedule).await;
    assert_eq!(
        (refused.status, refused.pointer()),
        (422, "/job/queue".to_owned())
    );
    let id = server.job(&json!({"kind": "a"})).await;
    let moved = server
        .patch(&format!("/api/v1/jobs/{id}"), &json!({"queue": queue}))
        .await;
    assert_eq!((moved.status, moved.pointer()), (422, "/queue".to_owned()));
    let action = json!({"action": "move", "queue": queue, "filter": {"kind": "a"}, "reason": "r"});
    let refused = server.post("/api/v1/bulk-actions", &action).await;
    assert_eq!(
        (refused.status, refused.pointer()),
        (422, "/queue".to_owned())
    );
    let settings = format!("/api/v1/queues/{queue}/settings?create=true");
    let refused = server.put(&settings, &json!({"max_depth": 1})).await;
    assert_eq!(
        (refused.status, refused.pointer()),
        (422, "/max_depth".to_owned())
    );
    let slower = server.put(&settings, &json!({"concurrency": 2})).await;
    assert_eq!(slower.status, 200, "{slower:?}");
}
