//! `windlass queues`, through a running server.

use serde_json::{Value, json};

use crate::support::{Server, windlass};

struct World {
    server: Server,
    _data: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let data = tempfile::tempdir().expect("a folder");
        let server = Server::start(data.path(), &[]);
        server.post("/api/v1/jobs", &json!({"kind": "a", "queue": "mail"}));
        World {
            server,
            _data: data,
        }
    }

    /// Runs `windlass queues`. Returns the exit code, stdout and stderr.
    fn queues(&self, arguments: &[&str]) -> (i32, String, String) {
        let done = windlass(&[&["queues"], arguments, &["--url", &self.server.url]].concat());
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (
            done.status.code().expect("an exit code"),
            text(done.stdout),
            text(done.stderr),
        )
    }

    fn printed(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.queues(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    }

    fn queue(&self, name: &str) -> Value {
        self.server.get(&format!("/api/v1/queues/{name}"))
    }
}

#[test]
fn queues_are_listed_in_every_format() {
    let world = World::new();
    let table = world.printed(&["list"]);
    assert!(
        table.starts_with("NAME  READY") && table.contains("\nmail  1 "),
        "{table}"
    );
    assert!(!table.contains("SUCCEEDED"), "{table}");
    assert!(world.printed(&["list", "-o", "wide"]).contains("SUCCEEDED"));
    assert_eq!(world.printed(&["list", "-o", "id"]), "mail\n");
    let line: Value = serde_json::from_str(&world.printed(&["list", "-o", "ndjson"])).unwrap();
    assert_eq!(line["name"], "mail");
    let page: Value = serde_json::from_str(&world.printed(&["list", "--json"])).unwrap();
    assert_eq!(page["data"][0]["counts"]["ready"], 1);
    let shown = world.printed(&["show", "mail"]);
    assert!(
        shown.starts_with("name") && !shown.contains("last minute"),
        "{shown}"
    );
    assert!(
        world
            .printed(&["show", "mail", "-o", "wide"])
            .contains("last minute")
    );
    let (code, _, stderr) = world.queues(&["show", "mial"]);
    assert!(
        code == 1 && stderr.contains("mail"),
        "a similar name: {stderr}"
    );
}

#[test]
fn a_queue_is_paused_with_a_reason_and_resumed() {
    let world = World::new();
    assert_eq!(
        world.printed(&["pause", "mail", "--dry-run"]),
        "would pause queue mail\n"
    );
    assert!(world.queue("mail")["paused"].is_null());
    let paused = world.printed(&["pause", "mail", "--reason", "deploy"]);
    assert!(
        paused.contains("reason") && paused.contains("deploy"),
        "{paused}"
    );
    assert_eq!(world.queue("mail")["paused"]["reason"], "deploy");
    assert!(world.printed(&["list"]).contains("by local: deploy"));
    let dry = world.printed(&["pause", "mail", "--dry-run"]);
    assert!(dry.contains("paused already, by local"), "{dry}");
    let dry = world.printed(&["resume", "mail", "--dry-run"]);
    assert!(
        dry.contains("would resume") && !world.queue("mail")["paused"].is_null(),
        "{dry}"
    );
    world.printed(&["resume", "mail"]);
    assert!(world.queue("mail")["paused"].is_null());
    let long = "x".repeat(501);
    let (code, _, stderr) = world.queues(&["pause", "mail", "--reason", &long]);
    assert!(
        code == 2 && stderr.contains("`--reason` must be 1 to 500 characters"),
        "{stderr}"
    );
    let (code, _, stderr) = world.queues(&["pause", "new"]);
    assert!(code == 1 && stderr.contains("hint:"), "{stderr}");
    world.printed(&["pause", "new", "--create"]);
    assert!(!world.queue("new")["paused"].is_null());
}

#[test]
fn queues_set_changes_only_what_is_given() {
    let world = World::new();
    let given = [
        ("--max-depth", "9", json!(9)),
        ("--concurrency", "3", json!(3)),
        ("--rate", "100/1m", json!({"count": 100, "period": "1m"})),
        ("--retry", "patient", json!("patient")),
        ("--retry-fetch-ratio", "off", json!("off")),
        ("--fresh-reserve", "0", json!(0)),
        ("--max-inflight-retries", "4", json!(4)),
        ("--retry-lane", "2", json!(2)),
        ("--weight", "7", json!(7)),
    ];
    let setting = |flag: &str| flag.trim_start_matches('-').replace('-', "_");
    for (flag, value, _) in &given {
        world.printed(&["set", "mail", flag, value]);
    }
    let settings = world.queue("mail")["settings"].clone();
    for (flag, _, stored) in &given {
        assert_eq!(settings[setting(flag)], *stored, "{flag}");
    }
    let shown = world.printed(&["show", "mail"]);
    assert!(shown.contains("100/1m"), "as the flag takes it: {shown}");
    let dry = world.printed(&["set", "mail", "--concurrency", "default", "--dry-run"]);
    assert!(dry.contains("concurrency"), "{dry}");
    assert_eq!(world.queue("mail")["settings"], settings);
    world.printed(&["set", "mail", "--concurrency", "default"]);
    assert!(world.queue("mail")["settings"]["concurrency"].is_null());
    let policy = r#"{"preset": "patient", "max_attempts": 9}"#;
    let reset: Value = serde_json::from_str(
        &world.printed(&["set", "mail", "--reset", "--retry", policy, "--json"]),
    )
    .unwrap();
    assert_eq!(
        (&reset["retry"]["max_attempts"], &reset["weight"]),
        (&json!(9), &Value::Null)
    );
}

#[test]
fn queues_set_names_the_invalid_flag() {
    let world = World::new();
    for (flag, value) in [
        ("--max-depth", "0"),
        ("--concurrency", "many"),
        ("--rate", "100"),
        ("--rate", "x/1s"),
        ("--retry", "nope"),
        ("--retry-fetch-ratio", "2"),
        ("--weight", "1001"),
    ] {
        let (code, _, stderr) = world.queues(&["set", "mail", flag, value]);
        assert!(
            code == 2 && stderr.contains(flag),
            "{flag} {value}: {stderr}"
        );
    }
    assert_eq!(world.queues(&["set", "mail"]).0, 2, "nothing to set");
    assert_eq!(
        world.queues(&["set", "new", "--weight", "2"]).0,
        1,
        "it does not exist"
    );
    world.printed(&["set", "new", "--weight", "2", "--create"]);
    assert_eq!(world.queue("new")["settings"]["weight"], 2);
}
