//! Which jobs a list is about.

use serde_json::Value;
use windlass_core::{
    AttemptError, DeadReason, Fingerprint, Job, Key, Kind, QueueName, ScheduleId, State, Tag,
    Timestamp,
};

use crate::read::request;
use crate::{Body, Checks, JobState, Text};

/// The longest JSON pointer that is searched for.
const PATH_BYTES_MAX: usize = 200;

request! {
    /// What a client may ask of jobs. Everything that is given must hold.
    #[derive(PartialEq)]
    pub struct JobFilter {
        /// In this state.
        pub state: JobState,
        /// In this queue.
        pub queue: QueueName,
        /// Of this kind.
        pub kind: Kind,
        /// With this tag.
        pub tag: Tag,
        /// With this unique key.
        pub unique_key: Key,
        /// Of this schedule.
        pub schedule: ScheduleId,
        /// Dead for this reason.
        pub reason: DeadReason,
        /// Enqueued at or after.
        pub created_from: Timestamp,
        /// Enqueued before.
        pub created_before: Timestamp,
        /// Finished at or after.
        pub finished_from: Timestamp,
        /// Finished before.
        pub finished_before: Timestamp,
        /// With this text in the last error, in capitals or not. Needs the scope `read-payload`.
        pub error: Text<1, 200>,
        /// With an error of the group that has this fingerprint.
        #[schemars(regex(pattern = "^[0-9a-fA-F]{16}$"))]
        pub fingerprint: String,
        /// A JSON pointer into the payload. Goes with `payload_value`.
        pub payload_path: String,
        /// What must be there, as JSON or text. Needs the scope `read-payload`.
        pub payload_value: String,
    }
}

impl Body for JobFilter {
    type Checked = JobFilter;

    fn check(self, checks: &mut Checks) -> Option<JobFilter> {
        let is_fingerprint =
            |text: &String| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !self.fingerprint.as_ref().is_none_or(is_fingerprint) {
            let rule = "must be the fingerprint of a group: 16 hexadecimal digits";
            checks.refuse("fingerprint", rule);
        }
        let (path, value) = (
            ("payload_path", self.payload_path.is_some()),
            ("payload_value", self.payload_value.is_some()),
        );
        checks.needs(path, value);
        checks.needs(value, path);
        let is_pointer = |path: &String| {
            path.len() <= PATH_BYTES_MAX && (path.is_empty() || path.starts_with('/'))
        };
        if !self.payload_path.as_ref().is_none_or(is_pointer) {
            let rule = "must be a JSON pointer such as `/customer/id`, at most 200 bytes";
            checks.refuse("payload_path", rule);
        }
        Some(self)
    }
}

impl JobFilter {
    /// Whether it asks nothing: a change by it would be a change to everything.
    pub fn is_empty(&self) -> bool {
        *self == JobFilter::default()
    }

    /// Whether only those who may read payloads may ask it.
    pub fn reads_payloads(&self) -> bool {
        self.payload_path.is_some() || self.error.is_some()
    }

    /// Whether a store cannot answer it by itself, so that jobs are looked at one by one.
    pub fn searches(&self) -> bool {
        self.finished_from.is_some() || self.fingerprint.is_some() || self.reads_payloads()
    }

    /// Whether a job is one of those, as far as a store cannot tell.
    pub fn finds(&self, job: &Job) -> bool {
        let finished = |from: &Timestamp| job.finished_at().is_some_and(|at| at >= *from);
        let has_text = |text: &Text<1, 200>| {
            let error = job.last_error.as_ref().map(AttemptError::to_string);
            let text = text.as_str().to_lowercase();
            error.is_some_and(|error| error.to_lowercase().contains(&text))
        };
        let in_group = |fingerprint: &String| {
            let group = group_of(job).to_string();
            group.eq_ignore_ascii_case(fingerprint)
        };
        self.finished_from.as_ref().is_none_or(finished)
            && self.error.as_ref().is_none_or(has_text)
            && self.fingerprint.as_ref().is_none_or(in_group)
            && self.finds_payload(job)
    }

    fn finds_payload(&self, job: &Job) -> bool {
        let (Some(path), Some(wanted)) = (&self.payload_path, &self.payload_value) else {
            return true;
        };
        let payload: Result<Value, _> = job.payload.decode();
        let found = payload
            .as_ref()
            .ok()
            .and_then(|payload| payload.pointer(path));
        found.is_some_and(|found| {
            let as_json = serde_json::from_str::<Value>(wanted);
            found.as_str() == Some(wanted) || as_json.is_ok_and(|value| value == *found)
        })
    }

    /// The filter without what it looks for in payloads.
    pub fn without_values(mut self) -> Self {
        self.payload_value = self.payload_value.map(|_| "…".to_owned());
        self
    }
}

/// The failure group of a job: by its error, or by the reason of a death without one.
pub fn group_of(job: &Job) -> Fingerprint {
    match (&job.last_error, job.state()) {
        (Some(error), _) => Fingerprint::new(&job.kind, error),
        (None, State::Dead(reason)) => Fingerprint::without_error(&job.kind, reason),
        (None, _) => Fingerprint::new(&job.kind, &AttemptError::new("")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Query, params, read_query};
    use proptest::prelude::*;
    use windlass_core::{Invalid, JobId, NewJob};

    fn filter(query: &str) -> Result<JobFilter, Vec<Invalid>> {
        let pairs = Query::pairs(query).map_err(|invalid| vec![invalid])?;
        read_query::<JobFilter>(&pairs, &params::<JobFilter>(), Timestamp::UNIX_EPOCH)
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
            ("error=timeOUT", true),
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
        ] {
            assert_eq!(filter(query).unwrap_err()[0].field(), field, "{query}");
        }
    }

    #[test]
    fn a_filter_is_empty_or_asks_something() {
        assert!(JobFilter::default().is_empty());
        let filter = filter("error=X").unwrap();
        assert!(!filter.is_empty());
        assert!(filter.reads_payloads());
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "[a-z_=&%+0-9é/\\PC]{0,80}") {
            let _ = filter(&query);
        }
    }
}
