//! Which jobs a list is about.

use windlass_core::{
    DeadReason, Key, Kind, PayloadMatch, QueueName, ScanFilter, ScheduleId, Tag, Timestamp,
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

    /// The conditions that a store has no index for.
    pub fn scan(&self) -> ScanFilter {
        let payload = self.payload_path.clone().zip(self.payload_value.clone());
        ScanFilter {
            finished_from: self.finished_from,
            error: self.error.as_ref().map(|text| text.as_str().to_owned()),
            fingerprint: self.fingerprint.clone(),
            payload: payload.map(|(path, value)| PayloadMatch { path, value }),
        }
    }

    /// The filter without what it looks for in payloads.
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
    fn what_a_store_cannot_find_by_itself_is_scanned_for() {
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
