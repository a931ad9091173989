//! `windlass schedules`, through a running server.

use serde_json::{Value, json};

use crate::support::{Server, windlass};

struct World {
    server: Server,
    data: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let data = tempfile::tempdir().expect("a folder");
        let server = Server::start(data.path(), &[]);
        World { server, data }
    }

    /// Runs `windlass schedules`, which must succeed. Returns stdout.
    fn printed(&self, arguments: &[&str]) -> String {
        self.server.printed(&[&["schedules"], arguments].concat())
    }

    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        self.server
            .refused(code, &[&["schedules"], arguments].concat())
    }

    fn schedule(&self, name: &str) -> Value {
        self.server.get(&format!("/api/v1/schedules/{name}"))
    }

    fn put_nightly(&self) {
        self.printed(&[
            "put",
            "nightly",
            "--cron",
            "0 2 * * *",
            "--tz",
            "Europe/Berlin",
            "--kind",
            "report",
            "--payload",
            r#"{"n": 1.0}"#,
            "--queue",
            "reports",
            "--overlap",
            "allow",
        ]);
    }
}

#[test]
fn put_stores_the_fields_of_its_flags() {
    let world = World::new();
    let flags = [
        (
            "--timezone",
            "Europe/Berlin",
            "timezone",
            json!("Europe/Berlin"),
        ),
        (
            "--starts-at",
            "2030-01-01T00:00:00Z",
            "starts_at",
            json!("2030-01-01T00:00:00Z"),
        ),
        (
            "--ends-at",
            "2031-01-01T00:00:00Z",
            "ends_at",
            json!("2031-01-01T00:00:00Z"),
        ),
        ("--missed", "all", "missed", json!("all")),
        ("--missed-after", "1m", "missed_after", json!("1m")),
        ("--catch-up-max", "7", "catch_up_max", json!(7)),
        ("--overlap", "queue", "overlap", json!("queue")),
        ("--splay", "30s", "splay", json!("30s")),
    ];
    for (flag, value, field, expected) in flags {
        world.printed(&["put", "one", "--cron", "@daily", "--kind", "k", flag, value]);
        assert_eq!(world.schedule("one")[field], expected, "{flag}");
    }
    for (flag, value, field) in [
        ("--cron", "0 2 * * *", "cron"),
        ("--every", "90s", "every"),
        ("--at", "2030-01-01T00:00:00Z", "at"),
    ] {
        world.printed(&[
            "put", "one", flag, value, "--kind", "k", "--queue", "q", "--paused",
        ]);
        let stored = world.schedule("one");
        assert!(stored[field].is_string(), "{stored}");
        assert_eq!(
            (&stored["paused"], &stored["job"]["queue"]),
            (&json!(true), &json!("q"))
        );
    }
    world.put_nightly();
    assert!(
        world
            .printed(&["show", "nightly", "-o", "json"])
            .contains(r#"{"n": 1.0}"#)
    );
    let exists = world.refused(
        1,
        &["put", "nightly", "--new", "--cron", "@daily", "--kind", "k"],
    );
    assert!(exists.contains("already exists"), "{exists}");
    world.printed(&[
        "put",
        "other",
        "--new",
        "--every",
        "5m",
        "--http-url",
        "https://example.com",
    ]);
    assert_eq!(world.schedule("other")["job"]["kind"], "http");
}

#[test]
fn put_reads_a_file_and_names_what_is_wrong() {
    let world = World::new();
    let file = world.data.path().join("schedule.json");
    let path = file.to_str().expect("a plain path");
    std::fs::write(&file, r#"{"cron": "@hourly", "job": {"kind": "k"}}"#).expect("it is written");
    world.printed(&["put", "filed", "--file", path, "--dry-run"]);
    assert_eq!(world.printed(&["list", "-o", "id"]), "");
    world.printed(&["put", "filed", "--file", path]);
    assert_eq!(world.printed(&["list", "-o", "id"]), "filed\n");
    let both = world.refused(2, &["put", "filed", "--file", path, "--splay", "1s"]);
    assert!(
        both.contains("`--splay` is not allowed with `--file`"),
        "{both}"
    );
    std::fs::write(&file, r#"{"cron": "x", "job": {"kind": "k"}}"#).expect("it is written");
    let bad = world.refused(2, &["put", "filed", "--file", path]);
    assert!(bad.contains("`--file` `cron`"), "{bad}");
    for (arguments, flag) in [
        (&["--cron", "x"][..], "`--cron`"),
        (&["--cron", "@daily", "--delay", "x"], "`--delay`"),
        (
            &["--cron", "@daily", "--run-at", "2030-01-01T00:00:00Z"],
            "`--run-at`",
        ),
        (&["--cron", "@daily", "--overlap", "never"], "`--overlap`"),
        (
            &["--cron", "@daily", "--tz", "Mars/Olympus"],
            "`--timezone`",
        ),
        (&[], "`--cron`"),
    ] {
        let refused = world.refused(2, &[&["put", "bad", "--kind", "k"], arguments].concat());
        assert!(refused.contains(flag), "{arguments:?}: {refused}");
    }
}

#[test]
fn edit_keeps_what_is_not_given() {
    let world = World::new();
    world.put_nightly();
    let dry = world.printed(&["edit", "nightly", "--splay", "5m", "--dry-run"]);
    assert_eq!(dry, "would change {\"splay\":\"5m\"}\n");
    world.printed(&["edit", "nightly", "--splay", "5m", "--priority", "4"]);
    let stored = world.schedule("nightly");
    assert_eq!(
        (&stored["splay"], &stored["overlap"]),
        (&json!("5m"), &json!("allow"))
    );
    let job = json!({"kind": "report", "payload": {"n": 1.0}, "queue": "reports", "priority": 4});
    assert_eq!(stored["job"], job);
    world.printed(&[
        "edit",
        "nightly",
        "--overlap",
        "default",
        "--every",
        "1h",
        "--payload",
        "[2]",
    ]);
    let stored = world.schedule("nightly");
    assert_eq!(
        (&stored["overlap"], &stored["every"]),
        (&json!("skip"), &json!("1h"))
    );
    assert_eq!(
        (&stored["cron"], &stored["job"]["payload"]),
        (&Value::Null, &json!([2]))
    );
    assert!(
        world
            .refused(2, &["edit", "nightly"])
            .contains("`--cron` must be given")
    );
    assert!(
        world
            .refused(2, &["edit", "nightly", "--overlap", "x"])
            .contains("`--overlap`")
    );
    let records = world
        .server
        .json(&["audit", "list", "--target", "nightly", "--limit", "1"]);
    let hash = records["data"][0].pointer("/detail/changes/job.payload/old/sha256");
    let hash = hash.and_then(Value::as_str).expect("a hash");
    assert_eq!(
        world.printed(&["replaced-payload", "nightly", hash]),
        "{\"n\": 1.0}\n"
    );
}

#[test]
fn schedules_are_listed_paused_run_and_deleted() {
    let world = World::new();
    assert_eq!(world.printed(&["list"]), "no schedules\n");
    world.put_nightly();
    let list = world.printed(&["list"]);
    assert!(
        list.starts_with("NAME     RULE") && list.contains("Europe/Berlin  active"),
        "{list}"
    );
    assert!(world.printed(&["list", "-o", "wide"]).contains("OVERLAP"));
    assert!(world.printed(&["pause", "nightly"]).contains("paused"));
    assert_eq!(world.schedule("nightly")["paused"], true);
    world.printed(&["resume", "nightly"]);
    assert_eq!(world.schedule("nightly")["paused"], false);
    let id = world.printed(&["run-now", "nightly", "-o", "id"]);
    assert_eq!(
        world.server.get(&format!("/api/v1/jobs/{}", id.trim()))["kind"],
        "report"
    );
    world.printed(&["put", "other", "--every", "1h", "--kind", "k"]);
    assert!(
        world
            .refused(2, &["delete", "nightly", "other"])
            .contains("`--yes`")
    );
    let dry = world.printed(&["delete", "nightly", "other", "--dry-run"]);
    assert_eq!(dry, "would delete 2 schedules\n");
    world.printed(&["delete", "nightly", "other", "--yes"]);
    assert_eq!(world.printed(&["list"]), "no schedules\n");
    world.refused(1, &["delete", "nightly"]);
    world.refused(1, &["show", "nightly"]);
}

#[test]
fn past_occurrences_are_backfilled_and_listed() {
    let world = World::new();
    world.printed(&["put", "hourly", "--cron", "@hourly", "--kind", "k"]);
    let range = [
        "--from",
        "2026-01-01T00:00:00Z",
        "--to",
        "2026-01-01T05:00:00Z",
    ];
    let backfill = |more: &[&'static str]| [&["backfill", "hourly"], &range[..], more].concat();
    let dry = world.printed(&backfill(&["--dry-run"]));
    assert_eq!(
        dry,
        "would create up to 6 jobs, for occurrences that did not fire\n"
    );
    assert!(
        world
            .refused(2, &backfill(&[]))
            .contains("create up to 6 jobs")
    );
    assert_eq!(world.printed(&backfill(&["--yes"])), "created 6 jobs\n");
    assert_eq!(world.printed(&backfill(&["--yes"])), "created 0 jobs\n");
    let occurrences = world.printed(&["occurrences", "hourly", "--limit", "2"]);
    assert!(occurrences.contains("2026-01-01T05:00:00Z") && occurrences.contains("fired"));
    assert!(
        world
            .printed(&["show", "hourly"])
            .contains("2026-01-01T01:00:00Z")
    );
    world.refused(2, &["backfill", "hourly", "--from", "soon"]);
}

#[test]
fn previews_show_a_stored_schedule_or_a_rule() {
    let world = World::new();
    world.put_nightly();
    let preview = world.printed(&["preview", "nightly", "-n", "2", "-o", "id"]);
    assert_eq!(preview.lines().count(), 2);
    let rule = [
        "preview",
        "--cron",
        "30 2 * * *",
        "--tz",
        "America/New_York",
        "--from",
        "2026-03-08T07:00:00Z",
        "-n",
        "1",
    ];
    let shown = world.printed(&rule);
    assert!(
        shown.contains("2026-03-08T07:00:00Z") && shown.contains("clocks go forward"),
        "{shown}"
    );
    let every = [
        "--every",
        "1h",
        "--starts-at",
        "2026-01-01T00:30:00Z",
        "--ends-at",
        "2026-01-01T02:00:00Z",
    ];
    let from = ["--from", "2026-01-01T00:00:00Z", "-o", "id"];
    let shown = world.printed(&[&["preview"][..], &every, &from].concat());
    assert_eq!(shown, "2026-01-01T00:30:00Z\n2026-01-01T01:30:00Z\n");
    let both = world.refused(2, &["preview", "nightly", "--cron", "@daily"]);
    assert!(
        both.contains("`--cron` is only for a preview without NAME"),
        "{both}"
    );
    world.refused(2, &["preview"]);
    let old_name = windlass(&["schedule", "next", "@daily", "-n", "1"]);
    assert!(old_name.status.success(), "{old_name:?}");
}
