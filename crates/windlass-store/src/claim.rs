//! Types of [`Store::claim`](crate::Store::claim).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::{ClaimPlan, Taken};
use windlass_core::retry::{ResolvedRetry, RetryPolicy, RetrySettings, WorkerRetry, resolve};
use windlass_core::{Job, JobId, Kind, Lane, Lease, QueueName, Timestamp, WorkerName};

/// The most jobs that one claim hands out.
pub const CLAIM_MAX: usize = 10_000;

/// A request for jobs.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The id of this claim. A repeated claim with the same id returns the same leases while they
    /// are live.
    pub id: u128,
    /// The queue to take from.
    pub queue: QueueName,
    /// The kinds that the worker has handlers for.
    pub kinds: Kinds,
    /// Hand out only these jobs, if given.
    pub jobs: Option<BTreeSet<JobId>>,
    /// Do not hand out these jobs: the worker's process still runs the handler of an earlier
    /// attempt.
    pub except: BTreeSet<JobId>,
    /// How many jobs, and how they are divided between new jobs and retries.
    pub plan: ClaimPlan,
    /// The worker that claims.
    pub worker: WorkerName,
    /// Where the worker runs.
    pub worker_location: WorkerLocation,
    /// How long each lease lasts.
    pub lease: Duration,
    /// The retry settings of the worker, its handlers and the queue.
    pub retry: ClaimRetry,
}

/// The kinds of jobs that a claim takes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kinds {
    /// These kinds.
    Only(BTreeSet<Kind>),
    /// All kinds except these.
    AllExcept(BTreeSet<Kind>),
}

/// Where the worker of a claim runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerLocation {
    /// In the process that opened the store. A store that only one process can open ends these
    /// leases when it is opened again.
    Local,
    /// In another process, which claims through this one and may outlive it. Its leases, and the
    /// answer to its claim id, survive a restart of this process.
    Remote,
}

/// The retry settings of the worker, its handlers and the queue. A claim stores the resolved policy
/// on every job.
#[derive(Debug, Clone, Default)]
pub struct ClaimRetry {
    /// The worker's default and cap.
    pub worker: WorkerRetry,
    /// The policies of the kinds.
    pub kinds: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// The policy of the queue.
    pub queue: Option<Arc<RetryPolicy>>,
}

/// The result of a claim.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    /// Running jobs with their leases, in claim order within each lane.
    pub jobs: Vec<Job>,
    /// Whether new jobs and retries were both ready when the claim started.
    pub both_lanes_ready: bool,
    /// Whether the same claim id was answered with jobs before. Such a claim never gets other jobs.
    pub repeated: bool,
    /// Nothing else waits in the queue for these kinds: until this time, another claim would return
    /// nothing unless [`Store::changes`](crate::Store::changes) has reported a change since before
    /// this claim. `None` if the store does not know.
    pub idle_until: Option<Timestamp>,
}

impl Kinds {
    /// Every kind.
    pub const ALL: Kinds = Kinds::AllExcept(BTreeSet::new());

    /// Whether `kind` is one of them.
    pub fn contain(&self, kind: &Kind) -> bool {
        let (kinds, included) = self.parts();
        kinds.contains(kind) == included
    }

    /// The listed kinds, and whether these are included (`true`) or excluded (`false`).
    pub fn parts(&self) -> (&BTreeSet<Kind>, bool) {
        match self {
            Kinds::Only(kinds) => (kinds, true),
            Kinds::AllExcept(kinds) => (kinds, false),
        }
    }
}

impl Claim {
    /// Whether the claim accepts a job with this id and kind, whatever its state and time.
    pub fn wants(&self, id: JobId, kind: &Kind) -> bool {
        self.kinds.contain(kind)
            && self.jobs.as_ref().is_none_or(|jobs| jobs.contains(&id))
            && !self.except.contains(&id)
    }

    /// The lease of a job that this claim takes at `now`.
    pub fn lease_for(&self, job: &Job, now: Timestamp) -> Lease {
        self.retry.lease_for(job, now.saturating_add(self.lease))
    }
}

impl ClaimRetry {
    /// The retry policy and limit of a job that is claimed with these settings.
    pub fn resolve<'a>(&'a self, job: &'a Job) -> ResolvedRetry<'a> {
        let settings = RetrySettings {
            max_attempts: job.max_attempts,
            job: job.retry.as_ref(),
            kind: self.kinds.get(&job.kind),
            queue: self.queue.as_ref(),
        };
        resolve(settings, &self.worker)
    }

    /// The lease of a job that is claimed with these settings.
    pub fn lease_for(&self, job: &Job, until: Timestamp) -> Lease {
        let resolved = self.resolve(job);
        Lease {
            until,
            policy: resolved.policy.cloned(),
            effective_max: resolved.effective_max,
            cancel_requested: false,
        }
    }
}

impl Claimed {
    /// How many jobs of each lane it took, for the fetcher's credit.
    pub fn taken(&self) -> Taken {
        let count = |lane| self.jobs.iter().filter(|job| job.lane() == lane).count();
        Taken {
            fresh: u32::try_from(count(Lane::Fresh)).unwrap_or(u32::MAX),
            retries: u32::try_from(count(Lane::Retry)).unwrap_or(u32::MAX),
            both_lanes_ready: self.both_lanes_ready,
        }
    }
}
