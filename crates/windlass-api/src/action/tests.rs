use serde_json::json;

use super::*;
use crate::{BodyRefused, Content, read_body};

fn read(value: &Value) -> Result<CheckedBulkAction, Vec<String>> {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    read_body::<NewBulkAction>(&value.to_string(), now).map_err(|refused| match refused {
        BodyRefused::Invalid(problems) => {
            let mut fields: Vec<_> = problems
                .iter()
                .map(|problem| problem.field().to_owned())
                .collect();
            fields.sort();
            fields
        }
        BodyRefused::Malformed(malformed) => vec![malformed.to_string()],
    })
}

fn body(action: &str, fields: &Value) -> Value {
    let mut body = json!({"action": action, "filter": {"queue": "q"}, "reason": "r"});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn every_action_is_read_with_its_fields() {
    let at: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
    let patch = json!({"priority": 3, "queue": "p", "tags": ["t"], "retry": "patient", "payload": {"a": 1}});
    for (name, fields, expected) in [
        (
            "revive",
            json!({
                "failures": "keep", "payload_patch": {"a": null}, "run_at": at, "force": true,
                "max_attempts": 7, "retry": "patient", "queue": "p", "priority": -3,
            }),
            BulkChange::Revive(BulkRevival {
                keep_failures: true,
                payload_patch: PayloadPatch::new(json!({"a": null})).ok(),
                run_at: Some(at),
                force: true,
                changes: windlass_core::RevivalChanges {
                    max_attempts: windlass_core::retry::AttemptLimit::from_max_attempts(7).unwrap(),
                    retry: Some(windlass_core::retry::Preset::Patient.policy()),
                    queue: "p".parse().ok(),
                    priority: Some(-3),
                },
            }),
        ),
        ("run_now", json!({}), BulkChange::RunNow),
        ("cancel", json!({}), BulkChange::Cancel),
        (
            "delete",
            json!({"filter": {"state": "dead"}}),
            BulkChange::Delete,
        ),
        (
            "move",
            json!({"queue": "p"}),
            BulkChange::Move {
                queue: "p".parse().unwrap(),
            },
        ),
        (
            "reprioritise",
            json!({"priority": -3}),
            BulkChange::Reprioritise { priority: -3 },
        ),
        ("resolve", json!({}), BulkChange::Resolve),
        (
            "patch",
            json!({"patch": patch}),
            BulkChange::Patch {
                patch: Patch {
                    payload: PayloadPatch::new(json!({"a": 1})).ok(),
                    priority: Some(3),
                    queue: Some("p".parse().unwrap()),
                    tags: Some(vec!["t".parse().unwrap()]),
                    retry: Some(windlass_core::retry::Preset::Patient.policy()),
                },
            },
        ),
    ] {
        let read = read(&body(name, &fields)).unwrap();
        assert_eq!(read.change, expected);
        assert_eq!(BulkActionName::from(&read.change).name(), name);
    }
    let rest = read(&body("cancel", &json!({"rate": 5, "dry_run": true}))).unwrap();
    assert_eq!((rest.rate, rest.dry_run), (Some(5), true));
    assert_eq!(rest.reason, "r");
}

#[test]
fn all_problems_are_named_at_once() {
    let fields =
        json!({"rate": 0, "reason": "", "filter": {"kind": "a b"}, "queue": "p", "force": 1});
    let problems = read(&body("cancel", &fields)).unwrap_err();
    assert_eq!(
        problems,
        ["filter.kind", "force", "queue", "rate", "reason"]
    );
    assert_eq!(read(&json!({})).unwrap_err(), ["action", "reason"]);
    assert_eq!(
        read(&json!({"action": "revive"})).unwrap_err(),
        ["filter", "reason"]
    );
    for (name, fields, problem) in [
        ("explode", json!({}), "action"),
        ("move", json!({}), "queue"),
        ("move", json!({"queue": "windlass.hooks"}), "queue"),
        ("revive", json!({"queue": "windlass.hooks"}), "queue"),
        ("cancel", json!({"max_attempts": 3}), "max_attempts"),
        ("move", json!({"queue": "p", "priority": 3}), "priority"),
        (
            "patch",
            json!({"patch": {"queue": "windlass.x"}}),
            "patch.queue",
        ),
        ("reprioritise", json!({}), "priority"),
        ("patch", json!({}), "patch"),
        ("patch", json!({"patch": {}}), "patch"),
        ("patch", json!({"patch": {"payload": [1]}}), "patch.payload"),
        ("patch", json!({"patch": {"retry": "no"}}), "patch.retry"),
        ("delete", json!({}), "filter.state"),
        ("cancel", json!({"filter": {}}), "filter"),
        (
            "run_now",
            json!({"run_at": "2026-01-01T00:00:00Z"}),
            "run_at",
        ),
        ("move", json!({"queue": "p", "priority": 1}), "priority"),
        ("revive", json!({"patch": {"priority": 1}}), "patch"),
        ("resolve", json!({"failures": "keep"}), "failures"),
        ("resolve", json!({"payload_patch": {}}), "payload_patch"),
    ] {
        assert_eq!(
            read(&body(name, &fields)).unwrap_err(),
            [problem],
            "{name} {fields}"
        );
    }
}

#[test]
fn a_diff_has_the_fields_that_change() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let job = windlass_core::NewJob::from_json(r#"{"kind":"a","payload":{"x":1}}"#).unwrap();
    let job = job.into_job(JobId::new(now, 1), now).unwrap();
    let moved = windlass_core::Job {
        priority: 5,
        payload: windlass_core::Payload::from_stored(r#"{"x":2}"#),
        ..job.clone()
    };
    let view = |job: &windlass_core::Job, content| Job::new(job.clone(), now, content);
    let diff = |content| {
        let diff = JobDiff::between(&view(&job, content), Some(&view(&moved, content)));
        serde_json::to_value(diff.changes).unwrap()
    };
    let expected =
        json!({"payload": {"from": {"x": 1}, "to": {"x": 2}}, "priority": {"from": 0, "to": 5}});
    assert_eq!(diff(Content::Shown), expected);
    assert_eq!(
        diff(Content::Withheld),
        json!({"priority": {"from": 0, "to": 5}})
    );
    let removed = JobDiff::between(&view(&job, Content::Shown), None);
    let removed = serde_json::to_value(removed.changes).unwrap();
    assert_eq!(removed, json!({"state": {"from": "ready", "to": null}}));
}

#[test]
fn a_client_reads_all_fields_of_a_bulk_action() {
    let action = json!({
        "id": "00000000-0000-0000-0000-000000000001", "action": "patch", "state": "running",
        "matched": 1, "to_do": 1, "done": 0, "skipped": 0, "skipped_by": {}, "waiting_for": null,
        "waiting_queue": null, "filter": {"queue": "q"}, "rate": null, "failures": "keep",
        "payload_patch": {"a": null}, "run_at": "2026-01-01T00:00:00Z", "force": true,
        "queue": "r", "priority": 3, "patch": {"payload": [{"op": "remove", "path": "/a"}]},
        "reason": "why", "created_at": "2026-01-01T00:00:00Z", "created_by": "ann",
        "ended_at": null, "item_failures": [],
    });
    let mut newer = action.clone();
    newer["field_of_a_newer_server"] = json!(1);
    let read: BulkAction = serde_json::from_str(&newer.to_string()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), action);
}
