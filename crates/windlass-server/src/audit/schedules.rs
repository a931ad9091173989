//! Audit entries of schedules that an operator created or changed.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_core::schedule::NewSchedule;

use super::{digest, digest_of, replaced};
use crate::call::Call;
use crate::problem::Problem;

/// The audit log shows the hash and size of longer values instead of the value.
const SHOWN_BYTES_MAX: usize = 1024;

/// Keeps the payload that the change replaces. Returns the audit entry of the change.
pub(crate) async fn schedule_changes(
    call: &Call,
    old: Option<&NewSchedule>,
    new: &NewSchedule,
) -> Result<Value, Problem> {
    let mut changes = differences(&old.map(fields).unwrap_or_default(), &fields(new));
    let new_payload = &new.job.payload;
    let payload = match old.map(|old| &old.job.payload) {
        Some(old) if old == new_payload => None,
        Some(old) => {
            Some(replaced(call, &schedule_owner(new.name.as_str()), old, new_payload).await?)
        }
        None => Some(json!({"old": null, "new": digest(new_payload)})),
    };
    if let Some(payload) = payload {
        changes.insert("job.payload".to_owned(), payload);
    }
    Ok(json!({"changes": changes}))
}

/// Returns the owner of a schedule's replaced payloads.
pub(crate) fn schedule_owner(name: &str) -> String {
    format!("schedule/{name}")
}

/// Returns all fields except the payload. Fields of the job have names like `job.kind`.
fn fields(schedule: &NewSchedule) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(schedule) else {
        return Map::new();
    };
    if let Some(Value::Object(job)) = fields.remove("job") {
        let inner = job.into_iter().filter(|(name, _)| name != "payload");
        fields.extend(inner.map(|(name, value)| (format!("job.{name}"), value)));
    }
    fields
}

/// Returns the old and new value of each changed field; null if a field is not set.
fn differences(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let value =
        |fields: &Map<String, Value>, name: &str| fields.get(name).cloned().unwrap_or_default();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut changes = Map::new();
    for name in names {
        let (old, new) = (value(old, name), value(new, name));
        if old != new {
            changes.insert(name.clone(), json!({"old": shown(old), "new": shown(new)}));
        }
    }
    changes
}

fn shown(value: Value) -> Value {
    let text = value.to_string();
    if text.len() > SHOWN_BYTES_MAX {
        digest_of(&text)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn only_changed_fields_are_listed_and_long_values_by_their_hash() {
        let long = "x".repeat(2000);
        let old = map(json!({"cron": "0 2 * * *", "splay_ms": 5, "job.kind": "a"}));
        let new = map(json!({"cron": "0 3 * * *", "job.kind": "a", "job.meta": {"m": long}}));
        let changes = differences(&old, &new);
        let names: Vec<&String> = changes.keys().collect();
        assert_eq!(names, ["cron", "job.meta", "splay_ms"]);
        assert_eq!(
            changes["cron"],
            json!({"old": "0 2 * * *", "new": "0 3 * * *"})
        );
        assert_eq!(changes["splay_ms"], json!({"old": 5, "new": null}));
        assert_eq!(changes["job.meta"]["new"]["bytes"], 2008);
    }
}
