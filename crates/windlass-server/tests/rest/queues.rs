//! Queues: figures, settings, pause, purge.

use serde_json::{Value, json};
use windlass_engine::QUEUE_SETTINGS;
use windlass_store::Expected;

use crate::support::Server;

#[tokio::test]
async fn a_queue_tells_how_it_is() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a"})).await;
    server.job(&json!({"kind": "a", "delay": "1h"})).await;
    server.run(&json!({"outcome": "succeeded"})).await;
    server.job(&json!({"kind": "a"})).await;
    let queue = server.get("/api/v1/queues/default").await;
    assert_eq!(queue.json["depth"], 2);
    let counts = &queue.json["counts"];
    assert_eq!(
        (&counts["ready"], &counts["scheduled"], &counts["succeeded"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert!(queue.json["oldest_ready_at"].is_string() && queue.json["oldest_ready_ms"].is_u64());
    let list = server.get("/api/v1/queues").await;
    assert_eq!(list.json["data"][0]["name"], "default");
    // The figures of the last minute follow the events.
    let mut told = Value::Null;
    for _ in 0..1000 {
        told = server.get("/api/v1/queues/default").await.json["last_minute"].clone();
        if told["enqueued"] == 3 && told["succeeded"] == 1 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the last minute: {told}");
}

#[tokio::test]
async fn settings_are_put_whole_and_hold() {
    let server = Server::open().await;
    let settings = json!({
        "max_depth": 5, "concurrency": 1, "rate": {"count": 100, "period": "1s"}, "retry": "immediate",
        "retry_fetch_ratio": 0.5, "fresh_reserve": 1, "max_inflight_retries": 2, "retry_lane": 3, "weight": 2,
    });
    let path = "/api/v1/queues/q/settings?create=true";
    let put = server.put(path, &settings).await;
    assert_eq!(put.json, settings, "{put:?}");
    assert_eq!(server.get("/api/v1/queues/q/settings").await.json, settings);
    for _ in 0..2 {
        server.job(&json!({"kind": "a", "queue": "q"})).await;
    }
    let claimed = server.claim(&json!({"queue": "q", "limit": 5})).await;
    assert_eq!(claimed.len(), 1, "as many run at once as may");
    let body = json!({"outcomes": [{"id": claimed[0]["id"], "attempt": 1, "outcome": "failed", "error": "x"}]});
    let settled = server.post("/api/v1/settle", &body).await;
    assert_eq!(
        settled.json["data"][0]["state"], "ready",
        "the queue's policy is without delay"
    );
    let plain = server.put("/api/v1/queues/q/settings", &json!({})).await;
    assert_eq!(plain.json["max_depth"], Value::Null);
    assert_eq!(plain.json["retry_fetch_ratio"], Value::Null);
    assert_eq!(
        server.claim(&json!({"queue": "q", "limit": 5})).await.len(),
        2
    );
    let refused = server
        .put("/api/v1/queues/q/settings", &json!({"max_depth": 0}))
        .await;
    assert_eq!(refused.pointer(), "/max_depth");
    let refused = server
        .put("/api/v1/queues/no%20spaces/settings", &json!({}))
        .await;
    assert_eq!(refused.pointer(), "/queue");
}

#[tokio::test]
async fn a_paused_queue_gives_nothing() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "queue": "q"})).await;
    let paused = server.act("/api/v1/queues/q/pause").await;
    assert_eq!(paused.json["paused"]["by"], "local");
    assert!(server.claim(&json!({"queue": "q"})).await.is_empty());
    let settings = server
        .put("/api/v1/queues/q/settings", &json!({"max_depth": 10}))
        .await;
    assert_eq!(settings.status, 200);
    assert!(
        server.claim(&json!({"queue": "q"})).await.is_empty(),
        "settings do not resume it"
    );
    let resumed = server.act("/api/v1/queues/q/resume").await;
    assert_eq!(resumed.json["paused"], Value::Null);
    assert_eq!(server.claim(&json!({"queue": "q"})).await.len(), 1);
}

#[tokio::test]
async fn a_pause_says_why_and_a_second_one_changes_only_the_reason() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "queue": "q"})).await;
    let path = "/api/v1/queues/q/pause";
    let first = server.post(path, &json!({"reason": "deploy"})).await;
    assert_eq!(first.json["paused"]["reason"], "deploy", "{first:?}");
    let silent = server.act(path).await;
    assert_eq!(silent.json["paused"], first.json["paused"]);
    let second = server.post(path, &json!({"reason": "rollback"})).await;
    let mut expected = first.json["paused"].clone();
    expected["reason"] = json!("rollback");
    assert_eq!(second.json["paused"], expected);
    let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    let text = "queue q was paused by local: rollback";
    assert_eq!(why.json["reasons"][0]["text"], text);
    let audit = server.get("/api/v1/audit?action=queue.pause").await;
    let details = [0, 1, 2].map(|n| audit.json["data"][n]["detail"].clone());
    let reasons = [
        json!({"reason": "rollback"}),
        json!({}),
        json!({"reason": "deploy"}),
    ];
    assert_eq!(details, reasons);
    for reason in ["".to_owned(), "x".repeat(501)] {
        let refused = server.post(path, &json!({"reason": reason})).await;
        assert_eq!(
            (refused.status, refused.pointer().as_str()),
            (422, "/reason")
        );
    }
    let longest = server.post(path, &json!({"reason": "é".repeat(500)})).await;
    assert_eq!(longest.status, 200);
    server.act("/api/v1/queues/q/resume").await;
    let fresh = server.act(path).await;
    assert_eq!(fresh.json["paused"]["reason"], Value::Null, "a new pause");
}

#[tokio::test]
async fn pauses_and_settings_do_not_undo_each_other() {
    let server = Server::open().await;
    for round in 1..=50 {
        let path = format!("/api/v1/queues/q{round}");
        let (pause, settings) = (
            format!("{path}/pause?create=true"),
            format!("{path}/settings?create=true"),
        );
        let wanted = json!({"max_depth": round});
        let (paused, set) = tokio::join!(server.act(&pause), server.put(&settings, &wanted));
        assert_eq!((paused.status, set.status), (200, 200));
        let queue = server.get(&path).await;
        assert!(queue.json["paused"].is_object(), "{queue:?}");
        assert_eq!(queue.json["settings"]["max_depth"], round);
    }
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_404_until_it_is_created() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "queue": "mails"})).await;
    for path in ["/api/v1/queues/mial", "/api/v1/queues/mial/settings"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    let refused = [
        server.put("/api/v1/queues/mial/settings", &json!({})).await,
        server.act("/api/v1/queues/mial/pause").await,
        server.act("/api/v1/queues/mial/pause?create=false").await,
        server.act("/api/v1/queues/mial/resume").await,
    ];
    for refused in &refused {
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (404, "not_found")
        );
        let hint = refused.text_at("/hint");
        assert!(!hint.contains("mails"), "three letters differ: {hint}");
    }
    assert!(refused[1].text_at("/hint").contains("?create=true"));
    let near = server.act("/api/v1/queues/mail/pause").await;
    assert!(
        near.text_at("/hint").contains("did you mean `mails`?"),
        "{near:?}"
    );
    let list = server.get("/api/v1/queues").await;
    assert_eq!(list.json["data"].as_array().unwrap().len(), 1, "{list:?}");
    let created = server.act("/api/v1/queues/mial/pause?create=true").await;
    assert_eq!(created.status, 200, "{created:?}");
    for path in ["/api/v1/queues/mial", "/api/v1/queues/mial/settings"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    assert_eq!(server.act("/api/v1/queues/mial/resume").await.status, 200);
    let unknown = server.act("/api/v1/queues/mial/pause?create=yes").await;
    assert_eq!(unknown.pointer(), "/create");
}

#[tokio::test]
async fn a_queue_exists_by_its_jobs_its_settings_or_its_workers() {
    let server = Server::open().await;
    let status = |name: &'static str| {
        let server = &server;
        async move { server.get(&format!("/api/v1/queues/{name}")).await.status }
    };
    assert_eq!(status("default").await, 200, "jobs go there that name none");
    // Finished jobs count, also where newer ones of other queues come first.
    let done = server.job(&json!({"kind": "a", "queue": "done"})).await;
    let claim = json!({"queue": "done"});
    server
        .run_claimed(&claim, &json!({"outcome": "succeeded"}))
        .await;
    server
        .job(&json!({"kind": "a", "queue": "later", "delay": "1h"}))
        .await;
    let worker = json!({"name": "w", "queues": ["served"]});
    server.post("/api/v1/workers", &worker).await;
    let about = json!({"queues": ["sdk"]});
    let store = windlass::admin::engine_of(&server.client).store();
    store.beat("n", &about, server.client.now()).await.unwrap();
    for name in ["done", "later", "served", "sdk"] {
        assert_eq!(status(name).await, 200, "{name}");
    }
    assert_eq!(status("other").await, 404);
    // Without its worker, and after its last job was removed, a queue is gone.
    server.delete("/api/v1/workers/w").await;
    assert_eq!(status("served").await, 404);
    let removed = server.delete(&format!("/api/v1/jobs/{done}")).await;
    assert_eq!(removed.status, 204, "{removed:?}");
    assert_eq!(status("done").await, 404);
}

/// Stores something about a queue as another version would.
async fn store_settings(server: &Server, queue: &str, settings: &Value) {
    let (store, now) = (
        windlass::admin::engine_of(&server.client).store(),
        server.client.now(),
    );
    let any = Expected::Any;
    let put = store.put_document(QUEUE_SETTINGS, queue, settings, any, None, now);
    put.await.unwrap();
}

#[tokio::test]
async fn settings_of_a_newer_version_hold_as_far_as_they_are_known() {
    let server = Server::open().await;
    let settings = json!({"retry": "immediate", "fresh_reserve": 1, "burst": 5});
    store_settings(&server, "q", &settings).await;
    let queue = server.get("/api/v1/queues/q").await;
    assert_eq!(queue.status, 200, "{queue:?}");
    assert_eq!(queue.json["settings"]["fresh_reserve"], 1);
    assert_eq!(queue.json["settings_unreadable"], false);
    server.job(&json!({"kind": "a", "queue": "q"})).await;
    let failed = json!({"outcome": "failed", "error": "x"});
    let id = server.run_claimed(&json!({"queue": "q"}), &failed).await;
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(job.json["state"], "ready", "the policy holds: {job:?}");
    let refused = server.put("/api/v1/queues/q/settings", &settings).await;
    assert_eq!(refused.status, 422, "requests stay strict: {refused:?}");
}

#[tokio::test]
async fn unreadable_settings_leave_the_defaults_to_their_queue_and_others_alone() {
    let server = Server::open().await;
    store_settings(&server, "q", &json!({"retry": "of-a-newer-version"})).await;
    store_settings(&server, "r", &json!(["no object"])).await;
    for queue in ["q", "r", "other"] {
        server.job(&json!({"kind": "a", "queue": queue})).await;
    }
    let claimed = server
        .claim(&json!({"queues": ["q", "r", "other"], "limit": 5}))
        .await;
    assert_eq!(claimed.len(), 3, "{claimed:?}");
    let unreadable = |queue: &Value| queue["settings_unreadable"].clone();
    let list = server.get("/api/v1/queues").await;
    let list: Vec<Value> = list.json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(unreadable)
        .collect();
    assert_eq!(list, [false, true, true], "other, q, r");
    assert_eq!(unreadable(&server.get("/api/v1/queues/q").await.json), true);
    let why = server
        .get(&format!(
            "/api/v1/jobs/{}/why",
            claimed[0]["id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(why.status, 200, "{why:?}");
    let put = server
        .put("/api/v1/queues/q/settings", &json!({"retry": "patient"}))
        .await;
    assert_eq!(put.status, 200, "{put:?}");
    assert_eq!(
        unreadable(&server.get("/api/v1/queues/q").await.json),
        false
    );
}
