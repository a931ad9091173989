//! Every example runs, and prints what it should.

use std::process::Command;

use windlass_testkit::child;

fn example(name: &str) -> Command {
    child::example(env!("CARGO_MANIFEST_DIR"), name)
}

/// Runs an example.
fn run(name: &str) -> String {
    let output = example(name).output().expect("it starts");
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn minimal_sends_and_is_short() {
    let printed = run("minimal");
    assert_eq!(printed, "attempt 1: send to ann@example.org\n");
    let source = include_str!("../../examples/minimal.rs");
    assert!(
        source.lines().count() <= 35,
        "{} lines",
        source.lines().count()
    );
}

#[test]
fn a_worker_prints_what_it_does() {
    let printed = run("worker");
    let without_ids = |line: &str| {
        let fields = line.split(' ').filter(|field| !field.starts_with("id="));
        fields.collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<String> = printed.lines().map(without_ids).collect();
    for (line, times) in [
        ("started url=memory:", 1),
        ("enqueued kind=greet attempt=0", 2),
        ("claimed kind=greet attempt=1", 2),
        ("succeeded kind=greet attempt=1", 1),
        (
            "failed kind=greet attempt=1 error=\"a greeting needs a name\"",
            1,
        ),
        ("dead kind=greet attempt=1", 1),
        ("stopping", 1),
    ] {
        let found = lines.iter().filter(|printed| *printed == line).count();
        assert_eq!(found, times, "{line} in {printed}");
    }
    assert!(printed.ends_with("\nstopped released=0\n"), "{printed}");
}

#[test]
fn retries_wait_as_errors_say() {
    let printed = run("retries");
    assert!(
        printed.contains("+1s #2 failed: too many requests\n+1m 1s #3 succeeded"),
        "{printed}"
    );
    assert!(
        printed.contains("stolen card:\n+0s #1 failed: the card was stolen\n\n"),
        "{printed}"
    );
    assert!(
        printed.contains("+1h #2 snoozed\n+2h #3 succeeded"),
        "{printed}"
    );
}

#[test]
fn schedules_fire_in_their_zone() {
    let printed = run("schedules");
    assert!(
        printed.contains("the night for 2026-01-01T02:30:00Z"),
        "{printed}"
    );
    assert!(printed.ends_with("4 reports\n"), "{printed}");
}

#[test]
fn unique_jobs_are_one_and_limits_hold() {
    let printed = run("unique_and_limits");
    assert_eq!(printed.matches("duplicate true").count(), 2, "{printed}");
    assert_eq!(printed.matches("is full").count(), 3, "{printed}");
    assert_eq!(
        printed.matches("T00:00:10Z account").count(),
        2,
        "two at once: {printed}"
    );
    assert_eq!(printed.matches("Z account").count(), 5, "{printed}");
}

#[test]
fn shutdown_gives_back_and_the_next_process_goes_on() {
    let printed = run("shutdown");
    assert!(printed.contains("Shutdown"), "{printed}");
    assert!(
        printed.contains("released: 1\nattempt 1, failures 0\n"),
        "{printed}"
    );
    assert!(
        printed.ends_with("attempt 2 imported 3 rows\n"),
        "{printed}"
    );
}

#[test]
fn testing_prints_a_timeline() {
    let printed = run("testing");
    assert!(
        printed.starts_with("+0s #1 failed: the printer is out of paper\n"),
        "{printed}"
    );
    assert!(printed.contains("#2 succeeded"), "{printed}");
}

#[test]
fn a_web_program_enqueues_and_runs() {
    assert_eq!(run("axum_app"), "welcome, Ann\n");
}
