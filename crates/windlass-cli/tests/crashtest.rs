//! `windlass crashtest`, which kills real processes, in bounded runs. A program of its own, because
//! it runs in real time and needs the machine for itself.
//!
//! With `WINDLASS_TEST_LONG`, each run takes ten minutes.
#![cfg(feature = "crashtest")]

use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

/// The runs take turns: each starts a dozen processes.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a crash test that must find nothing. Returns its report.
fn clean_run(store: &str, minutes: &str, seed: &str) -> Value {
    let _turn = TURN.lock();
    let is_long = std::env::var_os("WINDLASS_TEST_LONG").is_some();
    let minutes = if is_long { "10" } else { minutes };
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["--json", "crashtest", "--store", store]);
    command.args(["--minutes", minutes, "--nodes", "3", "--seed", seed]);
    command.args(["--rate", "40"]);
    let done = command.stdin(Stdio::null()).output().expect("it starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    let report = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{errors}\n{report}");
    serde_json::from_str(&report).expect("the report is JSON")
}

/// The report shows that something happened, and that the checker can fail.
fn check(report: &Value) {
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64);
    assert!(number("/faults/servers_killed") > Some(0), "{report}");
    assert!(number("/faults/workers_killed") > Some(0), "{report}");
    assert!(number("/enqueues/acknowledged") > Some(50), "{report}");
    assert!(number("/jobs/succeeded") > Some(50), "{report}");
    assert!(number("/acknowledged_ends") > Some(0), "{report}");
    let planted = report["planted"].as_object().expect("an object");
    assert_eq!(planted.len(), 6, "every damage applies: {report}");
    assert!(planted.values().all(|found| found == true), "{report}");
}

#[test]
fn sqlite_loses_nothing_while_its_server_and_workers_are_killed() {
    check(&clean_run("sqlite:", "0.6", "1"));
}

#[test]
fn postgres_loses_nothing_while_nodes_die_and_the_database_restarts_and_fails_over() {
    let report = clean_run("cluster:", "0.9", "2");
    check(&report);
    let faults = &report["faults"];
    let number = |name: &str| faults[name].as_u64().expect("a number");
    assert!(number("failovers") > 0, "{report}");
    assert!(
        number("database_restarts") + number("postmaster_kills") > 0,
        "{report}"
    );
}

#[test]
fn a_store_that_exists_is_refused() {
    let file = std::env::current_exe().expect("this program");
    let store = format!("sqlite:{}", file.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    let done = command
        .args(["crashtest", "--store", &store])
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{errors}");
    assert!(errors.contains("exists; name a new file"), "{errors}");
}
