//! Schedules: rules that enqueue a job by cron, at an interval, or once.
//!
//! Declare schedules with the worker that runs their jobs,
//! [`Worker::schedules`](crate::Worker::schedules). They are created or changed by name when the
//! worker starts, and removed when the code no longer declares them. Every node may declare them:
//! each occurrence becomes exactly one job, even if nodes crash.
//!
//! ```
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use windlass::schedule::{Missed, Overlap};
//! use windlass::testing::TestKit;
//! use windlass::{Context, Failure, Job, Schedule, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Report {
//!     title: String,
//! }
//!
//! impl Job for Report {
//!     const KIND: &'static str = "report";
//! }
//!
//! async fn report(job: Report, ctx: Context) -> Result<(), Failure> {
//!     if let Some(occurrence) = ctx.job().occurrence {
//!         ctx.log(format!("{} for {}", job.title, occurrence.scheduled_for));
//!     }
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! let kit = TestKit::new(); // the clock starts at 2026-01-01T00:00:00Z, and three days pass at once
//! let nightly = Schedule::cron("nightly", "30 2 * * *", Report { title: "sales".into() })
//!     .timezone("Europe/Berlin")
//!     .missed(Missed::Once)
//!     .overlap(Overlap::Skip);
//! let worker = Worker::new(kit.client(), ()).handle(report).schedules("reports", [nightly]);
//! let ran = kit.worker(worker).await?.run_for(Duration::from_secs(3 * 24 * 3600)).await?;
//! assert_eq!(ran.attempts, 3);
//!
//! let next = kit.client().preview_schedule("nightly", 1).await?;
//! assert_eq!(next[0].at.to_string(), "2026-01-04T01:30:00Z");
//! # Ok(())
//! # }
//! ```
//!
//! Two settings decide about exceptions:
//!
//! - [`Missed`]: what happens to occurrences that no node could fire in time, for example because
//!   all nodes were down. By default the last of them fires once.
//! - [`Overlap`]: what happens to an occurrence while an earlier one has not finished. By default it
//!   is skipped.
//!
//! Every occurrence that does not fire is recorded with a [`SkipReason`].
//!
//! Operators pause, resume, run and backfill schedules with
//! [`Client::pause_schedule`](crate::Client::pause_schedule),
//! [`Client::resume_schedule`](crate::Client::resume_schedule),
//! [`Client::run_schedule_now`](crate::Client::run_schedule_now) and
//! [`Client::backfill`](crate::Client::backfill).

use std::time::Duration;

#[doc(inline)]
pub use windlass_core::schedule::*;
use windlass_core::{Invalid, Timestamp};
#[doc(inline)]
pub use windlass_core::{ScheduleId, ScheduleName};
#[doc(inline)]
pub use windlass_engine::Origin;
#[doc(inline)]
pub use windlass_store::{
    Expected, FiredOccurrence, Schedule as StoredSchedule, ScheduleRef, UnreadableSchedule,
};

use crate::client::{kind_of, payload_of};
use crate::job::{Job, VERSION};
use crate::options::Options;

/// A schedule, declared in code: a rule, and the job that it enqueues.
///
/// Pass it to [`Worker::schedules`](crate::Worker::schedules), or store it with
/// [`Client::put_schedule`](crate::Client::put_schedule). The module [`schedule`](crate::schedule)
/// has a complete example.
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
    /// The definition, or the first invalid value.
    definition: Result<NewSchedule, Invalid>,
    /// The default options of the job's type.
    defaults: Options,
}

impl Schedule {
    /// Returns a schedule that fires by a cron expression.
    ///
    /// The expression has five fields, or six with seconds first, or is a shorthand such as `@hourly`
    /// or `@every 90s`. It follows [`Schedule::timezone`].
    pub fn cron<T: Job>(name: &str, cron: &str, job: T) -> Self {
        Schedule::new(
            name,
            cron.parse().map_err(|error: Invalid| error.within("cron")),
            &job,
        )
    }

    /// Returns a schedule that fires at an interval of at least 1 s.
    pub fn every<T: Job>(name: &str, period: Duration, job: T) -> Self {
        Schedule::new(name, Expression::every(period), &job)
    }

    /// Returns a schedule that fires once, at an instant.
    pub fn at<T: Job>(name: &str, at: Timestamp, job: T) -> Self {
        Schedule::new(name, Ok(Expression::At(at)), &job)
    }

    fn new<T: Job>(name: &str, expression: Result<Expression, Invalid>, job: &T) -> Self {
        let mut defaults = T::defaults();
        if let Some(key) = job.unique_key() {
            defaults = Options::new().unique_key(&key).with_defaults(defaults);
        }
        if T::VERSION > 1 {
            defaults = defaults.meta(VERSION, T::VERSION.into());
        }
        let define = || {
            let name = ScheduleName::new(name).map_err(|error| error.within("name"))?;
            let options = Options::new().with_defaults(defaults.clone());
            let job = options.into_new_job(kind_of::<T>()?, payload_of(job)?)?;
            Ok(NewSchedule::new(name, expression?, job))
        };
        Schedule {
            definition: define(),
            defaults,
        }
    }

    /// Sets the time zone of a cron expression, such as `Europe/Berlin`. The default is UTC.
    pub fn timezone(self, name: &str) -> Self {
        self.set(|schedule| {
            schedule.timezone = Zone::new(name).map_err(|error| error.within("timezone"))?;
            Ok(())
        })
    }

    /// Sets what happens to missed occurrences.
    ///
    /// By default the last one fires once ([`Missed::Once`]); for at-most-once jobs all are skipped
    /// ([`Missed::Skip`]).
    pub fn missed(self, missed: Missed) -> Self {
        self.set(|schedule| {
            schedule.missed = Some(missed);
            Ok(())
        })
    }

    /// Sets how late an occurrence may fire before it counts as missed. The default is 5 s.
    pub fn missed_after(self, late: Duration) -> Self {
        self.set(|schedule| {
            schedule.missed_after = late;
            Ok(())
        })
    }

    /// Limits how many occurrences fire together after an outage: the newest ones. The default is 100,
    /// the maximum is 1000.
    pub fn catch_up_max(self, max: u32) -> Self {
        self.set(|schedule| {
            schedule.catch_up_max = max;
            Ok(())
        })
    }

    /// Sets what happens to an occurrence while an earlier one has not finished. The default is
    /// [`Overlap::Skip`].
    pub fn overlap(self, overlap: Overlap) -> Self {
        self.set(|schedule| {
            schedule.overlap = overlap;
            Ok(())
        })
    }

    /// Delays every occurrence by a fixed time between zero and `max`, which depends on the schedule.
    ///
    /// It spreads schedules that would otherwise all fire at the same instant.
    pub fn splay(self, max: Duration) -> Self {
        self.set(|schedule| {
            schedule.splay = max;
            Ok(())
        })
    }

    /// Sets the start: no occurrence fires before this instant.
    pub fn starts_at(self, at: Timestamp) -> Self {
        self.set(|schedule| {
            schedule.starts_at = Some(at);
            Ok(())
        })
    }

    /// Sets the end: no occurrence fires after this instant.
    pub fn ends_at(self, at: Timestamp) -> Self {
        self.set(|schedule| {
            schedule.ends_at = Some(at);
            Ok(())
        })
    }

    /// Sets options of the jobs. They override the [defaults](Job::defaults) of their type.
    pub fn options(self, options: Options) -> Self {
        let options = options.with_defaults(self.defaults.clone());
        self.set(|schedule| {
            let (kind, payload) = (schedule.job.kind.clone(), schedule.job.payload.clone());
            schedule.job = options.into_new_job(kind, payload)?;
            Ok(())
        })
    }

    fn set(mut self, change: impl FnOnce(&mut NewSchedule) -> Result<(), Invalid>) -> Self {
        self.definition = self.definition.and_then(|mut schedule| {
            change(&mut schedule)?;
            Ok(schedule)
        });
        self
    }

    /// Returns whether the last occurrence is in the past: code may still declare such a schedule.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.definition.as_ref().is_ok_and(|schedule| {
            let last = match schedule.expression {
                Expression::At(at) => Some(at),
                Expression::Cron(_) | Expression::Every(_) => schedule.ends_at,
            };
            last.is_some_and(|last| last <= now)
        })
    }

    /// Returns the name, if the definition is valid.
    pub(crate) fn name(&self) -> Option<&ScheduleName> {
        self.definition.as_ref().ok().map(|schedule| &schedule.name)
    }

    pub(crate) fn checked(&self, now: Timestamp) -> Result<NewSchedule, Invalid> {
        let schedule = self.definition.clone()?;
        let with_name = |error: Invalid| error.within(&format!("schedule {}", schedule.name));
        schedule.check(now).map_err(with_name)?;
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
