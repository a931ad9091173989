//! `windlass enqueue`, through a running server.

use serde_json::{Value, json};

use crate::support::Server;

fn server() -> (Server, tempfile::TempDir) {
    let data = tempfile::tempdir().expect("a folder");
    (Server::start(data.path(), &[]), data)
}

fn job(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/jobs/{}", id.trim()))
}

fn count(server: &Server) -> usize {
    let jobs = server.get("/api/v1/jobs?limit=1000");
    let jobs = jobs.get("data").and_then(Value::as_array);
    jobs.expect("a list").len()
}

#[test]
fn a_job_gets_the_fields_of_its_flags() {
    let (server, data) = server();
    let id = server.printed(&[
        "enqueue",
        "email:send",
        r#"{"b": 1.0,  "a": [2]}"#,
        "--queue",
        "mail",
        "--priority",
        "-3",
        "--delay",
        "1h",
        "--max-attempts",
        "7",
        "--retry",
        "patient",
        "--tag",
        "eu",
        "--meta",
        "n=5",
        "--unique-key",
        "k",
        "-o",
        "id",
    ]);
    let found = job(&server, &id);
    for (field, value) in [
        ("kind", json!("email:send")),
        ("queue", json!("mail")),
        ("priority", json!(-3)),
        ("state", json!("scheduled")),
        ("max_attempts", json!(7)),
        ("retry", json!("patient")),
        ("tags", json!(["eu"])),
        ("meta", json!({"n": 5})),
        ("unique_key", json!("k")),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
    let exported = server.printed(&["jobs", "export"]);
    assert!(
        exported.contains(r#"{"b": 1.0,  "a": [2]}"#),
        "byte for byte: {exported}"
    );

    let duplicate = server.printed(&[
        "enqueue",
        "email:send",
        "--queue",
        "mail",
        "--unique-key",
        "k",
    ]);
    assert!(
        duplicate.contains("created no job") && duplicate.contains("its payload differs"),
        "{duplicate}"
    );
    let (_, stdin, _) = server.run_with_input(&["enqueue", "a", "-", "-o", "id"], "[1]");
    assert_eq!(job(&server, &stdin)["payload"], json!([1]));
    let file = data.path().join("payload.json");
    std::fs::write(&file, "{\"x\": 1}").expect("it is written");
    let file = file.to_str().expect("a plain path");
    let from_file = server.printed(&["enqueue", "a", "--payload-file", file, "-o", "id"]);
    assert_eq!(job(&server, &from_file)["payload"], json!({"x": 1}));
}

#[test]
fn an_http_job_is_described_by_flags() {
    let (server, _data) = server();
    let id = server.printed(&[
        "enqueue",
        "--http-url",
        "https://example.com/hook",
        "--http-method",
        "PUT",
        "--http-header",
        "X-Team: mail",
        "--http-body",
        r#"{"id": 17}"#,
        "--delay",
        "1h",
        "-o",
        "id",
    ]);
    let found = job(&server, &id);
    let expected = json!({
        "url": "https://example.com/hook", "method": "PUT", "headers": {"X-Team": "mail"},
        "body": {"id": 17},
    });
    assert_eq!(
        (&found["kind"], &found["payload"]),
        (&json!("http"), &expected)
    );
    let refused = server.refused(2, &["enqueue", "--http-url", "nope"]);
    assert!(refused.contains("http.url"), "{refused}");
    server.refused(2, &["enqueue", "a", "--http-method", "GET"]);
    server.refused(2, &["enqueue", "a", "--http-url", "https://example.com"]);
}

#[test]
fn an_invalid_job_is_refused_before_a_request() {
    let (server, _data) = server();
    for (arguments, text) in [
        (&["enqueue"][..], "KIND"),
        (&["enqueue", "a", "{"], "`PAYLOAD` must be JSON"),
        (&["enqueue", "a", "--delay", "soon"], "`--delay`"),
        (
            &["enqueue", "a", "--payload-file", "/nowhere"],
            "`--payload-file`",
        ),
        (&["enqueue", "a", "--unique-for", "1h"], "--unique-key"),
    ] {
        let refused = server.refused(2, arguments);
        assert!(refused.contains(text), "{arguments:?}: {refused}");
    }
    let dry = server.printed(&["enqueue", "a", "[1]", "--dry-run"]);
    assert_eq!(dry, "would create {\"kind\":\"a\",\"payload\":[1]}\n");
    assert_eq!(count(&server), 0);
}

const LINES: &str = r#"{"kind": "a", "payload": {"n": 1.0}}

{"kid": "b"}
{"kind": "c", "queue": "other"}
nonsense
"#;

#[test]
fn each_line_of_a_file_creates_a_job_and_bad_lines_do_not_affect_the_others() {
    let (server, _data) = server();
    let (code, stdout, stderr) = server.run_with_input(&["enqueue", "--from", "-"], LINES);
    assert_eq!((code, stdout.as_str()), (1, "created 2 jobs\n"));
    for text in ["line 3: `kid`", "line 5: ", "2 of 4 jobs are refused"] {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
    assert_eq!(count(&server), 2);
    let (_, ids, _) = server.run_with_input(&["enqueue", "--from", "-", "-o", "id"], LINES);
    assert_eq!(ids.lines().count(), 2);
    assert_eq!(
        job(&server, ids.lines().last().expect("an id"))["queue"],
        "other"
    );
    let json = ["enqueue", "--from", "-", "--json"];
    let (_, totals, _) = server.run_with_input(&json, LINES);
    let totals: Value = serde_json::from_str(&totals).expect("JSON");
    assert_eq!(totals, json!({"created": 2, "duplicates": 0, "refused": 2}));
    let (code, _, stderr) =
        server.run_with_input(&["enqueue", "--from", "-", "--queue", "q"], LINES);
    assert!(
        code == 2 && stderr.contains("`--queue` is not allowed with `--from`"),
        "{stderr}"
    );
}

#[test]
fn all_lines_or_none_become_jobs() {
    let (server, _data) = server();
    let all = ["enqueue", "--from", "-", "--all-or-none"];
    let (code, _, stderr) = server.run_with_input(&all, LINES);
    assert!(code == 2 && stderr.contains("line 3"), "{stderr}");
    let dry = ["enqueue", "--from", "-", "--dry-run"];
    let (code, stdout, _) = server.run_with_input(&dry, LINES);
    assert_eq!((code, stdout.as_str()), (1, "would create 2 jobs\n"));
    assert_eq!(count(&server), 0);
    let (code, stdout, _) = server.run_with_input(&all, "{\"kind\": \"a\"}\n{\"kind\": \"b\"}");
    assert_eq!((code, stdout.as_str()), (0, "created 2 jobs\n"));
}

#[test]
fn an_idempotency_key_makes_a_second_run_harmless() {
    let (server, _data) = server();
    // More jobs than one request takes.
    let lines = "{\"kind\": \"a\"}\n".repeat(1500);
    for _ in 0..2 {
        let many = ["enqueue", "--from", "-", "--idempotency-key", "import-1"];
        let (code, _, stderr) = server.run_with_input(&many, &lines);
        assert_eq!(code, 0, "{stderr}");
        server.printed(&["enqueue", "b", "--idempotency-key", "one"]);
    }
    let queue = server.get("/api/v1/queues/default");
    assert_eq!(queue["counts"]["ready"], 1501);
}
