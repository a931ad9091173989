//! Health, metrics, the description.

use serde_json::json;

use crate::support::Server;

#[tokio::test]
async fn health_needs_no_key() {
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
async fn metrics_come_in_the_format_that_the_reader_prefers() {
    let server = Server::open().await;
    let classic = "text/plain; version=0.0.4; charset=utf-8";
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    for (accept, content_type) in [
        ("*/*", classic),
        ("text/plain", classic),
        ("application/openmetrics-text", open),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            open,
        ),
    ] {
        let headers = [("Accept", accept)];
        let metrics = server.send("GET", "/metrics", &headers, None).await;
        assert_eq!(
            metrics.header("content-type"),
            Some(content_type),
            "{accept}"
        );
        assert_eq!(metrics.header("vary"), Some("Accept"));
        let ends = metrics.text().ends_with("# EOF\n");
        assert_eq!(ends, content_type == open, "{accept}");
    }
}

/// The value of a line of metrics.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.trim().parse().expect("a number")
}

#[tokio::test]
async fn requests_deaths_workers_and_the_process_are_measured() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "max_attempts": 1})).await;
    let failed = json!({"outcome": "failed", "error": "boom"});
    server.run(&failed).await;
    let registered = server.post("/api/v1/workers", &json!({"name": "w1"})).await;
    assert_eq!(registered.status, 201, "{registered:?}");
    server.get("/api/v1/jobs/none").await;
    server.get("/no/such/path").await;
    let text = server.get("/metrics").await.text();
    let sample = |name: &str| value(&text, name);
    assert_eq!(
        sample(r#"windlass_jobs_dead_total{queue="default",reason="exhausted"}"#),
        1.0
    );
    assert_eq!(
        sample(r#"windlass_job_total_seconds_count{queue="default",outcome="dead"}"#),
        1.0
    );
    let route = r#"method="GET",route="/api/v1/jobs/{id}""#;
    let requests = format!("windlass_http_requests_total{{{route},status=\"4xx\"}}");
    assert_eq!(sample(&requests), 1.0);
    let times = format!("windlass_http_request_seconds_count{{{route}}}");
    assert_eq!(sample(&times), 1.0);
    assert_eq!(
        sample(r#"windlass_http_requests_total{method="other",route="other",status="4xx"}"#),
        1.0
    );
    assert_eq!(sample(r#"windlass_workers{type="rest"}"#), 1.0);
    assert_eq!(sample(r#"windlass_worker_slots{state="used"}"#), 0.0);
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(sample(name) > 0.0, "{name}");
    }
}

/// Where `./test` puts promtool, unless it is installed.
fn promtool() -> std::process::Command {
    let program = std::env::current_exe().expect("a test has a path");
    let mut folders = program.ancestors();
    let unpacked = folders.find_map(|folder| {
        let path = folder.join("promtool/promtool");
        path.is_file().then_some(path)
    });
    std::process::Command::new(unpacked.unwrap_or_else(|| "promtool".into()))
}

#[tokio::test]
async fn promtool_finds_nothing_to_criticise_in_the_metrics() {
    use std::io::Write as _;
    use std::process::Stdio;

    let server = Server::open().await;
    server
        .job(&json!({"kind": "a", "retry": "immediate"}))
        .await;
    server
        .run(&json!({"outcome": "failed", "error": "boom"}))
        .await;
    server.run(&json!({"outcome": "succeeded"})).await;
    server.get("/no/such/path").await;
    let text = server.get("/metrics").await.text();
    let started = promtool()
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = started.expect("promtool runs: `./test` unpacks it where it is missing");
    let mut input = promtool.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("promtool reads");
    drop(input);
    let done = promtool.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.trim().is_empty(), "{said}");
}

#[tokio::test]
async fn the_server_describes_itself_and_serves_no_explorer() {
    let server = Server::open().await;
    let described = server.get("/openapi.json").await;
    assert_eq!(described.status, 200);
    assert_eq!(described.json["openapi"], "3.1.0");
    for page in ["/docs", "/docs/", "/docs/index.html"] {
        let none = server.get(page).await;
        assert_eq!((none.status, none.code().as_str()), (404, "not_found"));
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
