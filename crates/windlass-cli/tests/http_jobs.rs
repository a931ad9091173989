//! HTTP jobs, the scheduler form and later completions, through the real server to a real target.

mod support;

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use support::{PATIENCE, Server, command, printed};
use windlass_core::Timestamp;
use windlass_http::SigningKey;

/// What the target saw of one request.
#[derive(Debug)]
struct Seen {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }
}

/// A target that answers with the status that the path begins with, as `/503/x`, and tells what it saw.
fn target() -> (SocketAddr, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tell, seen) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Some(request) = read_request(&mut reader) {
                    let status = request.path.trim_start_matches('/');
                    let status = status.split('/').next().unwrap_or("200").to_owned();
                    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\nhello");
                    let _ = tell.send(request);
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

fn read_request(reader: &mut impl std::io::BufRead) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Some(Seen {
        path,
        headers,
        body,
    })
}

fn serve(data: &std::path::Path) -> Server {
    Server::start(data, &["--allow-target", "127.0.0.0/8"])
}

/// Looks until the answer is as it should be.
fn until(server: &Server, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    const BETWEEN: Duration = Duration::from_millis(20);
    let mut left = PATIENCE;
    loop {
        let answer = server.get(path);
        if is_so(&answer) {
            return answer;
        }
        assert!(!left.is_zero(), "{path} stays {answer}");
        left = left.saturating_sub(BETWEEN);
        std::thread::sleep(BETWEEN);
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn an_http_job_is_delivered_from_any_queue() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let job = json!({"http": {"url": format!("http://{target}/200/x"), "body": {"a": 1}}, "queue": "hooks"});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    assert_eq!(
        (request.path.as_str(), request.body.as_str()),
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
fn nothing_of_a_job_becomes_a_header_of_its_request() {
    // AP14
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (parent, sent) in [
        (good.to_owned(), good),
        (format!("{good}\r\nX-Evil: 1"), ""),
        ("x\nX-Evil: 1".to_owned(), ""),
    ] {
        let http = json!({"url": format!("http://{target}/200/x")});
        let job =
            json!({"http": http, "meta": {"traceparent": parent, "X-Evil": "a\r\nX-Evil: 1"}});
        server.post("/api/v1/jobs", &job);
        let request = seen.recv_timeout(PATIENCE).expect("the request");
        assert_eq!(request.header("traceparent"), sent);
        assert_eq!(request.header("x-evil"), "", "{request:?}");
    }
    let headers = json!({"X-Fine": "a\r\nX-Evil: 1"});
    let job = json!({"http": {"url": format!("http://{target}/200/x"), "headers": headers}});
    let (status, refused) = server.ask("POST", "/api/v1/jobs", None, Some(&job));
    assert_eq!(status, 422, "{refused}");
}

#[test]
fn nothing_that_is_secret_is_logged_at_any_level() {
    // AP15
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
    // The log is read as it is written: else the server would leave lines out.
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
        &json!({"value": signing_key}),
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
        "4711",
    ] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{secret}");
    }
}

#[test]
fn a_closed_address_is_refused_at_once_and_a_bad_request_before_it_is_stored() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = Server::start(data.path(), &[]);
    let job = json!({"http": {"url": format!("http://{target}/200/x")}});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    let path = format!("/api/v1/jobs/{id}");
    let dead = until(&server, &path, |job| text(job, "state") == "dead");
    assert_eq!(text(&dead, "dead_reason"), "unrecoverable");
    assert_eq!(
        text(&dead, "last_error"),
        "the target's address is not allowed"
    );
    assert!(seen.try_recv().is_err(), "nothing was dialled");
    for (job, pointer) in [
        (json!({"http": {"url": "ftp://a.example"}}), "/payload/url"),
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
fn the_scheduler_form_works_as_it_is_written() {
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
        assert_eq!(request.body, "");
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
fn a_form_that_breaks_a_rule_is_refused_by_its_known_code() {
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
fn a_form_recurs_until_it_is_deleted() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let form =
        json!({"schedule": "@every 1s", "api": format!("http://{target}/200/x"), "body": {"n": 1}});
    let id = text(&server.post("/api/v1/jobs", &form), "id").to_owned();
    for _ in 0..3 {
        let request = seen.recv_timeout(PATIENCE).expect("the request");
        assert_eq!(request.header("windlass-retry-count"), "0");
        assert_eq!(request.body, r#"{"n": 1}"#.replace(": ", ":"));
    }
    let path = format!("/api/v1/jobs/{id}");
    assert_eq!(server.ask("DELETE", &path, None, None).0, 204);
    assert_eq!(server.ask("GET", &path, None, None).0, 404);
    while seen.try_recv().is_ok() {} // what came before
    // Another form that runs as often is the clock by which the first one has stopped.
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
fn a_target_may_tell_later_and_only_with_its_token() {
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
        "told twice is told once"
    );
    let other = json!({"outcome": "failed", "error": "no"});
    assert_eq!(server.ask("POST", &place, None, Some(&other)).0, 409);
}

#[test]
fn http_jobs_are_retried_as_their_queue_is_set_to_be() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let settings = |retry: Value| {
        // More slots are kept for fresh jobs than there are: the policy holds all the same.
        let body = json!({"retry": retry, "fresh_reserve": 100_000});
        let (status, answer) =
            server.ask("PUT", "/api/v1/queues/hooks/settings", None, Some(&body));
        assert_eq!(status, 200, "{answer}");
    };
    let job = json!({"http": {"url": format!("http://{target}/500/x")}, "queue": "hooks"});
    let enqueue = || {
        let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
        seen.recv_timeout(PATIENCE).expect("the request");
        format!("/api/v1/jobs/{id}")
    };
    settings(json!({"preset": "standard", "max_attempts": 1}));
    let dead = until(&server, &enqueue(), |job| text(job, "state") == "dead");
    assert_eq!(dead["dead_reason"], "exhausted", "{dead}");
    // A change is followed while the server runs.
    settings(json!("patient"));
    let retried = (0..100).find(|_| {
        let path = enqueue();
        let failed = until(&server, &path, |job| job["failures"] == 1);
        text(&failed, "state") != "dead"
    });
    assert!(retried.is_some(), "the new policy is never followed");
}

#[test]
fn an_http_job_gets_no_payload_that_is_no_request() {
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

#[test]
fn http_jobs_in_too_many_queues_are_refused_before_they_are_stored() {
    let data = tempfile::tempdir().expect("a folder");
    let server = serve(data.path());
    let job = |queue: usize| json!({"http": {"url": "https://a.example/"}, "queue": format!("q{queue}"), "delay": "1h"});
    let jobs: Vec<Value> = (0..102).map(job).collect();
    let each = json!({"jobs": jobs, "mode": "each"});
    let answer = server.post("/api/v1/jobs/bulk", &each);
    assert_eq!(
        (&answer["created"], &answer["refused"]),
        (&json!(100), &json!(2)),
        "{answer}"
    );
    let (status, problem) = server.ask("POST", "/api/v1/jobs", None, Some(&job(200)));
    assert_eq!(status, 422, "{problem}");
    assert_eq!(problem.pointer("/errors/0/pointer"), Some(&json!("/queue")));
    server.post("/api/v1/jobs", &job(7));
    server.post("/api/v1/jobs", &json!({"kind": "mail", "queue": "q200"}));
    let schedule = json!({"name": "s", "every": "1h", "job": job(200)});
    let (status, problem) = server.ask("POST", "/api/v1/schedules", None, Some(&schedule));
    assert_eq!(status, 422, "{problem}");
}

#[test]
fn a_secret_that_the_command_made_up_signs() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let data_path = data.path().display().to_string();
    let master = printed(&["secrets", "new-key"]);
    let with_key = |arguments: &[&str]| {
        let mut command = command(&[arguments, &["--data", &data_path]].concat());
        command.env("WINDLASS_SECRETS_MASTER_KEY", master.trim());
        command
    };
    let made = with_key(&["secrets", "put", "hook", "--generate", "--json"]).output();
    let made: Value = serde_json::from_slice(&made.expect("it starts").stdout).expect("JSON");
    let key = SigningKey::parse(text(&made, "secret")).expect("a secret that signs");
    let serve = [
        "serve",
        "--bind",
        "127.0.0.1:0",
        "--allow-target",
        "127.0.0.1",
    ];
    let server = Server::spawn(with_key(&serve));
    let http = json!({"url": format!("http://{target}/200/x"), "body": "b", "sign": "hook"});
    server.post("/api/v1/jobs", &json!({ "http": http }));
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    let seconds = request.header("webhook-timestamp").parse::<i64>();
    let at = Timestamp::from_micros(seconds.expect("seconds") * 1_000_000).expect("a time");
    let id = request.header("webhook-id");
    let signed = windlass_http::sign(&[key], id, at, request.body.as_bytes());
    assert_eq!(
        request.header("webhook-signature"),
        signed.expect("a signature")
    );
}

#[test]
fn one_queue_runs_as_many_http_jobs_at_once_as_is_configured() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let slow = format!("http://{}/", held.local_addr().expect("an address"));
    let data_path = data.path().display().to_string();
    let mut serving = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data_path]);
    serving.args(["--allow-target", "127.0.0.0/8"]);
    serving.env("WINDLASS_HTTP_JOBS_CONCURRENCY", "1");
    let server = Server::spawn(serving);
    for _ in 0..5 {
        server.post(
            "/api/v1/jobs",
            &json!({"http": {"url": slow}, "queue": "a"}),
        );
    }
    let (unanswered, _) = held.accept().expect("the first request");
    let quick = json!({"http": {"url": format!("http://{target}/200/x")}, "queue": "b"});
    server.post("/api/v1/jobs", &quick);
    seen.recv_timeout(PATIENCE).expect("another queue goes on");
    held.set_nonblocking(true).expect("a listener");
    assert!(held.accept().is_err(), "one at a time");
    drop(unanswered);
}

#[test]
fn a_target_may_be_signed_by_an_authority_of_the_operator() {
    let data = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("one");
    let write = |name: &str, content: String| {
        let path = data.path().join(name);
        std::fs::write(&path, content).expect("a file");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).expect("permissions");
        path.display().to_string()
    };
    let certificate = write("cert.pem", made.cert.pem());
    let key = write("key.pem", made.signing_key.serialize_pem());
    let mut target = command(&["serve", "--bind", "127.0.0.1:0", "--store", "memory:"]);
    target.env("WINDLASS_TLS_CERTIFICATE", &certificate);
    target.env("WINDLASS_TLS_KEY", &key);
    let target = Server::spawn(target);
    let url = format!("{}/livez", target.url);
    let job = json!({"http": {"url": url, "method": "GET"}, "max_attempts": 1});
    for (authorities, state) in [("none", "dead"), (certificate.as_str(), "succeeded")] {
        let serving = ["serve", "--bind", "127.0.0.1:0", "--store", "memory:"];
        let mut serving = command(&[&serving[..], &["--allow-target", "127.0.0.1"]].concat());
        serving.env("WINDLASS_HTTP_JOBS_CA_FILE", authorities);
        let server = Server::spawn(serving);
        let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
        let path = format!("/api/v1/jobs/{id}");
        until(&server, &path, |job| text(job, "state") == state);
    }
}

#[test]
fn settings_of_http_jobs_are_kept() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let data_path = data.path().display().to_string();
    let mut serving = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data_path]);
    serving.env("WINDLASS_HTTP_JOBS_RUN", "false");
    let server = Server::spawn(serving);
    let job = json!({"http": {"url": format!("http://{target}/200/x")}});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    server.stop();
    assert!(seen.try_recv().is_err());
    let server = serve(data.path());
    seen.recv_timeout(PATIENCE).expect("another server runs it");
    until(&server, &format!("/api/v1/jobs/{id}"), |job| {
        text(job, "state") == "succeeded"
    });
    let mut bad = command(&["serve", "--data", &data_path, "--allow-target", "somewhere"]);
    let refused = bad.output().expect("it starts");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("http_jobs.allow_targets"), "{told}");
}
