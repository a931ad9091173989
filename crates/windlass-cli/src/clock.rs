//! The clock of commands of one moment: there is no engine whose clock they could use.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use windlass_core::Timestamp;

/// The time on this machine's clock.
#[expect(clippy::disallowed_methods, reason = "see above")]
pub(crate) fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::UNIX_EPOCH.saturating_add(since_1970.unwrap_or_default())
}

/// The beginning of something that is timed.
#[expect(clippy::disallowed_methods, reason = "see above")]
pub(crate) fn start() -> Instant {
    Instant::now()
}
