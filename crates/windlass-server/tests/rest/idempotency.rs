//! `Idempotency-Key`: sent again, created once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Answer, Server};

async fn send(server: &Server, path: &str, key: &str, body: &Value) -> Answer {
    let body = body.to_string();
    server
        .send(
            "POST",
            path,
            &[("Idempotency-Key", key)],
            Some(body.as_bytes()),
        )
        .await
}

async fn count(server: &Server) -> usize {
    server.get("/api/v1/jobs?limit=1000").await.json["data"]
        .as_array()
        .unwrap()
        .len()
}

#[tokio::test]
async fn the_same_request_is_answered_the_same_and_creates_once() {
    let server = Server::open().await;
    let body = json!({"kind": "a", "payload": {"n": 1}});
    let first = send(&server, "/api/v1/jobs", "k1", &body).await;
    assert_eq!(first.status, 201);
    assert!(first.header("idempotent-replayed").is_none());
    let again = send(&server, "/api/v1/jobs", "k1", &body).await;
    assert_eq!((again.status, &again.json), (201, &first.json));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(count(&server).await, 1);
    let id = first.text_at("/id");
    server.act(&format!("/api/v1/jobs/{id}/cancel")).await;
    server.delete(&format!("/api/v1/jobs/{id}")).await;
    let after = send(&server, "/api/v1/jobs", "k1", &body).await;
    assert_eq!(after.text_at("/id"), id, "also when the job is gone");
    assert_eq!(count(&server).await, 0);
    send(&server, "/api/v1/jobs", "k2", &body).await;
    assert_eq!(count(&server).await, 1, "another key is another request");
}

#[tokio::test]
async fn another_body_with_the_same_key_is_a_conflict() {
    let server = Server::open().await;
    send(&server, "/api/v1/jobs", "k", &json!({"kind": "a"})).await;
    let other = send(&server, "/api/v1/jobs", "k", &json!({"kind": "b"})).await;
    assert_eq!(
        (other.status, other.code().as_str()),
        (409, "idempotency_key_reused")
    );
    let elsewhere = send(
        &server,
        "/api/v1/jobs/bulk",
        "k",
        &json!({"jobs": [{"kind": "a"}]}),
    )
    .await;
    assert_eq!(elsewhere.status, 200, "a key is for one route");
    for key in ["", &"x".repeat(256)] {
        let refused = send(&server, "/api/v1/jobs", key, &json!({"kind": "a"})).await;
        assert_eq!(refused.status, 422);
    }
}

#[tokio::test]
async fn a_refused_request_leaves_its_key_free() {
    let server = Server::open().await;
    let refused = send(&server, "/api/v1/jobs", "k", &json!({"kind": ""})).await;
    assert_eq!(refused.status, 422);
    let right = send(&server, "/api/v1/jobs", "k", &json!({"kind": "a"})).await;
    assert_eq!(right.status, 201);
}

#[tokio::test]
async fn cc5_a_hundred_at_once_create_one_and_answer_alike() {
    let server = Server::open().await;
    let body = json!({"kind": "a"});
    let requests = (0..100).map(|_| send(&server, "/api/v1/jobs", "k", &body));
    let answers = futures_util::future::join_all(requests).await;
    let ids: BTreeSet<String> = answers.iter().map(|answer| answer.text_at("/id")).collect();
    assert_eq!(ids.len(), 1);
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert_eq!(count(&server).await, 1);
}

#[tokio::test]
async fn a_server_that_died_before_it_answered_creates_nothing_twice() {
    let server = Server::open().await;
    let bulk = json!({"jobs": [{"kind": "a"}, {"kind": "b"}]});
    let first = send(&server, "/api/v1/jobs/bulk", "k", &bulk).await;
    forget_answers(&server).await;
    let again = send(&server, "/api/v1/jobs/bulk", "k", &bulk).await;
    assert_eq!(again.json["data"], first.json["data"], "the same ids");
    assert_eq!(count(&server).await, 2);
    let schedule = json!({"name": "s", "every": "1h", "job": {"kind": "a"}});
    let first = send(&server, "/api/v1/schedules", "k", &schedule).await;
    assert_eq!(first.status, 201);
    forget_answers(&server).await;
    let again = send(&server, "/api/v1/schedules", "k", &schedule).await;
    assert_eq!(
        (again.status, again.text_at("/id")),
        (201, first.text_at("/id"))
    );
}

/// What a crash between the work and the note of its answer leaves.
async fn forget_answers(server: &Server) {
    let store = server.client.engine().store();
    let mut forgotten = 0;
    for place in 0..256 {
        let collection = format!("idempotency.{place:02x}");
        for document in store.documents(&collection).await.unwrap() {
            let mut value = document.value;
            value["answer"] = Value::Null;
            let any = windlass_store::Expected::Anything;
            store
                .put_document(
                    &collection,
                    &document.name,
                    &value,
                    any,
                    server.client.now(),
                )
                .await
                .unwrap();
            forgotten += 1;
        }
    }
    assert!(forgotten > 0);
}
