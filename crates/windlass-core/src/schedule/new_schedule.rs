//! The request to create a schedule, as JSON and checked.

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{
    CATCH_UP_CEILING, CATCH_UP_DEFAULT, Expression, MISSED_AFTER_DEFAULT, Missed, Overlap,
    Recurrence, SkipReason, SkippedRange, Zone,
};
use crate::duration::{check_duration, format_duration};
use crate::fields::{Fields, RawFields};
use crate::{
    Deadline, Invalid, NewJob, PAYLOAD_BYTES_MAX, ScheduleId, ScheduleName, Start, Timestamp,
};

/// A schedule to create or replace: a rule, and the job to enqueue at each occurrence. The name
/// identifies it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSchedule {
    /// The name of the schedule.
    pub name: ScheduleName,
    /// When it fires.
    pub expression: Expression,
    /// The time zone of a cron expression.
    pub timezone: Zone,
    /// What happens to missed occurrences; `None` means `once`, or `skip` for at-most-once jobs.
    pub missed: Option<Missed>,
    /// How late an occurrence may fire before it counts as missed.
    pub missed_after: Duration,
    /// The most occurrences that fire together: the newest ones.
    pub catch_up_max: u32,
    /// What happens to an occurrence while an earlier one is unfinished.
    pub overlap: Overlap,
    /// The longest random delay of an occurrence.
    pub splay: Duration,
    /// No occurrence is before this instant.
    pub starts_at: Option<Timestamp>,
    /// No occurrence is after this instant.
    pub ends_at: Option<Timestamp>,
    /// Whether it is paused. A paused schedule does not fire.
    pub paused: bool,
    /// The job of each occurrence.
    pub job: NewJob,
}

impl NewSchedule {
    /// Makes a schedule in UTC with all other fields at their defaults.
    pub fn new(name: ScheduleName, expression: Expression, job: NewJob) -> Self {
        NewSchedule {
            name,
            expression,
            timezone: Zone::utc(),
            missed: None,
            missed_after: MISSED_AFTER_DEFAULT,
            catch_up_max: CATCH_UP_DEFAULT,
            overlap: Overlap::Skip,
            splay: Duration::ZERO,
            starts_at: None,
            ends_at: None,
            paused: false,
            job,
        }
    }

    /// What happens to missed occurrences, with the default applied.
    pub fn missed(&self) -> Missed {
        self.missed
            .unwrap_or(Missed::default_for(self.job.delivery))
    }

    /// The instants at which the schedule fires if it was created at `created_at`.
    pub fn recurrence(&self, created_at: Timestamp) -> Recurrence {
        Recurrence {
            expression: self.expression.clone(),
            zone: self.timezone.clone(),
            anchor: self.starts_at.unwrap_or(created_at),
            starts_at: self.starts_at,
            ends_at: self.ends_at,
        }
    }

    /// When the schedule is due next, if all occurrences up to `last_at`, or up to its creation,
    /// fired or were skipped. `None` while it is paused.
    pub fn next_at(&self, created_at: Timestamp, last_at: Option<Timestamp>) -> Option<Timestamp> {
        if self.paused {
            return None;
        }
        let next = self.recurrence(created_at);
        let next = next.next(last_at.unwrap_or(created_at));
        next.map(|firing| firing.at)
    }

    /// The occurrences after `last` up to `now`, all skipped for one reason.
    pub fn skipped_for(
        &self,
        reason: SkipReason,
        created_at: Timestamp,
        last: Timestamp,
        now: Timestamp,
    ) -> Option<SkippedRange> {
        let recurrence = self.recurrence(created_at);
        let due = Missed::Skip.due(&recurrence, last, now, Duration::ZERO, self.catch_up_max);
        due.skipped_for(reason)
    }

    /// Returns the occurrences from `from` to `to`, both included. Returns an error if there are
    /// more than `most`.
    pub fn occurrences_between(
        &self,
        created_at: Timestamp,
        from: Timestamp,
        to: Timestamp,
        most: usize,
    ) -> Result<Vec<Timestamp>, Invalid> {
        let recurrence = self.recurrence(created_at);
        let before = from.saturating_sub(Duration::from_micros(1));
        let within = recurrence.after(before).map(|firing| firing.at);
        let found: Vec<Timestamp> = within
            .take_while(|at| *at <= to)
            .take(most.saturating_add(1))
            .collect();
        if found.len() > most {
            let rule = format!(
                "must be earlier: more than {most} occurrences lie between `from` and `to`"
            );
            return Err(Invalid::new("to", rule));
        }
        Ok(found)
    }

    /// Checks that the schedule fires after `now` and that its job can be enqueued.
    pub fn check(&self, now: Timestamp) -> Result<(), Invalid> {
        self.check_with(now, PAYLOAD_BYTES_MAX)
    }

    /// The same with payloads up to `payload_bytes_max`.
    pub fn check_with(&self, now: Timestamp, payload_bytes_max: usize) -> Result<(), Invalid> {
        let first = self.problems(now, payload_bytes_max).into_iter().next();
        first.map_or(Ok(()), Err)
    }

    /// Returns every rule that the schedule breaks. [`check_with`](Self::check_with) returns only
    /// the first one.
    pub fn problems(&self, now: Timestamp, payload_bytes_max: usize) -> Vec<Invalid> {
        let mut problems = Vec::new();
        let mut refuse = |field: &str, rule: &str| problems.push(Invalid::new(field, rule));
        if self.name.as_str().parse::<ScheduleId>().is_ok() {
            let rule = "must not look like an id: schedules are found by theirs too";
            refuse("name", rule);
        }
        if !(1..=CATCH_UP_CEILING).contains(&self.catch_up_max) {
            let rule = format!("must be from 1 to {CATCH_UP_CEILING}");
            refuse("catch_up_max", &rule);
        }
        let window = self.starts_at.zip(self.ends_at);
        let is_empty_window = window.is_some_and(|(start, end)| end < start);
        if let Some((start, _)) = window.filter(|_| is_empty_window) {
            refuse(
                "ends_at",
                &format!("must not be before `starts_at` ({start})"),
            );
        }
        if let Start::At(_) = self.job.start {
            let rule = "does not go with a schedule, which says when its jobs run; `delay` does";
            refuse("job.run_at", rule);
        }
        let once = matches!(self.expression, Expression::At(_));
        if matches!(self.job.deadline, Some(Deadline::At(_))) && !once {
            let rule = "would be the same for every occurrence; `expires_in` counts from each";
            refuse("job.deadline", rule);
        }
        if !is_empty_window && self.recurrence(now).next(now).is_none() {
            let rule = format!("has no occurrence after {now}: it would never fire");
            refuse(self.expression_field(), &rule);
        }
        let durations = [("splay", self.splay), ("missed_after", self.missed_after)];
        for (field, duration) in durations {
            let refused = check_duration(duration).err();
            problems.extend(refused.map(|error| error.within(field)));
        }
        let job = self.job.check_with(payload_bytes_max).err();
        problems.extend(job.map(|error| error.within("job")));
        problems
    }

    /// Reads a schedule from JSON text. Keeps the payload of the job byte for byte.
    pub fn from_json(text: &str) -> Result<Self, Invalid> {
        let parts = RawFields::parse(text)?;
        let job = parts
            .raw("job")
            .ok_or_else(|| Invalid::new("job", "is required"))?;
        let job = NewJob::from_json(job).map_err(|error| error.within("job"))?;
        let others = parts.values_except("job")?;
        let mut fields = Fields::of(&others);
        let schedule = NewSchedule::from_fields(&mut fields, job)?;
        fields.finish()?;
        Ok(schedule)
    }

    fn from_fields(fields: &mut Fields<'_>, job: NewJob) -> Result<Self, Invalid> {
        let name = fields
            .parsed("name", ScheduleName::new)?
            .ok_or_else(|| Invalid::new("name", "is required"))?;
        let expression = read_expression(fields)?;
        let plain = NewSchedule::new(name, expression, job);
        Ok(NewSchedule {
            timezone: read_zone(fields)?,
            missed: fields.parsed("missed", str::parse)?,
            missed_after: fields
                .duration("missed_after")?
                .unwrap_or(plain.missed_after),
            catch_up_max: read_catch_up(fields)?,
            overlap: fields.parsed("overlap", str::parse)?.unwrap_or_default(),
            splay: fields.duration("splay")?.unwrap_or_default(),
            starts_at: fields.timestamp("starts_at")?,
            ends_at: fields.timestamp("ends_at")?,
            paused: fields.flag("paused")?.unwrap_or(false),
            ..plain
        })
    }

    fn expression_field(&self) -> &'static str {
        match self.expression {
            Expression::Cron(_) => "cron",
            Expression::Every(_) => "every",
            Expression::At(_) => "at",
        }
    }
}

impl Serialize for NewSchedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        match &self.expression {
            Expression::Cron(cron) => map.serialize_entry("cron", cron.as_str())?,
            Expression::Every(period) => map.serialize_entry("every", &format_duration(*period))?,
            Expression::At(instant) => map.serialize_entry("at", instant)?,
        }
        map.serialize_entry("timezone", self.timezone.name())?;
        if let Some(missed) = self.missed {
            map.serialize_entry("missed", missed.name())?;
        }
        map.serialize_entry("missed_after", &format_duration(self.missed_after))?;
        if self.catch_up_max != CATCH_UP_DEFAULT {
            map.serialize_entry("catch_up_max", &self.catch_up_max)?;
        }
        map.serialize_entry("overlap", self.overlap.name())?;
        map.serialize_entry("splay", &format_duration(self.splay))?;
        map.serialize_entry("starts_at", &self.starts_at)?;
        map.serialize_entry("ends_at", &self.ends_at)?;
        map.serialize_entry("paused", &self.paused)?;
        map.serialize_entry("job", &self.job)?;
        map.end()
    }
}

fn read_expression(fields: &mut Fields<'_>) -> Result<Expression, Invalid> {
    let cron = fields.text("cron")?;
    let every = fields.duration("every")?;
    Expression::from_fields(cron, every, fields.timestamp("at")?)
}

fn read_catch_up(fields: &mut Fields<'_>) -> Result<u32, Invalid> {
    let most = fields.integer("catch_up_max", 1, CATCH_UP_CEILING.into())?;
    Ok(most.map_or(CATCH_UP_DEFAULT, |most| {
        u32::try_from(most).unwrap_or(u32::MAX)
    }))
}

fn read_zone(fields: &mut Fields<'_>) -> Result<Zone, Invalid> {
    let name = fields.text("timezone")?;
    name.map_or_else(|| Ok(Zone::utc()), Zone::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use proptest::prelude::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn read(more: &str) -> Result<NewSchedule, Invalid> {
        NewSchedule::from_json(&format!(
            r#"{{"name": "s", "job": {{"kind": "a"}}, {more}}}"#
        ))
    }

    #[test]
    fn a_whole_schedule_is_read_and_written_back() {
        let text = concat!(
            r#"{"name":"nightly","cron":"0 3 * * *","timezone":"Europe/Berlin","missed":"all","#,
            r#""missed_after":"1m","catch_up_max":7,"overlap":"queue","splay":"30s","starts_at":"2026-01-01T00:00:00Z","#,
            r#""ends_at":"2027-01-01T00:00:00Z","paused":true,"job":{"kind":"report","payload":{"b":1.0, "a":2}}}"#,
        );
        let schedule = NewSchedule::from_json(text).unwrap();
        assert_eq!(serde_json::to_string(&schedule).unwrap(), text);
        assert_eq!(schedule.check(at(NOW)), Ok(()));
        let recurrence = schedule.recurrence(at(NOW));
        assert_eq!(
            recurrence.next(at(NOW)).unwrap().at,
            at("2026-01-01T02:00:00Z")
        );
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let schedule = read(r#""every_ms": 90000"#).unwrap();
        assert_eq!(
            schedule.expression,
            Expression::Every(Duration::from_secs(90))
        );
        assert_eq!(
            (schedule.missed(), schedule.overlap),
            (Missed::Once, Overlap::Skip)
        );
        assert_eq!(
            (schedule.missed_after, schedule.splay),
            (Duration::from_secs(5), Duration::ZERO)
        );
        assert_eq!((schedule.timezone.name(), schedule.paused), ("UTC", false));
        let once = NewSchedule::from_json(
            r#"{"name":"s","at":"2026-05-01T00:00:00Z","job":{"kind":"a","delivery":"at_most_once"}}"#,
        );
        assert_eq!(once.unwrap().missed(), Missed::Skip);
        let json = serde_json::to_string(&schedule).unwrap();
        assert_eq!(
            NewSchedule::from_json(&json),
            Ok(schedule.clone()),
            "what is unset stays unset"
        );
        let every = read(r#""cron": "@every 90s""#).unwrap();
        assert_eq!(every.expression, schedule.expression);
    }

    #[test]
    fn every_is_anchored_at_its_start() {
        let schedule = read(r#""every": "1h", "starts_at": "2026-01-01T00:20:00Z""#).unwrap();
        let first = schedule.recurrence(at(NOW)).next(at(NOW)).unwrap();
        assert_eq!(first.at, at("2026-01-01T00:20:00Z"));
        let schedule = read(r#""every": "1h""#).unwrap();
        let first = schedule.recurrence(at(NOW)).next(at(NOW)).unwrap();
        assert_eq!(first.at, at("2026-01-01T01:00:00Z"));
    }

    #[test]
    fn it_is_due_after_what_is_dealt_with_unless_it_is_paused() {
        let mut schedule = read(r#""every": "1h""#).unwrap();
        let (created, first) = (at(NOW), at("2026-01-01T01:00:00Z"));
        assert_eq!(schedule.next_at(created, None), Some(first));
        let second = at("2026-01-01T02:00:00Z");
        assert_eq!(schedule.next_at(created, Some(first)), Some(second));
        schedule.ends_at = Some(first);
        assert_eq!(schedule.next_at(created, Some(first)), None);
        schedule.paused = true;
        assert_eq!(schedule.next_at(created, None), None);
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        for (field, more) in [
            ("cron", r#""paused": false"#),
            ("cron", r#""cron": "* * * * *", "every": "1s""#),
            ("cron", r#""cron": "at 2026-05-01T00:00:00Z""#),
            ("cron", r#""cron": "* *""#),
            ("cron.hour", r#""cron": "0 25 * * *""#),
            ("cron.every", r#""cron": "@every 1ms""#),
            ("every", r#""every": "1ms""#),
            ("at", r#""at": "soon""#),
            ("timezone", r#""cron": "* * * * *", "timezone": "Mars""#),
            ("missed", r#""cron": "* * * * *", "missed": "some""#),
            ("overlap", r#""cron": "* * * * *", "overlap": "some""#),
            ("splay", r#""cron": "* * * * *", "splay": "-1s""#),
            ("paused", r#""cron": "* * * * *", "paused": 1"#),
            ("starts_at", r#""cron": "* * * * *", "starts_at": "x""#),
            ("time_zone", r#""cron": "* * * * *", "time_zone": "UTC""#),
        ] {
            let refusal = read(more).expect_err(more);
            assert_eq!(refusal.field(), field, "{more}: {refusal}");
        }
        for (field, text) in [
            ("", "[]"),
            ("job", r#"{"name": "s", "cron": "* * * * *"}"#),
            (
                "job.kind",
                r#"{"name": "s", "cron": "* * * * *", "job": {}}"#,
            ),
            ("name", r#"{"cron": "* * * * *", "job": {"kind": "a"}}"#),
            (
                "name",
                r#"{"name": "", "cron": "* * * * *", "job": {"kind": "a"}}"#,
            ),
        ] {
            assert_eq!(NewSchedule::from_json(text).expect_err(text).field(), field);
        }
    }

    #[test]
    fn a_schedule_that_cannot_work_is_refused_at_creation() {
        for (field, more) in [
            ("at", r#""at": "2026-01-01T00:00:00Z""#),
            ("cron", r#""cron": "0 0 0 1 1 * 2025""#),
            (
                "cron",
                r#""cron": "0 0 * * *", "ends_at": "2026-01-01T12:00:00Z""#,
            ),
            (
                "every",
                r#""every": "2h", "ends_at": "2026-01-01T01:00:00Z""#,
            ),
            (
                "ends_at",
                r#""cron": "* * * * *", "starts_at": "2026-02-01T00:00:00Z", "ends_at": "2026-01-31T00:00:00Z""#,
            ),
        ] {
            let refusal = read(more).unwrap().check(at(NOW)).unwrap_err();
            assert_eq!(refusal.field(), field, "{more}: {refusal}");
        }
        let moment = r#""cron": "* * * * *", "starts_at": "2026-02-01T00:00:00Z", "ends_at": "2026-02-01T00:00:00Z""#;
        assert_eq!(
            read(moment).unwrap().check(at(NOW)),
            Ok(()),
            "one occurrence is enough"
        );
        let mut schedule = read(r#""cron": "* * * * *""#).unwrap();
        schedule.job.start = Start::At(at(NOW));
        assert_eq!(schedule.check(at(NOW)).unwrap_err().field(), "job.run_at");
        schedule.job.start = Start::After(Duration::MAX);
        assert_eq!(schedule.check(at(NOW)).unwrap_err().field(), "job.delay");
        schedule.job.start = Start::Now;
        schedule.job.deadline = Some(Deadline::At(at("2030-01-01T00:00:00Z")));
        assert_eq!(schedule.check(at(NOW)).unwrap_err().field(), "job.deadline");
        schedule.job.deadline = Some(Deadline::After(Duration::from_secs(60)));
        assert_eq!(schedule.check(at(NOW)), Ok(()));
        assert_eq!(
            schedule.check_with(at(NOW), 3).unwrap_err().field(),
            "job.payload"
        );
        schedule.splay = Duration::MAX;
        assert_eq!(schedule.check(at(NOW)).unwrap_err().field(), "splay");
        schedule.splay = Duration::ZERO;
        schedule.missed_after = Duration::MAX;
        assert_eq!(schedule.check(at(NOW)).unwrap_err().field(), "missed_after");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), name in "[a-z_]{1,12}", value in "[-0-9a-z\"@* :]{0,16}") {
            let _ = NewSchedule::from_json(&text);
            let _ = read(&format!("\"{name}\": \"{value}\""));
        }
    }
}
