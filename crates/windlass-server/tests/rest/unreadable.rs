//! Rows that this version cannot read cost their neighbours nothing. PostgreSQL keeps what a test
//! writes behind its back.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::Client;
use windlass_server::access::{Access, NewKey, Scope, WithoutKeys};

use crate::support::Server;
use windlass_testkit::cluster;

/// A server on a database, and the URL of the database.
async fn server() -> (Server, String) {
    let url = cluster::database().await;
    let client = Client::open(&url).await.expect("a fresh store opens");
    (Server::on_client(&client).await, url)
}

#[tokio::test]
async fn named_jobs_are_changed_although_another_is_unreadable() {
    let (server, url) = server().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(server.job(&json!({"kind": "a", "max_attempts": 1})).await);
        server
            .run(&json!({"outcome": "failed", "error": "x"}))
            .await;
    }
    let bad = ids[1].clone();
    let newer = r#"{"retry": {"backoff": {"type": "fibonacci"}}}"#;
    let sql = format!("update windlass.dead set extra = '{newer}' where id = '{bad}'");
    cluster::execute(&url, &sql).await;
    let run = |ids: Value| {
        let server = &server;
        async move {
            let answer = server
                .post("/api/v1/jobs/run-now", &json!({"ids": ids}))
                .await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let counts = ["changed", "conflicts", "unreadable"];
            counts.map(|name| answer.json[name].clone())
        }
    };
    assert_eq!(run(json!([bad])).await, [json!(0), json!(1), json!([bad])]);
    for id in [&ids[0], &ids[2]] {
        let later = json!({"delay": "1h"}).to_string();
        let path = format!("/api/v1/jobs/{id}/revive");
        server
            .send("POST", &path, &[], Some(later.as_bytes()))
            .await;
    }
    assert_eq!(run(json!(ids)).await, [json!(2), json!(1), json!([bad])]);
    // An id that is not there is still a mistake of the caller.
    let missing = "01900000-0000-7000-8000-000000000000";
    let body = json!({"ids": [ids[0], bad, missing]});
    let refused = server.post("/api/v1/jobs/run-now", &body).await;
    assert_eq!(refused.status, 404, "{refused:?}");
}

#[tokio::test]
async fn limits_that_cannot_be_read_stop_their_queue_say_so_and_can_be_replaced() {
    for repair in ["settings", "pause", "resume"] {
        let (server, url) = server().await;
        let settings = json!({"concurrency": 5});
        let path = "/api/v1/queues/q/settings";
        server.put(&format!("{path}?create=true"), &settings).await;
        let sql = "update windlass.queues set limits = '{\"concurrency\": \"many\"}'";
        cluster::execute(&url, sql).await;
        let id = server.job(&json!({"kind": "a", "queue": "q"})).await;
        let queue = || server.get("/api/v1/queues/q");
        let before = queue().await;
        assert_eq!(before.json["settings_unreadable"], true, "{before:?}");
        assert!(before.text_at("/paused/by").contains("cannot read"));
        let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
        assert!(why.json.to_string().contains("cannot read"), "{why:?}");
        assert!(server.claim(&json!({"queue": "q"})).await.is_empty());
        let repaired = match repair {
            "settings" => server.put(path, &settings).await,
            verb => server.act(&format!("/api/v1/queues/q/{verb}")).await,
        };
        assert_eq!(repaired.status, 200, "{repair}: {repaired:?}");
        assert_eq!(queue().await.json["settings_unreadable"], false);
        let claimed = server.claim(&json!({"queue": "q"})).await.len();
        assert_eq!(claimed, usize::from(repair != "pause"), "{repair}");
    }
}

#[tokio::test]
async fn settings_that_are_not_json_leave_the_defaults_to_their_queue() {
    let (server, url) = server().await;
    let path = "/api/v1/queues/q/settings";
    server
        .put(&format!("{path}?create=true"), &json!({"retry": "patient"}))
        .await;
    let sql = "delete from windlass.queues; update windlass.documents set value = '[' where collection = 'queue-settings'";
    cluster::execute(&url, sql).await;
    let list = server.get("/api/v1/queues").await;
    assert_eq!(
        list.json["data"][0]["settings_unreadable"], true,
        "{list:?}"
    );
    server.job(&json!({"kind": "a", "queue": "q"})).await;
    assert_eq!(server.claim(&json!({"queue": "q"})).await.len(), 1);
    let put = server.put(path, &json!({})).await;
    assert_eq!(put.status, 200, "{put:?}");
    let queue = server.get("/api/v1/queues/q").await;
    assert_eq!(queue.json["settings_unreadable"], false, "{queue:?}");
}

#[tokio::test]
async fn keys_that_are_not_json_keep_a_loopback_server_closed() {
    let url = cluster::database().await;
    let client = Client::open(&url).await.expect("a fresh store opens");
    let access = || {
        Access::by_keys(
            Arc::clone(windlass::admin::engine_of(&client)),
            WithoutKeys::Open,
        )
    };
    assert!(access().is_open(client.now()).await.unwrap());
    let new = NewKey {
        name: "a".to_owned(),
        scopes: vec![Scope::Admin],
        expires_at: None,
    };
    let made = access();
    let keys = made.keys().expect("access by keys");
    keys.create(new, client.now()).await.expect("a key");
    let sql = "update windlass.documents set value = '[' where collection = 'api_keys'";
    cluster::execute(&url, sql).await;
    let other = access();
    assert!(!other.is_open(client.now()).await.unwrap());
    let listed = other.keys().expect("access by keys").list().await.unwrap();
    assert!(listed.len() == 1 && listed[0].unreadable, "{listed:?}");
}
