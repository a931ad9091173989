//! Claiming: jobs go out, each under a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::{ClaimPlan, Taken};
use windlass_core::retry::{ResolvedRetry, RetryPolicy, RetrySettings, WorkerRetry, resolve};
use windlass_core::{Job, JobId, Kind, Lane, Lease, QueueName, Timestamp, WorkerName};

/// The most jobs one claim hands out.
pub const CLAIM_MAX: usize = 10_000;

/// What a fetcher asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// A name for this claim: asked again with the same one, the store hands out the same leases as long as they live.
    pub id: u128,
    /// The queue to take from.
    pub queue: QueueName,
    /// The kinds that the worker has handlers for.
    pub kinds: Kinds,
    /// Only these jobs, if some are named.
    pub jobs: Option<BTreeSet<JobId>>,
    /// None of these jobs: the process of the worker still runs the handler of an earlier attempt.
    pub except: BTreeSet<JobId>,
    /// How many, and how they are shared between fresh work and retries.
    pub plan: ClaimPlan,
    /// Who takes them.
    pub worker: WorkerName,
    /// Where that one lives.
    pub place: WorkerPlace,
    /// How long each lease lasts.
    pub lease: Duration,
    /// What is known about retrying beside the jobs themselves.
    pub retry: ClaimRetry,
}

/// The kinds of jobs that a claim takes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kinds {
    /// These.
    Only(BTreeSet<Kind>),
    /// Every other.
    AllBut(BTreeSet<Kind>),
}

/// Where the worker of a claim lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerPlace {
    /// In the process that has the store open. A store that one process has alone ends its leases when the next one opens it.
    Here,
    /// In another process, which asks through this one and may outlive it. Its leases, and the answer to its claim id, stay.
    Elsewhere,
}

/// What the worker, its handlers and the queue say about retrying; stamped on every job that is claimed.
#[derive(Debug, Clone, Default)]
pub struct ClaimRetry {
    /// The worker's default and cap.
    pub worker: WorkerRetry,
    /// The policies of the kinds.
    pub kinds: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// The policy of the queue.
    pub queue: Option<Arc<RetryPolicy>>,
}

/// What a claim got.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    /// Running jobs, each with its lease, in the order of claims within its lane.
    pub jobs: Vec<Job>,
    /// Whether fresh jobs and retries were both ready when the claim came.
    pub both_waited: bool,
    /// Whether the same claim id was answered with jobs before. Then it gets no others, now or
    /// later.
    pub repeated: bool,
}

impl Kinds {
    /// Every kind.
    pub const ALL: Kinds = Kinds::AllBut(BTreeSet::new());

    /// Whether a kind is among them.
    pub fn contain(&self, kind: &Kind) -> bool {
        let (kinds, wanted) = self.parts();
        kinds.contains(kind) == wanted
    }

    /// The kinds that are named, and whether those are meant, or all others.
    pub fn parts(&self) -> (&BTreeSet<Kind>, bool) {
        match self {
            Kinds::Only(kinds) => (kinds, true),
            Kinds::AllBut(kinds) => (kinds, false),
        }
    }
}

impl Claim {
    /// Whether the claim is for such a job, its state and time aside.
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
    /// The policy and the limit of a job that is claimed with this.
    pub fn resolve<'a>(&'a self, job: &'a Job) -> ResolvedRetry<'a> {
        let settings = RetrySettings {
            max_attempts: job.max_attempts,
            job: job.retry.as_ref(),
            kind: self.kinds.get(&job.kind),
            queue: self.queue.as_ref(),
        };
        resolve(settings, &self.worker)
    }

    /// The lease of a job that is claimed with this.
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
    /// How many of each kind it took, for the fetcher's credit.
    pub fn taken(&self) -> Taken {
        let count = |lane| self.jobs.iter().filter(|job| job.lane() == lane).count();
        Taken {
            fresh: u32::try_from(count(Lane::Fresh)).unwrap_or(u32::MAX),
            retries: u32::try_from(count(Lane::Retry)).unwrap_or(u32::MAX),
            both_waited: self.both_waited,
        }
    }
}
