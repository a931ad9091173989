use serde_json::{Value, json};

use super::*;
use crate::timestamp::at;
use crate::{DeadReason, Fingerprint, GroupKey, JobId, NewJob};

const NOW: &str = "2026-01-01T12:00:30Z";

fn hook() -> Hook {
    let events = HookEvent::ALL;
    let definition = HookDefinition::new("https://ops.example/hook", "ops-key", events);
    let name = HookName::new("ops").unwrap();
    Hook::put(name, definition, None, at("2026-01-01T00:00:00Z"))
}

fn group(queue: &str, kind: &str) -> GroupKey {
    GroupKey {
        queue: queue.parse().unwrap(),
        kind: kind.parse().unwrap(),
        fingerprint: Fingerprint::from_bits(0x2000_0000_0000_0007),
    }
}

fn death(key: GroupKey, when: &str) -> HookReport {
    HookReport {
        event: HookEvent::Dead,
        at: at(when),
        subject: HookSubject::Group {
            key,
            job: Some(JobId::from_u128(7)),
            reason: Some(DeadReason::Exhausted),
            dead: 41,
            retrying: 3,
            error: "no such user ann@example.org".to_owned(),
        },
    }
}

fn body(job: &NewJob) -> Value {
    let payload: Value = job.payload.decode().unwrap();
    payload["body"].clone()
}

#[test]
fn a_report_is_a_signed_http_job_without_error_text() {
    let hook = hook();
    let (_, job) = hook.report_job(&death(group("mail", "email:send"), NOW));
    assert_eq!(
        (job.kind.as_str(), job.queue.as_str()),
        ("http", HOOK_QUEUE)
    );
    let payload: Value = job.payload.decode().unwrap();
    assert_eq!(payload["url"], "https://ops.example/hook");
    assert_eq!(payload["sign"], json!(["ops-key"]));
    assert_eq!(
        body(&job),
        json!({
            "version": 1, "event": "dead", "at": "2026-01-01T12:00:30Z", "hook": "ops",
            "queue": "mail", "kind": "email:send", "fingerprint": "2000000000000007",
            "job_id": JobId::from_u128(7), "reason": "exhausted", "dead": 41, "retrying": 3,
            "link": format!("/api/v1/jobs/{}", JobId::from_u128(7)),
        })
    );
    let tags: Vec<_> = job.tags.iter().map(ToString::to_string).collect();
    assert_eq!(tags, ["hook:ops", "event:dead"]);
}

#[test]
fn the_error_text_is_included_only_if_the_hook_says_so() {
    let mut hook = hook();
    hook.definition.include_error_text = true;
    let (_, job) = hook.report_job(&death(group("mail", "a"), NOW));
    assert_eq!(body(&job)["error"], "no such user ann@example.org");
}

#[test]
fn one_minute_of_one_group_is_one_job() {
    let hook = hook();
    let made = |report: &HookReport| {
        let (id, job) = hook.report_job(report);
        (id, job.unique.unwrap().key)
    };
    let first = made(&death(group("mail", "a"), "2026-01-01T12:00:00Z"));
    assert_eq!(
        made(&death(group("mail", "a"), "2026-01-01T12:00:59Z")),
        first
    );
    for other in [
        death(group("mail", "a"), "2026-01-01T12:01:00Z"),
        death(group("mail", "b"), "2026-01-01T12:00:00Z"),
        death(group("mails", "a"), "2026-01-01T12:00:00Z"),
        HookReport {
            event: HookEvent::FailureGroupCreated,
            ..death(group("mail", "a"), "2026-01-01T12:00:00Z")
        },
    ] {
        let (id, key) = made(&other);
        assert!(id != first.0 && key != first.1, "{other:?}");
    }
}

#[test]
fn a_hook_reports_what_it_names() {
    let report = death(group("mail", "a"), NOW);
    assert!(hook().reports(&report));
    let changed = |change: fn(&mut Hook)| {
        let mut hook = hook();
        change(&mut hook);
        hook.reports(&report)
    };
    assert!(!changed(|hook| hook.definition.paused = true));
    assert!(!changed(
        |hook| hook.definition.events = [HookEvent::QueueStalled].into()
    ));
    assert!(!changed(|hook| hook.definition.queue = "other".parse().ok()));
    assert!(changed(|hook| hook.definition.queue = "mail".parse().ok()));
    assert!(!changed(|hook| hook.definition.kind = "b".parse().ok()));
    assert!(changed(|hook| hook.definition.kind = "a".parse().ok()));
    assert!(!changed(
        |hook| hook.active_since = at("2026-01-01T12:00:31Z")
    ));
}

#[test]
fn nothing_in_a_reserved_queue_is_reported() {
    assert!(!hook().reports(&death(group(HOOK_QUEUE, "http"), NOW)));
    assert!(!hook().reports(&death(group("windlass.other", "http"), NOW)));
    assert!(hook().reports(&death(group("windlass", "http"), NOW)));
}

#[test]
fn a_test_says_so() {
    let job = hook().test_job(at(NOW));
    assert_eq!(body(&job)["event"], "test");
    assert_eq!(job.unique, None);
}

#[test]
fn all_broken_rules_of_a_hook_are_named() {
    let definition = HookDefinition {
        queue: HOOK_QUEUE.parse().ok(),
        kind: "a".parse().ok(),
        sign: Vec::new(),
        stalled_after: Duration::from_secs(59),
        ..HookDefinition::new("ftp://a", "k", [HookEvent::QueueStalled])
    };
    let problems = definition.problems();
    let fields: Vec<_> = problems.iter().map(Invalid::field).collect();
    assert_eq!(fields, ["url", "sign", "kind", "queue", "stalled_after"]);
    let none = HookDefinition::new("https://a.example", "k", []);
    assert_eq!(none.check().unwrap_err().field(), "events");
    assert_eq!(hook().definition.check(), Ok(()));
}

#[test]
fn a_resumed_hook_reports_from_then_on() {
    let (start, later) = (at("2026-01-01T00:00:00Z"), at(NOW));
    let first = hook();
    let put = |definition: &HookDefinition, stored: &Hook| {
        Hook::put(stored.name.clone(), definition.clone(), Some(stored), later)
    };
    let changed = put(&first.definition, &first);
    assert_eq!((changed.created_at, changed.active_since), (start, start));
    let paused = HookDefinition {
        paused: true,
        ..first.definition.clone()
    };
    let paused = put(&paused, &first);
    assert_eq!(paused.active_since, start);
    let resumed = put(&first.definition, &paused);
    assert_eq!((resumed.created_at, resumed.active_since), (start, later));
}

#[test]
fn a_stored_hook_is_read_back() {
    let stored = serde_json::to_value(hook()).unwrap();
    assert_eq!(stored["stalled_after"], "5m");
    assert_eq!(serde_json::from_value::<Hook>(stored).unwrap(), hook());
}

fn ready() -> QueueStarts {
    QueueStarts {
        ready: 2,
        ..QueueStarts::default()
    }
}

#[test]
fn a_queue_is_idle_from_the_look_that_sees_a_ready_job() {
    let (before, now) = (at("2026-01-01T11:00:00Z"), at(NOW));
    assert_eq!(idle_since(None, &ready(), now), Some(now));
    assert_eq!(idle_since(Some(before), &ready(), now), Some(before));
}

#[test]
fn a_start_a_pause_a_rate_and_an_empty_queue_end_the_idle_time() {
    let (before, now) = (Some(at("2026-01-01T11:00:00Z")), at(NOW));
    let started = QueueStarts {
        has_started: true,
        ..ready()
    };
    assert_eq!(idle_since(before, &started, now), Some(now));
    let paused = QueueStarts {
        is_paused: true,
        ..ready()
    };
    assert_eq!(idle_since(before, &paused, now), None);
    let limited = QueueStarts {
        rate_until: Some(at("2026-01-01T13:00:00Z")),
        ..ready()
    };
    assert_eq!(idle_since(before, &limited, now), None);
    assert_eq!(idle_since(before, &QueueStarts::default(), now), None);
}

#[test]
fn a_queue_is_stalled_after_its_time_and_not_before() {
    let (queue, five) = ("mail".parse().unwrap(), Duration::from_secs(300));
    let stalled = |now: &str| ready().stalled(&queue, at("2026-01-01T12:00:00Z"), five, at(now));
    assert_eq!(stalled("2026-01-01T12:04:59Z"), None);
    let report = stalled("2026-01-01T12:30:00Z").unwrap();
    assert_eq!(report.at, at("2026-01-01T12:05:00Z"));
    let (_, job) = hook().report_job(&report);
    let body = body(&job);
    assert_eq!(
        (&body["queue"], &body["ready"]),
        (&json!("mail"), &json!(2))
    );
    assert_eq!(body["idle_since"], "2026-01-01T12:00:00Z");
}
