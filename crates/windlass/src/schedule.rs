//! Schedules: rules that enqueue jobs again and again.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::schedule::{
    Expression, Missed, NewSchedule, Overlap, SkipReason, SkippedRange, Zone,
};
use windlass_core::{Invalid, ScheduleId, ScheduleName, Timestamp};
use windlass_store::{Document, Expected, Fire, Schedule as StoredSchedule, Written};

use crate::client::{Client, kind_of, payload_of};
use crate::error::Error;
use crate::job::{Job, VERSION};
use crate::options::Options;

/// The collection of documents that say which schedules a program declares.
const SETS: &str = "schedule-sets";

/// So often a change is tried that meets another one.
const TRIES: usize = 10;

/// A rule and the job it enqueues, declared in code.
///
/// ```
/// # use std::time::Duration;
/// # use windlass::{Job, Options, Overlap, Schedule};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Report { month: bool }
/// # impl Job for Report { const KIND: &'static str = "report"; }
/// let nightly = Schedule::cron("nightly-report", "0 2 * * *", Report { month: false })
///     .timezone("Europe/Berlin")
///     .overlap(Overlap::Skip);
/// let often = Schedule::every("pulse", Duration::from_secs(90), Report { month: false })
///     .options(Options::new().queue("pulse"));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Schedule {
    made: Result<NewSchedule, Invalid>,
    /// What the type of its jobs says.
    defaults: Options,
}

impl Schedule {
    /// Fires by a cron expression: five fields, six with seconds first, `@hourly`, `@every 90s`.
    pub fn cron<T: Job>(name: &str, cron: &str, job: T) -> Self {
        Schedule::new(
            name,
            cron.parse().map_err(|error: Invalid| error.within("cron")),
            &job,
        )
    }

    /// Fires every so often.
    pub fn every<T: Job>(name: &str, period: Duration, job: T) -> Self {
        Schedule::new(name, Expression::every(period), &job)
    }

    /// Fires once.
    pub fn at<T: Job>(name: &str, at: Timestamp, job: T) -> Self {
        Schedule::new(name, Ok(Expression::At(at)), &job)
    }

    fn new<T: Job>(name: &str, expression: Result<Expression, Invalid>, job: &T) -> Self {
        let mut defaults = T::defaults();
        if T::VERSION > 1 {
            defaults = defaults.meta(VERSION, T::VERSION.into());
        }
        let made = || {
            let name = ScheduleName::new(name).map_err(|error| error.within("name"))?;
            let options = Options::new().over(defaults.clone());
            let job = options.into_new_job(kind_of::<T>()?, payload_of(job)?)?;
            Ok(NewSchedule::new(name, expression?, job))
        };
        Schedule {
            made: made(),
            defaults,
        }
    }

    /// Whose clock a cron expression follows; UTC if not said.
    pub fn timezone(self, name: &str) -> Self {
        self.set(|schedule| {
            schedule.timezone = Zone::new(name).map_err(|error| error.within("timezone"))?;
            Ok(())
        })
    }

    /// What becomes of occurrences that were missed.
    pub fn missed(self, missed: Missed) -> Self {
        self.set(|schedule| {
            schedule.missed = Some(missed);
            Ok(())
        })
    }

    /// How late an occurrence may fire before it counts as missed; 5 s if not said.
    pub fn missed_after(self, late: Duration) -> Self {
        self.set(|schedule| {
            schedule.missed_after = late;
            Ok(())
        })
    }

    /// What an occurrence does while an earlier one is not over.
    pub fn overlap(self, overlap: Overlap) -> Self {
        self.set(|schedule| {
            schedule.overlap = overlap;
            Ok(())
        })
    }

    /// Each occurrence is delayed by up to so long, always by the same.
    pub fn splay(self, most: Duration) -> Self {
        self.set(|schedule| {
            schedule.splay = most;
            Ok(())
        })
    }

    /// Nothing fires before it.
    pub fn starts_at(self, at: Timestamp) -> Self {
        self.set(|schedule| {
            schedule.starts_at = Some(at);
            Ok(())
        })
    }

    /// Nothing fires after it.
    pub fn ends_at(self, at: Timestamp) -> Self {
        self.set(|schedule| {
            schedule.ends_at = Some(at);
            Ok(())
        })
    }

    /// Options of its jobs, over the defaults of their type.
    pub fn options(self, options: Options) -> Self {
        let options = options.over(self.defaults.clone());
        self.set(|schedule| {
            let (kind, payload) = (schedule.job.kind.clone(), schedule.job.payload.clone());
            schedule.job = options.into_new_job(kind, payload)?;
            Ok(())
        })
    }

    fn set(mut self, change: impl FnOnce(&mut NewSchedule) -> Result<(), Invalid>) -> Self {
        self.made = self.made.and_then(|mut schedule| {
            change(&mut schedule)?;
            Ok(schedule)
        });
        self
    }

    /// Whether all of it lies in the past: code may still declare what has fired long ago.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.made.as_ref().is_ok_and(|schedule| {
            let last = match schedule.expression {
                Expression::At(at) => Some(at),
                Expression::Cron(_) | Expression::Every(_) => schedule.ends_at,
            };
            last.is_some_and(|last| last <= now)
        })
    }

    pub(crate) fn checked(&self, now: Timestamp) -> Result<NewSchedule, Invalid> {
        let schedule = self.made.clone()?;
        let named = |error: Invalid| error.within(&format!("schedule {}", schedule.name));
        schedule.check(now).map_err(named)?;
        Ok(schedule)
    }
}

impl Client {
    /// Creates a schedule, or changes the one of that name.
    pub async fn put_schedule(&self, schedule: &Schedule) -> Result<ScheduleId, Error> {
        let now = self.now();
        let definition = schedule.checked(now)?;
        for _ in 0..TRIES {
            let found = self.find_schedule(&definition.name).await?;
            if let Some(found) = &found
                && is_the_same(&found.definition, &definition)
            {
                return Ok(found.id);
            }
            let (mut kept, expected) = match found {
                None => (self.new_schedule(definition.clone()), Expected::Absent),
                Some(found) => {
                    let expected = Expected::Version(found.version);
                    (found, expected)
                }
            };
            // A person's pause outlives a deploy.
            let paused = kept.definition.paused;
            kept.definition = NewSchedule {
                paused,
                ..definition.clone()
            };
            plan(&mut kept, now);
            if self.write(&kept, expected).await? {
                return Ok(kept.id);
            }
        }
        Err(busy(&definition.name))
    }

    /// The schedules that will fire again, or are paused; by name.
    pub async fn schedules(&self) -> Result<Vec<StoredSchedule>, Error> {
        let mut schedules = self.engine.store().schedules().await?;
        schedules.retain(|one| one.next_at.is_some() || one.definition.paused);
        Ok(schedules)
    }

    /// A schedule does not fire until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<(), Error> {
        self.change_schedule(name, |schedule, _| {
            schedule.definition.paused = true;
            schedule.next_at = None;
            None
        })
        .await
    }

    /// A schedule fires again. What it missed while it was paused is recorded as skipped.
    pub async fn resume_schedule(&self, name: &str) -> Result<(), Error> {
        self.change_schedule(name, |schedule, now| {
            if !schedule.definition.paused {
                return None;
            }
            schedule.definition.paused = false;
            let skipped = skipped_until(schedule, now);
            schedule.last_at = skipped.map(|range| range.last).or(schedule.last_at);
            plan(schedule, now);
            skipped
        })
        .await
    }

    /// Removes a schedule; its jobs stay. Whether it was there.
    pub async fn remove_schedule(&self, name: &str) -> Result<bool, Error> {
        let name = ScheduleName::new(name).map_err(|error| error.within("name"))?;
        match self.find_schedule(&name).await? {
            None => Ok(false),
            Some(found) => Ok(self.engine.store().remove_schedule(found.id).await?),
        }
    }

    /// Makes the schedules of a set what a program declares: creates, changes, and removes those that are gone from it.
    pub(crate) async fn declare(&self, set: &str, schedules: &[Schedule]) -> Result<(), Error> {
        let store = self.engine.store();
        let before = store.document(SETS, set).await?;
        let mut names = BTreeSet::new();
        for schedule in schedules {
            if !schedule.is_over(self.now()) {
                self.put_schedule(schedule).await?;
            }
            if let Ok(schedule) = &schedule.made {
                names.insert(schedule.name.to_string());
            }
        }
        for gone in declared_before(before.as_ref(), &names) {
            self.remove_schedule(&gone).await?;
        }
        let value = json!(names);
        if before.is_none_or(|document| document.value != value) {
            store
                .put_document(SETS, set, &value, Expected::Anything, self.now())
                .await?;
        }
        Ok(())
    }

    async fn change_schedule(
        &self,
        name: &str,
        change: impl Fn(&mut StoredSchedule, Timestamp) -> Option<SkippedRange>,
    ) -> Result<(), Error> {
        let name = ScheduleName::new(name).map_err(|error| error.within("name"))?;
        for _ in 0..TRIES {
            let unknown = || Invalid::new("name", format!("names no schedule: {name}"));
            let mut schedule = self.find_schedule(&name).await?.ok_or_else(unknown)?;
            let expected = Expected::Version(schedule.version);
            let now = self.now();
            let skipped = change(&mut schedule, now);
            if !self.write(&schedule, expected).await? {
                continue;
            }
            if let Some(range) = skipped {
                let fire = Fire {
                    schedule: schedule.id,
                    version: schedule.version,
                    jobs: Vec::new(),
                    skipped: Some(range),
                    last_at: schedule.last_at,
                    next_at: schedule.next_at,
                };
                let record: Vec<Value> = fire.skipped_record().into_iter().collect();
                let store = self.engine.store();
                store.append(Fire::SKIPPED_TOPIC, &record, now).await?;
            }
            return Ok(());
        }
        Err(busy(&name))
    }

    fn new_schedule(&self, definition: NewSchedule) -> StoredSchedule {
        let now = self.now();
        StoredSchedule {
            id: self.engine.ids().schedule(now),
            version: 0,
            definition,
            created_at: now,
            last_at: None,
            next_at: None,
        }
    }

    async fn find_schedule(&self, name: &ScheduleName) -> Result<Option<StoredSchedule>, Error> {
        let schedules = self.engine.store().schedules().await?;
        Ok(schedules
            .into_iter()
            .find(|one| one.definition.name == *name))
    }

    async fn write(&self, schedule: &StoredSchedule, expected: Expected) -> Result<bool, Error> {
        let written = self.engine.store().put_schedule(schedule, expected).await?;
        Ok(matches!(written, Written::Version(_)))
    }
}

/// Whether a schedule is as it is declared; a person may have paused it.
fn is_the_same(found: &NewSchedule, declared: &NewSchedule) -> bool {
    let paused = found.paused;
    *found
        == NewSchedule {
            paused,
            ..declared.clone()
        }
}

/// The names that a set had and no longer has.
fn declared_before(before: Option<&Document>, names: &BTreeSet<String>) -> Vec<String> {
    let listed = before.and_then(|document| document.value.as_array());
    let known = listed.into_iter().flatten().filter_map(Value::as_str);
    let gone = known.filter(|name| !names.contains(*name));
    gone.map(str::to_owned).collect()
}

/// Works out when a schedule is due next, if it is not paused.
fn plan(schedule: &mut StoredSchedule, now: Timestamp) {
    let recurrence = schedule.definition.recurrence(schedule.created_at);
    // A rule that changes does not fire for the past.
    let from = schedule.last_at.map_or(now, |last| last.max(now));
    let next = recurrence.next(from).map(|firing| firing.at);
    schedule.next_at = next.filter(|_| !schedule.definition.paused);
    schedule.last_at = Some(from);
}

/// The occurrences of a paused schedule that will not fire.
fn skipped_until(schedule: &StoredSchedule, now: Timestamp) -> Option<SkippedRange> {
    let recurrence = schedule.definition.recurrence(schedule.created_at);
    let last = schedule.last_at.unwrap_or(schedule.created_at);
    let due = Missed::Skip.due(&recurrence, last, now, Duration::ZERO);
    let fire = due.fire.last().copied();
    let first = due
        .skipped
        .map(|range| range.first)
        .or(due.fire.first().copied())?;
    let last = fire.or(due.skipped.map(|range| range.last))?;
    let count = due.skipped.map_or(Some(0), |range| range.count);
    Some(SkippedRange {
        first,
        last,
        reason: SkipReason::Paused,
        count: count.map(|count| count + due.fire.len()),
    })
}

fn busy(name: &ScheduleName) -> Error {
    Invalid::new(
        "schedule",
        format!("{name} is changed by others all the time: try again"),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Tick;

    impl Job for Tick {
        const KIND: &'static str = "tick";
        const VERSION: u32 = 3;

        fn defaults() -> Options {
            Options::new().queue("ticks")
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn every_setting_of_a_schedule_is_kept() {
        let now = at("2026-01-01T00:00:00Z");
        let (start, end) = (at("2026-02-01T00:00:00Z"), at("2026-03-01T00:00:00Z"));
        let schedule = Schedule::cron("tick", "0 2 * * *", Tick)
            .timezone("Europe/Berlin")
            .missed(Missed::All)
            .missed_after(Duration::from_secs(7))
            .overlap(Overlap::Allow)
            .splay(Duration::from_secs(8))
            .starts_at(start)
            .ends_at(end);
        let kept = schedule.checked(now).unwrap();
        assert_eq!(kept.timezone.name(), "Europe/Berlin");
        assert_eq!(
            (kept.missed, kept.overlap),
            (Some(Missed::All), Overlap::Allow)
        );
        assert_eq!(kept.missed_after, Duration::from_secs(7));
        assert_eq!(kept.splay, Duration::from_secs(8));
        assert_eq!((kept.starts_at, kept.ends_at), (Some(start), Some(end)));
        assert_eq!(kept.job.queue.as_str(), "ticks");
        assert_eq!(kept.job.meta[VERSION], 3);
        let other = schedule
            .options(Options::new().priority(4))
            .checked(now)
            .unwrap();
        assert_eq!((other.job.priority, other.job.queue.as_str()), (4, "ticks"));
        assert_eq!(other.job.meta[VERSION], 3);
    }

    #[test]
    fn a_schedule_that_breaks_a_rule_is_refused_by_name() {
        let now = at("2026-01-01T00:00:00Z");
        for (schedule, field) in [
            (Schedule::cron("no spaces", "* * * * *", Tick), "name"),
            (Schedule::cron("a", "61 * * * *", Tick), "cron"),
            (
                Schedule::cron("a", "* * * * *", Tick).timezone("Nowhere"),
                "timezone",
            ),
            (Schedule::every("a", Duration::ZERO, Tick), "every"),
            (
                Schedule::at("a", at("2020-01-01T00:00:00Z"), Tick),
                "schedule a",
            ),
        ] {
            let refused = schedule.checked(now).unwrap_err();
            assert!(refused.field().starts_with(field), "{field}: {refused}");
        }
    }
}
