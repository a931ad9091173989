//! Health, metrics, the explorer.

use serde_json::json;

use crate::support::Server;

#[tokio::test]
async fn health_is_told_to_everybody() {
    let server = Server::closed().await;
    for path in ["/livez", "/readyz"] {
        let answer = server.get(path).await;
        assert_eq!(
            (answer.status, &answer.json),
            (200, &json!({"status": "ok"})),
            "{path}"
        );
    }
}

#[tokio::test]
async fn metrics_are_those_of_this_moment() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "queue": "mail"})).await;
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    let text = metrics.text();
    assert!(
        text.contains("windlass_jobs_enqueued_total{queue=\"mail\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("windlass_queue_depth{queue=\"mail\",state=\"ready\"} 1"),
        "{text}"
    );
}

#[tokio::test]
async fn the_explorer_comes_with_the_program() {
    let server = Server::open().await;
    let moved = server.get("/docs").await;
    assert_eq!(
        (moved.status, moved.header("location")),
        (308, Some("docs/"))
    );
    let page = server.get("/docs/").await;
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    let start = server.get("/docs/swagger-initializer.js").await;
    assert!(start.text().contains("../openapi.json"));
    assert_eq!(server.get("/docs/swagger-ui-bundle.js").await.status, 200);
    assert_eq!(server.get("/docs/nothing.js").await.status, 404);
    for file in ["/docs/", "/docs/swagger-initializer.js"] {
        let text = server.get(file).await.text();
        assert!(
            !text.contains("https://") && !text.contains("src=\"http"),
            "{file}"
        );
    }
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let server = Server::open().await;
    let given = server
        .send("GET", "/livez", &[("X-Request-Id", "abc-1")], None)
        .await;
    assert_eq!(given.header("x-request-id"), Some("abc-1"));
    let made = server.get("/api/v1/jobs/nothing").await;
    let id = made.header("x-request-id").unwrap();
    assert_eq!(made.text_at("/request_id"), id);
    let strange = server
        .send("GET", "/livez", &[("X-Request-Id", "a b\tc")], None)
        .await;
    assert_ne!(strange.header("x-request-id"), Some("a b\tc"));
}
