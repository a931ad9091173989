//! Dead letters: groups and passes.

use serde_json::json;

use crate::support::Server;

async fn dead(server: &Server, kind: &str, error: &str) -> String {
    let id = server.job(&json!({"kind": kind, "max_attempts": 1})).await;
    server
        .run(&json!({"outcome": "failed", "error": error}))
        .await;
    id
}

#[tokio::test]
async fn dead_jobs_are_listed_and_grouped_by_what_went_wrong() {
    let server = Server::open().await;
    dead(&server, "a", "timeout after 30 s").await;
    let last = dead(&server, "a", "timeout after 31 s").await;
    dead(&server, "b", "timeout after 30 s").await;
    server.job(&json!({"kind": "a"})).await;
    let list = server.get("/api/v1/dead-letters?kind=a").await;
    assert_eq!(list.json["data"].as_array().unwrap().len(), 2);
    assert_eq!(list.json["data"][0]["id"], last.as_str());
    let groups = server.get("/api/v1/dead-letters/groups").await;
    let groups = groups.json["data"].as_array().unwrap().clone();
    assert_eq!(groups.len(), 2);
    assert_eq!(
        (&groups[0]["count"], &groups[0]["kind"]),
        (&json!(2), &json!("a"))
    );
    assert_eq!(groups[0]["reasons"], json!({"exhausted": 2}));
    assert!(
        groups[0]["pattern"]
            .as_str()
            .unwrap()
            .contains("timeout after #")
    );
    let refused = server.get("/api/v1/dead-letters?state=ready").await;
    assert_eq!(refused.pointer(), "/state");
}

#[tokio::test]
async fn a_group_is_revived_in_passes_and_only_that() {
    let server = Server::open().await;
    for _ in 0..3 {
        dead(&server, "a", "boom").await;
    }
    let other = dead(&server, "a", "another thing").await;
    let groups = server.get("/api/v1/dead-letters/groups").await;
    let group = groups.text_at("/data/0/fingerprint");
    let body = json!({"filter": {"fingerprint": group}, "limit": 2, "failures": "keep"});
    let pass = server.post("/api/v1/dead-letters/revive", &body).await;
    assert_eq!(pass.json["changed"], 2, "{pass:?}");
    let cursor = pass.text_at("/next_cursor");
    let body = json!({"filter": {"fingerprint": group}, "limit": 2, "cursor": cursor, "payload": {"x": 1}});
    let pass = server.post("/api/v1/dead-letters/revive", &body).await;
    assert_eq!(pass.json["changed"], 1, "{pass:?}");
    let left = server.get("/api/v1/dead-letters").await;
    assert_eq!(left.json["data"][0]["id"], other.as_str());
    let ready = server.get("/api/v1/jobs?state=ready").await;
    let ready = ready.json["data"].as_array().unwrap().clone();
    let kept: Vec<_> = ready
        .iter()
        .map(|job| (job["failures"].clone(), job["payload"].clone()))
        .collect();
    assert_eq!(
        kept,
        [
            (json!(1), json!(null)),
            (json!(1), json!(null)),
            (json!(0), json!({"x": 1}))
        ]
    );
}

#[tokio::test]
async fn jobs_are_revived_by_their_ids() {
    let server = Server::open().await;
    let id = dead(&server, "a", "boom").await;
    let waiting = server.job(&json!({"kind": "a", "delay": "1h"})).await;
    server.act(&format!("/api/v1/jobs/{waiting}/cancel")).await;
    let pass = server
        .post(
            "/api/v1/dead-letters/revive",
            &json!({"ids": [id, waiting]}),
        )
        .await;
    assert_eq!(
        (&pass.json["changed"], &pass.json["conflicts"]),
        (&json!(1), &json!(1)),
        "{pass:?}"
    );
    for body in [
        json!({}),
        json!({"filter": {}}),
        json!({"ids": [id], "filter": {"kind": "a"}}),
        json!({"ids": ["x"]}),
        json!({"filter": {"state": "ready"}}),
        json!({"filter": {"kind": "a"}, "colour": 1}),
    ] {
        let refused = server.post("/api/v1/dead-letters/revive", &body).await;
        assert_eq!(refused.status, 422, "{body}: {refused:?}");
    }
}

#[tokio::test]
async fn the_audit_log_names_jobs_and_keeps_no_payloads() {
    let server = Server::open().await;
    let id = dead(&server, "a", "boom").await;
    server
        .post("/api/v1/dead-letters/revive", &json!({"ids": [id]}))
        .await;
    let searched = json!({"filter": {"payload_path": "/card", "payload_value": "4111"}});
    server.post("/api/v1/dead-letters/revive", &searched).await;
    let audit = server.get("/api/v1/audit").await;
    let text = audit.json.to_string();
    assert!(text.contains(&id) && text.contains("/card"), "{text}");
    assert!(!text.contains("4111"), "{text}");
}
