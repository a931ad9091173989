//! Reading and writing a new job as JSON. The REST API reads other spellings (`type`,
//! `maxRetryCount`) itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};

use super::{Deadline, JOB_BYTES_MAX, NewJob, Start};
use crate::duration::format_duration;
use crate::fields::{Fields, RawFields};
use crate::job::{Concurrency, OnDuplicate, Timeout, Unique};
use crate::retry::{ATTEMPTS_CEILING, AttemptLimit, RetryPolicy};
use crate::{Delivery, Invalid, Key, Kind, Payload, QueueName, Tag};

impl NewJob {
    /// Reads a job from JSON text. Keeps the payload byte for byte. The error names the field and
    /// the rule.
    pub fn from_json(text: &str) -> Result<Self, Invalid> {
        NewJob::from_parts(&RawFields::parse(text)?)
    }

    fn from_parts(parts: &RawFields) -> Result<Self, Invalid> {
        let payload = match parts.raw("payload") {
            Some(raw) => Payload::parse(raw, usize::MAX).map_err(|e| e.within("payload"))?,
            None => Payload::default(),
        };
        parts.check_others("payload", JOB_BYTES_MAX)?;
        let others = parts.values_except("payload")?;
        let mut fields = Fields::of(&others);
        let job = NewJob::from_fields(&mut fields, payload)?;
        fields.finish()?;
        Ok(job)
    }

    fn from_fields(fields: &mut Fields<'_>, payload: Payload) -> Result<Self, Invalid> {
        let kind = fields
            .parsed("kind", Kind::new)?
            .ok_or_else(|| Invalid::new("kind", "is required"))?;
        let max_attempts = fields.integer("max_attempts", 0, ATTEMPTS_CEILING.into())?;
        let max_retries = fields.integer("max_retries", 0, i64::from(ATTEMPTS_CEILING) - 1)?;
        let priority = fields.integer("priority", i16::MIN.into(), i16::MAX.into())?;
        Ok(NewJob {
            payload,
            queue: fields.parsed("queue", QueueName::new)?.unwrap_or_default(),
            priority: priority
                .and_then(|number| number.try_into().ok())
                .unwrap_or(0),
            start: read_start(fields)?,
            delivery: fields
                .parsed("delivery", str::parse::<Delivery>)?
                .unwrap_or_default(),
            max_attempts: AttemptLimit::from_either(max_attempts, max_retries)?,
            retry: read_retry(fields)?,
            timeout: read_timeout(fields)?,
            deadline: read_deadline(fields)?,
            unique: read_unique(fields)?,
            concurrency: read_concurrency(fields)?,
            tags: read_tags(fields)?,
            meta: read_meta(fields)?,
            ..NewJob::new(kind)
        })
    }
}

impl<'de> Deserialize<'de> for NewJob {
    /// Reads from `serde_json` only, because the payload is kept byte for byte.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = RawFields::deserialize(deserializer)?;
        NewJob::from_parts(&parts).map_err(de::Error::custom)
    }
}

impl Serialize for NewJob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", &self.kind)?;
        map.serialize_entry("payload", &self.payload)?;
        let others = self.other_fields().map_err(S::Error::custom)?;
        for (name, value) in &others {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl NewJob {
    /// All fields that are not at their defaults, except kind and payload.
    fn other_fields(&self) -> Result<Map<String, Value>, serde_json::Error> {
        let plain = NewJob::new(self.kind.clone());
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        if self.queue != plain.queue {
            put("queue", self.queue.as_str().into());
        }
        if self.priority != 0 {
            put("priority", self.priority.into());
        }
        match self.start {
            Start::Now => None,
            Start::At(run_at) => put("run_at", run_at.to_string().into()),
            Start::After(delay) => put("delay", format_duration(delay).into()),
        };
        if self.delivery != plain.delivery {
            put("delivery", self.delivery.name().into());
        }
        if let Some(limit) = self.max_attempts {
            put("max_attempts", limit.get().into());
        }
        if let Some(policy) = &self.retry {
            let preset = policy.preset().map(|preset| preset.name().into());
            put("retry", preset.unwrap_or_else(|| policy.to_json()));
        }
        match self.timeout {
            None => None,
            Some(Timeout::None) => put("timeout", "none".into()),
            Some(Timeout::After(timeout)) => put("timeout", format_duration(timeout).into()),
        };
        match self.deadline {
            None => None,
            Some(Deadline::At(deadline)) => put("deadline", deadline.to_string().into()),
            Some(Deadline::After(span)) => put("expires_in", format_duration(span).into()),
        };
        if let Some(unique) = &self.unique {
            put("unique_key", unique.key.as_str().into());
            if let Some(hold) = unique.unique_for {
                put("unique_for", format_duration(hold).into());
            }
            put("on_duplicate", unique.on_duplicate.name().into());
        }
        if let Some(concurrency) = &self.concurrency {
            put("concurrency_key", concurrency.key.as_str().into());
            put("limit", concurrency.limit.into());
        }
        if !self.tags.is_empty() {
            put("tags", serde_json::to_value(&self.tags)?);
        }
        if !self.meta.is_empty() {
            put("meta", serde_json::to_value(&self.meta)?);
        }
        Ok(map)
    }
}

fn one_or_other<A, B, T>(
    first: (&str, Option<A>, fn(A) -> T),
    second: (&str, Option<B>, fn(B) -> T),
) -> Result<Option<T>, Invalid> {
    match (first.1, second.1) {
        (Some(_), Some(_)) => {
            let rule = format!("and `{}` exclude each other: give one of them", first.0);
            Err(Invalid::new(second.0, rule))
        }
        (Some(value), None) => Ok(Some(first.2(value))),
        (None, Some(value)) => Ok(Some(second.2(value))),
        (None, None) => Ok(None),
    }
}

fn read_start(fields: &mut Fields<'_>) -> Result<Start, Invalid> {
    let run_at = (
        "run_at",
        fields.timestamp("run_at")?,
        Start::At as fn(_) -> _,
    );
    let delay = (
        "delay",
        fields.duration("delay")?,
        Start::After as fn(_) -> _,
    );
    Ok(one_or_other(run_at, delay)?.unwrap_or_default())
}

fn read_deadline(fields: &mut Fields<'_>) -> Result<Option<Deadline>, Invalid> {
    let deadline = (
        "deadline",
        fields.timestamp("deadline")?,
        Deadline::At as fn(_) -> _,
    );
    let span = (
        "expires_in",
        fields.duration("expires_in")?,
        Deadline::After as fn(_) -> _,
    );
    one_or_other(deadline, span)
}

fn read_retry(fields: &mut Fields<'_>) -> Result<Option<Arc<RetryPolicy>>, Invalid> {
    let policy = fields
        .value("retry")
        .map(RetryPolicy::from_json)
        .transpose();
    let policy = policy.map_err(|error| error.within("retry"))?;
    Ok(policy.map(Arc::new))
}

fn read_timeout(fields: &mut Fields<'_>) -> Result<Option<Timeout>, Invalid> {
    if fields.value("timeout").and_then(Value::as_str) == Some("none") {
        return Ok(Some(Timeout::None));
    }
    Ok(fields.duration("timeout")?.map(Timeout::After))
}

fn read_unique(fields: &mut Fields<'_>) -> Result<Option<Unique>, Invalid> {
    let key = fields.parsed("unique_key", Key::new)?;
    let unique_for = fields.duration("unique_for")?;
    let on_duplicate = fields.parsed("on_duplicate", str::parse::<OnDuplicate>)?;
    let Some(key) = key else {
        refuse_alone("unique_for", unique_for.is_some(), "unique_key")?;
        refuse_alone("on_duplicate", on_duplicate.is_some(), "unique_key")?;
        return Ok(None);
    };
    Ok(Some(Unique {
        key,
        unique_for,
        on_duplicate: on_duplicate.unwrap_or_default(),
    }))
}

fn read_concurrency(fields: &mut Fields<'_>) -> Result<Option<Concurrency>, Invalid> {
    let key = fields.parsed("concurrency_key", Key::new)?;
    let limit = fields.integer("limit", 1, u32::MAX.into())?;
    let Some(key) = key else {
        refuse_alone("limit", limit.is_some(), "concurrency_key")?;
        return Ok(None);
    };
    let limit = limit.and_then(|limit| limit.try_into().ok()).unwrap_or(1);
    Ok(Some(Concurrency { key, limit }))
}

/// Refuses an option that has no effect without `needed`.
fn refuse_alone(field: &str, given: bool, needed: &str) -> Result<(), Invalid> {
    if given {
        return Err(Invalid::new(
            field,
            format!("is only allowed together with `{needed}`"),
        ));
    }
    Ok(())
}

fn read_tags(fields: &mut Fields<'_>) -> Result<Vec<Tag>, Invalid> {
    let read = |(index, value): (usize, &Value)| {
        let text = value
            .as_str()
            .ok_or_else(|| Invalid::new("", "must be text"));
        text.and_then(Tag::new)
            .map_err(|error| error.within(&format!("tags[{index}]")))
    };
    let list = fields.list("tags")?;
    list.into_iter().flatten().enumerate().map(read).collect()
}

fn read_meta(fields: &mut Fields<'_>) -> Result<BTreeMap<String, Value>, Invalid> {
    match fields.value("meta") {
        None => Ok(BTreeMap::new()),
        Some(Value::Object(map)) => Ok(map.clone().into_iter().collect()),
        Some(_) => Err(Invalid::new("meta", "must be an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn refused(text: &str) -> Invalid {
        NewJob::from_json(text).expect_err(text)
    }

    #[test]
    fn a_whole_job_is_read_and_written_back() {
        let text = concat!(
            r#"{"kind":"email:send","payload":{"b": 1.0,  "a": 2},"concurrency_key":"eu","#,
            r#""delay":"1m 30s","delivery":"at_most_once","expires_in":"1d","limit":3,"max_attempts":5,"#,
            r#""meta":{"traceparent":"00-ab"},"on_duplicate":"replace","priority":-7,"queue":"mail","#,
            r#""retry":"webhook","tags":["x","y"],"timeout":"none","unique_for":"1h","unique_key":"u1"}"#,
        );
        let job = NewJob::from_json(text).unwrap();
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
        assert_eq!(serde_json::from_str::<NewJob>(text).unwrap(), job);
        let text = concat!(
            r#"{"kind":"a","payload":null,"deadline":"2026-01-01T00:00:00Z","retry":{"backoff":"#,
            r#"{"delay":"1s","type":"constant"},"jitter":{"type":"none"},"max_attempts":2},"#,
            r#""run_at":"2026-01-01T00:00:00Z","timeout":"5s"}"#,
        );
        let job = NewJob::from_json(text).unwrap();
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
        let plain = r#"{"kind":"a","payload":null}"#;
        let job = NewJob::from_json(r#"{"kind": "a"}"#).unwrap();
        assert_eq!(serde_json::to_string(&job).unwrap(), plain);
    }

    #[test]
    fn both_spellings_of_durations_and_limits_are_read() {
        let job = NewJob::from_json(
            r#"{"kind":"a","delay_ms":1500,"timeout_ms":10,"max_retries":0,"unique_key":"u","concurrency_key":"c"}"#,
        )
        .unwrap();
        assert_eq!(
            job.start,
            Start::After(std::time::Duration::from_millis(1500))
        );
        assert_eq!(job.max_attempts, Some(AttemptLimit::ONE));
        assert_eq!(job.unique.unwrap().on_duplicate, OnDuplicate::Keep);
        assert_eq!(job.concurrency.unwrap().limit, 1);
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        for (field, text) in [
            ("", "[]"),
            ("", "{"),
            ("kind", "{}"),
            ("kind", r#"{"kind": "a b"}"#),
            ("kind", r#"{"kind": 5}"#),
            ("payload", r#"{"kind": "a", "payload": "\ud800"}"#),
            ("payload", r#"{"kind": "a", "payload": 1e999}"#),
            ("queue", r#"{"kind": "a", "queue": "x/y"}"#),
            ("priority", r#"{"kind": "a", "priority": 32768}"#),
            ("run_at", r#"{"kind": "a", "run_at": "soon"}"#),
            ("run_at", r#"{"kind": "a", "run_at": 5}"#),
            (
                "delay",
                r#"{"kind": "a", "run_at": "2026-01-01T00:00:00Z", "delay": "1s"}"#,
            ),
            ("delay", r#"{"kind": "a", "delay": "-1s"}"#),
            ("delivery", r#"{"kind": "a", "delivery": "twice"}"#),
            ("max_attempts", r#"{"kind": "a", "max_attempts": 1001}"#),
            ("max_attempts", r#"{"kind": "a", "max_attempts": -1}"#),
            (
                "max_attempts",
                r#"{"kind": "a", "max_attempts": 99999999999999999999}"#,
            ),
            (
                "max_retries",
                r#"{"kind": "a", "max_attempts": 3, "max_retries": 5}"#,
            ),
            ("retry", r#"{"kind": "a", "retry": "fast"}"#),
            (
                "retry.backoff.base",
                r#"{"kind": "a", "retry": {"backoff": {"type": "exponential"}}}"#,
            ),
            ("timeout", r#"{"kind": "a", "timeout": "never"}"#),
            (
                "timeout_ms",
                r#"{"kind": "a", "timeout": "none", "timeout_ms": 5}"#,
            ),
            (
                "expires_in",
                r#"{"kind": "a", "deadline": "2026-01-01T00:00:00Z", "expires_in": "1s"}"#,
            ),
            ("unique_key", r#"{"kind": "a", "unique_key": ""}"#),
            ("unique_for", r#"{"kind": "a", "unique_for": "1h"}"#),
            (
                "on_duplicate",
                r#"{"kind": "a", "on_duplicate": "replace"}"#,
            ),
            (
                "on_duplicate",
                r#"{"kind": "a", "unique_key": "u", "on_duplicate": "drop"}"#,
            ),
            ("limit", r#"{"kind": "a", "limit": 3}"#),
            (
                "limit",
                r#"{"kind": "a", "concurrency_key": "c", "limit": 0}"#,
            ),
            ("tags", r#"{"kind": "a", "tags": "x"}"#),
            ("tags[1]", r#"{"kind": "a", "tags": ["x", 5]}"#),
            ("tags[0]", r#"{"kind": "a", "tags": [""]}"#),
            ("meta", r#"{"kind": "a", "meta": []}"#),
            ("prioritty", r#"{"kind": "a", "prioritty": 5}"#),
            ("kind", r#"{"kind": "a", "kind": "b"}"#),
            (
                "max_attempts",
                r#"{"kind": "a", "max_attempts": 3, "max_attempts": 5}"#,
            ),
            (
                "meta",
                r#"{"kind": "a", "meta": {"x": {"$serde_json::private::RawValue": "1"}}}"#,
            ),
            ("meta", r#"{"kind": "a", "meta": {"x\u0000": 1}}"#),
        ] {
            let refusal = refused(text);
            assert_eq!(refusal.field(), field, "{text}: {refusal}");
        }
    }

    #[test]
    fn deep_json_in_any_field_is_refused() {
        let deep = "[".repeat(10_000);
        refused(&format!(r#"{{"kind": "a", "payload": {deep}"#));
        let closed = format!("{deep}{}", "]".repeat(10_000));
        assert_eq!(
            refused(&format!(r#"{{"kind": "a", "meta": {closed}}}"#)).field(),
            "meta"
        );
        assert_eq!(
            refused(&format!(r#"{{"kind": "a", "payload": {closed}}}"#)).field(),
            "payload"
        );
        let deeper = format!("{{\"a\":{}1{}}}", "[".repeat(64), "]".repeat(64));
        let refusal = refused(&format!(r#"{{"kind": "a", "meta": {deeper}}}"#));
        assert_eq!(refusal.field(), "meta", "as deep as a payload may be");
    }

    #[test]
    fn the_rule_names_the_real_bounds() {
        for number in ["5.0", "99999999999999999999", "-1", "1001"] {
            let refusal = refused(&format!(r#"{{"kind": "a", "max_attempts": {number}}}"#));
            assert!(refusal.rule().contains("from 0 to 1000"), "{refusal}");
        }
    }

    #[test]
    fn a_null_field_is_an_absent_one() {
        let job =
            NewJob::from_json(r#"{"kind":"a","queue":null,"retry":null,"tags":null,"meta":null}"#);
        assert_eq!(job.unwrap(), NewJob::new(Kind::new("a").unwrap()));
        let job = serde_json::from_value::<Value>(json!({"kind": "a"})).unwrap();
        assert!(NewJob::from_json(&job.to_string()).is_ok());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), name in "[a-z_]{1,12}", value in "[-0-9a-z\"{}\\[\\]:,. ]{0,12}") {
            let _ = NewJob::from_json(&text);
            let _ = NewJob::from_json(&format!("{{\"kind\":\"a\",\"{name}\":{value}}}"));
        }
    }
}
