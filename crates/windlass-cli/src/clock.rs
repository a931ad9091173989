//! The system clock, for commands that run without an engine and its clock.

#[cfg(any(feature = "bench", feature = "sim"))]
use std::time::Instant;
use std::time::SystemTime;

use windlass_core::Timestamp;

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "no engine, so no engine clock")]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Starts a measurement.
#[cfg(any(feature = "bench", feature = "sim"))]
#[expect(clippy::disallowed_methods, reason = "no engine, so no engine clock")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

/// Returns the processor time of this process, or 0 on systems other than Linux.
#[cfg(any(feature = "bench", feature = "sim"))]
pub(crate) fn cpu_seconds() -> f64 {
    /// Linux counts in hundredths of a second on every platform that Rust supports.
    const TICKS_PER_S: f64 = 100.0;
    /// User and system time are the 12th and 13th field after the process name in parentheses.
    const USER_TIME: usize = 11;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(USER_TIME).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_S
}
