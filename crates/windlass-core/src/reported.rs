//! Reports of remote workers: how an attempt ended, and what the report counts as.

use std::time::Duration;

use crate::failure::Failure;
use crate::settle::{CANCEL_GRACE, Report};
use crate::{Job, Payload, Timeout, Timestamp};

/// How an attempt ended, as a remote worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerReport {
    /// It succeeded, with an optional result.
    Succeeded(Option<Payload>),
    /// It failed.
    Failed(Failure),
    /// It took longer than the job's timeout.
    TimedOut,
    /// It asks to run again at this time.
    Snoozed(Timestamp),
    /// The worker returns the job to the queue.
    Released {
        /// Whether the handler had started.
        started: bool,
    },
    /// It stopped because the job was cancelled.
    Cancelled,
}

impl WorkerReport {
    /// Returns what the report counts as, for an attempt that ran for `ran`; `None` if the attempt
    /// is no longer running.
    ///
    /// The job's timeout decides, not the worker's clock: a report that comes too late counts as a
    /// timeout, except for a failure.
    pub fn report(&self, job: &Job, ran: Option<Duration>) -> Report {
        let late = ran.is_some_and(|ran| job.is_late(ran));
        match self {
            WorkerReport::Failed(failure) => Report::Failed(failure.clone()),
            WorkerReport::TimedOut => timed_out(job, ran),
            _ if late => timed_out(job, ran),
            WorkerReport::Succeeded(result) => Report::Succeeded(result.clone()),
            WorkerReport::Snoozed(until) => Report::Snoozed { until: *until },
            WorkerReport::Released { started } => Report::Released { started: *started },
            WorkerReport::Cancelled => Report::Cancelled,
        }
    }
}

fn timed_out(job: &Job, ran: Option<Duration>) -> Report {
    let timeout = match job.timeout {
        Timeout::After(timeout) => timeout,
        Timeout::None => ran.unwrap_or_default(),
    };
    Report::TimedOut {
        timeout,
        grace: CANCEL_GRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttemptError, JobId, Kind, NewJob};

    #[test]
    fn a_late_report_counts_as_a_timeout_except_for_a_failure() {
        let timeout = Duration::from_secs(10);
        let new = NewJob {
            timeout: Some(Timeout::After(timeout)),
            ..NewJob::new(Kind::new("a").unwrap())
        };
        let job = new.into_job(JobId::from_u128(1), Timestamp::UNIX_EPOCH);
        let job = job.unwrap();
        let grace = CANCEL_GRACE;
        let timed_out = Report::TimedOut { timeout, grace };
        let late = Some(timeout * 2);
        let failure = Failure::retryable(AttemptError::new("x"));
        let failed = WorkerReport::Failed(failure.clone());
        assert_eq!(failed.report(&job, late), Report::Failed(failure));
        let done = WorkerReport::Succeeded(None);
        assert_eq!(done.report(&job, late), timed_out);
        assert_eq!(done.report(&job, Some(timeout)), Report::Succeeded(None));
        assert_eq!(done.report(&job, None), Report::Succeeded(None));
        assert_eq!(WorkerReport::Cancelled.report(&job, late), timed_out);
        assert_eq!(WorkerReport::TimedOut.report(&job, None), timed_out);
        let endless = Job {
            timeout: Timeout::None,
            ..job
        };
        assert_eq!(done.report(&endless, late), Report::Succeeded(None));
        let ran = Report::TimedOut {
            timeout: timeout * 2,
            grace,
        };
        assert_eq!(WorkerReport::TimedOut.report(&endless, late), ran);
    }
}
