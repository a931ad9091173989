//! Which jobs a list is about.

use serde_json::{Map, Value};
use windlass_core::fields::{Fields, one_of};
use windlass_core::{
    AttemptError, DeadReason, Fingerprint, Invalid, Job, Key, Kind, Payload, QueueName, ScheduleId,
    State, Tag, Timestamp,
};

use crate::Query;

/// The most characters that are searched for.
const SEARCHED_CHARS_MAX: usize = 200;

/// What a client may ask of jobs. Everything that is given must hold.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// In this state, by the word that is shown.
    pub state: Option<&'static str>,
    /// In this queue.
    pub queue: Option<QueueName>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this tag.
    pub tag: Option<Tag>,
    /// With this unique key.
    pub unique_key: Option<Key>,
    /// Of this schedule.
    pub schedule: Option<ScheduleId>,
    /// Dead for this reason.
    pub reason: Option<DeadReason>,
    /// Enqueued at or after.
    pub created_from: Option<Timestamp>,
    /// Enqueued before.
    pub created_before: Option<Timestamp>,
    /// Finished at or after.
    pub finished_from: Option<Timestamp>,
    /// Finished before.
    pub finished_before: Option<Timestamp>,
    /// With this text in the last error, in any case.
    pub error: Option<String>,
    /// With an error of this group.
    pub fingerprint: Option<String>,
    /// With this value in the payload.
    pub payload: Option<PayloadMatch>,
}

/// A value at a place in a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct PayloadMatch {
    /// Where, as a JSON pointer.
    pub path: String,
    /// What must be there, as JSON or as plain text.
    pub value: String,
}

impl PayloadMatch {
    fn holds(&self, payload: &Payload) -> bool {
        let Ok(payload) = payload.decode::<Value>() else {
            return false;
        };
        let Some(found) = payload.pointer(&self.path) else {
            return false;
        };
        let as_json = serde_json::from_str::<Value>(&self.value);
        found.as_str() == Some(&self.value) || as_json.is_ok_and(|value| value == *found)
    }
}

impl JobFilter {
    /// Reads it from a query.
    pub fn from_query(query: &mut Query<'_>) -> Result<Self, Invalid> {
        Ok(JobFilter {
            state: query.parsed("state", state_of)?,
            queue: query.parsed("queue", QueueName::new)?,
            kind: query.parsed("kind", Kind::new)?,
            tag: query.parsed("tag", Tag::new)?,
            unique_key: query.parsed("unique_key", Key::new)?,
            schedule: query.parsed("schedule", str::parse)?,
            reason: query.parsed("reason", reason_of)?,
            created_from: query.timestamp("created_from")?,
            created_before: query.timestamp("created_before")?,
            finished_from: query.timestamp("finished_from")?,
            finished_before: query.timestamp("finished_before")?,
            error: query.parsed("error", searched)?,
            fingerprint: query.parsed("fingerprint", fingerprint_of)?,
            payload: payload_match(query.text("payload_path")?, query.text("payload_value")?)?,
        })
    }

    /// Reads it from an object of a body.
    pub fn from_fields(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let mut fields = Fields::of(map);
        let filter = JobFilter {
            state: fields.parsed("state", state_of)?,
            queue: fields.parsed("queue", QueueName::new)?,
            kind: fields.parsed("kind", Kind::new)?,
            tag: fields.parsed("tag", Tag::new)?,
            unique_key: fields.parsed("unique_key", Key::new)?,
            schedule: fields.parsed("schedule", str::parse)?,
            reason: fields.parsed("reason", reason_of)?,
            created_from: fields.timestamp("created_from")?,
            created_before: fields.timestamp("created_before")?,
            finished_from: fields.timestamp("finished_from")?,
            finished_before: fields.timestamp("finished_before")?,
            error: fields.parsed("error", searched)?,
            fingerprint: fields.parsed("fingerprint", fingerprint_of)?,
            payload: payload_match(fields.text("payload_path")?, fields.text("payload_value")?)?,
        };
        fields.finish()?;
        Ok(filter)
    }

    /// Whether it asks nothing: a change by it would be a change to everything.
    pub fn is_empty(&self) -> bool {
        let JobFilter {
            state,
            queue,
            kind,
            tag,
            unique_key,
            schedule,
            reason,
            created_from,
            created_before,
            finished_from,
            finished_before,
            error,
            fingerprint,
            payload,
        } = self;
        state.is_none()
            && queue.is_none()
            && kind.is_none()
            && tag.is_none()
            && unique_key.is_none()
            && schedule.is_none()
            && reason.is_none()
            && created_from.is_none()
            && created_before.is_none()
            && finished_from.is_none()
            && finished_before.is_none()
            && error.is_none()
            && fingerprint.is_none()
            && payload.is_none()
    }

    /// Whether a store cannot answer it by itself, so that jobs are looked at one by one.
    pub fn searches(&self) -> bool {
        self.finished_from.is_some()
            || self.error.is_some()
            || self.fingerprint.is_some()
            || self.payload.is_some()
    }

    /// Whether a job is one of those, as far as a store cannot tell.
    pub fn finds(&self, job: &Job) -> bool {
        let error = job.last_error.as_ref();
        let has_text = |text: &String| {
            let told = error.map(|error| error.to_string().to_lowercase());
            told.is_some_and(|told| told.contains(text))
        };
        let has_fingerprint = |wanted: &String| group_of(job).to_string() == *wanted;
        self.finished_from
            .is_none_or(|from| job.finished_at().is_some_and(|at| at >= from))
            && self.error.as_ref().is_none_or(has_text)
            && self.fingerprint.as_ref().is_none_or(has_fingerprint)
            && self
                .payload
                .as_ref()
                .is_none_or(|wanted| wanted.holds(&job.payload))
    }
}

/// The group of a job by what went wrong. It may be dead without an error: its deadline passed.
pub fn group_of(job: &Job) -> Fingerprint {
    let reason = match job.state() {
        State::Dead(reason) => reason.name(),
        _ => "",
    };
    let error = job.last_error.clone();
    let error = error.unwrap_or_else(|| AttemptError::new(reason));
    Fingerprint::new(&job.kind, &error)
}

/// The words for states.
pub(crate) const STATES: [&str; 6] = [
    "scheduled",
    "ready",
    "running",
    "succeeded",
    "dead",
    "cancelled",
];

fn state_of(text: &str) -> Result<&'static str, Invalid> {
    one_of(text, &STATES.map(|state| (state, state)))
}

fn reason_of(text: &str) -> Result<DeadReason, Invalid> {
    one_of(text, &DeadReason::ALL.map(|reason| (reason.name(), reason)))
}

fn searched(text: &str) -> Result<String, Invalid> {
    let length = text.chars().count();
    if length == 0 || length > SEARCHED_CHARS_MAX {
        let rule = format!("must be 1 to {SEARCHED_CHARS_MAX} characters, got {length}");
        return Err(Invalid::new("", rule));
    }
    Ok(text.to_lowercase())
}

fn fingerprint_of(text: &str) -> Result<String, Invalid> {
    let hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !hex {
        let rule = "must be the fingerprint of a group: 16 hexadecimal digits";
        return Err(Invalid::new("", rule));
    }
    Ok(text.to_lowercase())
}

fn payload_match(path: Option<&str>, value: Option<&str>) -> Result<Option<PayloadMatch>, Invalid> {
    match (path, value) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(Invalid::new(
            "payload_path",
            "says nothing without `payload_value`",
        )),
        (None, Some(_)) => Err(Invalid::new(
            "payload_value",
            "says nothing without `payload_path`",
        )),
        (Some(path), Some(value)) => {
            if !(path.is_empty() || path.starts_with('/')) || path.len() > SEARCHED_CHARS_MAX {
                let rule = "must be a JSON pointer such as `/customer/id`, at most 200 bytes";
                return Err(Invalid::new("payload_path", rule));
            }
            Ok(Some(PayloadMatch {
                path: path.to_owned(),
                value: value.to_owned(),
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use windlass_core::{JobId, NewJob};

    fn filter(query: &str) -> Result<JobFilter, Invalid> {
        let pairs = Query::pairs(query)?;
        let mut query = Query::of(&pairs);
        let filter = JobFilter::from_query(&mut query)?;
        query.finish()?;
        Ok(filter)
    }

    fn job(payload: &str, error: Option<&str>) -> Job {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let new = NewJob::from_json(&format!(r#"{{"kind":"a","payload":{payload}}}"#)).unwrap();
        let mut job = new.into_job(JobId::new(now, 1), now).unwrap();
        job.last_error = error.map(AttemptError::new);
        job
    }

    #[test]
    fn searching_looks_into_errors_and_payloads() {
        let one = job(
            r#"{"customer":{"id":42,"name":"Ann"}}"#,
            Some("Timeout after 30 s"),
        );
        for (query, found) in [
            ("error=timeout", true),
            ("error=refused", false),
            ("payload_path=/customer/id&payload_value=42", true),
            ("payload_path=/customer/name&payload_value=Ann", true),
            ("payload_path=/customer/name&payload_value=%22Ann%22", true),
            ("payload_path=/customer/id&payload_value=43", false),
            ("payload_path=/nothing&payload_value=43", false),
            ("finished_from=2026-01-01T00:00:00Z", false),
            ("queue=default", true),
        ] {
            assert_eq!(filter(query).unwrap().finds(&one), found, "{query}");
        }
        let group = Fingerprint::new(&one.kind, one.last_error.as_ref().unwrap());
        let by_group = filter(&format!("fingerprint={group}")).unwrap();
        assert!(by_group.finds(&one) && by_group.searches());
        assert!(!by_group.finds(&job("1", Some("other"))));
        assert!(!filter("queue=default").unwrap().searches());
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (query, field) in [
            ("state=failed", "state"),
            ("queue=a%2Fb", "queue"),
            ("reason=bad", "reason"),
            ("schedule=x", "schedule"),
            ("created_from=yesterday", "created_from"),
            ("error=", "error"),
            ("fingerprint=x", "fingerprint"),
            ("payload_path=/a", "payload_path"),
            ("payload_value=1", "payload_value"),
            ("payload_path=a&payload_value=1", "payload_path"),
            ("colour=red", "colour"),
        ] {
            assert_eq!(filter(query).unwrap_err().field(), field, "{query}");
        }
    }

    #[test]
    fn a_body_says_the_same_as_a_query() {
        let body = serde_json::json!({"queue": "q", "reason": "lost", "error": "X"});
        let read = JobFilter::from_fields(body.as_object().unwrap()).unwrap();
        assert_eq!(read.error.as_deref(), Some("x"));
        assert_eq!(read.reason, Some(DeadReason::Lost));
        assert!(!read.is_empty() && JobFilter::default().is_empty());
        let unknown = serde_json::json!({"color": 1});
        assert!(JobFilter::from_fields(unknown.as_object().unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "[a-z_=&%+0-9é/\\PC]{0,80}", name in 0..14_usize, value in any::<String>()) {
            let _ = filter(&query);
            let names = [
                "state", "queue", "kind", "tag", "unique_key", "schedule", "reason", "created_from", "created_before",
                "finished_from", "finished_before", "error", "fingerprint", "payload_path",
            ];
            let map = serde_json::json!({names[name]: value.clone(), "payload_value": value});
            if let Some(map) = map.as_object() {
                let _ = JobFilter::from_fields(map);
            }
        }
    }
}
