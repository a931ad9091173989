//! What remote workers hold, and what happened to it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use windlass_core::{Job, JobId, Payload, Report, Timestamp, WorkerName};
use windlass_store::{AttemptId, Renewed, Settled, StoreError};

use super::Remote;
use crate::attempt_end::{AttemptDetail, AttemptEnd};

/// What a worker may report about an attempt.
pub(super) enum Claimed {
    /// It runs it.
    Running,
    /// It is over: its row of history answers what is reported of it.
    Over,
    /// Nothing.
    Not(Lost),
}

/// Why an attempt is not the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// There is no such job or attempt.
    Unknown,
    /// It has ended.
    Over,
    /// It was claimed under another name.
    OtherWorker,
}

impl Lost {
    /// The reason in one word.
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
            Lost::Over => "the attempt is over",
            Lost::OtherWorker => "the attempt was claimed under another worker's name",
        })
    }
}

impl Claimed {
    /// Only the running attempt is guarded by its worker's name: once it is over, another worker
    /// may have the job.
    pub(super) fn by(worker: &WorkerName, of: AttemptId, job: Option<&Job>) -> Self {
        match job {
            Some(job) if job.attempt == of.attempt && job.lease().is_some() => {
                match job.worker.as_ref() == Some(worker) {
                    true => Claimed::Running,
                    false => Claimed::Not(Lost::OtherWorker),
                }
            }
            Some(job) if of.attempt <= job.attempt => Claimed::Over,
            _ => Claimed::Not(Lost::Unknown),
        }
    }

    /// The job whose running attempt this is the worker's.
    pub(super) fn running<'a>(
        worker: &WorkerName,
        of: AttemptId,
        job: Option<&'a Job>,
    ) -> Result<&'a Job, Lost> {
        match Claimed::by(worker, of, job) {
            Claimed::Running => job.ok_or(Lost::Unknown),
            Claimed::Over => Err(Lost::Over),
            Claimed::Not(reason) => Err(reason),
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
    /// The end of a running attempt that its worker leaves nothing with.
    pub(super) fn end_of<'a>(&self, job: &'a Job, report: Report) -> AttemptEnd<'a> {
        AttemptEnd {
            of: attempt_of(job),
            job,
            report,
            random: self.engine.ids().bits(),
            detail: AttemptDetail::default(),
            ran: self.attempts.ran(job),
        }
    }

    /// Settles attempts. Those whose end the database does not accept run on, no other does.
    pub(super) async fn end(&self, ends: Vec<AttemptEnd<'_>>) -> Result<Vec<Settled>, StoreError> {
        let attempts: Vec<AttemptId> = ends.iter().map(|end| end.of).collect();
        let settled = self.engine.settle(ends).await?;
        for (of, answer) in attempts.into_iter().zip(&settled) {
            if !matches!(answer, Settled::Refused { .. }) {
                self.attempts.forget(of);
            }
        }
        Ok(settled)
    }
}

/// At most this many jobs are read at once: each may be large.
const READ_MAX: usize = 50;

impl Remote {
    /// The jobs with these ids, without their payloads.
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

    /// Prolongs the leases of running attempts, none beyond its timeout: no one can stop a worker
    /// elsewhere, but no one waits for it any longer. The answers by job.
    pub(super) async fn prolong<'a>(
        &self,
        jobs: impl Iterator<Item = &'a Job>,
        lease: Duration,
        now: Timestamp,
    ) -> Result<BTreeMap<JobId, Renewed>, StoreError> {
        let mut leases: BTreeMap<Duration, Vec<AttemptId>> = BTreeMap::new();
        for job in jobs {
            let until = job.lease_until_max_after(self.attempts.ran(job), now);
            let left = until.map(|until| until.since(now));
            let lease = left.map_or(lease, |left| left.min(lease));
            leases.entry(lease).or_default().push(attempt_of(job));
        }
        let mut renewed = BTreeMap::new();
        for (lease, attempts) in leases {
            let answers = self.engine.store().renew(&attempts, lease, now).await?;
            renewed.extend(attempts.iter().map(|of| of.job).zip(answers));
        }
        Ok(renewed)
    }
}
