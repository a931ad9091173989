//! The stream of events.

use serde_json::json;
use windlass_server::Settings;
use windlass_server::access::Scope;

use crate::support::{Events, Server};

#[tokio::test]
async fn events_arrive_in_order() {
    let server = Server::open().await;
    let mut events = Events::listen(&server, "/api/v1/events", &[]).await;
    let id = server
        .job(&json!({"kind": "a", "retry": "immediate"}))
        .await;
    server
        .run(&json!({"outcome": "failed", "error": "boom"}))
        .await;
    server.run(&json!({"outcome": "succeeded"})).await;
    for name in [
        "enqueued",
        "claimed",
        "started",
        "failed",
        "failure_group_created",
        "retried",
        "claimed",
        "started",
        "succeeded",
    ] {
        let read = events.until(&format!("event: {name}\n")).await;
        assert_eq!(read.matches("event: ").count(), 1, "{name} is next: {read}");
        let data = events.until("\n\n").await;
        assert!(
            data.contains(&id) && data.contains("\"queue\":\"default\""),
            "{data}"
        );
    }
}

#[tokio::test]
async fn a_reader_gets_only_the_events_it_asks_for() {
    let server = Server::open().await;
    let path = "/api/v1/events?event=dead,succeeded&queue=q&kind=b";
    let mut events = Events::listen(&server, path, &[]).await;
    for (kind, queue) in [("a", "q"), ("b", "other"), ("b", "q")] {
        server.job(&json!({"kind": kind, "queue": queue})).await;
        let jobs = server.claim(&json!({"queue": queue})).await;
        let outcome = json!({"id": jobs[0]["id"], "attempt": 1, "outcome": "succeeded"});
        server
            .post("/api/v1/settle", &json!({"outcomes": [outcome]}))
            .await;
    }
    let read = events.until("\"queue\":\"q\"").await;
    assert_eq!(read.matches("event: ").count(), 1, "{read}");
    assert!(
        read.contains("event: succeeded") && read.contains("\"kind\":\"b\""),
        "{read}"
    );
    for query in [
        "event=nothing",
        "queue=a%20b",
        "job=x",
        "last_event_id=x",
        "colour=1",
    ] {
        let refused = server.get(&format!("/api/v1/events?{query}")).await;
        assert_eq!(refused.status, 422, "{query}");
    }
}

#[tokio::test]
async fn a_reader_that_was_cut_off_goes_on_where_it_was() {
    let server = Server::open().await;
    let mut events = Events::listen(&server, "/api/v1/events", &[]).await;
    server.job(&json!({"kind": "first"})).await;
    let head = events.until("\n\n").await;
    let read = format!("{head}{}", events.until("\n\n").await);
    let last = read
        .lines()
        .find_map(|line| line.strip_prefix("id: "))
        .unwrap()
        .to_owned();
    drop(events);
    server.job(&json!({"kind": "second"})).await;
    server.job(&json!({"kind": "third"})).await;
    let mut events = Events::listen(&server, "/api/v1/events", &[("Last-Event-ID", &last)]).await;
    let read = events.until("\"third\"").await;
    assert!(
        read.contains("\"second\"") && !read.contains("\"first\""),
        "{read}"
    );
    let other = "0000000000000001-5";
    let mut events = Events::listen(
        &server,
        &format!("/api/v1/events?last_event_id={other}"),
        &[],
    )
    .await;
    events.until("event: missed").await;
    let read = events.until("\"third\"").await;
    assert!(
        read.contains("\"first\""),
        "of another run, it gets what is still there: {read}"
    );
}

/// Enqueues this many jobs of queue `bulk` at once.
async fn bulk(server: &Server, count: usize) {
    let jobs = vec![json!({"kind": "a", "queue": "bulk"}); count];
    let created = server
        .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
        .await;
    assert_eq!(created.status, 200, "{created:?}");
}

#[tokio::test]
async fn the_last_minute_counts_every_job_of_a_bulk() {
    let server = Server::open().await;
    bulk(&server, 9_000).await;
    let queue = server.get("/api/v1/queues/bulk").await;
    assert_eq!(queue.json["last_minute"]["enqueued"], 9_000, "{queue:?}");
}

#[tokio::test]
async fn a_reader_learns_how_many_events_it_missed() {
    let server = Server::open().await;
    let mut events = Events::listen(&server, "/api/v1/events", &[]).await;
    server.job(&json!({"kind": "first"})).await;
    let read = events.until("\"first\"").await;
    let last = read.lines().find_map(|line| line.strip_prefix("id: "));
    let last = last.unwrap().to_owned();
    drop(events);
    bulk(&server, 10_000).await;
    bulk(&server, 234).await;
    // The newest 10,000 are kept.
    let mut events = Events::listen(&server, "/api/v1/events", &[("Last-Event-ID", &last)]).await;
    let read = events.until("event: enqueued").await;
    assert!(
        read.contains("event: missed\ndata: {\"event\":\"missed\",\"count\":234}"),
        "{read}"
    );
}

#[tokio::test]
async fn a_revoked_key_hears_nothing_more() {
    let mut server = Server::closed().await;
    let admin = server.new_key(&[Scope::Admin]).await;
    let reader = server.new_key(&[Scope::Read]).await;
    let authorization = format!("Bearer {reader}");
    let heard = [("Authorization", authorization.as_str())];
    let mut events = Events::listen(&server, "/api/v1/events", &heard).await;
    server.key = Some(admin);
    server.job(&json!({"kind": "before"})).await;
    events.until("\"kind\":\"before\"").await;
    let keys = server.get("/api/v1/keys").await;
    let keys = keys.json["data"].as_array().unwrap().clone();
    let key = keys.iter().find(|key| key["scopes"] == json!(["read"]));
    let id = key.unwrap()["id"].as_str().unwrap();
    let revoked = server.delete(&format!("/api/v1/keys/{id}")).await;
    assert!(revoked.status < 300, "{revoked:?}");
    server.job(&json!({"kind": "after"})).await;
    let rest = events.until("\r\n0\r\n\r\n").await; // the end of the answer
    assert!(!rest.contains("after"), "{rest}");
}

#[tokio::test]
async fn event_streams_are_limited_and_do_not_use_permits_of_long_polls() {
    let settings = Settings {
        waiting_max: 1,
        ..Settings::default()
    };
    let server = Server::with_settings(settings).await;
    let first = Events::listen(&server, "/api/v1/events", &[]).await;
    let second = server.get("/api/v1/events").await;
    assert_eq!((second.status, second.code().as_str()), (503, "busy"));
    let id = server.job(&json!({"kind": "a"})).await;
    let waited = server
        .get(&format!("/api/v1/jobs/{id}/wait?timeout_ms=1"))
        .await;
    assert_eq!(waited.status, 202, "{waited:?}");
    drop(first);
}
