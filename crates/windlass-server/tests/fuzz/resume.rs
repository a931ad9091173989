//! Resuming the stream of events after any text that a reader sends as the last id.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use futures_util::StreamExt as _;
use tower::ServiceExt as _;
use windlass_core::NewJob;
use windlass_testkit::world::enqueue;

use crate::fuzz;
use crate::requests::{api, content_type};

/// How many events there are.
const EVENTS: u64 = 20;

#[test]
fn resuming_the_stream_of_events() {
    let (runtime, api, engine) = api();
    let run = runtime.block_on(async {
        for _ in 0..EVENTS {
            enqueue(&Arc::clone(&engine), NewJob::new("a".parse().unwrap())).await;
        }
        // The events of another run are missed, up to the oldest of this one.
        let (_, missed) = listen(&api, HeaderValue::from_static("0-0")).await;
        let (run, number) = missed.split_once('-').unwrap();
        assert_eq!(number, "0", "{missed}");
        run.to_owned()
    });
    let words: Vec<String> = (0..=EVENTS + 1)
        .map(|number| format!("{run}-{number}"))
        .collect();
    let words: Vec<&str> = [run.as_str(), "-", "+", "0x", "ffffffffffffffff"]
        .into_iter()
        .chain(words.iter().map(String::as_str))
        .collect();
    let ours = run.clone();
    fuzz("resume")
        .tokens(&words)
        .inputs(6_000)
        .run(move |input| {
            let Ok(last) = HeaderValue::from_bytes(input) else {
                return "no header".to_owned();
            };
            let (status, first) = runtime.block_on(listen(&api, last.clone()));
            if status == StatusCode::UNPROCESSABLE_ENTITY {
                return "refused".to_owned();
            }
            assert_eq!(status, StatusCode::OK);
            let last = last.to_str().unwrap_or_default();
            // A reader that names one of these events gets the next one.
            if let Some(number) = last.strip_prefix(&format!("{ours}-"))
                && let Ok(number) = number.parse::<u64>()
                && number < EVENTS
            {
                assert_eq!(first, format!("{ours}-{}", number + 1), "after {last}");
            }
            first
        });
}

/// Listens with a `Last-Event-ID`. Returns the status and the id of the first event, which is empty
/// if no event is there yet.
async fn listen(api: &Router, last: HeaderValue) -> (StatusCode, String) {
    let request = Request::get("/api/v1/events").header("last-event-id", last);
    let Ok(response) = api
        .clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await;
    let status = response.status();
    if !content_type(&response).starts_with("text/event-stream") {
        return (status, String::new());
    }
    let mut text = String::new();
    let mut pieces = response.into_body().into_data_stream();
    let read = async {
        while !text.contains("\nid: ") {
            let piece = pieces.next().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    };
    // What is there already comes without any wait.
    let _ = tokio::time::timeout(Duration::from_millis(1), read).await;
    let id = text.split("\nid: ").nth(1).unwrap_or_default();
    let id = id.lines().next().unwrap_or_default().to_owned();
    (status, id)
}
