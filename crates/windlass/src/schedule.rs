//! Schedules: rules that enqueue jobs again and again.

use std::time::Duration;

pub use windlass_core::schedule::*;
use windlass_core::{Invalid, Timestamp};
pub use windlass_core::{ScheduleId, ScheduleName};
pub use windlass_engine::Origin;
pub use windlass_store::{
    Expected, FiredOccurrence, Schedule as StoredSchedule, ScheduleRef, UnreadableSchedule,
};

use crate::client::{kind_of, payload_of};
use crate::job::{Job, VERSION};
use crate::options::Options;

/// A rule and the job it enqueues, declared in code.
///
/// ```
/// # use std::time::Duration;
/// # use windlass::schedule::Overlap;
/// # use windlass::{Job, Options, Schedule};
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
        if let Some(key) = job.unique_key() {
            defaults = Options::new().unique_key(&key).over(defaults);
        }
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

    /// At most this many occurrences fire together after an outage, the newest ones; 100 if not
    /// said, up to 1000.
    pub fn catch_up_max(self, most: u32) -> Self {
        self.set(|schedule| {
            schedule.catch_up_max = most;
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

    /// Its name, if it has a right one.
    pub(crate) fn name(&self) -> Option<&ScheduleName> {
        self.made.as_ref().ok().map(|schedule| &schedule.name)
    }

    pub(crate) fn checked(&self, now: Timestamp) -> Result<NewSchedule, Invalid> {
        let schedule = self.made.clone()?;
        let named = |error: Invalid| error.within(&format!("schedule {}", schedule.name));
        schedule.check(now).map_err(named)?;
        Ok(schedule)
    }
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
