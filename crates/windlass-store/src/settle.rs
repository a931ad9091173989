//! Renewing leases, ending attempts, and sweeping up after workers that died.

use serde_json::Value;
use windlass_core::{
    AttemptError, Job, JobId, Outcome, Report, Settlement, State, Timestamp, Verdict, WorkerName,
};

/// The most leases one renewal, settle or sweep takes.
pub const SETTLE_MAX: usize = 10_000;

/// A running attempt. The number of the attempt fences: it never comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The job.
    pub job: JobId,
    /// Which of its attempts.
    pub attempt: u32,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is prolonged.
    Until {
        /// To then.
        until: Timestamp,
        /// Somebody called the job off: the handler should stop.
        cancel_requested: bool,
    },
    /// The attempt is over: its lease was lost. Nothing changed.
    LeaseLost,
}

/// The end of an attempt, as its worker tells it.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    /// Whose end.
    pub of: AttemptId,
    /// How it ended.
    pub report: Report,
    /// Draws the jitter of a retry.
    pub random: u64,
    /// More for the history: status and timings of an HTTP job.
    pub detail: Option<Value>,
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It is written.
    Done(Settlement),
    /// The same report was written before: nothing changed.
    Repeated,
    /// The attempt is over in another way: its lease was lost. Nothing changed.
    LeaseLost,
    /// The database does not accept the row that it leads to. The attempt runs on; the others of
    /// the batch are not affected.
    Refused {
        /// What the database said.
        reason: String,
    },
}

impl Settled {
    /// What becomes of the job, if the report was written.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Settled::Done(settlement) => Some(settlement.verdict),
            Settled::Repeated | Settled::LeaseLost | Settled::Refused { .. } => None,
        }
    }
}

/// What a sweep found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Attempts whose lease had expired, ended as `lost`.
    pub lost: Vec<(AttemptId, Settlement)>,
    /// Waiting jobs whose deadline had passed, dead as `expired`.
    pub expired: Vec<JobId>,
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
    /// Who ran it.
    pub worker: Option<WorkerName>,
    /// Why it failed, if it did.
    pub error: Option<AttemptError>,
    /// More, for an HTTP job.
    pub detail: Option<Value>,
}

impl Attempt {
    /// What the end of this attempt led to, as far as the job still shows it: none when it has moved on since.
    pub fn settlement(self, job: &Job) -> Option<Settlement> {
        let waiting = Verdict::Waiting { run_at: job.run_at };
        let verdict = match job.state() {
            _ if job.attempt != self.attempt => Verdict::Waiting {
                run_at: self.finished_at, // it was claimed again since
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
            result: None,
        })
    }
}
