//! The only place that reads a clock.
//!
//! There are two kinds of time. The wall-clock time ([`Clock::now`]) is shared by all nodes of a
//! store: it says when jobs are due and leases expire. The elapsed time ([`Clock::elapsed`]) is
//! monotonic and local to this process: it measures timeouts and grace periods, so that setting the
//! wall clock ends no handler.
//!
//! Everything else gets the time as an argument `now`. Invariant: a clock never runs backwards, and
//! never stops while the process runs (a virtual clock stops until the test moves it).

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

/// A boxed wait.
pub type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Reads the time, and waits.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current time. Never earlier than a previous result.
    fn now(&self) -> Timestamp;

    /// Waits until the time is `at` or later.
    fn sleep_until(&self, at: Timestamp) -> Wait;

    /// The time since the clock was created. Unaffected by changes of the wall clock.
    fn elapsed(&self) -> Duration;

    /// Waits for this long. Unaffected by changes of the wall clock.
    fn sleep(&self, time: Duration) -> Wait;

    /// How many microseconds the machine's own clock is ahead of this one. Negative if it is behind,
    /// `None` if there is no machine behind this clock.
    fn machine_ahead_micros(&self) -> Option<i64> {
        None
    }
}
