//! Writes the log of failed attempts, expired jobs, lost leases and schedules, for workers in this
//! process and for remote ones.
//!
//! One bad deployment can fail thousands of jobs per minute. [`LogThrottle`] lets a few lines per
//! group through and counts the rest, so the log stays readable.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tracing::{debug, info, warn};
use windlass_core::schedule::SkippedRange;
use windlass_core::{
    DeadReason, Fingerprint, Job, JobId, Kind, Outcome, QueueName, ScheduleName, Settlement,
    Timestamp, Verdict, redacted,
};

use crate::log_throttle::{Firings, FiringsSummary, LogThrottle, Suppressed, shown};
use crate::poison::lock;

/// Events of the same group share the few log lines of a window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum LogGroup {
    Failure {
        queue: QueueName,
        kind: Kind,
        outcome: Outcome,
        fingerprint: Option<Fingerprint>,
        next: &'static str,
    },
    Expired {
        queue: QueueName,
        kind: Kind,
    },
    LeaseLost {
        queue: QueueName,
        kind: Kind,
    },
    Skipped {
        schedule: ScheduleName,
        reason: &'static str,
    },
}

/// The log of jobs and schedules.
#[derive(Debug, Default)]
pub(crate) struct JobLog(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    throttle: LogThrottle<LogGroup>,
    firings: Firings,
}

impl JobLog {
    /// Logs the end of an attempt, if it counts as a failure.
    pub(crate) fn attempt_ended(
        &self,
        job: &Job,
        attempt: u32,
        settlement: &Settlement,
        now: Timestamp,
    ) {
        let outcome = settlement.outcome;
        if !outcome.counts_as_failure() {
            return;
        }
        let next = match settlement.verdict {
            Verdict::Waiting { .. } => "retry",
            Verdict::Dead(_) => "dead",
            Verdict::Cancelled => "cancelled",
            Verdict::Succeeded => "none",
        };
        let error = settlement.error.as_ref();
        let fingerprint = settlement.fingerprint;
        let group = LogGroup::Failure {
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            outcome,
            fingerprint,
            next,
        };
        if !self.should_log(group, now) {
            return;
        }
        let (retry_at, reason) = match settlement.verdict {
            Verdict::Waiting { run_at } => (Some(run_at), None),
            Verdict::Dead(reason) => (None, Some(reason.name())),
            Verdict::Cancelled | Verdict::Succeeded => (None, None),
        };
        warn!(
            job.id = %job.id,
            kind = %job.kind,
            queue = %job.queue,
            attempt,
            worker = job.worker.as_ref().map(display),
            outcome = %outcome.name(),
            error = error.map(redacted),
            fingerprint = fingerprint.map(display),
            failures = settlement.failures,
            next = %next,
            retry_at = retry_at.map(display),
            reason = reason.map(display),
            "attempt failed"
        );
    }

    /// Logs that the deadline of a job passed before the job could start.
    pub(crate) fn expired(&self, job: &Job, now: Timestamp) {
        let (queue, kind) = (job.queue.clone(), job.kind.clone());
        if self.should_log(LogGroup::Expired { queue, kind }, now) {
            let reason = DeadReason::Expired.name();
            warn!(job.id = %job.id, kind = %job.kind, queue = %job.queue, attempt = job.attempt, failures = job.failures,
                next = %"dead", reason = %reason, "job expired");
        }
    }

    /// Logs that a worker of this process lost a lease. The process that swept the lease logs the
    /// failure of the attempt.
    pub(crate) fn lease_lost(&self, job: &Job, now: Timestamp) {
        let (queue, kind) = (job.queue.clone(), job.kind.clone());
        if self.should_log(LogGroup::LeaseLost { queue, kind }, now) {
            warn!(job.id = %job.id, kind = %job.kind, queue = %job.queue, attempt = job.attempt, "lease lost");
        }
    }

    /// Logs that an occurrence became a job.
    pub(crate) fn fired(
        &self,
        schedule: &ScheduleName,
        scheduled_for: Timestamp,
        job: JobId,
        now: Timestamp,
    ) {
        let lag = now.since(scheduled_for);
        debug!(schedule = %schedule, scheduled_for = %scheduled_for, job.id = %job, lag = %shown(lag), "schedule fired");
        self.summarise(now);
        self.state().firings.note(lag, now);
    }

    /// Logs that occurrences were skipped.
    pub(crate) fn skipped(&self, schedule: &ScheduleName, range: &SkippedRange, now: Timestamp) {
        let reason = range.reason.name();
        let group = LogGroup::Skipped {
            schedule: schedule.clone(),
            reason,
        };
        if self.should_log(group, now) {
            warn!(schedule = %schedule, first = %range.first, last = %range.last, count = range.count, reason = %reason,
                "schedule skipped");
        }
    }

    /// Writes the summaries that are due.
    pub(crate) fn summarise(&self, now: Timestamp) {
        let mut state = self.state();
        let (suppressed, firings) = (state.throttle.take_due(now), state.firings.take_due(now));
        drop(state);
        write(suppressed, firings);
    }

    /// Writes all summaries, because this process is stopping.
    pub(crate) fn finish(&self, now: Timestamp) {
        let mut state = self.state();
        let (suppressed, firings) = (state.throttle.take_all(now), state.firings.take_all(now));
        drop(state);
        write(suppressed, firings);
    }

    fn should_log(&self, group: LogGroup, now: Timestamp) -> bool {
        self.summarise(now);
        self.state().throttle.admit(group, now)
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        lock(&self.0)
    }
}

fn write(suppressed: Vec<Suppressed<LogGroup>>, firings: Option<FiringsSummary>) {
    for one in suppressed {
        write_count(one.group, one.count, one.within);
    }
    if let Some(firings) = firings {
        let (lag_max, within) = (shown(firings.lag_max), shown(firings.within));
        info!(fired = firings.fired, lag_max = %lag_max, within = %within, "schedules fired");
    }
}

fn write_count(group: Option<LogGroup>, suppressed: u64, within: Duration) {
    let within = shown(within);
    match group {
        None => {
            warn!(suppressed, within = %within, "more log lines suppressed, of too many groups to count separately")
        }
        Some(LogGroup::Failure {
            queue,
            kind,
            outcome,
            fingerprint,
            next,
        }) => {
            warn!(suppressed, within = %within, queue = %queue, kind = %kind, outcome = %outcome.name(),
                fingerprint = fingerprint.map(display), next = %next, "more attempts failed");
        }
        Some(LogGroup::Expired { queue, kind }) => {
            warn!(suppressed, within = %within, queue = %queue, kind = %kind, "more jobs expired");
        }
        Some(LogGroup::LeaseLost { queue, kind }) => {
            warn!(suppressed, within = %within, queue = %queue, kind = %kind, "more leases lost");
        }
        Some(LogGroup::Skipped { schedule, reason }) => {
            warn!(suppressed, within = %within, schedule = %schedule, reason = %reason, "schedule skipped more occurrences");
        }
    }
}
