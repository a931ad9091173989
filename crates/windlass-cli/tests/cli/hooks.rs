//! `windlass hooks`, through a running server that reports to a real target.

use serde_json::{Value, json};

use crate::support::target::{target, text, until};
use crate::support::{PATIENCE, Server, command, printed, windlass};

/// A server with the secret `ops-key`, and the folder of its data.
fn server() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let master_key = printed(&["secrets", "new-key"]).trim().to_owned();
    let mut serve = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data]);
    serve.args(["--allow-target", "127.0.0.0/8"]);
    serve.env("WINDLASS_SECRETS_MASTER_KEY", &master_key);
    let server = Server::spawn(serve);
    let secret = json!({
        "value": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "hosts": ["127.0.0.1"],
    });
    let (status, answer) = server.ask("PUT", "/api/v1/secrets/ops-key", None, Some(&secret));
    assert_eq!(status, 204, "{answer}");
    (server, folder)
}

fn hooks(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let done = windlass(&[&["hooks"], arguments, &["--url", &server.url]].concat());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = done.status.code().expect("an exit code");
    (code, text(done.stdout), text(done.stderr))
}

fn hooks_printed(server: &Server, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = hooks(server, arguments);
    assert_eq!(code, 0, "{arguments:?}: {stderr}");
    stdout
}

#[test]
fn a_hook_is_managed_from_the_command_line_and_reports_a_dead_job() {
    let (server, _folder) = server();
    let (address, seen) = target();
    let url = format!("http://{address}/200/hook");
    let put = [
        "put",
        "ops",
        "--to",
        &url,
        "--sign",
        "ops-key",
        "--on",
        "dead,queue_stalled",
        "--queue",
        "mail",
        "--stalled-after",
        "10m",
        "--include-error-text",
    ];
    let made = hooks_printed(&server, &put);
    assert!(
        made.contains("dead,queue_stalled") && made.contains("10m"),
        "{made}"
    );
    assert_eq!(hooks_printed(&server, &["list", "-o", "id"]), "ops\n");
    assert!(hooks_printed(&server, &["list"]).starts_with("NAME  URL"));
    let tested = hooks_printed(&server, &["test", "ops", "--json"]);
    let tested: Value = serde_json::from_str(&tested).expect("JSON");
    let request = seen.recv_timeout(PATIENCE).expect("the test");
    assert!(
        request.text().contains("\"event\":\"test\""),
        "{}",
        request.text()
    );
    assert!(request.headers.contains_key("webhook-signature"));
    let id = text(&tested, "job_id");
    until(&server, &format!("/api/v1/jobs/{id}"), |job| {
        text(job, "state") == "succeeded"
    });
    let shown = hooks_printed(&server, &["show", "ops"]);
    assert!(shown.contains(id) && shown.contains("succeeded"), "{shown}");

    let job = json!({"kind": "email", "queue": "mail", "max_attempts": 1});
    server.post("/api/v1/jobs", &job);
    let claimed = server.post("/api/v1/claim", &json!({"queues": ["mail"]}));
    let of = claimed.pointer("/data/0").expect("a job");
    let outcome =
        json!({"id": of["id"], "attempt": 1, "outcome": "failed", "error": "no user ann"});
    server.post("/api/v1/settle", &json!({"outcomes": [outcome]}));
    let request = seen.recv_timeout(PATIENCE).expect("the report");
    let body: Value = serde_json::from_slice(&request.body).expect("JSON");
    assert_eq!(
        (text(&body, "event"), text(&body, "queue")),
        ("dead", "mail")
    );
    assert_eq!(
        (text(&body, "error"), &body["dead"]),
        ("no user ann", &json!(1))
    );
    assert_eq!(body["job_id"], of["id"]);

    assert_eq!(hooks_printed(&server, &["delete", "ops"]), "deleted ops\n");
    let (code, _, stderr) = hooks(&server, &["show", "ops"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("hook ops"), "{stderr}");
    let (code, _, stderr) = hooks(&server, &["put", "ops", "--to", &url, "--on", "dead"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--sign"), "{stderr}");
}
