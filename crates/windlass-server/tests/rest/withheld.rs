//! What a key with the scope `read` does not see: payloads, results, and the texts of errors.

use serde_json::{Value, json};
use windlass_core::{AttemptError, Failure, Report};
use windlass_server::access::Scope;
use windlass_store::{AttemptId, AttemptReport, Settled};

use crate::support::{Events, Server};

const ERROR: &str = "card 4111 was declined";

/// A server with a dead job whose error is secret, the job, and keys with these scopes.
async fn server(scopes: &[&[Scope]]) -> (Server, String, Vec<String>) {
    let mut server = Server::closed().await;
    server.key = Some(server.new_key(&[Scope::Admin]).await);
    let new = json!({"kind": "a", "payload": {"card": 4111}});
    let job = server.job(&new).await;
    let dead =
        json!({"outcome": "failed", "error": ERROR, "unrecoverable": true, "log": ["card 4111"]});
    server.run(&dead).await;
    let mut keys = Vec::new();
    for scopes in scopes {
        keys.push(server.new_key(scopes).await);
    }
    (server, job, keys)
}

fn paths(job: &str) -> Vec<String> {
    let mut paths = vec![
        "/api/v1/jobs".to_owned(),
        "/api/v1/jobs?state=dead".to_owned(),
        "/api/v1/jobs/export".to_owned(),
        "/api/v1/jobs/export?format=csv".to_owned(),
        "/api/v1/dead-letters".to_owned(),
        "/api/v1/failures".to_owned(),
        "/api/v1/workers".to_owned(),
        "/api/v1/queues".to_owned(),
        "/metrics".to_owned(),
    ];
    for part in ["", "/history", "/why", "/wait?timeout=1s"] {
        paths.push(format!("/api/v1/jobs/{job}{part}"));
    }
    paths
}

#[tokio::test]
async fn the_scope_read_shows_no_text_of_an_error() {
    let (mut server, job, keys) = server(&[&[Scope::Read], &[Scope::ReadPayload]]).await;
    server.key = Some(keys[0].clone());
    for path in paths(&job) {
        let answer = server.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(!answer.text().contains("4111"), "{path}: {}", answer.text());
    }
    let path = format!("/api/v1/jobs/{job}");
    let seen = server.get(&path).await;
    assert_eq!(
        (&seen.json["last_error"], &seen.json["error_withheld"]),
        (&Value::Null, &json!(true))
    );
    let row = server.get(&format!("{path}/history")).await.json["data"][0].clone();
    assert_eq!(
        (&row["error"], &row["error_withheld"], &row["outcome"]),
        (&Value::Null, &json!(true), &json!("failed"))
    );
    // Nor can it be guessed by a search.
    for path in ["/api/v1/jobs?error=4111", "/api/v1/dead-letters?error=4111"] {
        let refused = server.get(path).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (403, "scope_missing"),
            "{path}"
        );
    }
    server.key = Some(keys[1].clone());
    for path in ["", "/history", "/wait?timeout=1s"] {
        let answer = server.get(&format!("/api/v1/jobs/{job}{path}")).await;
        assert!(answer.text().contains(ERROR), "{path}: {}", answer.text());
        assert!(!answer.text().contains("error_withheld"), "{path}");
    }
    let groups = server.get("/api/v1/failures").await;
    assert_eq!(groups.text_at("/data/0/sample/error"), ERROR);
    assert_eq!(server.get("/api/v1/jobs?error=4111").await.status, 200);
}

#[tokio::test]
async fn the_scope_read_shows_no_response_to_an_http_job() {
    let (mut server, _, keys) = server(&[&[Scope::Read], &[Scope::ReadPayload]]).await;
    let new = json!({"http": {"url": "https://a.example/?card=4111"}, "max_attempts": 1});
    let job = server.job(&new).await;
    let claimed = server.claim(&json!({"kinds": ["http"]})).await;
    assert_eq!(claimed[0]["id"], json!(job));
    // What the executor stores with an attempt: a remote worker cannot report it.
    let response = json!({"status": 402, "headers": {"x-card": "4111"}, "body": "no 4111"});
    let attempt_id = AttemptId {
        job: job.parse().unwrap(),
        attempt: 1,
    };
    let report = AttemptReport {
        attempt_id,
        report: Report::Failed(Failure::retryable(AttemptError::new("402: card 4111"))),
        random: 0,
        detail: Some(json!({"http": response})),
    };
    let engine = windlass::admin::engine_of(&server.client);
    let settled = engine.store().settle(vec![report], engine.now()).await;
    assert!(matches!(settled.unwrap()[..], [Settled::Done(_)]));
    server.key = Some(keys[0].clone());
    for path in paths(&job) {
        let answer = server.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(!answer.text().contains("4111"), "{path}: {}", answer.text());
    }
    let path = format!("/api/v1/jobs/{job}/history");
    let hidden = server.get(&path).await.json["data"][0].clone();
    assert_eq!(
        (&hidden["http"], &hidden["outcome"]),
        (&Value::Null, &json!("failed"))
    );
    server.key = Some(keys[1].clone());
    let shown = server.get(&path).await.json["data"][0].clone();
    assert_eq!(shown["http"], response);
}

#[tokio::test]
async fn the_stream_of_events_shows_errors_to_those_who_may_read_them() {
    let (mut server, _, keys) = server(&[&[Scope::Read], &[Scope::ReadPayload]]).await;
    let admin = server.key.clone();
    for (key, shown) in keys.iter().zip([false, true]) {
        let authorization = format!("Bearer {key}");
        let headers = [("Authorization", authorization.as_str())];
        let mut events =
            Events::listen(&server, "/api/v1/events?event=failed,dead", &headers).await;
        server.key = admin.clone();
        server.job(&json!({"kind": "a"})).await;
        server
            .run(&json!({"outcome": "failed", "error": ERROR, "unrecoverable": true}))
            .await;
        let seen = events.until("\"event\":\"dead\"").await;
        assert!(seen.contains("event: failed"), "{seen}");
        assert_eq!(seen.contains(ERROR), shown, "{seen}");
    }
}

#[tokio::test]
async fn callers_who_may_not_read_payloads_cannot_compare_them_with_the_first_job() {
    let guess = |card: u32| json!({"kind": "a", "payload": {"card": card}, "unique_key": "v", "unique_for": "1h"});
    let scopes: [&[Scope]; 3] = [
        &[Scope::Enqueue],
        &[Scope::Enqueue, Scope::Read],
        &[Scope::Enqueue, Scope::ReadPayload],
    ];
    let (mut server, _, keys) = server(&scopes).await;
    let job = server.job(&guess(4111)).await;
    let failed = json!({"outcome": "failed", "error": ERROR});
    assert_eq!(server.run(&failed).await, job);
    for (key, told) in keys.iter().zip([false, false, true]) {
        server.key = Some(key.clone());
        for card in [4111, 4112] {
            let differs = match told {
                true => json!(card != 4111),
                false => Value::Null,
            };
            let one = server.post("/api/v1/jobs", &guess(card)).await;
            assert_eq!(
                (one.status, &one.json["id"]),
                (200, &json!(job)),
                "{}",
                one.text()
            );
            assert_eq!(one.json["payload_differs"], differs, "{}", one.text());
            assert_eq!(one.text().contains(ERROR), told, "{}", one.text());
            let many = server
                .post("/api/v1/jobs/bulk", &json!({"jobs": [guess(card)]}))
                .await;
            assert_eq!(
                many.json["data"][0]["payload_differs"],
                differs,
                "{}",
                many.text()
            );
        }
        // Of a new job there is nothing to guess.
        let new = server.post("/api/v1/jobs", &json!({"kind": "a"})).await;
        assert_eq!(new.json["payload_differs"], false);
    }
}
