//! Schedules as a client writes and reads them.

use serde::Serialize;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use windlass_core::fields::RawFields;
use windlass_core::schedule::NewSchedule;
use windlass_core::{Invalid, ScheduleId, Timestamp};

use crate::Content;
use crate::old_job::read_new_job;

/// Reads a schedule; its job may have the other spellings that jobs have.
pub fn read_schedule(parts: &RawFields) -> Result<NewSchedule, Invalid> {
    let job = parts.raw("job");
    let job = job.ok_or_else(|| Invalid::new("job", "is required"))?;
    let job = RawFields::parse(job).and_then(read_new_job);
    NewSchedule::from_parts(parts, job.map_err(|error| error.within("job"))?)
}

/// Reads what is to be different about a schedule: what is not given stays, `null` goes back to its default. A `job` is
/// given whole. The name cannot be changed.
pub fn read_patch(before: &NewSchedule, mut patch: RawFields) -> Result<NewSchedule, Invalid> {
    if patch.has("name") {
        let rule = "cannot be changed: create another schedule and delete this one";
        return Err(Invalid::new("name", rule));
    }
    let job = match patch.take("job") {
        None => before.job.clone(),
        Some(raw) => {
            let job = RawFields::parse(raw.get()).and_then(read_new_job);
            job.map_err(|error| error.within("job"))?
        }
    };
    let text = serde_json::to_string(before)
        .map_err(|error| Invalid::new("", format!("cannot be written as JSON: {error}")))?;
    let mut whole = RawFields::parse(&text)?;
    let rules = ["cron", "every", "every_ms", "at"];
    if rules.iter().any(|rule| patch.has(rule)) {
        for rule in rules {
            whole.take(rule);
        }
    }
    for span in ["missed_after", "splay"] {
        let span_ms = format!("{span}_ms");
        if patch.has(&span_ms) {
            whole.take(span);
        }
    }
    for name in patch.values()?.keys() {
        if let Some(raw) = patch.take(name) {
            whole.put(name, raw);
        }
    }
    NewSchedule::from_parts(&whole, job)
}

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub enum Definition<'a> {
    /// As it is understood.
    Read(&'a NewSchedule),
    /// As it was written, where it cannot be read any more.
    Unreadable {
        /// The name of the schedule.
        name: &'a str,
        /// What was written.
        text: &'a str,
        /// Why it cannot be read.
        reason: &'a str,
    },
}

impl Definition<'_> {
    fn fields(self) -> Result<RawFields, Box<dyn std::error::Error>> {
        match self {
            Definition::Read(definition) => {
                Ok(RawFields::parse(&serde_json::to_string(definition)?)?)
            }
            Definition::Unreadable { name, text, .. } => match RawFields::parse(text) {
                Ok(fields) => Ok(fields),
                Err(_) => Ok(RawFields::parse(&json!({"name": name}).to_string())?),
            },
        }
    }
}

/// A schedule as it is answered.
#[derive(Debug, Clone)]
pub struct ScheduleView<'a> {
    /// Its id.
    pub id: ScheduleId,
    /// What was asked for.
    pub definition: Definition<'a>,
    /// When it was created.
    pub created_at: Timestamp,
    /// The last occurrence that was fired or skipped.
    pub last_at: Option<Timestamp>,
    /// When it is due next.
    pub next_at: Option<Timestamp>,
    /// Whether the payload of its jobs is shown.
    pub content: Content,
}

impl Serialize for ScheduleView<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::{Error as _, SerializeMap};
        let mut parts = self.definition.fields().map_err(S::Error::custom)?;
        if self.content != Content::Shown {
            let job = parts.take("job");
            let job =
                job.and_then(|raw| serde_json::from_str::<Map<String, Value>>(raw.get()).ok());
            let mut job = job.unwrap_or_default();
            job.remove("payload");
            parts.put("job", to_raw_value(&job).map_err(S::Error::custom)?);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        for (name, raw) in parts.iter() {
            map.serialize_entry(name, raw)?;
        }
        map.serialize_entry("created_at", &self.created_at)?;
        map.serialize_entry("last_at", &self.last_at)?;
        map.serialize_entry("next_at", &self.next_at)?;
        match self.definition {
            Definition::Read(definition) => {
                let finished = self.next_at.is_none() && !definition.paused;
                map.serialize_entry("finished", &finished)?;
            }
            Definition::Unreadable { reason, .. } => {
                map.serialize_entry("finished", &false)?;
                map.serialize_entry("error", reason)?;
            }
        }
        if self.content == Content::Withheld {
            map.serialize_entry("payload_withheld", &true)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(value: &Value) -> RawFields {
        RawFields::parse(&value.to_string()).unwrap()
    }

    fn nightly() -> NewSchedule {
        read_schedule(&parts(&json!({
            "name": "nightly", "cron": "0 2 * * *", "timezone": "Europe/Berlin", "splay": "5s",
            "job": {"type": "report", "payload": {"b": 1, "a": 2}, "maxRetryCount": 2},
        })))
        .unwrap()
    }

    #[test]
    fn a_patch_changes_only_what_it_names() {
        let before = nightly();
        let after = read_patch(&before, parts(&json!({"overlap": "allow"}))).unwrap();
        assert_eq!(after.overlap.name(), "allow");
        assert_eq!(after.job, before.job);
        assert_eq!(after.timezone, before.timezone);
        let every = read_patch(&before, parts(&json!({"every_ms": 5000, "splay_ms": 1}))).unwrap();
        assert_eq!(serde_json::to_value(&every).unwrap()["every"], "5s");
        assert_eq!(serde_json::to_value(&every).unwrap()["splay"], "1ms");
        let plain = read_patch(&before, parts(&json!({"timezone": null}))).unwrap();
        assert_eq!(plain.timezone.name(), "UTC");
        let other = read_patch(&before, parts(&json!({"job": {"kind": "b"}}))).unwrap();
        assert_eq!(other.job.kind.as_str(), "b");
        assert_eq!(other.job.max_attempts, None);
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (patch, field) in [
            (json!({"name": "other"}), "name"),
            (json!({"cron": "61 * * * *"}), "cron"),
            (json!({"colour": 1}), "colour"),
            (json!({"job": {"kind": ""}}), "job.kind"),
        ] {
            let refused = read_patch(&nightly(), parts(&patch)).unwrap_err();
            assert!(refused.field().starts_with(field), "{patch}: {refused}");
        }
    }

    #[test]
    fn a_payload_that_may_not_be_seen_is_left_out() {
        let definition = nightly();
        let seen = |content| {
            serde_json::to_value(ScheduleView {
                id: ScheduleId::from_u128(1),
                definition: Definition::Read(&definition),
                created_at: Timestamp::UNIX_EPOCH,
                last_at: None,
                next_at: None,
                content,
            })
            .unwrap()
        };
        assert_eq!(
            seen(Content::Shown)["job"]["payload"],
            json!({"b": 1, "a": 2})
        );
        let withheld = seen(Content::Withheld);
        assert_eq!(
            withheld["job"],
            json!({"kind": "report", "max_attempts": 3})
        );
        assert_eq!(withheld["payload_withheld"], true);
        assert_eq!(withheld["finished"], true);
    }

    #[test]
    fn one_that_cannot_be_read_is_shown_as_it_was_written() {
        let seen = |text: &str, content| {
            serde_json::to_value(ScheduleView {
                id: ScheduleId::from_u128(1),
                definition: Definition::Unreadable {
                    name: "s",
                    text,
                    reason: "timezone: is gone",
                },
                created_at: Timestamp::UNIX_EPOCH,
                last_at: None,
                next_at: None,
                content,
            })
            .unwrap()
        };
        let text = r#"{"name":"s","timezone":"Mars","job":{"kind":"a","payload":1}}"#;
        let shown = seen(text, Content::Shown);
        assert_eq!(
            (&shown["timezone"], &shown["next_at"]),
            (&json!("Mars"), &Value::Null)
        );
        assert_eq!(
            (&shown["error"], &shown["finished"]),
            (&json!("timezone: is gone"), &json!(false))
        );
        assert_eq!(seen(text, Content::Withheld)["job"], json!({"kind": "a"}));
        assert_eq!(seen("not JSON", Content::Shown)["name"], "s");
    }
}
