//! How long an attempt has run, independent of jumps of the wall clock.
//!
//! Timeouts follow elapsed time. Whoever hands an attempt out measures it; for an attempt that
//! another process handed out, the wall clock is trusted as little as possible.

use std::time::Duration;

use crate::{Job, Timeout, Timestamp};

/// How much later than its timeout an attempt may be reported by a worker that no one can stop.
pub(crate) const REPORT_GRACE: Duration = Duration::from_secs(1);

/// Two clocks that differ by less than this were not set meanwhile.
const DRIFT_MAX: Duration = Duration::from_secs(1);

/// How long a process has been running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uptime {
    /// What the wall clock said at its start.
    pub since: Timestamp,
    /// How much time has passed since then.
    pub elapsed: Duration,
}

impl Uptime {
    /// How long an attempt has run that this process did not hand out. The wall clock is trusted
    /// for the time before this process; after its start, only as far as time really passed.
    pub fn ran(self, started_at: Timestamp, now: Timestamp) -> Duration {
        match started_at <= self.since {
            true => self.since.since(started_at).saturating_add(self.elapsed),
            false => now.since(started_at).min(self.elapsed),
        }
    }
}

impl Job {
    /// Whether a report comes too late, after the running attempt has run for `ran`.
    pub fn is_late(&self, ran: Duration) -> bool {
        self.run_time_max().is_some_and(|most| ran >= most)
    }

    /// Until when a lease lasts at most that is renewed `now`, after the attempt has run for `ran`.
    /// Unless the wall clock was set meanwhile, this is [`Job::lease_until_max`].
    pub fn lease_until_max_after(&self, ran: Duration, now: Timestamp) -> Option<Timestamp> {
        let by_wall = self.lease_until_max()?;
        let until = now.saturating_add(self.run_time_max()?.saturating_sub(ran));
        let drift = until.since(by_wall).max(by_wall.since(until));
        Some(if drift < DRIFT_MAX { by_wall } else { until })
    }

    /// Whether a third of the lease of the running attempt has passed: it is renewed before the job
    /// is handed out.
    pub fn has_worn_lease(&self, now: Timestamp) -> bool {
        let (Some(lease), Some(started_at)) = (self.lease(), self.started_at) else {
            return false;
        };
        now.since(started_at) > lease.until.since(started_at) / 3
    }

    /// How long an attempt may run and still be reported, where no one can stop its worker.
    pub(crate) fn run_time_max(&self) -> Option<Duration> {
        match self.timeout {
            Timeout::After(timeout) => Some(timeout.saturating_add(REPORT_GRACE)),
            Timeout::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewJob;

    const HOUR: Duration = Duration::from_secs(3600);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(after: Duration) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(after)
    }

    fn job() -> Job {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        let mut job = NewJob::new("work".parse().unwrap()).into_stored_job(id, at(HOUR));
        job.timeout = Timeout::After(seconds(30));
        job.started_at = Some(at(HOUR));
        job
    }

    #[test]
    fn a_jump_of_the_wall_clock_adds_nothing_to_what_an_attempt_ran() {
        let up = Uptime {
            since: at(HOUR),
            elapsed: seconds(10),
        };
        let jumped = at(HOUR * 2 + seconds(10));
        assert_eq!(up.ran(at(HOUR - seconds(5)), jumped), seconds(15));
        assert_eq!(up.ran(at(HOUR + seconds(4)), jumped), seconds(10));
        let now = at(HOUR + seconds(10));
        assert_eq!(up.ran(at(HOUR + seconds(4)), now), seconds(6));
    }

    #[test]
    fn a_lease_ends_with_the_time_that_is_left() {
        let job = job();
        let by_wall = job.lease_until_max();
        assert_eq!(by_wall, Some(at(HOUR + seconds(31))));
        let now = at(HOUR + seconds(10));
        let nearly = seconds(10) + Duration::from_micros(7);
        assert_eq!(job.lease_until_max_after(nearly, now), by_wall);
        let jumped = at(HOUR * 2);
        let left = Some(at(HOUR * 2 + seconds(21)));
        assert_eq!(job.lease_until_max_after(seconds(10), jumped), left);
        assert_eq!(job.lease_until_max_after(HOUR, jumped), Some(jumped));
        assert!(!job.is_late(seconds(30)) && job.is_late(seconds(31)));
        let endless = Job {
            timeout: Timeout::None,
            ..job
        };
        assert_eq!(endless.lease_until_max_after(HOUR, jumped), None);
        assert!(!endless.is_late(HOUR));
    }
}
