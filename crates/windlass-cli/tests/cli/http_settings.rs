//! The configuration of HTTP jobs: settings of the server and of the queue, and secrets.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::support::target::{serve, target, text, until};
use crate::support::{PATIENCE, Server, command, printed};
use serde_json::{Value, json};
use windlass_core::Timestamp;
use windlass_http::SigningKey;

#[test]
fn http_jobs_use_the_retry_policy_of_their_queue() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let settings = |retry: Value| {
        // Reserves more slots for fresh jobs than exist; the policy applies all the same.
        let body = json!({"retry": retry, "fresh_reserve": 100_000});
        let path = "/api/v1/queues/hooks/settings?create=true";
        let (status, answer) = server.ask("PUT", path, None, Some(&body));
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
    // A change takes effect while the server runs.
    settings(json!("patient"));
    let retried = (0..100).find(|_| {
        let path = enqueue();
        let failed = until(&server, &path, |job| job["failures"] == 1);
        text(&failed, "state") != "dead"
    });
    assert!(retried.is_some(), "the new policy is never followed");
}

#[test]
fn http_jobs_run_in_more_than_a_hundred_queues() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let server = serve(data.path());
    let job = |number: usize| json!({"http": {"url": format!("http://{target}/200/{number}")}, "queue": format!("q{number}")});
    let jobs: Vec<Value> = (0..120).map(job).collect();
    let answer = server.post("/api/v1/jobs/bulk", &json!({ "jobs": jobs }));
    assert_eq!(answer["created"], json!(120), "{answer}");
    let paths = (0..120).map(|_| seen.recv_timeout(PATIENCE).expect("a request").path);
    let paths: std::collections::BTreeSet<String> = paths.collect();
    assert_eq!(paths.len(), 120);
}

#[test]
fn a_generated_secret_signs_requests() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let data_path = data.path().display().to_string();
    let master = printed(&["secrets", "new-key"]);
    let with_key = |arguments: &[&str]| {
        let mut command = command(&[arguments, &["--data", &data_path]].concat());
        command.env("WINDLASS_SECRETS_MASTER_KEY", master.trim());
        command
    };
    let made = with_key(&[
        "secrets",
        "put",
        "hook",
        "--host",
        "127.0.0.1",
        "--generate",
        "--json",
    ])
    .output();
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
    let signed = windlass_http::sign(&[key], id, at, &request.body);
    assert_eq!(
        request.header("webhook-signature"),
        signed.expect("a signature")
    );
    // The scheduler form is signed in the same way.
    let form = json!({"schedule": "* * * * * *", "api": format!("http://{target}/200/form"), "sign": "hook"});
    server.post("/api/v1/jobs", &form);
    let request = seen
        .recv_timeout(PATIENCE)
        .expect("the request of the form");
    assert_eq!(request.path, "/200/form");
    assert!(request.header("webhook-signature").starts_with("v1,"));
}

#[test]
fn the_setting_concurrency_limits_the_http_jobs_of_a_queue() {
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
    held.set_nonblocking(true).expect("a listener");
    let quick = json!({"http": {"url": format!("http://{target}/200/x")}, "queue": "b"});
    for _ in 0..4 {
        let unanswered = accept(&held);
        // Each job of the other queue shows that the server has looked for work again meanwhile.
        for _ in 0..5 {
            server.post("/api/v1/jobs", &quick);
            seen.recv_timeout(PATIENCE).expect("another queue goes on");
            assert!(held.accept().is_err(), "one at a time");
        }
        let queue = server.get("/api/v1/queues/a");
        assert_eq!(queue.pointer("/counts/running"), Some(&json!(1)), "{queue}");
        drop(unanswered); // the request fails, and the next one starts
    }
}

/// Returns the next connection to a listener that does not block.
fn accept(listener: &TcpListener) -> TcpStream {
    const BETWEEN: Duration = Duration::from_millis(5);
    let mut tries = 0..PATIENCE.as_millis() / BETWEEN.as_millis();
    let accepted = tries.find_map(|_| {
        let accepted = listener.accept().ok();
        if accepted.is_none() {
            std::thread::sleep(BETWEEN);
        }
        accepted
    });
    accepted.expect("the next request comes in time").0
}

#[test]
fn a_target_may_use_a_certificate_of_a_private_authority() {
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
fn settings_of_http_jobs_take_effect() {
    let data = tempfile::tempdir().expect("a folder");
    let (target, seen) = target();
    let data_path = data.path().display().to_string();
    let mut serving = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data_path]);
    serving.env("WINDLASS_HTTP_JOBS_RUN", "false");
    let server = Server::spawn(serving);
    let job = json!({"http": {"url": format!("http://{target}/200/x")}});
    let id = text(&server.post("/api/v1/jobs", &job), "id").to_owned();
    // A schedule shows how time passes: its jobs are due as well, and nothing starts them.
    let url = format!("http://{target}/200/later");
    let later = json!({"kind": "http", "payload": {"url": url}});
    let each_second = json!({"name": "s", "every": "1s", "overlap": "allow", "job": later});
    server.post("/api/v1/schedules", &each_second);
    let queue = until(&server, "/api/v1/queues/default", |queue| {
        let ready = queue.pointer("/counts/ready").and_then(Value::as_u64);
        ready >= Some(3)
    });
    assert_eq!(queue.pointer("/counts/running"), Some(&json!(0)), "{queue}");
    server.stop();
    assert!(seen.try_recv().is_err(), "no server runs HTTP jobs");
    let server = serve(data.path());
    seen.recv_timeout(PATIENCE).expect("another server runs it");
    until(&server, &format!("/api/v1/jobs/{id}"), |job| {
        text(job, "state") == "succeeded"
    });
    let mut bad = command(&["serve", "--data", &data_path, "--allow-target", "somewhere"]);
    let refused = bad.output().expect("it starts");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let output = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(output.contains("http_jobs.allow_targets"), "{output}");
}
