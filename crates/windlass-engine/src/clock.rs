//! The only place that reads a clock.
//!
//! Everything else is given `now`. Invariant: a clock never runs backwards and never stands still.

mod store_clock;
mod system;
mod virtual_time;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use windlass_core::Timestamp;

pub use system::SystemClock;
pub use virtual_time::VirtualClock;

/// Something that is awaited.
pub type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells the time, and waits for it.
pub trait Clock: Send + Sync + fmt::Debug {
    /// What time it is; never earlier than the last answer.
    fn now(&self) -> Timestamp;

    /// Ends when it is `at`, or later.
    fn sleep_until(&self, at: Timestamp) -> Wait;

    /// How much time has passed since the clock began, whatever was done to the wall clock meanwhile.
    fn elapsed(&self) -> Duration;

    /// Ends when so much time has passed, whatever is done to the wall clock meanwhile.
    fn sleep(&self, time: Duration) -> Wait;
}
