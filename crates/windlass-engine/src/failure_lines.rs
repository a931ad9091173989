//! Limits the log lines of a loop whose passes fail again and again, as while the store is down.

use std::time::Duration;

/// The shortest interval between two lines of one loop.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The failures of one loop: most of them get no line of their own during an outage.
#[derive(Debug, Default)]
pub(crate) struct FailureLines {
    last_line: Option<Duration>,
    suppressed: u64,
}

impl FailureLines {
    /// Counts a failure at this elapsed time of the clock. If it gets a line, returns how many
    /// failures got none since the last line.
    pub(crate) fn admit(&mut self, elapsed: Duration) -> Option<u64> {
        let is_early = |last| elapsed.saturating_sub(last) < LINE_EVERY;
        if self.last_line.is_some_and(is_early) {
            self.suppressed += 1;
            return None;
        }
        self.last_line = Some(elapsed);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_a_line_every_ten_seconds_with_the_number_of_other_failures() {
        let mut lines = FailureLines::default();
        let seconds = (0..30).map(|second| lines.admit(Duration::from_secs(second)));
        let logged: Vec<u64> = seconds.flatten().collect();
        assert_eq!(logged, [0, 9, 9]);
        assert_eq!(lines.admit(Duration::from_secs(3600)), Some(9));
        assert_eq!(lines.admit(Duration::from_secs(7200)), Some(0));
    }
}
