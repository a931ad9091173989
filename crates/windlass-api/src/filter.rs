//! The filter of jobs, the same in queries, in bodies and in answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    ActionId, DeadReason, Filter, Fingerprint, Key, Kind, ListedState, PayloadMatch, QueueName,
    ScheduleId, Tag, Timestamp,
};

use crate::read::request;
use crate::{Body, Checks, Content, JobState, Text, plain_body};

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
        /// Only jobs whose last failure has this cause: a fingerprint of `GET /api/v1/failures`.
        pub fingerprint: Fingerprint,
        /// Only jobs that are dead for this reason.
        pub reason: DeadReason,
        /// `true`: only jobs that wait or run and have failed before. `false`: only other jobs.
        pub retrying: bool,
        /// Only jobs with this tag.
        pub tag: Tag,
        /// Only jobs with this unique key.
        pub unique_key: Key,
        /// Only jobs of the schedule with this id.
        pub schedule: ScheduleId,
        /// Only jobs that were last revived by the replay with this id.
        pub replay: ActionId,
        /// Only jobs created at this time or later.
        pub created_from: Timestamp,
        /// Only jobs created before this time.
        pub created_before: Timestamp,
        /// Only jobs that last failed at this time or later.
        pub failed_from: Timestamp,
        /// Only jobs that last failed before this time.
        pub failed_before: Timestamp,
        /// Only jobs that finished at this time or later.
        pub finished_from: Timestamp,
        /// Only jobs that finished before this time.
        pub finished_before: Timestamp,
        /// Only jobs whose last error contains this text: 1 to 200 characters, ignoring case. Needs
        /// the scope `read-payload`.
        pub error: Text<1, 200>,
        /// JSON pointer into the payload, such as `/customer/id`. At most 200 bytes. Requires
        /// `payload_value`.
        pub payload_path: String,
        /// Value that the payload must have at `payload_path`, as JSON or as text. Needs the scope
        /// `read-payload`.
        pub payload_value: String,
    }
}

impl Body for JobFilter {
    type Checked = Filter;

    fn check(self, checks: &mut Checks) -> Option<Filter> {
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
        let payload = self.payload_path.zip(self.payload_value);
        Some(Filter {
            state: self.state.map(ListedState::from),
            queue: self.queue,
            kind: self.kind,
            fingerprint: self.fingerprint,
            reason: self.reason,
            retrying: self.retrying,
            tag: self.tag,
            unique_key: self.unique_key,
            schedule: self.schedule,
            replay: self.replay,
            created_from: self.created_from,
            created_before: self.created_before,
            failed_from: self.failed_from,
            failed_before: self.failed_before,
            finished_from: self.finished_from,
            finished_before: self.finished_before,
            error: self.error.map(Text::into_string),
            payload: payload.map(|(path, value)| PayloadMatch { path, value }),
        })
    }
}

impl JobFilter {
    /// The filter as a client writes it. A caller who may not see payloads sees `…` in place of the
    /// values that the filter looks for in payloads and errors.
    pub fn new(filter: &Filter, content: Content) -> Self {
        let shown = |value: &String| match content {
            Content::Withheld => "…".to_owned(),
            Content::Shown | Content::NotRepeated => value.clone(),
        };
        let filter = filter.clone();
        let payload = filter.payload.as_ref();
        JobFilter {
            state: filter.state.map(JobState::from),
            queue: filter.queue,
            kind: filter.kind,
            fingerprint: filter.fingerprint,
            reason: filter.reason,
            retrying: filter.retrying,
            tag: filter.tag,
            unique_key: filter.unique_key,
            schedule: filter.schedule,
            replay: filter.replay,
            created_from: filter.created_from,
            created_before: filter.created_before,
            failed_from: filter.failed_from,
            failed_before: filter.failed_before,
            finished_from: filter.finished_from,
            finished_before: filter.finished_before,
            error: filter
                .error
                .as_ref()
                .and_then(|error| Text::new(shown(error)).ok()),
            payload_path: payload.map(|payload| payload.path.clone()),
            payload_value: payload.map(|payload| shown(&payload.value)),
        }
    }
}

impl From<JobState> for ListedState {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Scheduled => ListedState::Scheduled,
            JobState::Ready => ListedState::Ready,
            JobState::Running => ListedState::Running,
            JobState::Succeeded => ListedState::Succeeded,
            JobState::Dead => ListedState::Dead,
            JobState::Cancelled => ListedState::Cancelled,
        }
    }
}

impl From<ListedState> for JobState {
    fn from(state: ListedState) -> Self {
        match state {
            ListedState::Scheduled => JobState::Scheduled,
            ListedState::Ready => JobState::Ready,
            ListedState::Running => JobState::Running,
            ListedState::Succeeded => JobState::Succeeded,
            ListedState::Dead => JobState::Dead,
            ListedState::Cancelled => JobState::Cancelled,
        }
    }
}

/// A filter of dead jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DeadFilter(pub JobFilter);

impl Body for DeadFilter {
    type Checked = Filter;

    fn check(mut self, checks: &mut Checks) -> Option<Filter> {
        let state = self.0.state.replace(JobState::Dead);
        if state.is_some_and(|state| state != JobState::Dead) {
            checks.refuse("state", "must be `dead` or omitted");
        }
        self.0.check(checks)
    }
}

request! {
    /// The order of a list of jobs.
    pub struct ListParams {
        /// `created` lists the newest job first, `finished_at` the job that finished last, and only
        /// finished jobs. Default: `created`.
        pub order: JobOrder,
    }
}

plain_body!(ListParams);

/// What a list of jobs is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum JobOrder {
    /// The newest job first.
    #[default]
    Created,
    /// The job that finished last first. Only finished jobs.
    FinishedAt,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{params, query_pairs, read_query};
    use proptest::prelude::*;
    use windlass_core::Invalid;

    fn filter(query: &str) -> Result<Filter, Vec<Invalid>> {
        let pairs = query_pairs(query).map_err(|invalid| vec![invalid])?;
        read_query::<JobFilter>(&pairs, &params::<JobFilter>(), Timestamp::UNIX_EPOCH)
    }

    const ALL: &str = concat!(
        "state=dead&queue=q&kind=k&fingerprint=2123456789abcdef&reason=lost&retrying=false&tag=t",
        "&unique_key=u&schedule=00000000-0000-0000-0000-000000000001",
        "&replay=00000000-0000-0000-0000-000000000002&created_from=2026-01-01T00:00:00Z",
        "&created_before=2026-01-02T00:00:00Z&failed_from=2026-01-03T00:00:00Z",
        "&failed_before=2026-01-04T00:00:00Z&finished_from=2026-01-05T00:00:00Z",
        "&finished_before=2026-01-06T00:00:00Z&error=e&payload_path=/p&payload_value=v",
    );

    #[test]
    fn every_condition_is_read_and_written_back() {
        let read = filter(ALL).unwrap();
        let stored = serde_json::to_value(&read).unwrap();
        assert_eq!(
            stored.as_object().unwrap().len(),
            18,
            "a condition is missing"
        );
        let shown = JobFilter::new(&read, Content::Shown);
        let written = serde_json::to_value(&shown).unwrap();
        assert_eq!(
            written.as_object().unwrap().len(),
            params::<JobFilter>().len()
        );
        let mut pairs = query_pairs(ALL).unwrap();
        pairs.insert("retrying".to_owned(), false.into());
        assert_eq!(written, serde_json::Value::Object(pairs));
    }

    #[test]
    fn values_are_masked_for_callers_who_may_not_see_payloads() {
        let masked = JobFilter::new(&filter(ALL).unwrap(), Content::Withheld);
        assert_eq!(masked.error.unwrap().as_str(), "…");
        assert_eq!(masked.payload_value.unwrap(), "…");
        assert_eq!(masked.payload_path.unwrap(), "/p");
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (query, field) in [
            ("state=failed", "state"),
            ("queue=a%2Fb", "queue"),
            ("reason=bad", "reason"),
            ("schedule=x", "schedule"),
            ("replay=x", "replay"),
            ("retrying=maybe", "retrying"),
            ("created_from=yesterday", "created_from"),
            ("failed_from=yesterday", "failed_from"),
            ("failed_before=1", "failed_before"),
            ("error=", "error"),
            ("fingerprint=x", "fingerprint"),
            ("payload_path=/a", "payload_path"),
            ("payload_value=1", "payload_value"),
            ("payload_path=a&payload_value=1", "payload_path"),
        ] {
            assert_eq!(filter(query).unwrap_err()[0].field(), field, "{query}");
        }
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "[a-z_=&%+0-9é/\\PC]{0,80}") {
            let _ = filter(&query);
        }
    }
}
