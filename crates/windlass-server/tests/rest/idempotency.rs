//! `Idempotency-Key`: sent again, created once.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass_core::{HookDefinition, HookEvent, HookName};
use windlass_server::{RouteInfo, Settings, routes};
use windlass_store::Expected;

use crate::support::{Answer, Server};

/// Every route that takes a key.
pub(crate) fn idempotent_routes() -> Vec<RouteInfo> {
    let all: Vec<RouteInfo> = routes()
        .into_iter()
        .filter(|route| route.idempotent)
        .collect();
    assert!(!all.is_empty());
    all
}

/// Something that each of them can create, and how many things that makes. A route that is new has to be named here.
fn request_of(route: &RouteInfo) -> (&'static str, Value, usize) {
    match route.path {
        "/api/v1/jobs" => ("/api/v1/jobs", json!({"kind": "a"}), 1),
        "/api/v1/jobs/bulk" => {
            let jobs = json!({"jobs": [{"kind": "a"}, {"kind": "b"}, {"kind": "c"}]});
            ("/api/v1/jobs/bulk", jobs, 3)
        }
        "/api/v1/schedules" => {
            let schedule = json!({"name": "new", "every": "1h", "job": {"kind": "a"}});
            ("/api/v1/schedules", schedule, 1)
        }
        "/api/v1/schedules/bulk" => {
            let new = |name: &str| json!({"name": name, "every": "1h", "job": {"kind": "a"}});
            let schedules = json!({"schedules": [new("one"), {"name": "two"}, new("three")]});
            ("/api/v1/schedules/bulk", schedules, 2)
        }
        "/api/v1/hooks/{name}/test" => ("/api/v1/hooks/h/test", json!({}), 1),
        "/api/v1/schedules/{name}/run-now" => ("/api/v1/schedules/s/run-now", json!({}), 1),
        "/api/v1/schedules/{name}/backfill" => {
            let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T03:00:00Z"});
            ("/api/v1/schedules/s/backfill", range, 4)
        }
        "/api/v1/replays" => {
            let replay = json!({"filter": {"kind": "a"}, "reason": "r"});
            ("/api/v1/replays", replay, 1)
        }
        "/api/v1/bulk-actions" => {
            let cancel = json!({"action": "cancel", "filter": {"kind": "a"}, "reason": "r"});
            ("/api/v1/bulk-actions", cancel, 1)
        }
        other => panic!("say here what POST {other} creates"),
    }
}

/// What [`idempotent_routes`] need.
pub(crate) async fn prepare(server: &Server) {
    let job = json!({"kind": "scheduled", "delivery": "at_most_once"});
    let schedule = json!({"name": "s", "cron": "0 * * * *", "job": job});
    let made = server.post("/api/v1/schedules", &schedule).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (name, url) = (HookName::new("h").unwrap(), "https://a.example/");
    let hook = HookDefinition::new(url, "key", [HookEvent::Dead]);
    let put = server.client.hooks().put(&name, &hook, Expected::Any).await;
    put.unwrap();
}

pub(crate) async fn send_to(server: &Server, route: &RouteInfo, key: &str) -> Answer {
    let (path, body, _) = request_of(route);
    send(server, path, key, &body).await
}

/// How many things a request to a route makes.
pub(crate) fn made_by(route: &RouteInfo) -> usize {
    request_of(route).2
}

/// How many jobs, schedules, replays and bulk actions there are.
pub(crate) async fn things(server: &Server) -> usize {
    let schedules = server.client.schedules().await.unwrap().len();
    let mut actions = 0;
    for is_replay in [true, false] {
        let listed = server.client.actions().list(is_replay, None, 100).await;
        actions += listed.unwrap().len();
    }
    count(server).await + schedules + actions
}

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
async fn a_replay_repeats_the_first_answer_to_the_byte() {
    let server = Server::open().await;
    let body = br#"{"name":"n","cron":"0 0 1 1 *","job":{"kind":"a","payload":{"b":1.10,"a":12345678901234567890123}}}"#;
    let key = [("Idempotency-Key", "k1")];
    let path = "/api/v1/schedules";
    let first = server.send("POST", path, &key, Some(body)).await;
    let again = server.send("POST", path, &key, Some(body)).await;
    assert_eq!(
        (first.status, again.header("idempotent-replayed")),
        (201, Some("true"))
    );
    assert_eq!(again.body, first.body);
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
async fn a_hundred_at_once_create_one_and_answer_alike() {
    let server = Server::open().await;
    let body = json!({"kind": "a"});
    let requests = (0..100).map(|_| send(&server, "/api/v1/jobs", "k", &body));
    let answers = futures_util::future::join_all(requests).await;
    let ids: BTreeSet<String> = answers.iter().map(|answer| answer.text_at("/id")).collect();
    assert_eq!(ids.len(), 1);
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert_eq!(count(&server).await, 1);
}

/// Sends a request until it is answered otherwise than with "try again".
async fn send_patiently(server: &Server, route: &RouteInfo, key: &str) -> Answer {
    loop {
        let answer = send_to(server, route, key).await;
        if answer.header("retry-after").is_none() {
            return answer;
        }
    }
}

#[tokio::test]
async fn every_route_that_takes_a_key_creates_once_for_many_at_once() {
    for route in idempotent_routes() {
        let server = Server::open().await;
        prepare(&server).await;
        let before = things(&server).await;
        let requests = (0..20).map(|_| send_patiently(&server, &route, "k"));
        let answers = futures_util::future::join_all(requests).await;
        for answer in &answers {
            assert!(answer.status < 300, "{route:?}: {answer:?}");
            assert_eq!(answer.json, answers[0].json, "{route:?}");
        }
        let made = things(&server).await - before;
        assert_eq!(made, made_by(&route), "{route:?}");
    }
}

#[tokio::test]
async fn an_answer_that_means_try_again_keeps_the_key_for_its_body() {
    let server = Server::open().await;
    let full = json!({"max_depth": 1});
    server.put("/api/v1/queues/default/settings", &full).await;
    server.job(&json!({"kind": "a"})).await;
    let (body, other) = (json!({"kind": "b"}), json!({"kind": "c"}));
    let refused = send(&server, "/api/v1/jobs", "k", &body).await;
    assert_eq!((refused.status, refused.code()), (429, "queue_full".into()));
    let taken = send(&server, "/api/v1/jobs", "k", &other).await;
    assert_eq!(
        (taken.status, taken.code()),
        (409, "idempotency_key_reused".into())
    );
    let room = json!({"max_depth": 10});
    server.put("/api/v1/queues/default/settings", &room).await;
    let done = send(&server, "/api/v1/jobs", "k", &body).await;
    assert_eq!(done.status, 201);
    let again = send(&server, "/api/v1/jobs", "k", &body).await;
    assert_eq!(again.json, done.json);
    assert_eq!(count(&server).await, 2);
}

#[tokio::test]
async fn a_bulk_response_is_stored_compactly_and_repeated_in_full() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "unique_key": "u"})).await;
    let mut jobs = vec![json!({"kind": "a"}); 1000];
    jobs[1] = json!({"kind": "a", "unique_key": "u", "payload": 1});
    jobs[2] = json!({"kind": ""});
    let bulk = json!({"mode": "each", "jobs": jobs});
    let first = send(&server, "/api/v1/jobs/bulk", "k", &bulk).await;
    assert_eq!(
        (&first.json["created"], &first.json["refused"]),
        (&json!(998), &json!(1))
    );
    let again = send(&server, "/api/v1/jobs/bulk", "k", &bulk).await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.json, first.json);
    let store = windlass::admin::engine_of(&server.client).store();
    let notes = store.documents("idempotency", server.client.now()).await;
    let notes = notes.unwrap();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].value.to_string().len() < 2000, "{notes:?}");
    let kept = notes[0].expires_at.unwrap().since(notes[0].updated_at);
    assert!(kept <= std::time::Duration::from_secs(24 * 3600));
}

#[tokio::test]
async fn a_caller_has_a_bounded_number_of_keys() {
    let settings = Settings {
        idempotency_notes_max: 3,
        ..Settings::default()
    };
    let server = Server::with_settings(settings).await;
    let body = json!({"kind": "a"});
    for key in ["a", "b", "c"] {
        assert_eq!(send(&server, "/api/v1/jobs", key, &body).await.status, 201);
    }
    let refused = send(&server, "/api/v1/jobs", "d", &body).await;
    assert_eq!(
        (refused.status, refused.code()),
        (429, "too_many_idempotency_keys".into())
    );
    assert!(refused.header("retry-after").is_some());
    assert!(refused.text_at("/detail").contains('3'), "names the rule");
    let resent = send(&server, "/api/v1/jobs", "a", &body).await;
    assert_eq!(resent.status, 201, "what was noted can be sent again");
    assert_eq!(server.post("/api/v1/jobs", &body).await.status, 201);
}
