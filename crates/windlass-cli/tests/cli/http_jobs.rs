//! HTTP jobs, the scheduler form and later completions, through the real server to a real target.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use crate::support::target::{serve, target, text, until};
use crate::support::{PATIENCE, Server, command, printed};
use serde_json::{Value, json};

#[test]
fn an_http_job_is_delivered_from_any_queue() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let job = json!({"http": {"url": format!("http://{target}/200/x"), "body": {"a": 1}}, "queue": "hooks"});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    assert_eq!(
        (request.path.as_str(), request.text()),
        ("/200/x", r#"{"a":1}"#)
    );
    assert_eq!(request.header("idempotency-key"), id);
    assert_eq!(request.header("windlass-attempt"), "1");
    let path = format!("/api/v1/jobs/{id}");
    until(&server, &path, |job| text(job, "state") == "succeeded");
    let history = server.get(&format!("{path}/history"));
    assert_eq!(history.pointer("/data/0/http/status"), Some(&json!(200)));
    assert_eq!(history.pointer("/data/0/http/body"), Some(&json!("hello")));
}

#[test]
fn a_job_cannot_inject_headers_into_its_request() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (parent, sent) in [
        (good.to_owned(), Some(good)),
        (format!("{good}\r\nX-Evil: 1"), None),
        ("x\nX-Evil: 1".to_owned(), None),
    ] {
        let http = json!({"url": format!("http://{target}/200/x")});
        let job =
            json!({"http": http, "meta": {"traceparent": parent, "X-Evil": "a\r\nX-Evil: 1"}});
        server.post("/api/v1/jobs", &job);
        let request = seen.recv_timeout(PATIENCE).expect("the request");
        let traceparent = request.headers.get("traceparent").map(String::as_str);
        assert_eq!(traceparent, sent);
        assert!(!request.headers.contains_key("x-evil"), "{request:?}");
    }
    let headers = json!({"X-Fine": "a\r\nX-Evil: 1"});
    let job = json!({"http": {"url": format!("http://{target}/200/x"), "headers": headers}});
    let (status, refused) = server.ask("POST", "/api/v1/jobs", None, Some(&job));
    assert_eq!(status, 422, "{refused}");
}

#[test]
fn no_log_level_logs_a_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let make_key = [
        "keys", "create", "--name", "a", "--scope", "admin", "--data", &data,
    ];
    let key = printed(&make_key).trim().to_owned();
    let master_key = printed(&["secrets", "new-key"]).trim().to_owned();
    let mut start = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data]);
    start.args(["--allow-target", "127.0.0.0/8", "--log-level", "trace"]);
    start.env("WINDLASS_SECRETS_MASTER_KEY", &master_key);
    // Read the log while the server writes it: the server drops lines if no one reads them.
    let log = folder.path().join("log");
    start.stderr(std::fs::File::create(&log).expect("a file"));
    let server = Server::spawn_logging(start);
    let ask = |method: &str, path: &str, body: &Value| {
        let (status, answer) = server.ask(method, path, Some(&key), Some(body));
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    };
    let signing_key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    ask(
        "PUT",
        "/api/v1/secrets/hook",
        &json!({"value": signing_key, "hosts": ["127.0.0.1"]}),
    );
    let (target, seen) = target();
    let http = json!({
        "url": format!("http://{target}/500/x?token=query-4711"), "sign": "hook",
        "headers": {"X-Token": "header-4711"}, "body": {"card": "body-4711"},
    });
    ask("POST", "/api/v1/jobs", &json!({"http": http}));
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    assert_eq!(request.header("x-token"), "header-4711");
    let signature = request.header("webhook-signature").to_owned();
    assert!(!signature.is_empty());
    let job =
        json!({"kind": "a", "queue": "q", "payload": "payload-4711", "meta": {"m": "meta-4711"}});
    ask("POST", "/api/v1/jobs", &job);
    let claimed = ask(
        "POST",
        "/api/v1/claim",
        &json!({"queues": ["q"], "worker": "w"}),
    );
    let of = claimed.pointer("/data/0").expect("a job");
    let outcome = json!({"id": of["id"], "attempt": 1, "outcome": "failed", "error": "error-4711"});
    ask("POST", "/api/v1/settle", &json!({"outcomes": [outcome]}));
    server.ask(
        "POST",
        "/api/v1/jobs",
        Some(&key),
        Some(&json!({"kind": "refused-4711 ", "payload": 1})),
    );
    server.ask("GET", "/api/v1/jobs", Some("wl_wrong_4711"), None);
    assert!(server.stop().0.success());
    let log = std::fs::read_to_string(&log).expect("the log");
    assert!(log.contains("answered") && log.contains("TRACE"), "{log}");
    let secret_part = key.rsplit('_').nth(1).expect("a part of the key");
    for secret in [
        &key,
        secret_part,
        &master_key,
        signing_key,
        &signature,
        "-4711", // digits alone may be a fraction of a second
        "_4711",
    ] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{secret}");
    }
}

#[test]
fn a_forbidden_address_fails_without_retries_and_an_invalid_request_is_not_stored() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = Server::start(data.path(), &[]);
    let job = json!({"http": {"url": format!("http://{target}/200/x")}});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    let path = format!("/api/v1/jobs/{id}");
    let dead = until(&server, &path, |job| text(job, "state") == "dead");
    assert_eq!(text(&dead, "dead_reason"), "unrecoverable");
    let refusal = format!("sending to `http://{target}` is not allowed");
    let error = text(&dead, "last_error");
    assert!(error.starts_with(&refusal), "{error}");
    assert!(seen.try_recv().is_err(), "nothing was dialled");
    for (job, pointer) in [
        (json!({"http": {"url": "ftp://a.example"}}), "/http/url"),
        (
            json!({"http": {"url": "https://a.example"}, "kind": "mail"}),
            "/http",
        ),
        (json!({"kind": "http", "payload": {}}), "/payload/url"),
    ] {
        let (status, problem) = server.ask("POST", "/api/v1/jobs", None, Some(&job));
        assert_eq!(status, 422, "{problem}");
        assert_eq!(
            problem.pointer("/errors/0/pointer"),
            Some(&json!(pointer)),
            "{problem}"
        );
    }
}

#[test]
fn the_scheduler_form_works_as_documented() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let form = json!({"schedule": "*/2 * * * * *", "api": format!("http://{target}/503/x"),
        "type": "AT_LEAST_ONCE", "isRecurring": false, "maxRetryCount": 1});
    let made = server.post("/api/v1/jobs", &form);
    let id = text(&made, "id").to_owned();
    assert_eq!(text(&made, "jobId"), id);
    assert_eq!(made.get("next_execution_time"), made.get("next_run_at"));
    let path = format!("/api/v1/jobs/{id}");
    for retry_count in ["0", "1"] {
        let request = seen.recv_timeout(PATIENCE).expect("the request");
        assert_eq!(request.header("windlass-retry-count"), retry_count);
        assert_eq!(request.text(), "");
    }
    let two = |rows: &Value| {
        rows.get("data")
            .and_then(Value::as_array)
            .is_some_and(|rows| rows.len() == 2)
    };
    let rows = until(
        &server,
        &format!("{path}/history?limit=10&status=FAILED"),
        two,
    );
    for (place, retry_count) in [(0, 1), (1, 0)] {
        let row = rows.pointer(&format!("/data/{place}")).expect("a row");
        assert_eq!(row.get("retry_count"), Some(&json!(retry_count)));
        assert_eq!(text(row, "status"), "FAILED");
        assert_eq!(row.get("execution_time"), row.get("started_at"));
        assert_eq!(row.pointer("/http/status"), Some(&json!(503)));
    }
    assert_eq!(
        server
            .get(&format!("{path}/history?status=SUCCESS"))
            .get("data"),
        Some(&json!([]))
    );
    let over = until(&server, &path, |form| {
        form.get("finished") == Some(&json!(true))
    });
    assert_eq!(over.get("next_execution_time"), Some(&Value::Null));
    assert_eq!(text(&over, "schedule"), "*/2 * * * * *");
    assert_eq!(
        server.get(&format!("{path}/schedule")).get("next_at"),
        Some(&Value::Null)
    );
    let listed = server.get("/api/v1/schedules");
    assert_eq!(listed.get("data"), Some(&json!([])), "gone from the list");
    let (_, log) = server.stop();
    assert!(
        log.contains(&format!("Job {id} failed, scheduling retry 1/1 in 1s (at ")),
        "{log}"
    );
    assert!(
        log.contains(&format!(
            "Job {id} failed after 1 retries, schedule deleted"
        )),
        "{log}"
    );
}

#[test]
fn an_invalid_scheduler_form_is_refused_with_its_error_code() {
    let data = tempfile::tempdir().expect("a folder");
    let server = serve(data.path());
    for (form, code) in [
        (
            json!({"schedule": "invalid cron", "api": "https://a.example"}),
            "INVALID_SCHEDULE",
        ),
        (
            json!({"schedule": "0 0 0 30 2 *", "api": "https://a.example"}),
            "INVALID_SCHEDULE",
        ),
        (
            json!({"schedule": "* * * * *", "api": "nowhere"}),
            "INVALID_API",
        ),
        (
            json!({"schedule": "* * * * *", "api": "https://a.example", "type": "SOMETIMES"}),
            "INVALID_JOB_TYPE",
        ),
        (
            json!({"schedule": "* * * * *", "api": "https://a.example", "maxRetryCount": -1}),
            "INVALID_MAX_RETRY_COUNT",
        ),
        (
            json!({"schedule": "* * * * *", "api": "https://a.example", "colour": "red"}),
            "UNKNOWN_FIELD",
        ),
    ] {
        let (status, problem) = server.ask("POST", "/api/v1/jobs", None, Some(&form));
        assert_eq!((status, text(&problem, "code")), (422, code), "{problem}");
    }
}

#[test]
fn a_scheduler_form_fires_until_it_is_deleted() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let form =
        json!({"schedule": "@every 1s", "api": format!("http://{target}/200/x"), "body": {"n": 1}});
    let id = text(&server.post("/api/v1/jobs", &form), "id").to_owned();
    for _ in 0..3 {
        let request = seen.recv_timeout(PATIENCE).expect("the request");
        assert_eq!(request.header("windlass-retry-count"), "0");
        assert_eq!(request.text(), r#"{"n": 1}"#.replace(": ", ":"));
    }
    let path = format!("/api/v1/jobs/{id}");
    assert_eq!(server.ask("DELETE", &path, None, None).0, 204);
    assert_eq!(server.ask("GET", &path, None, None).0, 404);
    while seen.try_recv().is_ok() {} // drop requests from before
    // A second form with the same interval shows that enough time has passed.
    let other = json!({"schedule": "@every 1s", "api": format!("http://{target}/200/other")});
    server.post("/api/v1/jobs", &other);
    let (mut of_other, mut of_deleted) = (0, 0);
    while of_other < 4 {
        let request = seen.recv_timeout(PATIENCE).expect("the other goes on");
        match request.path.as_str() {
            "/200/other" => of_other += 1,
            _ => of_deleted += 1,
        }
    }
    assert!(
        of_deleted <= 1,
        "one may have been on its way: {of_deleted}"
    );
}

#[test]
fn a_target_can_report_its_outcome_later_only_with_its_token() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let data_path = data.path().display().to_string();
    let mut serving = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data_path]);
    serving.args(["--allow-target", "127.0.0.0/8"]);
    serving.env("WINDLASS_HTTP_JOBS_PUBLIC_URL", "https://jobs.example.org/");
    let server = Server::spawn(serving);
    let job = json!({"http": {"url": format!("http://{target}/202/x"), "async": true, "complete_within": "10m"}});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    let url = request
        .headers
        .iter()
        .find(|(_, value)| value.starts_with("https://jobs.example.org/"));
    let (_, url) = url.expect("where to tell");
    let place = url
        .strip_prefix("https://jobs.example.org")
        .expect("a path")
        .to_owned();
    let path = format!("/api/v1/jobs/{id}");
    until(&server, &path, |job| text(job, "state") == "scheduled");
    let done = json!({"outcome": "succeeded", "result": {"paid": true}});
    let wrong = format!("{}x", &place);
    assert_eq!(server.ask("POST", &wrong, None, Some(&done)).0, 404);
    assert_eq!(server.post(&place, &done), json!({"id": id}));
    let over = until(&server, &path, |job| text(job, "state") == "succeeded");
    assert_eq!(over.get("result"), Some(&json!({"paid": true})));
    assert_eq!(
        server.post(&place, &done),
        json!({"id": id}),
        "output twice is output once"
    );
    let other = json!({"outcome": "failed", "error": "no"});
    assert_eq!(server.ask("POST", &place, None, Some(&other)).0, 409);
}

#[test]
fn an_edit_of_an_http_job_must_be_a_valid_request() {
    let data = tempfile::tempdir().expect("a folder");
    let server = serve(data.path());
    let job = json!({"http": {"url": "https://a.example/"}, "delay": "1h"});
    let path = format!(
        "/api/v1/jobs/{}",
        text(&server.post("/api/v1/jobs", &job), "id")
    );
    let bad = json!({"payload": {"url": "ftp://a.example/"}});
    let (status, problem) = server.ask("PATCH", &path, None, Some(&bad));
    assert_eq!(status, 422, "{problem}");
    assert_eq!(
        problem.pointer("/errors/0/pointer"),
        Some(&json!("/payload/url"))
    );
    let good = json!({"payload": {"url": "https://b.example/"}});
    assert_eq!(server.ask("PATCH", &path, None, Some(&good)).0, 200);
    server.ask("POST", &format!("{path}/cancel"), None, None);
    let revive = format!("{path}/revive");
    assert_eq!(server.ask("POST", &revive, None, Some(&bad)).0, 422);
    assert_eq!(text(&server.get(&path), "state"), "cancelled");
}

/// A server whose jobs have this long to end after SIGTERM, and may reach this machine.
fn serve_with_grace(data: &std::path::Path, grace: &str) -> Server {
    let data = data.display().to_string();
    let mut start = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data]);
    start.args(["--allow-target", "127.0.0.0/8"]);
    start.env("WINDLASS_SHUTDOWN_GRACE", grace);
    Server::spawn(start)
}

/// A target that accepts connections and responds when the test says so.
fn silent_target() -> (TcpListener, String) {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", target.local_addr().expect("an address"));
    (target, url)
}

#[test]
fn sigterm_waits_for_the_response_to_an_http_job() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, url) = silent_target();
    let server = serve_with_grace(data.path(), "1h");
    let job = json!({"http": {"url": url}, "delivery": "at_most_once"});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    let (mut connection, _) = target.accept().expect("the request");
    server.signal("TERM");
    // Once the listener is closed, the shutdown is under way.
    let refuses = |_: &u128| {
        std::thread::sleep(Duration::from_millis(10));
        std::net::TcpStream::connect(server.address).is_err()
    };
    assert!((0..PATIENCE.as_millis() / 10).any(|n| refuses(&n)));
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    connection.write_all(response).expect("it reads");
    let (status, log) = server.wait();
    assert!(status.success(), "{log}");
    let server = serve(data.path());
    let done = server.get(&format!("/api/v1/jobs/{id}"));
    assert_eq!(text(&done, "state"), "succeeded", "{done}");
}

#[test]
fn sigterm_gives_back_http_jobs_without_a_response_and_loses_those_that_run_at_most_once() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, url) = silent_target();
    let server = serve_with_grace(data.path(), "100ms");
    let post = |delivery: &str| {
        let job = json!({"http": {"url": url}, "delivery": delivery});
        text(&server.post("/api/v1/jobs", &job), "id").to_owned()
    };
    let (again, once) = (post("at_least_once"), post("at_most_once"));
    let held = [(); 2].map(|()| target.accept().expect("the request"));
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    drop(held);
    let server = serve(data.path());
    let lost = server.get(&format!("/api/v1/jobs/{once}"));
    assert_eq!(
        (text(&lost, "state"), text(&lost, "dead_reason")),
        ("dead", "lost"),
        "{lost}"
    );
    // The next server sends the request again, as the second attempt, and nothing failed.
    let (_connection, _) = target.accept().expect("the request");
    let path = format!("/api/v1/jobs/{again}");
    let running = server.get(&path);
    assert_eq!(
        (&running["attempt"], &running["failures"]),
        (&json!(2), &json!(0)),
        "{running}"
    );
    let history = server.get(&format!("{path}/history"));
    assert_eq!(
        history.pointer("/data/0/outcome"),
        Some(&json!("released")),
        "{history}"
    );
}
