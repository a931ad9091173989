//! Schedules: rules that enqueue jobs again and again.
//!
//! When a rule fires is worked out here; that each occurrence becomes one job, whatever crashes, is the store's part.

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
