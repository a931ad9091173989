//! The delay before a loop retries a pass that failed.

use std::time::Duration;

/// The first delay. It doubles with each failure, up to [`WAIT_MAX`].
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Exponential backoff for one loop.
#[derive(Debug)]
pub(crate) struct LoopBackoff(Duration);

impl LoopBackoff {
    pub(crate) fn new() -> Self {
        LoopBackoff(WAIT_MIN)
    }

    /// Resets the delay after a success.
    pub(crate) fn reset(&mut self) {
        self.0 = WAIT_MIN;
    }

    /// Returns the delay before the next try, and doubles it for the one after.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(WAIT_MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_second_until_it_works() {
        let mut wait = LoopBackoff::new();
        let waits: Vec<_> = (0..7).map(|_| wait.next().as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
        wait.reset();
        assert_eq!(wait.next(), WAIT_MIN);
    }
}
