//! `windlass jobs edit|clone|run-now|resolve|delete|wait`, and the page of `jobs show`.

use serde_json::{Value, json};

use crate::support::Server;

fn server() -> (Server, tempfile::TempDir) {
    let data = tempfile::tempdir().expect("a folder");
    (Server::start(data.path(), &[]), data)
}

fn create(server: &Server, job: &Value) -> String {
    let created = server.post("/api/v1/jobs", job);
    let id = created.get("id").and_then(Value::as_str);
    id.expect("an id").to_owned()
}

fn job(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/jobs/{}", id.trim()))
}

/// Claims the job of a queue and reports how its attempt ended.
fn attempt(server: &Server, queue: &str, outcome: &Value) {
    let claim = json!({"queue": queue, "worker": "mailer-1"});
    let claimed = server.post("/api/v1/claim", &claim);
    let field = |name: &str| claimed.pointer(&format!("/data/0/{name}")).cloned();
    let mut outcome = outcome.as_object().expect("an object").clone();
    outcome.extend(["id", "attempt"].map(|name| (name.to_owned(), json!(field(name)))));
    let outcomes = json!({"worker": "mailer-1", "outcomes": [outcome]});
    server.post("/api/v1/settle", &outcomes);
}

#[test]
fn edit_changes_only_the_given_fields_of_a_waiting_job() {
    let (server, _data) = server();
    let id = create(&server, &json!({"kind": "a", "payload": {"n": 1}}));
    let dry = server.printed(&["jobs", "edit", &id, "--priority", "5", "--dry-run"]);
    assert!(dry.contains("priority  0       5"), "{dry}");
    assert_eq!(job(&server, &id)["priority"], 0);
    server.printed(&["jobs", "edit", &id, "--priority", "5"]);
    server.printed(&["jobs", "edit", &id, "--queue", "other"]);
    server.printed(&["jobs", "edit", &id, "--delay", "2h"]);
    let edited = job(&server, &id);
    assert_eq!(
        (&edited["priority"], &edited["queue"]),
        (&json!(5), &json!("other"))
    );
    assert_eq!(
        (&edited["state"], &edited["payload"]),
        (&json!("scheduled"), &json!({"n": 1}))
    );
    server.printed(&[
        "jobs",
        "edit",
        &id,
        "--run-at",
        "2030-01-01T00:00:00Z",
        "--payload",
        "[2]",
    ]);
    let edited = job(&server, &id);
    assert_eq!(
        (&edited["run_at"], &edited["payload"]),
        (&json!("2030-01-01T00:00:00Z"), &json!([2]))
    );
    let records = server.json(&["audit", "list", "--action", "job.edit"]);
    let hash = records["data"][0].pointer("/detail/changes/payload/old/sha256");
    let hash = hash.and_then(Value::as_str).expect("a hash");
    assert_eq!(
        server.printed(&["jobs", "replaced-payload", &id, hash]),
        "{\"n\":1}\n"
    );
    assert!(
        server
            .refused(2, &["jobs", "edit", &id])
            .contains("`--payload` must be given")
    );
    assert!(
        server
            .refused(2, &["jobs", "edit", &id, "--delay", "x"])
            .contains("`--delay`")
    );
    server.printed(&["jobs", "cancel", &id]);
    server.refused(1, &["jobs", "edit", &id, "--priority", "1"]);
    server.refused(1, &["jobs", "edit", &id, "--priority", "1", "--dry-run"]);
}

#[test]
fn clone_creates_a_new_job_with_the_fields_of_the_old_one() {
    let (server, _data) = server();
    let old = json!({
        "kind": "a", "queue": "q", "payload": {"n": 1}, "priority": 4, "max_attempts": 9,
        "tags": ["t"], "meta": {"m": 1}, "unique_key": "u", "retry": "patient",
        "concurrency_key": "c", "limit": 3, "timeout": "5m", "delivery": "at_most_once",
    });
    let id = create(&server, &old);
    let clone = server.printed(&["jobs", "clone", &id, "-o", "id"]);
    let new = job(&server, &clone);
    for field in [
        "kind",
        "queue",
        "payload",
        "priority",
        "max_attempts",
        "tags",
        "meta",
        "retry",
        "concurrency_key",
        "limit",
        "timeout",
        "delivery",
    ] {
        assert_eq!(new[field], old[field], "{field}");
    }
    assert_eq!(
        (&new["unique_key"], &new["attempt"]),
        (&Value::Null, &json!(0))
    );
    let arguments = [
        "--kind",
        "b",
        "--payload",
        "[2]",
        "--queue",
        "other",
        "--tag",
        "x",
        "-o",
        "id",
    ];
    let changed = server.printed(&[&["jobs", "clone", &id][..], &arguments].concat());
    let new = job(&server, &changed);
    assert_eq!((&new["kind"], &new["payload"]), (&json!("b"), &json!([2])));
    assert_eq!(
        (&new["queue"], &new["tags"]),
        (&json!("other"), &json!(["x"]))
    );
    let dry = server.printed(&["jobs", "clone", &id, "--dry-run"]);
    assert!(dry.starts_with("would create {\"kind\":\"a\""), "{dry}");
    let jobs = server.get("/api/v1/jobs");
    assert_eq!(jobs["data"].as_array().map(Vec::len), Some(3));
}

#[test]
fn jobs_are_made_due_resolved_and_deleted_by_id_and_by_filter() {
    let (server, _data) = server();
    let later = json!({"kind": "a", "queue": "later", "delay": "2h"});
    let (one, two) = (create(&server, &later), create(&server, &later));
    server.printed(&["jobs", "run-now", &one]);
    assert_eq!(job(&server, &one)["state"], "ready");
    assert!(
        server
            .refused(2, &["jobs", "run-now", "--queue", "later"])
            .contains("`--yes`")
    );
    server.printed(&["jobs", "run-now", "--queue", "later", "--yes"]);
    assert_eq!(job(&server, &two)["state"], "ready");

    let dry = server.refused(1, &["jobs", "delete", &one, "--dry-run"]);
    assert!(dry.contains("1 of 1 jobs cannot be changed"), "{dry}");
    server.refused(1, &["jobs", "delete", &one]);
    server.printed(&["jobs", "cancel", &one, &two, "--yes"]);
    server.printed(&["jobs", "delete", &one]);
    assert_eq!(
        server
            .ask("GET", &format!("/api/v1/jobs/{one}"), None, None)
            .0,
        404
    );
    let refused = server.refused(2, &["jobs", "delete", "--queue", "later"]);
    assert!(refused.contains("`--state`"), "{refused}");
    let deleted = [
        "jobs",
        "delete",
        "--queue",
        "later",
        "--state",
        "cancelled",
        "--yes",
    ];
    assert_eq!(server.printed(&deleted), "deleted 1 jobs\n");

    server.refused(1, &["jobs", "resolve", &create(&server, &later)]);
    assert_eq!(
        server.printed(&["jobs", "resolve", "--queue", "later", "--yes"]),
        "resolved 0 jobs\n"
    );
}

#[test]
fn wait_ends_with_the_job_and_tells_whether_it_succeeded() {
    let (server, _data) = server();
    let id = create(
        &server,
        &json!({"kind": "a", "queue": "q", "max_attempts": 1}),
    );
    let late = server.refused(1, &["jobs", "wait", &id, "--timeout", "50ms"]);
    assert!(
        late.contains("has not finished within 50ms; it is ready"),
        "{late}"
    );
    attempt(
        &server,
        "q",
        &json!({"outcome": "succeeded", "result": {"sent": 1}}),
    );
    assert!(
        server
            .printed(&["jobs", "wait", &id])
            .contains("{\"sent\":1}")
    );
    let dead = create(
        &server,
        &json!({"kind": "a", "queue": "q", "max_attempts": 1}),
    );
    attempt(&server, "q", &json!({"outcome": "failed", "error": "no"}));
    assert!(
        server
            .refused(1, &["jobs", "wait", &dead])
            .contains("the job is dead")
    );
    server.refused(2, &["jobs", "wait", &id, "--timeout", "soon"]);
}

/// Replaces everything that differs from job to job: ids, times and durations.
fn shape(page: &str) -> Vec<String> {
    let word = |word: &str| {
        let plain = word.trim_matches(|letter| "()".contains(letter)).to_owned();
        match plain.as_str() {
            "now" => vec!["#".to_owned(), "ago".to_owned()],
            _ if plain.starts_with(|letter: char| letter.is_ascii_digit()) => vec!["#".to_owned()],
            _ => vec![plain],
        }
    };
    let line = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().flat_map(word).collect();
        words.dedup(); // a duration can have several words
        words.join(" ")
    };
    page.lines().map(line).collect()
}

#[test]
fn jobs_show_prints_the_page_of_the_documentation() {
    let (server, _data) = server();
    let id = server.printed(&[
        "enqueue",
        "email:send",
        r#"{"to": "ann@example.com"}"#,
        "--queue",
        "mail",
        "--max-attempts",
        "5",
        "--retry",
        r#"{"max_attempts": 5, "backoff": {"type": "constant", "delay": "1h"}}"#,
        "-o",
        "id",
    ]);
    let (id, error) = (id.trim(), "smtp.example.com: connection refused");
    attempt(
        &server,
        "mail",
        &json!({"outcome": "failed", "error": error}),
    );
    server.printed(&["jobs", "run-now", id]);
    attempt(
        &server,
        "mail",
        &json!({"outcome": "failed", "error": error}),
    );
    let page = server.printed(&["jobs", "show", id]);
    let documentation = include_str!("../../../../docs/cli.md");
    let (_, block) = documentation
        .split_once("$ windlass jobs show ")
        .expect("the block");
    let (_, block) = block.split_once('\n').expect("a line");
    let (block, _) = block.split_once("```").expect("its end");
    assert_eq!(shape(&page), shape(block), "the page is:\n{page}");
}
