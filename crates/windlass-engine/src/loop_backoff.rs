//! How long a loop waits before it tries again what failed.

use std::time::Duration;

/// The first wait; each further one is twice as long, up to [`WAIT_MAX`].
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The waits between tries.
#[derive(Debug)]
pub(crate) struct RetryWait(Duration);

impl RetryWait {
    pub(crate) fn new() -> Self {
        RetryWait(WAIT_MIN)
    }

    /// It worked: the next wait is a short one again.
    pub(crate) fn reset(&mut self) {
        self.0 = WAIT_MIN;
    }

    /// How long to wait now.
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
        let mut wait = RetryWait::new();
        let waits: Vec<_> = (0..7).map(|_| wait.next().as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
        wait.reset();
        assert_eq!(wait.next(), WAIT_MIN);
    }
}
