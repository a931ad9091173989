//! Logs of attempts: read with a cursor, waited for, and hidden.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_server::access::Scope;

use crate::support::{PATIENCE, Server};

async fn log(server: &Server, id: &str, lines: &Value) {
    let body = json!({"worker": "w", "id": id, "attempt": 1, "lines": lines});
    let reported = server.post("/api/v1/progress", &body).await;
    assert_eq!(reported.status, 204, "{reported:?}");
}

fn lines(answer: &Value) -> Vec<&str> {
    let lines = answer["data"].as_array().unwrap().iter();
    lines.map(|line| line["line"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_log_is_read_in_parts_while_the_attempt_runs_and_afterwards() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let path = format!("/api/v1/jobs/{id}/logs");
    let before = server.get(&path).await;
    assert_eq!(before.json["attempt"], 0);
    server.claim(&json!({"worker": "w"})).await;
    log(&server, &id, &json!(["a", "b", "c"])).await;
    let first = server.get(&format!("{path}?limit=2")).await;
    assert_eq!(lines(&first.json), ["a", "b"]);
    assert_eq!(first.json["next_after"], 2);
    assert_eq!(
        (&first.json["outcome"], &first.json["dropped"]),
        (&Value::Null, &json!(0))
    );
    assert_eq!(first.json["state"], "running");
    let second = server.get(&format!("{path}?after=2&attempt=1")).await;
    assert_eq!(lines(&second.json), ["c"]);
    assert_eq!(second.json["data"][0]["number"], 3);
    let none = server.get(&format!("{path}?attempt=2")).await;
    assert_eq!((none.status, lines(&none.json).len()), (200, 0));
    let outcome = json!({"id": id, "attempt": 1, "outcome": "succeeded", "log": ["d"]});
    let body = json!({"worker": "w", "outcomes": [outcome]});
    server.post("/api/v1/settle", &body).await;
    let after = server.get(&format!("{path}?after=3&wait=30s")).await;
    assert_eq!(lines(&after.json), ["d"]);
    assert_eq!(
        (&after.json["outcome"], &after.json["state"]),
        (&json!("succeeded"), &json!("succeeded"))
    );
    let end = server.get(&format!("{path}?after=4&wait=30s")).await;
    assert!(
        lines(&end.json).is_empty(),
        "an ended attempt is not waited for"
    );
    let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
    assert_eq!(history.json["data"][0]["log"][3]["line"], "d");
}

#[tokio::test]
async fn a_waiting_request_returns_with_the_next_line() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    server.claim(&json!({"worker": "w"})).await;
    let path = format!("/api/v1/jobs/{id}/logs?wait=30s");
    let (answer, ()) = tokio::join!(server.get(&path), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        log(&server, &id, &json!(["x"])).await;
    });
    assert_eq!(lines(&answer.json), ["x"]);
    let short = server
        .get(&format!("{path}&after=1").replace("30s", "10ms"))
        .await;
    assert!(lines(&short.json).is_empty());
    assert_eq!(short.json["next_after"], 1);
}

#[tokio::test]
async fn the_log_of_a_lost_attempt_stays_in_the_history() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "retry": "immediate"}))
        .await;
    server.claim(&json!({"worker": "w", "lease": "1s"})).await;
    log(&server, &id, &json!(["last words"])).await;
    let lost = async {
        loop {
            let store = windlass::admin::engine_of(&server.client).store();
            let swept = store.sweep(10, server.client.now(), 0).await.unwrap();
            if !swept.lost.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
    let row = &history.json["data"][0];
    assert_eq!(
        (&row["outcome"], &row["log"][0]["line"]),
        (&json!("lost"), &json!("last words"))
    );
}

#[tokio::test]
async fn logs_need_the_scope_read_payload_and_follow_their_rules() {
    let mut server = Server::closed().await;
    let admin = server.new_key(&[Scope::Admin]).await;
    server.key = Some(admin.clone());
    let id = server.job(&json!({"kind": "a"})).await;
    let path = format!("/api/v1/jobs/{id}/logs");
    for (query, field) in [
        ("wait=2m", "/wait"),
        ("after=-1", "/after"),
        ("limit=1001", "/limit"),
        ("attempt=0", "/attempt"),
        ("wait=1s&wait_ms=5", "/wait_ms"),
    ] {
        let refused = server.get(&format!("{path}?{query}")).await;
        assert_eq!(
            (refused.status, refused.text_at("/errors/0/pointer")),
            (422, field.into()),
            "{query}"
        );
    }
    let unknown = server
        .get("/api/v1/jobs/01a1eee4-7944-7e9b-8000-00d36b94f5c9/logs")
        .await;
    assert_eq!(unknown.status, 404);
    for body in [
        json!({"id": id, "attempt": 1}),
        json!({"id": id, "attempt": 1, "lines": []}),
        json!({"id": id, "attempt": 1, "progress": 1, "first_line": 2}),
        json!({"id": id, "attempt": 1, "lines": vec!["x"; 1001]}),
    ] {
        let refused = server.post("/api/v1/progress", &body).await;
        assert_eq!(refused.status, 422, "{body}");
    }
    server.key = Some(server.new_key(&[Scope::Read]).await);
    assert_eq!(server.get(&path).await.code(), "scope_missing");
    server.key = Some(server.new_key(&[Scope::Read, Scope::ReadPayload]).await);
    assert_eq!(server.get(&path).await.status, 200);
}
