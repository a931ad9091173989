//! Creating many schedules in one request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_core::{Invalid, ScheduleId, ScheduleName, Timestamp};

use super::NewSchedule;
use crate::read::request;
use crate::{Body, BodyRefused, Checks, Count, List, Problem, read_body_with};

request! {
    /// Schedules to create in one request. The server creates each valid one.
    pub struct BulkSchedules {
        /// The schedules: 1 to 1,000.
        #[schemars(required)]
        pub schedules: List<ScheduleText, 1, 1000>,
    }
}

/// The text of one schedule. Each is read on its own, so that a problem in one does not affect the
/// others.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ScheduleText(#[schemars(with = "NewSchedule")] Box<RawValue>);

impl ScheduleText {
    /// Writes a schedule.
    ///
    /// # Errors
    ///
    /// If the schedule has a part that cannot be written as JSON.
    pub fn new(schedule: &NewSchedule) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(schedule).map(ScheduleText)
    }

    /// Reads the schedule, or returns all its problems. `index` is its position in the request.
    pub fn read<T>(
        &self,
        index: usize,
        now: Timestamp,
        check: impl FnOnce(NewSchedule, &mut Checks) -> Option<T>,
    ) -> Result<T, Vec<Invalid>> {
        let read = read_body_with(self.0.get(), now, check);
        let problems = |refused| match refused {
            BodyRefused::Invalid(problems) => problems,
            BodyRefused::Malformed(malformed) => vec![Invalid::new("", malformed.to_string())],
        };
        let outer = format!("schedules[{index}]");
        read.map_err(|refused| {
            let problems = problems(refused).into_iter();
            problems.map(|problem| problem.within(&outer)).collect()
        })
    }
}

impl Body for BulkSchedules {
    type Checked = Vec<ScheduleText>;

    fn check(self, checks: &mut Checks) -> Option<Vec<ScheduleText>> {
        Some(checks.required("schedules", self.schedules)?.0)
    }
}

/// Result of a bulk request for schedules.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BulkSchedulesAnswer {
    /// Result of each schedule, in the order of the request.
    pub data: Vec<BulkScheduleResult>,
    /// Number of created schedules.
    pub created: Count,
    /// Number of refused schedules.
    pub refused: Count,
}

/// Result of one schedule of a bulk request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BulkScheduleResult {
    /// The server created the schedule.
    Created {
        /// Id of the schedule.
        id: ScheduleId,
        /// Name of the schedule.
        name: ScheduleName,
        /// When it fires next. Null if it is paused or never fires again.
        next_at: Option<Timestamp>,
    },
    /// The server did not create the schedule.
    Refused {
        /// Why.
        problem: Box<Problem>,
    },
}

impl BulkSchedulesAnswer {
    /// Counts the results.
    pub fn new(data: Vec<BulkScheduleResult>) -> Self {
        let is_created =
            |one: &&BulkScheduleResult| matches!(one, BulkScheduleResult::Created { .. });
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let created = data.iter().filter(is_created).count();
        BulkSchedulesAnswer {
            created: count(created),
            refused: count(data.len() - created),
            data,
        }
    }
}

request! {
    /// Filters of schedules. A schedule must match all that are given.
    pub struct ScheduleParams {
        /// Only schedules whose name begins with this.
        pub name_prefix: String,
        /// Only schedules that are paused, or only those that are not.
        pub paused: bool,
        /// Only schedules whose jobs wait in this queue.
        pub queue: windlass_core::QueueName,
        /// Only schedules whose jobs are of this kind.
        pub kind: windlass_core::Kind,
    }
}

crate::plain_body!(ScheduleParams);

impl ScheduleParams {
    /// Whether a schedule matches. One whose definition cannot be read matches only by its name.
    pub fn matches(
        &self,
        name: &str,
        definition: Option<&windlass_core::schedule::NewSchedule>,
    ) -> bool {
        let prefix = self.name_prefix.as_deref().unwrap_or_default();
        let Some(definition) = definition else {
            let by_definition =
                self.paused.is_some() || self.queue.is_some() || self.kind.is_some();
            return name.starts_with(prefix) && !by_definition;
        };
        let job = &definition.job;
        name.starts_with(prefix)
            && self.paused.is_none_or(|paused| definition.paused == paused)
            && self.queue.as_ref().is_none_or(|queue| job.queue == *queue)
            && self.kind.as_ref().is_none_or(|kind| job.kind == *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_body;

    #[test]
    fn each_schedule_is_read_on_its_own() {
        let text = r#"{"schedules":[{"name":"a","cron":"@daily","job":{"kind":"k"}},
            {"name":"b c","cron":"x","job":{}},7]}"#;
        let now = Timestamp::UNIX_EPOCH;
        let texts = read_body::<BulkSchedules>(text, now).unwrap();
        let fields = |(index, one): (usize, &ScheduleText)| {
            let read = one.read(index, now, NewSchedule::check);
            let problems = read.err().unwrap_or_default().into_iter();
            let mut fields: Vec<String> = problems.map(|one| one.field().to_owned()).collect();
            fields.sort();
            fields
        };
        let fields: Vec<_> = texts.iter().enumerate().map(fields).collect();
        assert!(fields[0].is_empty());
        let second = [
            "schedules[1].cron",
            "schedules[1].job.kind",
            "schedules[1].name",
        ];
        assert_eq!(fields[1], second);
        assert_eq!(fields[2], ["schedules[2]"]);
    }

    #[test]
    fn a_list_without_schedules_is_refused() {
        for text in ["{}", r#"{"schedules":[]}"#, r#"{"schedules":7}"#] {
            let refused = read_body::<BulkSchedules>(text, Timestamp::UNIX_EPOCH).unwrap_err();
            let BodyRefused::Invalid(problems) = refused else {
                panic!("{text}");
            };
            assert_eq!(problems[0].field(), "schedules");
        }
    }
}
