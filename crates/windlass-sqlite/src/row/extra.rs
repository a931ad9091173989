//! What a job has that most have not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::retry::{AttemptLimit, RetryPolicy};
use windlass_core::{Delivery, Job, Key, OnDuplicate, ScheduleId, Tag, Timeout, Timestamp};

use super::value::micros;
use crate::fault::{Fault, Step};

/// What a job has that most have not, as JSON: a job at its defaults has no such text.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Extra {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) at_most_once: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry: Option<RetryPolicy>,
    /// 0 is none; absent is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique: Option<(Key, Option<i64>, bool)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<(Key, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tags: Vec<Tag>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) meta: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) occurrence: Option<(ScheduleId, i64)>,
}

impl Extra {
    fn of(job: &Job) -> Self {
        let timeout = match job.timeout {
            timeout if timeout == Timeout::default_for(&job.kind) => None,
            Timeout::After(timeout) => Some(micros(timeout)),
            Timeout::None => Some(0),
        };
        let unique = job.unique.as_ref().map(|unique| {
            let replace = unique.on_duplicate == OnDuplicate::Replace;
            (unique.key.clone(), unique.unique_for.map(micros), replace)
        });
        Extra {
            at_most_once: job.delivery == Delivery::AtMostOnce,
            max_attempts: job.max_attempts.map(AttemptLimit::get),
            retry: job.retry.as_deref().cloned(),
            timeout,
            deadline: job.deadline.map(Timestamp::as_micros),
            unique,
            concurrency: job
                .concurrency
                .as_ref()
                .map(|of| (of.key.clone(), of.limit)),
            tags: job.tags.clone(),
            meta: job.meta.clone(),
            occurrence: job
                .occurrence
                .map(|of| (of.schedule_id, of.scheduled_for.as_micros())),
        }
    }

    pub(crate) fn parse(text: Option<&str>) -> Step<Self> {
        let Some(text) = text else {
            return Ok(Extra::default());
        };
        serde_json::from_str(text)
            .map_err(|error| Fault::damaged(format!("a job's options: {error}")))
    }

    /// The text of a job's options; nothing for a job at its defaults, which most are.
    pub(super) fn text_of(job: &Job) -> Option<String> {
        let plain = job.delivery == Delivery::AtLeastOnce
            && job.max_attempts.is_none()
            && job.retry.is_none()
            && job.deadline.is_none()
            && job.unique.is_none()
            && job.concurrency.is_none()
            && job.occurrence.is_none()
            && job.tags.is_empty()
            && job.meta.is_empty()
            && job.timeout == Timeout::default_for(&job.kind);
        if plain { None } else { Extra::of(job).text() }
    }

    fn text(&self) -> Option<String> {
        let text = (*self != Extra::default()).then(|| serde_json::to_string(self));
        text.map(|text| text.expect("options are plain JSON"))
    }
}
