//! Schedules as a client writes them.

mod bulk;
mod occurrence;
mod view;

pub use bulk::{
    BulkScheduleResult, BulkSchedules, BulkSchedulesAnswer, ScheduleParams, ScheduleText,
};
pub use occurrence::{
    Backfill, BackfillAnswer, BackfillRange, CheckedPreview, Firing, Occurrence, Preview,
    PreviewParams, RunAnswer,
};
pub use view::{Schedule, ScheduleTimes, ScheduleView, UnreadableSchedule};

use std::time::Duration;

use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use windlass_core::schedule::{
    CATCH_UP_CEILING, CATCH_UP_DEFAULT, Expression, MISSED_AFTER_DEFAULT, Missed, Overlap, Zone,
};
use windlass_core::{Kind, ScheduleName, Timestamp};

use crate::read::request;
use crate::value::either_duration;
use crate::{Body, BoundedInt, Checks, DurationText, Millis, NewJob, some_even_if_null};

/// The fields that hold the rule of a schedule.
const RULE_FIELDS: [&str; 4] = ["cron", "every", "every_ms", "at"];

/// Declares the requests that write a schedule. They share all fields but `name` and `job`.
macro_rules! schedule_requests {
    ($($(#[$about:meta])* pub $field:ident: $type:ty,)*) => {
        request! {
            /// A schedule to create.
            pub struct NewSchedule {
                /// Name of the schedule. It must not be a UUID, because a schedule can be read by
                /// name or id.
                #[schemars(required)]
                pub name: ScheduleName,
                /// Job that each occurrence creates.
                #[schemars(with = "NewJob")]
                pub job: NewJob,
                $($(#[$about])* pub $field: $type,)*
            }
        }

        request! {
            /// A schedule to create, or to replace the schedule of this name.
            pub struct PutSchedule {
                /// Name of the schedule. Optional; must be the same as in the path.
                pub name: ScheduleName,
                /// Job that each occurrence creates.
                #[schemars(with = "NewJob")]
                pub job: NewJob,
                $($(#[$about])* pub $field: $type,)*
            }
        }

        /// Changes to a schedule. Fields that are not given keep their value; `null` resets a field
        /// to its default. Giving one of `cron`, `every`, `every_ms` and `at` replaces the rule.
        #[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct SchedulePatch {
            /// Always refused, because the name of a schedule cannot change.
            #[doc(hidden)]
            #[serde(default, deserialize_with = "some_even_if_null", skip_serializing)]
            #[schemars(skip)]
            pub name: Option<IgnoredAny>,
            /// Job that each occurrence creates. Replaces the whole job.
            #[serde(default, deserialize_with = "some_even_if_null", skip_serializing_if = "Option::is_none")]
            pub job: Option<Option<NewJob>>,
            $(
                $(#[$about])*
                #[serde(default, deserialize_with = "some_even_if_null", skip_serializing_if = "Option::is_none")]
                pub $field: Option<Option<$type>>,
            )*
        }

        impl NewSchedule {
            fn into_parts(self) -> (Option<ScheduleName>, Option<NewJob>, SchedulePatch) {
                let fields = SchedulePatch {
                    $($field: self.$field.map(Some),)*
                    ..SchedulePatch::default()
                };
                (self.name, self.job, fields)
            }
        }

        impl From<PutSchedule> for NewSchedule {
            fn from(put: PutSchedule) -> Self {
                NewSchedule {
                    name: put.name,
                    job: put.job,
                    $($field: put.$field,)*
                }
            }
        }
    };
}

schedule_requests! {
    /// Cron expression: 5 to 7 fields, a nickname such as `@daily`, or an interval such as `@every
    /// 90s`. Exactly one of `cron`, `every` (or `every_ms`) and `at` is required.
    #[schemars(example = "0 2 * * *")]
    pub cron: String,
    /// Interval between occurrences, in real time: at least 1 s. Counted from `starts_at`, or from
    /// the creation of the schedule.
    pub every: DurationText,
    /// `every` in milliseconds.
    pub every_ms: Millis,
    /// Fire once, at this time.
    pub at: Timestamp,
    /// IANA time zone of `cron`. Default: `UTC`.
    #[schemars(example = "Europe/Berlin")]
    pub timezone: String,
    /// What happens to occurrences that were missed while no server ran: `skip` drops them, `once`
    /// fires the last one, `all` fires up to `catch_up_max` of them. Default: `once`; `skip` for
    /// at-most-once jobs.
    pub missed: Missed,
    /// An occurrence that is later than this counts as missed. Default: 5 s.
    pub missed_after: DurationText,
    /// `missed_after` in milliseconds.
    pub missed_after_ms: Millis,
    /// Most missed occurrences that fire together; older ones are skipped. Default: 100.
    pub catch_up_max: BoundedInt<1, { CATCH_UP_CEILING as i64 }>,
    /// What happens to an occurrence while the job of an earlier one has not finished: `skip` drops
    /// it, `queue` lets one occurrence wait, `allow` runs both, `cancel_running` cancels the
    /// earlier job. Default: `skip`.
    pub overlap: Overlap,
    /// Delays each occurrence by a fixed part of this duration, so that schedules with the same
    /// rule do not all start at once. Default: 0 s.
    pub splay: DurationText,
    /// `splay` in milliseconds.
    pub splay_ms: Millis,
    /// Do not fire before this time.
    pub starts_at: Timestamp,
    /// Do not fire after this time.
    pub ends_at: Timestamp,
    /// Whether the schedule is paused: it does not fire until it is resumed. Default: `false`.
    pub paused: bool,
}

impl Body for NewSchedule {
    type Checked = windlass_core::schedule::NewSchedule;

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        let (name, job, mut fields) = self.into_parts();
        let name = checks.required("name", name);
        let name_text = name.as_ref().map_or("", ScheduleName::as_str);
        if ["bulk", "preview"].contains(&name_text) {
            let rule = format!(
                "must not be `{name_text}`, because `/api/v1/schedules/{name_text}` is another route"
            );
            checks.refuse("name", rule);
        }
        let job = check_job(checks, job);
        if fields.has_no_rule() {
            fields.cron = Some(None);
        }
        // Placeholders for invalid parts, so that the other rules are checked too.
        let schedule = windlass_core::schedule::NewSchedule::new(
            name.or_else(|| ScheduleName::new("-").ok())?,
            Expression::At(checks.now()),
            job.or_else(|| Some(windlass_core::NewJob::new(Kind::new("-").ok()?)))?,
        );
        Some(fields.write_over(schedule, checks))
    }
}

impl PutSchedule {
    /// Checks the rules that concern several fields, and that the name matches the path.
    pub fn check_named(
        mut self,
        name: &ScheduleName,
        checks: &mut Checks,
    ) -> Option<windlass_core::schedule::NewSchedule> {
        let body_name = self.name.replace(name.clone());
        if body_name.is_some_and(|body_name| body_name != *name) {
            checks.refuse("name", "must be omitted or equal to the name in the path");
        }
        NewSchedule::from(self).check(checks)
    }
}

impl SchedulePatch {
    /// Applies the changes to a stored schedule and checks the result.
    pub fn check_over(
        mut self,
        stored: &windlass_core::schedule::NewSchedule,
        checks: &mut Checks,
    ) -> Option<windlass_core::schedule::NewSchedule> {
        if self.name.is_some() {
            let rule = "cannot be changed: create another schedule and delete this one";
            checks.refuse("name", rule);
        }
        let mut schedule = stored.clone();
        if let Some(job) = self.job.take() {
            schedule.job = check_job(checks, job).unwrap_or(schedule.job);
        }
        Some(self.write_over(schedule, checks))
    }

    fn has_no_rule(&self) -> bool {
        let every = self.every.is_some() || self.every_ms.is_some();
        !every && self.cron.is_none() && self.at.is_none()
    }

    /// Applies the given fields to a schedule and reports all problems of the result.
    fn write_over(
        mut self,
        mut schedule: windlass_core::schedule::NewSchedule,
        checks: &mut Checks,
    ) -> windlass_core::schedule::NewSchedule {
        if let Some(expression) = self.check_rule(checks) {
            schedule.expression = expression;
        }
        if let Some(name) = self.timezone {
            let zone = name.map_or(Some(Zone::utc()), |name| checks.keep(Zone::new(&name)));
            schedule.timezone = zone.unwrap_or_default();
        }
        if let Some(missed) = self.missed {
            schedule.missed = missed;
        }
        let (text, millis) = (self.missed_after, self.missed_after_ms);
        if let Some(after) = given_duration(checks, "missed_after", text, millis) {
            schedule.missed_after = after.unwrap_or(MISSED_AFTER_DEFAULT);
        }
        if let Some(max) = self.catch_up_max {
            schedule.catch_up_max = max.map_or(CATCH_UP_DEFAULT, BoundedInt::to);
        }
        if let Some(overlap) = self.overlap {
            schedule.overlap = overlap.unwrap_or_default();
        }
        if let Some(splay) = given_duration(checks, "splay", self.splay, self.splay_ms) {
            schedule.splay = splay.unwrap_or_default();
        }
        if let Some(starts_at) = self.starts_at {
            schedule.starts_at = starts_at;
        }
        if let Some(ends_at) = self.ends_at {
            schedule.ends_at = ends_at;
        }
        if let Some(paused) = self.paused {
            schedule.paused = paused.unwrap_or_default();
        }
        let has_rule = !is_rule_refused(checks);
        for problem in schedule.problems(checks.now(), usize::MAX) {
            let field = problem.field();
            let is_about_rule = RULE_FIELDS.contains(&field) || field == "job.deadline";
            if has_rule || !is_about_rule {
                checks.report(problem);
            }
        }
        schedule
    }

    /// Returns the rule, if a valid one is given.
    fn check_rule(&mut self, checks: &mut Checks) -> Option<Expression> {
        if self.has_no_rule() {
            return None;
        }
        let cron = self.cron.take().flatten();
        let every = (self.every.take().flatten(), self.every_ms.take().flatten());
        check_rule(checks, cron, every, self.at.take().flatten())
    }
}

/// Checks the rule of a schedule or a preview.
fn check_rule(
    checks: &mut Checks,
    cron: Option<String>,
    (every, every_ms): (Option<DurationText>, Option<Millis>),
    at: Option<Timestamp>,
) -> Option<Expression> {
    let every_field = match every {
        None if every_ms.is_some() => "every_ms",
        _ => "every",
    };
    let every = either_duration(checks, "every", every, every_ms);
    if cron.is_none() && every.is_none() && at.is_none() && is_rule_refused(checks) {
        return None;
    }
    let rule = Expression::from_fields(cron.as_deref(), every, at);
    checks.keep(rule.map_err(|problem| problem.rename_field("every", every_field)))
}

fn is_rule_refused(checks: &Checks) -> bool {
    RULE_FIELDS.iter().any(|field| checks.is_refused(field))
}

/// Checks the job of a schedule.
fn check_job(checks: &mut Checks, job: Option<NewJob>) -> Option<windlass_core::NewJob> {
    let job = checks.required("job", job)?;
    checks.within("job", |checks| job.check(checks))
}

/// Returns a duration that a patch gives as text or in milliseconds. `Some(None)` is `null`.
fn given_duration(
    checks: &mut Checks,
    name: &str,
    text: Option<Option<DurationText>>,
    millis: Option<Option<Millis>>,
) -> Option<Option<Duration>> {
    let is_given = text.is_some() || millis.is_some();
    is_given.then(|| either_duration(checks, name, text.flatten(), millis.flatten()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use windlass_core::Invalid;

    use super::*;
    use crate::{BodyRefused, read_body, read_body_with};

    type Definition = windlass_core::schedule::NewSchedule;

    fn fields(refused: BodyRefused) -> Vec<String> {
        let BodyRefused::Invalid(problems) = refused else {
            panic!("{refused:?}");
        };
        let field = |problem: &Invalid| problem.field().to_owned();
        let mut fields: Vec<String> = problems.iter().map(field).collect();
        fields.sort();
        fields
    }

    fn read(value: &Value) -> Result<Definition, Vec<String>> {
        let read = read_body::<NewSchedule>(&value.to_string(), Timestamp::UNIX_EPOCH);
        read.map_err(fields)
    }

    fn patched(value: &Value) -> Result<Definition, Vec<String>> {
        let stored = nightly();
        let check = |patch: SchedulePatch, checks: &mut Checks| patch.check_over(&stored, checks);
        read_body_with(&value.to_string(), Timestamp::UNIX_EPOCH, check).map_err(fields)
    }

    fn nightly() -> Definition {
        read(&json!({
            "name": "nightly", "cron": "0 2 * * *", "timezone": "Europe/Berlin", "splay": "5s",
            "job": {"type": "report", "payload": {"b": 1, "a": 2}, "maxRetryCount": 2},
        }))
        .unwrap()
    }

    #[test]
    fn a_schedule_is_read_as_core_reads_it() {
        let text = concat!(
            r#"{"name":"nightly","cron":"0 3 * * *","timezone":"Europe/Berlin","missed":"all","#,
            r#""missed_after":"1m","catch_up_max":7,"overlap":"queue","splay":"30s","#,
            r#""starts_at":"2026-01-01T00:00:00Z","ends_at":"2027-01-01T00:00:00Z","paused":true,"#,
            r#""job":{"kind":"report","payload":{"b":1.0, "a":2}}}"#,
        );
        let expected = Definition::from_json(text).unwrap();
        let read = |text: &str| read_body::<NewSchedule>(text, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(read(text), expected);
        let shape: NewSchedule = serde_json::from_str(text).unwrap();
        assert_eq!(read(&serde_json::to_string(&shape).unwrap()), expected);
    }

    #[test]
    fn a_patch_changes_only_what_it_names() {
        let before = nightly();
        let after = patched(&json!({"overlap": "allow"})).unwrap();
        let expected = Definition {
            overlap: Overlap::Allow,
            ..before.clone()
        };
        assert_eq!(after, expected);
        let every = patched(&json!({"every_ms": 5000, "splay_ms": 1})).unwrap();
        assert_eq!(every.expression, Expression::Every(Duration::from_secs(5)));
        assert_eq!(every.splay, Duration::from_millis(1));
        let plain = patched(&json!({"timezone": null, "splay": null})).unwrap();
        assert_eq!(
            (plain.timezone.name(), plain.splay),
            ("UTC", Duration::ZERO)
        );
        assert_eq!(plain.expression, before.expression);
        let other = patched(&json!({"job": {"kind": "b"}})).unwrap();
        assert_eq!(
            (other.job.kind.as_str(), other.job.max_attempts),
            ("b", None)
        );
        let patch = SchedulePatch {
            missed: Some(None),
            paused: Some(Some(true)),
            ..SchedulePatch::default()
        };
        let written = serde_json::to_value(&patch).unwrap();
        assert_eq!(written, json!({"missed": null, "paused": true}));
    }

    #[test]
    fn all_broken_rules_of_a_schedule_are_reported_together() {
        let job = json!({"kind": "a"});
        let window =
            json!({"starts_at": "2027-01-01T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"});
        for (value, expected) in [
            (json!({"job": job}), &["cron", "name"][..]),
            (
                json!({
                    "name": "a b", "cron": "soon", "job": {"kind": "x y", "queue": "/"}, "colour": 1,
                }),
                &["colour", "cron", "job.kind", "job.queue", "name"],
            ),
            (
                json!({"name": "s", "every": "soon", "job": {}, "timezone": "Mars"}),
                &["every", "job.kind", "timezone"],
            ),
            (
                json!({
                    "name": "00000000-0000-0000-0000-000000000001", "every_ms": 5,
                    "starts_at": window["starts_at"], "ends_at": window["ends_at"],
                    "job": {"kind": "a", "run_at": "2026-01-01T00:00:00Z"},
                }),
                &["ends_at", "every_ms", "job.run_at", "name"],
            ),
            (
                json!({"name": "s", "cron": "* * * * *", "every": "1s", "job": null, "splay": "x"}),
                &["cron", "job", "splay"],
            ),
            (
                json!({"name": "s", "at": "1969-01-01T00:00:00Z", "job": job}),
                &["at"],
            ),
        ] {
            assert_eq!(read(&value).unwrap_err(), expected, "{value}");
        }
    }

    #[test]
    fn all_broken_rules_of_a_patch_are_reported_together() {
        for (patch, expected) in [
            (
                json!({"name": "other", "colour": 1}),
                &["colour", "name"][..],
            ),
            (
                json!({"cron": "61 * * * *", "job": {"kind": ""}}),
                &["cron.minute", "job.kind"],
            ),
            (json!({"cron": null, "job": null}), &["cron", "job"]),
            (
                json!({"every": "1s", "at": "2030-01-01T00:00:00Z", "overlap": "x"}),
                &["cron", "overlap"],
            ),
            (
                json!({"splay": "1s", "splay_ms": 5, "job": {"kind": "a", "x": 1}}),
                &["job.x", "splay_ms"],
            ),
        ] {
            assert_eq!(patched(&patch).unwrap_err(), expected, "{patch}");
        }
    }

    #[test]
    fn the_job_of_a_schedule_is_required_and_described_elsewhere() {
        let schema = schemars::schema_for!(PutSchedule);
        assert_eq!(schema.get("required"), Some(&json!(["job"])));
        let job = schema.pointer("/properties/job/$ref");
        assert_eq!(job, Some(&json!("#/$defs/NewJob")));
    }

    #[test]
    fn a_put_takes_the_name_from_the_path() {
        let name = ScheduleName::new("pulse").unwrap();
        let put = |value: Value| {
            let check = |put: PutSchedule, checks: &mut Checks| put.check_named(&name, checks);
            read_body_with(&value.to_string(), Timestamp::UNIX_EPOCH, check).map_err(fields)
        };
        let definition = put(json!({"every": "1m", "job": {"kind": "a"}})).unwrap();
        assert_eq!(definition.name, name);
        assert_eq!(
            put(json!({"name": "pulse", "every": "1m", "job": {"kind": "a"}})),
            Ok(definition)
        );
        let refused = put(json!({"name": "other", "colour": 1, "job": {"kind": "a"}}));
        assert_eq!(refused.unwrap_err(), ["colour", "cron", "name"]);
    }
}
