//! The clock of commands of one moment: there is no engine whose clock they could use.

#[cfg(feature = "bench")]
use std::time::Instant;
use std::time::SystemTime;

use windlass_core::Timestamp;

/// The time on this machine's clock.
#[expect(clippy::disallowed_methods, reason = "see above")]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// The beginning of something that is timed.
#[cfg(feature = "bench")]
#[expect(clippy::disallowed_methods, reason = "see above")]
pub(crate) fn start() -> Instant {
    Instant::now()
}
