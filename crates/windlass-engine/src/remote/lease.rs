//! Checks which attempts a remote worker holds, and ends or renews them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use windlass_core::{Job, JobId, Payload, Report, Timestamp, WorkerName};
use windlass_store::{AttemptId, Renewed, Settled, StoreError};

use super::Remote;
use crate::attempt_end::{AttemptDetail, AttemptEnd};

/// Whether a worker may report about an attempt.
pub(super) enum LeaseCheck {
    /// The worker runs the attempt.
    Held,
    /// The attempt has ended. Its history entry answers repeated reports.
    Ended,
    /// The worker may not report.
    NotHeld(Lost),
}

/// Why a worker does not hold an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// There is no such job or attempt.
    Unknown,
    /// The attempt has ended.
    Over,
    /// Another worker claimed it.
    OtherWorker,
}

impl Lost {
    /// The reason as one word.
    pub fn name(self) -> &'static str {
        match self {
            Lost::Unknown => "unknown",
            Lost::Over => "over",
            Lost::OtherWorker => "other_worker",
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Unknown => "there is no such attempt",
            Lost::Over => "the attempt has ended",
            Lost::OtherWorker => "another worker claimed the attempt",
        })
    }
}

impl LeaseCheck {
    /// Checks the worker's name for running attempts only: after an attempt has ended, another
    /// worker may have the job.
    pub(super) fn new(worker: &WorkerName, attempt_id: AttemptId, job: Option<&Job>) -> Self {
        match job {
            Some(job) if job.attempt == attempt_id.attempt && job.lease().is_some() => {
                if job.worker.as_ref() == Some(worker) {
                    LeaseCheck::Held
                } else {
                    LeaseCheck::NotHeld(Lost::OtherWorker)
                }
            }
            Some(job) if attempt_id.attempt <= job.attempt => LeaseCheck::Ended,
            _ => LeaseCheck::NotHeld(Lost::Unknown),
        }
    }

    /// Returns the job if the worker runs this attempt of it.
    pub(super) fn running_job<'a>(
        worker: &WorkerName,
        attempt_id: AttemptId,
        job: Option<&'a Job>,
    ) -> Result<&'a Job, Lost> {
        match LeaseCheck::new(worker, attempt_id, job) {
            LeaseCheck::Held => job.ok_or(Lost::Unknown),
            LeaseCheck::Ended => Err(Lost::Over),
            LeaseCheck::NotHeld(reason) => Err(reason),
        }
    }
}

fn attempt_of(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}

impl Remote {
    /// The end of a running attempt about which the worker reports nothing.
    pub(super) fn end_of<'a>(&self, job: &'a Job, report: Report) -> AttemptEnd<'a> {
        AttemptEnd {
            attempt_id: attempt_of(job),
            job,
            report,
            random: self.engine.ids().bits(),
            detail: AttemptDetail::default(),
            ran: self.attempt_times.ran(job),
        }
    }

    /// Settles attempts and forgets their running times. An attempt whose outcome the store refuses
    /// keeps running.
    pub(super) async fn end(&self, ends: Vec<AttemptEnd<'_>>) -> Result<Vec<Settled>, StoreError> {
        let attempts: Vec<AttemptId> = ends.iter().map(|end| end.attempt_id).collect();
        let settled = self.engine.settle(ends).await?;
        for (attempt_id, answer) in attempts.into_iter().zip(&settled) {
            if !matches!(answer, Settled::Refused { .. }) {
                self.attempt_times.forget(attempt_id);
            }
        }
        Ok(settled)
    }
}

/// The number of jobs to read at once. Each may be large.
const READ_MAX: usize = 50;

impl Remote {
    /// Reads jobs without their payloads.
    pub(super) async fn jobs_of(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        let mut jobs = Vec::with_capacity(ids.len());
        for some in ids.chunks(READ_MAX) {
            let found = self.engine.store().get(some).await?.into_iter();
            jobs.extend(found.map(|job| {
                job.map(|job| Job {
                    payload: Payload::default(),
                    ..job
                })
            }));
        }
        Ok(jobs)
    }

    /// Renews the leases of running attempts, but not beyond their timeouts: this process cannot
    /// stop a handler on another machine, but it can let the lease expire. Returns the answers by
    /// job.
    pub(super) async fn renew_leases<'a>(
        &self,
        jobs: impl Iterator<Item = &'a Job>,
        lease: Duration,
        now: Timestamp,
    ) -> Result<BTreeMap<JobId, Renewed>, StoreError> {
        let mut leases: BTreeMap<Duration, Vec<AttemptId>> = BTreeMap::new();
        for job in jobs {
            let until = job.lease_until_max_after(self.attempt_times.ran(job), now);
            let left = until.map(|until| until.since(now));
            let lease = left.map_or(lease, |left| left.min(lease));
            leases.entry(lease).or_default().push(attempt_of(job));
        }
        let mut renewed = BTreeMap::new();
        for (lease, attempts) in leases {
            let answers = self.engine.store().renew(&attempts, lease, now).await?;
            renewed.extend(
                attempts
                    .iter()
                    .map(|attempt_id| attempt_id.job)
                    .zip(answers),
            );
        }
        Ok(renewed)
    }
}
