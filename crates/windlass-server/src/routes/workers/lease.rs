//! What workers hold, and what became of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use windlass_api::LeaseRef;
use windlass_core::{Job, JobId, Payload, Timestamp, WorkerName};
use windlass_store::{AttemptId, Renewed};

use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

/// What became of one outcome or one lease.
#[derive(Debug, Serialize)]
pub(super) struct Became {
    pub(super) id: JobId,
    pub(super) attempt: u32,
    pub(super) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Lost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cancel_requested: Option<bool>,
}

impl Became {
    pub(super) fn new(of: LeaseRef, status: &'static str) -> Self {
        Became {
            id: of.id,
            attempt: of.attempt,
            status,
            reason: None,
            state: None,
            run_at: None,
            dead_reason: None,
            failures: None,
            lease_until: None,
            cancel_requested: None,
        }
    }

    pub(super) fn lease_lost(of: LeaseRef, reason: Lost) -> Self {
        Became {
            reason: Some(reason),
            ..Became::new(of, "lease_lost")
        }
    }
}

/// What a worker has to say about an attempt.
pub(super) enum Claimed {
    /// It runs it.
    Running,
    /// It is over: its row of history answers what is told of it.
    Over,
    /// Nothing.
    Not(Lost),
}

/// Why an attempt is not the worker's.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Lost {
    /// There is no such job or attempt.
    Unknown,
    /// It has ended.
    Over,
    /// It was claimed under another name.
    OtherWorker,
}

impl Claimed {
    /// Only the running attempt is guarded by its worker's name: once it is over, another worker may have the job.
    pub(super) fn by(worker: &WorkerName, of: LeaseRef, job: Option<&Job>) -> Self {
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
}

/// The name by which a caller claims and tells: the one it gives, or one that its key has for itself.
pub(super) fn speaker(call: &Call, named: Option<&WorkerName>) -> Result<WorkerName, Problem> {
    match named {
        Some(worker) => Ok(worker.clone()),
        None => Ok(WorkerName::new(&format!("key {}", call.caller.id))?),
    }
}

/// So many jobs are read at once: each may be large.
const READ_MAX: usize = 50;

/// The jobs with these ids, without their payloads.
pub(super) async fn jobs_of(app: &App, ids: &[JobId]) -> Result<Vec<Option<Job>>, Problem> {
    let mut jobs = Vec::with_capacity(ids.len());
    for some in ids.chunks(READ_MAX) {
        let found = app.store().get(some).await?.into_iter();
        jobs.extend(found.map(|job| {
            job.map(|job| Job {
                payload: Payload::default(),
                ..job
            })
        }));
    }
    Ok(jobs)
}

/// Prolongs the leases of running attempts, none beyond its timeout: nobody can stop a worker elsewhere, but nobody waits for
/// it any longer. The answers by job.
pub(super) async fn prolong<'a>(
    app: &App,
    jobs: impl Iterator<Item = &'a Job>,
    lease: Duration,
    now: Timestamp,
) -> Result<BTreeMap<JobId, Renewed>, Problem> {
    let mut leases: BTreeMap<Duration, Vec<AttemptId>> = BTreeMap::new();
    for job in jobs {
        let until = job.lease_until_max_after(app.attempts.ran(job), now);
        let left = until.map(|until| until.since(now));
        let lease = left.map_or(lease, |left| left.min(lease));
        leases.entry(lease).or_default().push(AttemptId {
            job: job.id,
            attempt: job.attempt,
        });
    }
    let mut renewed = BTreeMap::new();
    for (lease, attempts) in leases {
        let answers = app.store().renew(&attempts, lease, now).await?;
        renewed.extend(attempts.iter().map(|of| of.job).zip(answers));
    }
    Ok(renewed)
}
