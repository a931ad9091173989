//! Conditional headers: every route that changes something checks them or refuses them.

use futures_util::future::join_all;
use serde_json::{Value, json};
use windlass_server::{RouteInfo, routes};

use crate::support::{Answer, Server};

const ONLY_CREATE: [(&str, &str); 1] = [("If-None-Match", "*")];

/// Something that each PUT can create, and how it is read. A route that is new has to be named
/// here.
fn creation_of(route: &RouteInfo) -> (&'static str, Value) {
    match route.path {
        "/api/v1/queues/{queue}/settings" => ("/api/v1/queues/q/settings", json!({"max_depth": 5})),
        "/api/v1/schedules/{name}" => (
            "/api/v1/schedules/s",
            json!({"every": "1h", "job": {"kind": "a"}}),
        ),
        "/api/v1/hooks/{name}" => (
            "/api/v1/hooks/h",
            json!({"url": "https://a.example/", "sign": ["key"], "events": ["dead"]}),
        ),
        "/api/v1/secrets/{name}" => ("/api/v1/secrets/s", json!({"value": "x", "any_host": true})),
        other => panic!("say here what PUT {other} creates"),
    }
}

fn changing() -> impl Iterator<Item = RouteInfo> {
    routes().into_iter().filter(|route| !route.method.is_safe())
}

fn puts() -> impl Iterator<Item = RouteInfo> {
    changing().filter(|route| route.method == "PUT")
}

async fn create(server: &Server, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let body = Some(body.as_bytes());
    server.send("PUT", path, &ONLY_CREATE, body).await
}

#[tokio::test]
async fn every_put_creates_once_where_it_may_only_create() {
    assert!(puts().count() > 0);
    for route in puts() {
        let server = Server::open().await;
        let secret = json!({"value": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "any_host": true});
        server.put("/api/v1/secrets/key", &secret).await;
        let (path, body) = creation_of(&route);
        let answers = join_all((0..8).map(|_| create(&server, path, &body))).await;
        let created = answers.iter().filter(|answer| answer.status < 300);
        assert_eq!(created.count(), 1, "{route:?}: {answers:?}");
        for refused in answers.iter().filter(|answer| answer.status >= 300) {
            assert_eq!(refused.status, 412, "{route:?}: {refused:?}");
            assert_eq!(refused.code(), "precondition_failed");
        }
        let replaced = server.put(path, &body).await;
        assert!(replaced.status < 300, "{route:?}: {replaced:?}");
        let again = create(&server, path, &body).await;
        assert_eq!(again.status, 412, "{route:?}: {again:?}");
    }
}

#[tokio::test]
async fn no_route_that_changes_something_ignores_a_condition() {
    let server = Server::open().await;
    let conditions = [
        ("If-None-Match", "\"tag\""),
        ("If-Modified-Since", "Tue, 01 Dec 2026 00:00:00 GMT"),
        ("If-Unmodified-Since", "Tue, 01 Dec 2026 00:00:00 GMT"),
        ("If-Range", "\"tag\""),
        ("If-Match", "\"tag\""),
    ];
    for route in changing() {
        let path = route
            .path
            .replace("{id}", "00000000-0000-0000-0000-000000000000");
        let path = path.replace(['{', '}'], "");
        for (name, value) in conditions {
            let method = route.method.as_str();
            if name == "If-Match" && route.headers.contains(&name) {
                continue;
            }
            let refused = server.send(method, &path, &[(name, value)], None).await;
            assert_eq!(refused.status, 422, "{route:?} {name}: {refused:?}");
            assert_eq!(refused.pointer(), format!("/{name}"), "{route:?}");
        }
    }
}

#[tokio::test]
async fn limits_that_a_program_set_count_as_settings() {
    let server = Server::open().await;
    let limits = windlass::admin::QueueSettings {
        max_depth: Some(7),
        ..windlass::admin::QueueSettings::default()
    };
    server.client.set_queue("q", &limits).await.unwrap();
    let path = "/api/v1/queues/q/settings";
    let refused = create(&server, path, &json!({"max_depth": 5})).await;
    assert_eq!(refused.status, 412, "{refused:?}");
    assert_eq!(server.get(path).await.json["max_depth"], 7);
    server.client.pause_queue("p", "ann", None).await.unwrap();
    let path = "/api/v1/queues/p/settings";
    let created = create(&server, path, &json!({"max_depth": 5})).await;
    assert_eq!(created.status, 200, "a pause is no setting: {created:?}");
    let queue = server.get("/api/v1/queues/p").await;
    assert_eq!(queue.json["paused"]["by"], "ann");
}
