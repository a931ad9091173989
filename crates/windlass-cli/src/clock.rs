//! The system clock, for commands that run without an engine and its clock.

#[cfg(feature = "bench")]
use std::time::Instant;
use std::time::SystemTime;

use windlass_core::Timestamp;

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "no engine, so no engine clock")]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Starts a measurement.
#[cfg(feature = "bench")]
#[expect(clippy::disallowed_methods, reason = "no engine, so no engine clock")]
pub(crate) fn start() -> Instant {
    Instant::now()
}
