//! Filters of jobs.

use windlass_core::{
    DeadReason, Key, Kind, PayloadMatch, QueueName, ScanFilter, ScheduleId, Tag, Timestamp,
};

use crate::read::request;
use crate::{Body, Checks, JobState, Text};

/// The maximum length of the JSON pointer in `payload_path`, in bytes.
const PATH_BYTES_MAX: usize = 200;

request! {
    /// Filters of jobs. A job must match all that are given.
    #[derive(PartialEq)]
    pub struct JobFilter {
        /// Only jobs in this state.
        pub state: JobState,
        /// Only jobs in this queue.
        pub queue: QueueName,
        /// Only jobs of this kind.
        pub kind: Kind,
        /// Only jobs with this tag.
        pub tag: Tag,
        /// Only jobs with this unique key.
        pub unique_key: Key,
        /// Only jobs of the schedule with this id.
        pub schedule: ScheduleId,
        /// Only jobs that are dead for this reason.
        pub reason: DeadReason,
        /// Only jobs created at this time or later.
        pub created_from: Timestamp,
        /// Only jobs created before this time.
        pub created_before: Timestamp,
        /// Only jobs that finished at this time or later.
        pub finished_from: Timestamp,
        /// Only jobs that finished before this time.
        pub finished_before: Timestamp,
        /// Only jobs whose last error contains this text: 1 to 200 characters, ignoring case. Needs
        /// the scope `read-payload`.
        pub error: Text<1, 200>,
        /// Only jobs whose error belongs to the dead-letter group with this fingerprint.
        #[schemars(regex(pattern = "^[0-9a-fA-F]{16}$"))]
        pub fingerprint: String,
        /// JSON pointer into the payload, such as `/customer/id`. At most 200 bytes. Requires
        /// `payload_value`.
        pub payload_path: String,
        /// Value that the payload must have at `payload_path`, as JSON or as text. Needs the scope
        /// `read-payload`.
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
    /// Whether the filter has no conditions and so matches every job.
    pub fn is_empty(&self) -> bool {
        *self == JobFilter::default()
    }

    /// Whether the filter needs the scope `read-payload`.
    pub fn reads_payloads(&self) -> bool {
        self.payload_path.is_some() || self.error.is_some()
    }

    /// The conditions that the store has no index for.
    pub fn scan(&self) -> ScanFilter {
        let payload = self.payload_path.clone().zip(self.payload_value.clone());
        ScanFilter {
            finished_from: self.finished_from,
            error: self.error.as_ref().map(|text| text.as_str().to_owned()),
            fingerprint: self.fingerprint.clone(),
            payload: payload.map(|(path, value)| PayloadMatch { path, value }),
        }
    }

    /// The filter with `payload_value` masked, for logs.
    pub fn without_values(mut self) -> Self {
        self.payload_value = self.payload_value.map(|_| "…".to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{params, query_pairs, read_query};
    use proptest::prelude::*;
    use windlass_core::Invalid;

    fn filter(query: &str) -> Result<JobFilter, Vec<Invalid>> {
        let pairs = query_pairs(query).map_err(|invalid| vec![invalid])?;
        read_query::<JobFilter>(&pairs, &params::<JobFilter>(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn conditions_without_an_index_are_scanned_for() {
        for (query, scans) in [
            ("queue=default&finished_before=2026-01-01T00:00:00Z", false),
            ("finished_from=2026-01-01T00:00:00Z", true),
            ("error=x", true),
            ("fingerprint=0123456789abcdef", true),
            ("payload_path=/a&payload_value=1", true),
        ] {
            assert_eq!(!filter(query).unwrap().scan().is_empty(), scans, "{query}");
        }
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
    fn only_a_filter_without_conditions_is_empty() {
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
