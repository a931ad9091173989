//! Whole requests to the REST API: method, path, query, headers and body.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, header};
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use windlass_engine::{Engine, Ids, SystemClock};
use windlass_memory::MemoryStore;
use windlass_server::access::Access;
use windlass_server::{App, Settings, router, routes};

use crate::{fuzz, kind_of};

/// The API on an empty store. Long polls end at once.
pub(crate) fn api() -> (Runtime, Router, Arc<Engine>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::new(store, Arc::new(SystemClock::new()), Ids::seeded(1));
    let engine = Arc::new(engine);
    let client = windlass::admin::client_of(Arc::clone(&engine));
    let settings = Settings {
        wait_max: Duration::from_millis(1),
        ..Settings::default()
    };
    let _entered = runtime.enter();
    let app = App::new(client, Access::open()).settings(settings);
    (runtime, router(app), engine)
}

#[test]
fn requests() {
    let mut words: Vec<String> = routes().iter().map(|route| route.path.to_owned()).collect();
    let more = [
        "GET ",
        "POST ",
        "PUT ",
        "PATCH ",
        "DELETE ",
        "?",
        "&",
        "=",
        "limit=",
        "cursor=",
        "state=",
        "queue=",
        "%00",
        "%2F",
        "%",
        "+",
        "00000000-0000-7000-8000-000000000001",
        "default",
        "\nIdempotency-Key: ",
        "\nIf-Match: ",
        "\nContent-Type: application/json",
        "\n\n",
        "\nContent-Encoding: ",
        "\nAuthorization: Bearer ",
        "{\"kind\":\"a\"}",
        "\"reason\":\"r\"",
        "\"jobs\":[",
        "\"filter\":{}",
        "\"worker\":\"w\"",
        "null",
        "[",
        "{",
        "}",
        ",",
        ":",
    ];
    words.extend(more.map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (runtime, api, _engine) = api();
    fuzz("requests")
        .tokens(&words)
        .inputs(8_000)
        .run_text(move |text| {
            let Some(request) = request_of(text) else {
                return "no request".to_owned();
            };
            runtime.block_on(answer_to(&api, request))
        });
}

/// Reads `METHOD path`, headers, an empty line and a body.
fn request_of(text: &str) -> Option<Request<Body>> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, path) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(path.trim());
    for line in lines {
        let (name, value) = line.split_once(':')?;
        request = request.header(name, value.trim());
    }
    request.body(Body::from(body.to_owned())).ok()
}

/// Sends a request. The server never fails, and says what is wrong with a bad request.
async fn answer_to(api: &Router, request: Request<Body>) -> String {
    let about = format!("{} {}", request.method(), request.uri());
    let Ok(response) = api.clone().oneshot(request).await;
    let status = response.status();
    assert!(!status.is_server_error(), "{about}: {status}");
    if content_type(&response).starts_with("text/event-stream") {
        return format!("{status} events");
    }
    let is_problem = content_type(&response) == "application/problem+json";
    let body = to_bytes(response.into_body(), usize::MAX).await;
    let body = body.unwrap_or_default();
    if !status.is_client_error() {
        return format!("{status} {} {}", kind_of(&about), body.len() / 1024);
    }
    assert!(is_problem || body.is_empty(), "{about}: {status} {body:?}");
    let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut seen = format!("{status} {}", problem["code"]);
    if is_problem {
        assert_eq!(problem["status"], status.as_u16(), "{about}: {problem}");
        assert!(
            problem["code"].is_string() && problem["detail"].is_string(),
            "{problem}"
        );
    }
    for error in problem["errors"].as_array().into_iter().flatten() {
        let (pointer, rule) = (error["pointer"].as_str(), error["rule"].as_str());
        let named = error["parameter"].as_str().or(pointer);
        assert!(named.is_some(), "{about}: {problem}");
        seen += &kind_of(rule.unwrap());
    }
    seen
}

pub(crate) fn content_type(response: &Response<Body>) -> String {
    let value = response.headers().get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
