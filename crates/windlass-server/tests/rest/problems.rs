//! What is wrong with a request: every problem is named, as the client spelled it.

use std::future::Future;
use std::sync::Arc;

use serde_json::json;
use windlass_memory::MemoryStore;
use windlass_server::routes;
use windlass_store::{Store, StoreError, Wrapper};

use crate::support::Server;

#[tokio::test]
async fn names_that_a_url_path_cannot_carry_are_refused_wherever_they_are_given() {
    let server = Server::open().await;
    let schedule = json!({"cron": "0 0 * * *", "job": {"kind": "a"}});
    let named = |name: &str| {
        let mut schedule = schedule.clone();
        schedule["name"] = json!(name);
        schedule
    };
    let secret = json!({"value": "x", "any_host": true});
    for (name, escaped) in [(".", "%2E"), ("..", "%2E%2E")] {
        let job = json!({"kind": "a", "queue": name});
        for (refused, pointer) in [
            (server.post("/api/v1/jobs", &job).await, "/queue"),
            (
                server.post("/api/v1/claim", &json!({"queue": name})).await,
                "/queue",
            ),
            (
                server.post("/api/v1/workers", &json!({"name": name})).await,
                "/name",
            ),
            (
                server.post("/api/v1/schedules", &named(name)).await,
                "/name",
            ),
            (
                server
                    .put(&format!("/api/v1/schedules/{escaped}"), &schedule)
                    .await,
                "/name",
            ),
            (
                server
                    .put(&format!("/api/v1/secrets/{escaped}"), &secret)
                    .await,
                "/name",
            ),
            (
                server
                    .put(&format!("/api/v1/queues/{escaped}/settings"), &json!({}))
                    .await,
                "/queue",
            ),
        ] {
            assert_eq!(refused.status, 422, "{refused:?}");
            assert_eq!(refused.pointer(), pointer, "{refused:?}");
            assert!(
                refused
                    .text_at("/detail")
                    .contains("must not be `.` or `..`"),
                "{refused:?}"
            );
        }
    }
}

/// A path of a route at which there is something.
fn filled(route: &windlass_server::RouteInfo, id: &str) -> String {
    let path = route.path.replace("{id}", id).replace("{queue}", "default");
    path.replace("{name}", "s").replace("{token}", "t")
}

#[tokio::test]
async fn every_route_with_a_body_reports_all_problems_at_once() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let schedule = json!({"name": "s", "every": "1h", "job": {"kind": "a"}});
    server.post("/api/v1/schedules", &schedule).await;
    let with_body = routes().into_iter().filter(|route| route.takes.is_some());
    let with_body: Vec<_> = with_body.collect();
    assert!(with_body.len() > 15, "{with_body:?}");
    for route in with_body {
        let (method, path) = (route.method.as_str(), filled(&route, &id));
        let body = json!({"zz_unknown": 1, "yy_unknown": 2}).to_string();
        let refused = server.send(method, &path, &[], Some(body.as_bytes())).await;
        assert_eq!(refused.status, 422, "{route:?}: {refused:?}");
        let errors = refused.json["errors"].as_array().unwrap();
        let points_at = |pointer: &str| errors.iter().any(|error| error["pointer"] == pointer);
        assert!(
            points_at("/zz_unknown") && points_at("/yy_unknown"),
            "{route:?}: {errors:?}"
        );
    }
}

#[tokio::test]
async fn problems_are_named_as_the_client_spelled_them() {
    let server = Server::open().await;
    let mut refusals = String::new();
    for body in [
        json!({"type": 5, "maxRetryCount": -1, "retry_at": "soon", "x": 1}),
        json!({"http": {"url": "ftp://x", "method": "X", "y": 1}, "queue": "a b"}),
        json!({"kind": "http", "payload": {"url": "ftp://x", "y": 1}, "tags": [1]}),
        json!({"schedule": "soon", "api": "x", "maxRetryCount": -1, "isRecurring": 5, "z": 1}),
        json!({"kind": "a", "deadline": "x", "unique_key": "", "unique_for": "1h"}),
    ] {
        let refused = server.post("/api/v1/jobs", &body).await;
        refusals += &format!("{body}\n{}\n", refused.redacted());
    }
    let bulk = json!({"jobs": [{"kind": "a"}, {"kind": "b c", "x": 1, "y": 2}]});
    let refused = server.post("/api/v1/jobs/bulk", &bulk).await;
    insta::assert_snapshot!(refusals + &format!("{bulk}\n{}", refused.redacted()));
}

#[tokio::test]
async fn a_compressed_body_is_refused_as_such() {
    let server = Server::open().await;
    let body = Some(br#"{"kind": "a"}"#.as_slice());
    for encoding in ["gzip", "identity, br", ""] {
        let headers = [("Content-Encoding", encoding)];
        let refused = server.send("POST", "/api/v1/jobs", &headers, body).await;
        let code = refused.code();
        assert_eq!(
            (refused.status, code.as_str()),
            (415, "unsupported_media_type")
        );
        assert!(refused.text_at("/detail").contains("Content-Encoding"));
    }
    let headers = [("Content-Encoding", "Identity")];
    let created = server.send("POST", "/api/v1/jobs", &headers, body).await;
    assert_eq!(created.status, 201, "{created:?}");
}

/// A store that answers every enqueue with an error.
#[derive(Debug)]
struct Failing {
    store: MemoryStore,
    error: fn() -> StoreError,
}

impl Wrapper for Failing {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match verb {
            "enqueue" => Err((self.error)()),
            _ => step.await,
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_write_is_named_and_the_caller_may_retry() {
    let errors: [fn() -> StoreError; 4] = [
        || StoreError::StorageFull("no space".into()),
        || StoreError::Indeterminate("cut".into()),
        || StoreError::Unavailable("down".into()),
        || StoreError::Stopped("sync".into()),
    ];
    let codes = [
        "storage_full",
        "indeterminate",
        "store_unavailable",
        "store_stopped",
    ];
    for (error, code) in errors.into_iter().zip(codes) {
        let store = MemoryStore::new();
        let server = Server::on(Arc::new(Failing { store, error })).await;
        for (path, body) in [
            ("/api/v1/jobs", json!({"kind": "a"})),
            ("/api/v1/jobs/bulk", json!({"jobs": [{"kind": "a"}]})),
        ] {
            let refused = server.post(path, &body).await;
            assert_eq!((refused.status, refused.code().as_str()), (503, code));
            assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
        }
    }
}
