//! How long an attempt has run, independent of jumps of the wall clock.
//!
//! Timeouts count elapsed time. The process that hands out an attempt measures it. For attempts
//! that another process handed out, these rules rely on the wall clock as little as possible.

use std::time::Duration;

use crate::{Job, Timeout, Timestamp};

/// How long after the timeout a remote worker, which no one can stop, may still report.
pub(crate) const REPORT_GRACE: Duration = Duration::from_secs(1);

/// A smaller difference between two clocks does not mean that one of them was set.
const DRIFT_MAX: Duration = Duration::from_secs(1);

/// How long a process has been running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uptime {
    /// The wall clock when the process started.
    pub since: Timestamp,
    /// The time that has passed since then, by a monotonic clock.
    pub elapsed: Duration,
}

impl Uptime {
    /// How long an attempt has run that this process did not hand out.
    ///
    /// Uses the wall clock for the time before this process started. After that, the result is at
    /// most the time that really passed.
    pub fn ran(self, started_at: Timestamp, now: Timestamp) -> Duration {
        if started_at <= self.since {
            self.since.since(started_at).saturating_add(self.elapsed)
        } else {
            now.since(started_at).min(self.elapsed)
        }
    }
}

impl Job {
    /// Whether a report is too late for an attempt that has run for `ran`.
    pub fn is_late(&self, ran: Duration) -> bool {
        self.run_time_max().is_some_and(|most| ran >= most)
    }

    /// The latest end of a lease that is renewed at `now`, for an attempt that has run for `ran`.
    /// Equals [`Job::lease_until_max`] unless the wall clock was set during the attempt.
    pub fn lease_until_max_after(&self, ran: Duration, now: Timestamp) -> Option<Timestamp> {
        let by_wall = self.lease_until_max()?;
        let until = now.saturating_add(self.run_time_max()?.saturating_sub(ran));
        let drift = until.since(by_wall).max(by_wall.since(until));
        Some(if drift < DRIFT_MAX { by_wall } else { until })
    }

    /// Whether more than a third of the lease has passed. Then the lease is renewed before the job
    /// is handed to a worker.
    pub fn should_renew_lease(&self, now: Timestamp) -> bool {
        let (Some(lease), Some(started_at)) = (self.lease(), self.started_at) else {
            return false;
        };
        now.since(started_at) > lease.until.since(started_at) / 3
    }

    /// How long an attempt of a remote worker may run and still be reported.
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
    use crate::job::{Lease, StateDetails};
    use crate::retry::AttemptLimit;

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
    fn a_jump_of_the_wall_clock_does_not_lengthen_an_attempt() {
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
    fn a_lease_is_renewed_once_a_third_of_it_has_passed() {
        let mut job = job();
        assert!(!job.should_renew_lease(at(HOUR * 2)), "no attempt runs");
        job.state_details = StateDetails::Running(Lease {
            until: at(HOUR + seconds(30)),
            effective_max: AttemptLimit::ONE,
            policy: None,
            cancel_requested: false,
        });
        assert!(!job.should_renew_lease(at(HOUR + seconds(10))));
        assert!(job.should_renew_lease(at(HOUR + seconds(11))));
    }

    #[test]
    fn a_lease_ends_when_the_timeout_does() {
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
