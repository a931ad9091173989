//! Schedules of a running server.

use std::time::Duration;

use crate::support::{PATIENCE, Server};
use serde_json::json;

#[test]
fn a_schedule_with_an_unknown_time_zone_is_reported_and_others_still_fire() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::start(data.path(), &[]);
    let lost = json!({"name": "lost", "cron": "* * * * * *", "timezone": "Europe/Berlin", "job": {"kind": "a"}});
    server.post("/api/v1/schedules", &lost);
    server.stop();
    let file = std::fs::read_dir(data.path()).expect("a folder").flatten();
    let file = file
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "db"));
    let connection = rusqlite::Connection::open(file.expect("a store")).expect("a database");
    let sql =
        "update schedules set definition = replace(definition, 'Europe/Berlin', 'Mars/Olympus')";
    assert_eq!(connection.execute(sql, []).expect("it is changed"), 1);
    drop(connection);

    let server = Server::start(data.path(), &[]);
    let other = json!({"name": "other", "every": "1s", "overlap": "allow", "job": {"kind": "b"}});
    server.post("/api/v1/schedules", &other);
    let mut left = PATIENCE;
    while server.get("/api/v1/jobs?kind=b")["data"] == json!([]) {
        const BETWEEN: Duration = Duration::from_millis(20);
        assert!(!left.is_zero(), "the other never fires");
        left = left.saturating_sub(BETWEEN);
        std::thread::sleep(BETWEEN);
    }
    let shown = server.get("/api/v1/schedules/lost");
    let error = shown["error"].as_str().unwrap_or_default();
    assert!(error.contains("timezone"), "{shown}");
    assert_eq!(shown["timezone"], "Mars/Olympus");
    let replacement = json!({"cron": "0 2 * * *", "timezone": "Europe/Rome", "job": {"kind": "a"}});
    let (status, answer) = server.ask("PUT", "/api/v1/schedules/lost", None, Some(&replacement));
    assert_eq!((status, &answer["id"]), (200, &shown["id"]), "{answer}");
    let (_, log) = server.stop();
    let errors = log.matches("cannot read a schedule, so it does not fire");
    assert_eq!(errors.count(), 1, "{log}");
}
