//! Requests as a real target sees them, and what its answers lead to.

use std::time::Duration;

use serde_json::json;
use windlass_core::{DeadReason, Deadline, Delivery, NewJob, Outcome, State};
use windlass_http::DEPTH_META;

use crate::support::{Reply, Target, World, error_of, http_job, http_of, timeline};

#[tokio::test]
async fn a_request_is_delivered_with_all_headers() {
    let target = Target::replying(&[Reply::Status(204)]).await;
    let world = World::new();
    let payload = json!({
        "url": target.url("/hook?a=b"), "method": "PUT", "headers": {"X-Own": "yes"}, "body": {"n": 1},
    });
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut job = http_job(payload);
    job.meta.insert("traceparent".to_owned(), json!(trace));
    job.meta.insert(DEPTH_META.to_owned(), json!(2));
    job.deadline = Some(Deadline::After(Duration::from_secs(60)));
    let (job, history) = world.deliver_job(job).await;
    assert_eq!(job.state(), State::Succeeded);
    let seen = &target.seen()[0];
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("PUT", "/hook?a=b")
    );
    assert_eq!(seen.body, br#"{"n":1}"#);
    let id = job.id.to_string();
    for (name, value) in [
        ("host", target.address.to_string().as_str()),
        ("content-type", "application/json"),
        ("x-own", "yes"),
        ("idempotency-key", &id),
        ("windlass-job-id", &id),
        ("windlass-attempt", "1"),
        ("windlass-retry-count", "0"),
        ("windlass-depth", "3"),
        ("windlass-time-left-ms", "30000"),
        ("windlass-deadline", "2026-01-01T12:01:00Z"),
        ("traceparent", trace),
        ("webhook-id", &id),
        ("webhook-timestamp", "1767268800"),
    ] {
        assert_eq!(
            seen.headers.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    assert!(seen.headers["user-agent"].starts_with("windlass/"));
    for absent in [
        "webhook-signature",
        "accept-encoding",
        "cookie",
        "windlass-completion-token",
    ] {
        assert!(!seen.headers.contains_key(absent), "{absent}");
    }
    let kept = http_of(&history[0]);
    assert_eq!(kept["status"], 204);
    assert!(
        kept["timings_ms"]["connect"].is_number() && kept["timings_ms"]["first_byte"].is_number()
    );
}

#[tokio::test]
async fn the_jobs_own_idempotency_key_is_sent_and_the_attempts_are_counted() {
    let target = Target::replying(&[Reply::Status(500), Reply::Status(200)]).await;
    let world = World::new();
    let payload = json!({"url": target.url("/"), "idempotency_key": "order-7.1"});
    let (job, _) = world.deliver(payload).await;
    assert_eq!((job.state(), job.attempt), (State::Succeeded, 2));
    let seen = target.seen();
    assert_eq!(seen[0].headers["idempotency-key"], "order-7.1");
    assert_eq!(seen[1].headers["windlass-attempt"], "2");
    assert_eq!(seen[1].headers["windlass-retry-count"], "1");
    assert_eq!(seen[0].headers["webhook-id"], seen[1].headers["webhook-id"]);
    assert_ne!(
        seen[0].headers["webhook-timestamp"],
        seen[1].headers["webhook-timestamp"]
    );
}

#[tokio::test]
async fn by_default_a_request_is_tried_four_times_as_the_preset_webhook_says() {
    let target = Target::replying(&[Reply::Status(503)]).await;
    let world = World::new();
    let (job, history) = world.deliver(json!({"url": target.url("/")})).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    let expected = [(0.0, 0), (1.0, 1), (3.0, 2), (7.0, 3)];
    let expected = expected.map(|(at, retries)| (at, retries, Outcome::Failed));
    assert_eq!(timeline(&history), expected);
    assert_eq!(
        error_of(&history[0]),
        format!(
            "`http://{}` responded with 503 Service Unavailable",
            target.address
        )
    );
}

#[tokio::test]
async fn a_job_may_ask_for_more_attempts_than_the_preset_gives() {
    let target = Target::replying(&[Reply::Status(503)]).await;
    let world = World::new();
    let job = NewJob {
        max_attempts: windlass_core::retry::AttemptLimit::from_max_attempts(11).unwrap(),
        ..http_job(json!({"url": target.url("/")}))
    };
    let (job, _) = world.deliver_job(job).await;
    assert_eq!((job.failures, target.seen().len()), (11, 11));
}

#[tokio::test]
async fn every_status_but_2xx_is_a_failure_and_is_retried() {
    for status in [301, 302, 307, 308, 400, 401, 404, 410, 429, 500, 503] {
        let replies = [
            Reply::header(status, "location", "http://127.0.0.1:1/"),
            Reply::Status(200),
        ];
        let target = Target::replying(&replies).await;
        let world = World::new();
        let (job, history) = world.deliver(json!({"url": target.url("/")})).await;
        assert_eq!(job.state(), State::Succeeded, "{status}");
        assert_eq!(history[0].outcome, Outcome::Failed, "{status}");
        assert_eq!(http_of(&history[0])["status"], status);
        assert!(
            target.seen().iter().all(|seen| seen.path == "/"),
            "no redirect is followed"
        );
    }
}

#[tokio::test]
async fn permanent_statuses_end_a_job_at_once() {
    let target = Target::replying(&[Reply::Status(410)]).await;
    let world = World::new();
    let payload = json!({"url": target.url("/"), "permanent_statuses": [410]});
    let (job, history) = world.deliver(payload).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Unrecoverable));
    assert_eq!(history.len(), 1);
}

#[tokio::test]
async fn the_target_may_ask_for_a_longer_wait() {
    let replies = [Reply::header(429, "retry-after", "120"), Reply::Status(200)];
    let target = Target::replying(&replies).await;
    let world = World::new();
    let (job, history) = world.deliver(json!({"url": target.url("/")})).await;
    assert_eq!(job.state(), State::Succeeded);
    assert_eq!(timeline(&history)[1].0, 120.0);
}

#[tokio::test]
async fn connections_are_used_again_for_at_least_once_and_never_for_at_most_once() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let world = World::new();
    for _ in 0..10 {
        world.deliver(json!({"url": target.url("/")})).await;
    }
    let before = target.connections();
    assert!(before < 10, "{before} connections for 10 requests");
    for _ in 0..3 {
        let job = NewJob {
            delivery: Delivery::AtMostOnce,
            ..http_job(json!({"url": target.url("/")}))
        };
        assert_eq!(world.deliver_job(job).await.0.state(), State::Succeeded);
    }
    assert_eq!(target.connections(), before + 3);
}

#[tokio::test]
async fn an_invalid_payload_is_not_retried() {
    let world = World::new();
    let (job, history) = world.deliver(json!({"url": "ftp://a.example/"})).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Unrecoverable));
    assert!(error_of(&history[0]).contains("`url` must begin with http://"));
}

#[tokio::test]
async fn a_chain_of_jobs_that_is_too_deep_sends_nothing() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let world = World::new();
    let mut job = http_job(json!({"url": target.url("/")}));
    job.meta.insert(DEPTH_META.to_owned(), json!(8));
    let (job, _) = world.deliver_job(job).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Unrecoverable));
    assert_eq!(target.connections(), 0);
}
