//! Patches: the same change to many jobs, whatever else is in their payloads.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::job::{Conflict, Job};
use crate::retry::RetryPolicy;
use crate::state::Event;
use crate::{Invalid, PAYLOAD_BYTES_MAX, Payload, QueueName, Tag};

/// Changes to fields of jobs that wait, are dead or are cancelled. Fields that are not given keep
/// their value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patch {
    /// A patch of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<PayloadPatch>,
    /// The new priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// The queue to move the job to. Its unique key must be free there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// The new tags, in place of the old ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<Tag>>,
    /// The new retry policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
}

/// A patch of a payload: a JSON Patch (RFC 6902) if it is a list, else a merge patch (RFC 7396).
#[derive(Debug, Clone, PartialEq)]
pub struct PayloadPatch(PatchForm);

#[derive(Debug, Clone, PartialEq)]
enum PatchForm {
    Merge(Value),
    Operations(json_patch::Patch),
}

/// Why a patch was not applied to a job. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The job is running or succeeded.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The patch does not fit the payload.
    #[error("the patch does not apply: {0}")]
    DoesNotApply(String),
}

impl PayloadPatch {
    /// Reads a patch.
    pub fn new(value: Value) -> Result<Self, Invalid> {
        if !value.is_array() {
            return Ok(PayloadPatch(PatchForm::Merge(value)));
        }
        let operations = serde_json::from_value(value).map_err(|error| {
            Invalid::new("", format!("must be a JSON Patch (RFC 6902): {error}"))
        })?;
        Ok(PayloadPatch(PatchForm::Operations(operations)))
    }

    /// Applies the patch to a payload. The error says why it does not apply.
    pub fn apply(&self, payload: &Payload) -> Result<Payload, PatchError> {
        let mut value: Value = payload.decode().map_err(does_not_apply)?;
        if let Some(number) = inexact_number(payload.as_str()) {
            // Writing the payload again would change this number.
            let number: String = number.chars().take(40).collect();
            let what = format!("the payload has the number {number}, which would lose digits");
            return Err(PatchError::DoesNotApply(what));
        }
        match &self.0 {
            PatchForm::Merge(patch) => json_patch::merge(&mut value, patch),
            PatchForm::Operations(patch) => {
                json_patch::patch(&mut value, patch).map_err(does_not_apply)?;
            }
        }
        Payload::from_serialize(&value, PAYLOAD_BYTES_MAX).map_err(does_not_apply)
    }
}

impl Job {
    /// Changes a job that does not run.
    pub fn patch(&mut self, patch: &Patch) -> Result<(), PatchError> {
        let (event, state) = (Event::Patched, self.state());
        if state.after(event).is_none() {
            return Err(Conflict { event, state }.into());
        }
        if let Some(payload) = &patch.payload {
            self.payload = payload.apply(&self.payload)?;
        }
        self.priority = patch.priority.unwrap_or(self.priority);
        self.queue = patch.queue.clone().unwrap_or_else(|| self.queue.clone());
        self.tags = patch.tags.clone().unwrap_or_else(|| self.tags.clone());
        let retry = patch.retry.clone().map(Arc::new);
        self.retry = retry.or_else(|| self.retry.clone());
        Ok(())
    }
}

fn does_not_apply(error: impl std::fmt::Display) -> PatchError {
    PatchError::DoesNotApply(error.to_string())
}

/// Returns the first number of a JSON text that would be written differently after it was read.
fn inexact_number(json: &str) -> Option<&str> {
    let mut rest = json;
    while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        let (_, tail) = rest.split_at(start);
        if let Some(text) = tail.strip_prefix('"') {
            rest = after_text(text);
            continue;
        }
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = tail.find(|c| !is_number(c)).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        let digits = number.bytes().filter(u8::is_ascii_digit).count();
        let is_whole = number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
        if !is_whole && digits > 15 {
            return Some(number);
        }
        rest = tail;
    }
    None
}

/// Returns what follows a JSON string whose opening quote was read.
fn after_text(text: &str) -> &str {
    let mut escaped = false;
    let end = text.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.and_then(|end| text.get(end + 1..)).unwrap_or("")
}

impl Serialize for PayloadPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            PatchForm::Merge(value) => value.serialize(serializer),
            PatchForm::Operations(operations) => operations.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for PayloadPatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PayloadPatch::new(Value::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(patch: Value, payload: &str) -> Result<String, String> {
        let patch = PayloadPatch::new(patch).map_err(|error| error.to_string())?;
        let patched = patch.apply(&Payload::from_stored(payload));
        patched
            .map(|payload| payload.as_str().to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_merge_patch_sets_and_removes_fields() {
        let patch = json!({"a": null, "b": {"c": 2}});
        let patched = apply(patch, r#"{"a":1,"b":{"d":3}}"#);
        assert_eq!(patched.unwrap(), r#"{"b":{"c":2,"d":3}}"#);
    }

    #[test]
    fn a_json_patch_renames_a_field() {
        let rename = json!([{"op": "move", "from": "/customerId", "path": "/customer_id"}]);
        let patched = apply(rename.clone(), r#"{"customerId":7}"#);
        assert_eq!(patched.unwrap(), r#"{"customer_id":7}"#);
        let refused = apply(rename, r#"{"customer_id":7}"#).unwrap_err();
        assert!(refused.contains("does not apply"), "{refused}");
    }

    #[test]
    fn a_list_that_is_no_json_patch_is_refused() {
        let refused = apply(json!([1]), "{}").unwrap_err();
        assert!(refused.contains("RFC 6902"), "{refused}");
    }

    #[test]
    fn a_number_that_would_lose_digits_is_kept_by_refusing_the_patch() {
        for payload in [
            r#"{"a":12345678901234567890123}"#,
            r#"[0.12345678901234567]"#,
        ] {
            let refused = apply(json!({"b": 1}), payload).unwrap_err();
            assert!(refused.contains("would lose digits"), "{refused}");
        }
        let fine = r#"{"\"123456789012345678901234":-1.5e3,"b":18446744073709551615}"#;
        assert!(apply(json!({"c": 1}), fine).is_ok());
    }

    #[test]
    fn a_patched_payload_keeps_to_the_size_limit() {
        let long = "x".repeat(PAYLOAD_BYTES_MAX);
        let refused = apply(json!({"a": long}), "{}").unwrap_err();
        assert!(refused.contains("does not apply"), "{refused}");
    }

    #[test]
    fn a_patch_is_stored_as_it_was_given() {
        for patch in [json!({"a": null}), json!([{"op": "remove", "path": "/a"}])] {
            let stored = serde_json::to_value(PayloadPatch::new(patch.clone()).unwrap()).unwrap();
            assert_eq!(stored, patch);
        }
    }
}
