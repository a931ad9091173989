//! Queues: figures, settings, pause, purge.

use serde_json::{Value, json};

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
        "retry_fetch_ratio": 0.5, "fresh_reserve": 1, "max_inflight_retries": 2, "retry_lane": 3,
    });
    let put = server.put("/api/v1/queues/q/settings", &settings).await;
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
async fn a_purge_removes_what_is_spelled_out_and_is_recorded() {
    let server = Server::open().await;
    for _ in 0..3 {
        server.job(&json!({"kind": "a", "max_attempts": 1})).await;
    }
    for _ in 0..3 {
        server
            .run(&json!({"outcome": "failed", "error": "x"}))
            .await;
    }
    server.job(&json!({"kind": "a"})).await;
    let refused = server
        .post("/api/v1/queues/default/purge", &json!({"limit": 1}))
        .await;
    assert_eq!(refused.pointer(), "/state");
    let none = json!({"state": "dead", "finished_before": "2001-01-01T00:00:00Z"});
    let none = server.post("/api/v1/queues/default/purge", &none).await;
    assert_eq!(none.json["changed"], 0);
    let pass = server
        .post(
            "/api/v1/queues/default/purge",
            &json!({"state": "dead", "limit": 2}),
        )
        .await;
    assert_eq!(pass.json["changed"], 2);
    let pass = server
        .post("/api/v1/queues/default/purge", &json!({"state": "dead"}))
        .await;
    assert_eq!(pass.json["changed"], 1);
    let left = server.get("/api/v1/jobs").await;
    assert_eq!(left.json["data"].as_array().unwrap().len(), 1);
    let audit = windlass_engine::Audit::new(server.client.engine().clone());
    let page = audit
        .list(&windlass_engine::AuditFilter::default(), None, 100)
        .await;
    let records = page.unwrap().records;
    let purges = records
        .iter()
        .filter(|record| record.action == "queue.purge")
        .count();
    assert_eq!(purges, 3);
}

#[tokio::test]
async fn pauses_and_settings_do_not_undo_each_other() {
    let server = Server::open().await;
    for round in 1..=50 {
        let path = format!("/api/v1/queues/q{round}");
        let (pause, settings) = (format!("{path}/pause"), format!("{path}/settings"));
        let wanted = json!({"max_depth": round});
        let (paused, set) = tokio::join!(server.act(&pause), server.put(&settings, &wanted));
        assert_eq!((paused.status, set.status), (200, 200));
        let queue = server.get(&path).await;
        assert!(queue.json["paused"].is_object(), "{queue:?}");
        assert_eq!(queue.json["settings"]["max_depth"], round);
    }
}
