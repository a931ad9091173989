//! Schedules: rules that enqueue the same job again and again.
//!
//! A [`NewSchedule`] has an [`Expression`] (cron, interval or a single time) and the job to
//! enqueue. [`Recurrence`] computes its occurrences, daylight-saving changes included. [`Missed`]
//! and [`Overlap`] say what happens to occurrences that are late or that meet an unfinished job.
//!
//! This module only computes instants. The store guarantees that each occurrence becomes at most
//! one job, whatever crashes.

mod cron;
mod expression;
mod missed;
mod new_schedule;
mod overlap;
mod recurrence;
mod splay;
mod zone;

pub use cron::Cron;
pub use expression::Expression;
pub use missed::{
    CATCH_UP_CEILING, CATCH_UP_DEFAULT, Due, MISSED_AFTER_DEFAULT, Missed, SkipReason, SkippedRange,
};
pub use new_schedule::NewSchedule;
pub use overlap::Overlap;
pub use recurrence::{ClockChange, Firing, Recurrence, WallTime};
pub use splay::splay_of;
pub use zone::Zone;
