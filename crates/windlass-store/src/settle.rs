//! Types of renewing, settling and sweeping attempts.

use serde_json::Value;
use windlass_core::{
    AttemptError, Job, JobId, Outcome, Report, Settlement, State, Timestamp, Verdict, WorkerName,
};

/// The most attempts in one renewal, settle or sweep.
pub const SETTLE_MAX: usize = 10_000;

/// One attempt of a job. Attempt numbers are never used twice, so a write of an old attempt can be
/// rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The job.
    pub job: JobId,
    /// The number of the attempt.
    pub attempt: u32,
}

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is extended.
    Until {
        /// The new end of the lease.
        until: Timestamp,
        /// Whether the job was cancelled: the handler should stop.
        cancel_requested: bool,
    },
    /// The attempt has ended, or the database refused the renewal. Nothing changed.
    LeaseLost,
}

/// A report of the end of an attempt.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    /// The attempt that ended.
    pub attempt_id: AttemptId,
    /// How it ended.
    pub report: Report,
    /// Random bits for the jitter of a retry.
    pub random: u64,
    /// More data for the history, such as the status and timings of an HTTP job.
    pub detail: Option<Value>,
}

/// The result of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The report is written.
    Done(Settlement),
    /// The same report was written before. Nothing changed.
    Repeated,
    /// The attempt has already ended in another way. Nothing changed.
    LeaseLost,
    /// The database refused the resulting row. The attempt is still running; other reports of the
    /// batch are not affected.
    Refused {
        /// The error of the database.
        reason: String,
    },
}

impl Settled {
    /// What happens to the job, if the report was written.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Settled::Done(settlement) => Some(settlement.verdict),
            Settled::Repeated | Settled::LeaseLost | Settled::Refused { .. } => None,
        }
    }
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Attempts whose lease had expired, ended as `lost`.
    pub lost: Vec<(AttemptId, Settlement)>,
    /// Waiting jobs whose deadline had passed, dead as `expired`.
    pub expired: Vec<Expired>,
}

/// A job that died because its deadline had passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The job.
    pub job: JobId,
    /// Whether this death made its failure group new.
    pub is_new_group: bool,
}

/// One row of a job's history: an attempt that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Which attempt, counted from 1.
    pub attempt: u32,
    /// How many attempts had failed before it: 0 for the first.
    pub retry_count: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// The worker that ran it.
    pub worker: Option<WorkerName>,
    /// The error, if it failed.
    pub error: Option<AttemptError>,
    /// More data, such as the status and timings of an HTTP job.
    pub detail: Option<Value>,
}

impl Attempt {
    /// Reconstructs what the end of this attempt led to, from what the job still shows. Returns
    /// `None` if the job shows the attempt as running.
    pub fn settlement(self, job: &Job) -> Option<Settlement> {
        let waiting = Verdict::Waiting { run_at: job.run_at };
        let verdict = match job.state() {
            _ if job.attempt != self.attempt => Verdict::Waiting {
                run_at: self.finished_at, // the job was claimed again since
            },
            State::Waiting => waiting,
            State::Running => return None,
            State::Succeeded => Verdict::Succeeded,
            State::Dead(reason) => Verdict::Dead(reason),
            State::Cancelled => Verdict::Cancelled,
        };
        let counts = self.outcome.counts_as_failure();
        let delay = match verdict {
            Verdict::Waiting { run_at } if counts => Some(run_at.since(self.finished_at)),
            _ => None,
        };
        Some(Settlement {
            outcome: self.outcome,
            verdict,
            failures: self.retry_count.saturating_add(u32::from(counts)),
            snoozes: job.snoozes,
            losses_in_a_row: job.losses_in_a_row,
            delay,
            error: self.error,
            fingerprint: None,
            is_new_group: false,
            result: None,
        })
    }
}
