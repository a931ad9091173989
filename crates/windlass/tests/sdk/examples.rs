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
    let told = run("retries");
    assert!(
        told.contains("+1s #2 failed: too many requests\n+1m 1s #3 succeeded"),
        "{told}"
    );
    assert!(
        told.contains("stolen card:\n+0s #1 failed: the card was stolen\n\n"),
        "{told}"
    );
    assert!(told.contains("+1h #2 snoozed\n+2h #3 succeeded"), "{told}");
}

#[test]
fn schedules_fire_in_their_zone() {
    let told = run("schedules");
    assert!(
        told.contains("the night for 2026-01-01T02:30:00Z"),
        "{told}"
    );
    assert!(told.ends_with("4 reports\n"), "{told}");
}

#[test]
fn unique_jobs_are_one_and_limits_hold() {
    let told = run("unique_and_limits");
    assert_eq!(told.matches("duplicate true").count(), 2, "{told}");
    assert_eq!(told.matches("is full").count(), 3, "{told}");
    assert_eq!(
        told.matches("T00:00:10Z account").count(),
        2,
        "two at once: {told}"
    );
    assert_eq!(told.matches("Z account").count(), 5, "{told}");
}

#[test]
fn shutdown_gives_back_and_the_next_process_goes_on() {
    let told = run("shutdown");
    assert!(told.contains("Shutdown"), "{told}");
    assert!(
        told.contains("given back: 1\nattempt 1, failures 0\n"),
        "{told}"
    );
    assert!(told.ends_with("attempt 2 imported 3 rows\n"), "{told}");
}

#[test]
fn testing_prints_a_timeline() {
    let told = run("testing");
    assert!(
        told.starts_with("+0s #1 failed: the printer is out of paper\n"),
        "{told}"
    );
    assert!(told.contains("#2 succeeded"), "{told}");
}

#[test]
fn a_web_program_enqueues_and_runs() {
    assert_eq!(run("axum_app"), "welcome, Ann\n");
}
