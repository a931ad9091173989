//! Writes the log of what happens to jobs and schedules, for workers in this process and remote ones alike.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{debug, info, warn};
use windlass_core::schedule::SkippedRange;
use windlass_core::{
    DeadReason, Fingerprint, Job, JobId, Kind, Outcome, QueueName, ScheduleName, Settlement,
    Timestamp, Verdict, redacted,
};

use crate::log_throttle::{Digest, Firings, FiringsSummary, Suppressed, shown};

/// What is alike enough to share lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Failure {
        queue: QueueName,
        kind: Kind,
        outcome: Outcome,
        fingerprint: Option<String>,
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

/// Keeps the log readable: see `digest.rs`.
#[derive(Debug, Default)]
pub(crate) struct Narrator(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    digest: Digest<Group>,
    firings: Firings,
}

impl Narrator {
    /// An attempt ended. Only one that counts as failure is logged.
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
        let fingerprint = error.map(|error| Fingerprint::new(&job.kind, error).to_string());
        let group = Group::Failure {
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            outcome,
            fingerprint: fingerprint.clone(),
            next,
        };
        if !self.note(group, now) {
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

    /// The deadline of a job passed before it could start.
    pub(crate) fn expired(&self, job: &Job, now: Timestamp) {
        let (queue, kind) = (job.queue.clone(), job.kind.clone());
        if self.note(Group::Expired { queue, kind }, now) {
            let reason = DeadReason::Expired.name();
            warn!(job.id = %job.id, kind = %job.kind, queue = %job.queue, attempt = job.attempt, failures = job.failures,
                next = %"dead", reason = %reason, "job expired");
        }
    }

    /// A worker of this process lost the lease of an attempt; whoever swept it logs the failure.
    pub(crate) fn lease_lost(&self, job: &Job, now: Timestamp) {
        let (queue, kind) = (job.queue.clone(), job.kind.clone());
        if self.note(Group::LeaseLost { queue, kind }, now) {
            warn!(job.id = %job.id, kind = %job.kind, queue = %job.queue, attempt = job.attempt, "lease lost");
        }
    }

    /// An occurrence became a job.
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
        self.inner().firings.note(lag, now);
    }

    /// Occurrences will not fire.
    pub(crate) fn skipped(&self, schedule: &ScheduleName, range: &SkippedRange, now: Timestamp) {
        let reason = range.reason.name();
        let group = Group::Skipped {
            schedule: schedule.clone(),
            reason,
        };
        if self.note(group, now) {
            warn!(schedule = %schedule, first = %range.first, last = %range.last, count = range.count, reason = %reason,
                "schedule skipped");
        }
    }

    /// Writes the summaries that are due.
    pub(crate) fn summarise(&self, now: Timestamp) {
        let mut inner = self.inner();
        let (suppressed, firings) = (inner.digest.take_due(now), inner.firings.take_due(now));
        drop(inner);
        write(suppressed, firings);
    }

    /// Writes all summaries: nothing more is expected to happen.
    pub(crate) fn finish(&self, now: Timestamp) {
        let mut inner = self.inner();
        let (suppressed, firings) = (inner.digest.take_all(now), inner.firings.take_all(now));
        drop(inner);
        write(suppressed, firings);
    }

    fn note(&self, group: Group, now: Timestamp) -> bool {
        self.summarise(now);
        self.inner().digest.note(group, now)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(suppressed: Vec<Suppressed<Group>>, firings: Option<FiringsSummary>) {
    for one in suppressed {
        write_count(one.group, one.count, one.within);
    }
    if let Some(firings) = firings {
        let (lag_max, within) = (shown(firings.lag_max), shown(firings.within));
        info!(fired = firings.fired, lag_max = %lag_max, within = %within, "schedules fired");
    }
}

fn write_count(group: Option<Group>, suppressed: u64, within: Duration) {
    let within = shown(within);
    match group {
        None => warn!(suppressed, within = %within, "more failures of many groups"),
        Some(Group::Failure {
            queue,
            kind,
            outcome,
            fingerprint,
            next,
        }) => {
            warn!(suppressed, within = %within, queue = %queue, kind = %kind, outcome = %outcome.name(),
                fingerprint = fingerprint.map(display), next = %next, "more attempts failed");
        }
        Some(Group::Expired { queue, kind }) => {
            warn!(suppressed, within = %within, queue = %queue, kind = %kind, "more jobs expired");
        }
        Some(Group::LeaseLost { queue, kind }) => {
            warn!(suppressed, within = %within, queue = %queue, kind = %kind, "more leases lost");
        }
        Some(Group::Skipped { schedule, reason }) => {
            warn!(suppressed, within = %within, schedule = %schedule, reason = %reason, "schedule skipped more often");
        }
    }
}
