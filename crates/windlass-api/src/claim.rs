//! What workers in any language ask for: jobs, more time for them, and a name.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::fairness::{ClaimQueue, QueueOrder};
use windlass_core::{JobId, Kind, QueueName, Timestamp, WorkerName};

use crate::read::request;
use crate::value::{either_duration, word_or_object};
use crate::{
    Body, BoundedInt, Checks, Count, DurationText, Job, Json, List, Millis, some_even_if_null,
};

/// The longest name of a claim, in bytes.
const CLAIM_ID_BYTES_MAX: usize = 128;

request! {
    /// Jobs that a worker asks for.
    pub struct Claim {
        /// The queue to claim from. `default`.
        pub queue: QueueName,
        /// The queues to claim from.
        pub queues: List<WeightedQueue, 1, 100>,
        /// How the claim goes through its queues: by their weights, or the first one first.
        /// `weighted`.
        pub order: ClaimOrder,
        /// The kinds that the worker has handlers for; all but HTTP jobs if none are named.
        pub kinds: List<Kind, 1, 1000>,
        /// Only these jobs.
        pub ids: List<JobId, 1, 1000>,
        /// At most this many jobs. 1.
        pub limit: BoundedInt<1, 1000>,
        /// How long each lease lasts.
        pub lease: DurationText,
        /// The same in milliseconds.
        pub lease_ms: Millis,
        /// A name for the claim: sent again with the same name, it returns the same jobs.
        #[schemars(length(min = 1, max = 128))]
        pub claim_id: String,
        /// How long the claim may wait until there are jobs. 0 s.
        pub wait: DurationText,
        /// The same in milliseconds.
        pub wait_ms: Millis,
        /// Who claims.
        pub worker: WorkerName,
        /// How many jobs the worker can run at once.
        pub slots: BoundedInt<1, 1_000_000>,
        /// How many of them are retries now. Goes with `slots`.
        pub retries_running: BoundedInt<0, 1_000_000>,
    }
}

/// How a claim goes through its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ClaimOrder {
    /// By their weights.
    Weighted,
    /// The first one first.
    Strict,
}

/// A queue to claim from: its name, or an object with its weight.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum WeightedQueue {
    /// With weight 1.
    Name(QueueName),
    /// With its weight.
    Weighted(QueueWeight),
}

word_or_object!(
    WeightedQueue,
    Name(QueueName),
    Weighted(QueueWeight),
    "the name of a queue or an object"
);

/// A queue with its share of a claim.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct QueueWeight {
    /// The queue.
    pub name: QueueName,
    /// Its share. 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<BoundedInt<1, 1000>>,
}

/// A claim that keeps all rules.
#[derive(Debug, Clone)]
pub struct CheckedClaim {
    /// The queues, if it names some.
    pub queues: Option<Vec<ClaimQueue>>,
    /// How it goes through them.
    pub order: QueueOrder,
    /// The kinds, if it names some.
    pub kinds: Option<BTreeSet<Kind>>,
    /// Only these jobs, if it names some.
    pub ids: Option<BTreeSet<JobId>>,
    /// At most this many jobs.
    pub limit: u32,
    /// How long each lease lasts.
    pub lease: Option<Duration>,
    /// Its name.
    pub claim_id: Option<String>,
    /// How long it may wait.
    pub wait: Duration,
    /// Who claims.
    pub worker: Option<WorkerName>,
    /// How many jobs the worker can run at once.
    pub slots: Option<u32>,
    /// How many of them are retries.
    pub retries_running: u32,
}

impl Body for Claim {
    type Checked = CheckedClaim;

    fn check(self, checks: &mut Checks) -> Option<CheckedClaim> {
        let one = self.queue.map(|name| vec![ClaimQueue::plain(name)]);
        let many = self.queues.map(|queues| check_queues(checks, queues.0));
        let queues = checks.exclusive(("queues", many), ("queue", one));
        let retries_running = self.retries_running.map_or(0, BoundedInt::to);
        let slots = ("slots", self.slots.is_some());
        checks.needs(("retries_running", retries_running > 0), slots);
        if let Some(id) = &self.claim_id
            && (id.is_empty() || id.len() > CLAIM_ID_BYTES_MAX || id.contains(char::is_control))
        {
            let rule =
                format!("must be 1 to {CLAIM_ID_BYTES_MAX} bytes without control characters");
            checks.refuse("claim_id", rule);
        }
        let wait = either_duration(checks, "wait", self.wait, self.wait_ms);
        Some(CheckedClaim {
            queues,
            order: match self.order {
                Some(ClaimOrder::Strict) => QueueOrder::Strict,
                Some(ClaimOrder::Weighted) | None => QueueOrder::Weighted,
            },
            kinds: self.kinds.map(|kinds| kinds.0.into_iter().collect()),
            ids: self.ids.map(|ids| ids.0.into_iter().collect()),
            limit: self.limit.map_or(1, BoundedInt::to),
            lease: either_duration(checks, "lease", self.lease, self.lease_ms),
            claim_id: self.claim_id,
            wait: wait.unwrap_or_default(),
            worker: self.worker,
            slots: self.slots.map(BoundedInt::to),
            retries_running,
        })
    }
}

fn check_queues(checks: &mut Checks, queues: Vec<WeightedQueue>) -> Vec<ClaimQueue> {
    let mut names = BTreeSet::new();
    let mut checked = Vec::with_capacity(queues.len());
    for (index, queue) in queues.into_iter().enumerate() {
        let queue = match queue {
            WeightedQueue::Name(name) => ClaimQueue::plain(name),
            WeightedQueue::Weighted(queue) => ClaimQueue {
                name: queue.name,
                weight: queue.weight.map_or(1, BoundedInt::to),
            },
        };
        if !names.insert(queue.name.clone()) {
            checks.refuse(&format!("queues[{index}]"), "is named twice");
        }
        checked.push(queue);
    }
    checked
}

/// The jobs of a claim.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClaimAnswer {
    /// The jobs, with their payloads; `attempt` is the number that reports must name.
    pub data: Vec<Job>,
    /// What an operator asks of the worker.
    pub signal: Option<WorkerSignal>,
}

/// What an operator asks of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WorkerSignal {
    /// Claim no jobs until an operator resumes the worker.
    PauseClaims,
    /// Finish the running jobs and exit.
    Stop,
}

/// A running attempt, as its worker names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRef {
    /// The job.
    pub id: JobId,
    /// Which of its attempts.
    pub attempt: u32,
}

/// The number of an attempt, from 1.
pub type AttemptNumber = BoundedInt<1, { u32::MAX as i64 }>;

impl LeaseRef {
    /// The attempt that `id` (or `job_id`) and `attempt` name.
    pub(crate) fn check(
        checks: &mut Checks,
        id: Option<JobId>,
        job_id: Option<JobId>,
        attempt: Option<AttemptNumber>,
    ) -> Option<LeaseRef> {
        let id = checks.exclusive(("id", id), ("job_id", job_id));
        if id.is_none() && !checks.is_refused("job_id") {
            checks.refuse("id", "is required");
        }
        let attempt = checks.required("attempt", attempt);
        Some(LeaseRef {
            id: id?,
            attempt: attempt?.to(),
        })
    }
}

request! {
    /// A heartbeat of a worker, with the leases that it wants prolonged.
    pub struct Renewal {
        /// Who.
        pub worker: WorkerName,
        /// How long the leases last from now on.
        pub lease: DurationText,
        /// The same in milliseconds.
        pub lease_ms: Millis,
        /// Which leases; none is only a heartbeat.
        pub leases: List<RenewedLease, 0, 1000>,
    }
}

request! {
    /// The lease of a running attempt.
    #[schemars(inline)]
    pub struct RenewedLease {
        /// The job.
        pub id: JobId,
        /// The same as `id`.
        pub job_id: JobId,
        /// Which of its attempts.
        #[schemars(required)]
        pub attempt: AttemptNumber,
    }
}

/// A heartbeat that keeps all rules.
#[derive(Debug, Clone)]
pub struct CheckedRenewal {
    /// Who.
    pub worker: Option<WorkerName>,
    /// How long the leases last from now on.
    pub lease: Option<Duration>,
    /// Which leases.
    pub leases: Vec<LeaseRef>,
}

impl Body for Renewal {
    type Checked = CheckedRenewal;

    fn check(self, checks: &mut Checks) -> Option<CheckedRenewal> {
        let leases = self.leases.map(|leases| leases.0).unwrap_or_default();
        let leases = checks.each("leases", leases, |checks, lease| {
            LeaseRef::check(checks, lease.id, lease.job_id, lease.attempt)
        });
        Some(CheckedRenewal {
            worker: self.worker,
            lease: either_duration(checks, "lease", self.lease, self.lease_ms),
            leases: leases?,
        })
    }
}

/// What happened to each lease, in order.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RenewAnswer {
    /// What happened to each.
    pub data: Vec<Renewed>,
    /// What an operator asks of the worker.
    pub signal: Option<WorkerSignal>,
}

/// What happened to one lease.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Renewed {
    /// The job.
    pub id: JobId,
    /// Which of its attempts.
    pub attempt: u32,
    /// `renewed`, `timed_out` or `lease_lost`.
    pub status: RenewStatus,
    /// Why the lease is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// Until when it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Timestamp>,
    /// The job was cancelled: stop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested: Option<bool>,
}

/// What happened to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RenewStatus {
    /// It lasts longer.
    Renewed,
    /// The attempt has run for longer than the timeout of its job.
    TimedOut,
    /// The attempt is no longer the worker's: stop it.
    LeaseLost,
}

/// Why an attempt is no longer the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LostReason {
    /// There is no such attempt.
    Unknown,
    /// It has ended.
    Over,
    /// Another worker has it.
    OtherWorker,
}

request! {
    /// How far a running attempt is.
    pub struct Progress {
        /// The job.
        pub id: JobId,
        /// The same as `id`.
        pub job_id: JobId,
        /// Which of its attempts.
        #[schemars(required)]
        pub attempt: AttemptNumber,
        /// Who.
        pub worker: WorkerName,
        /// Any JSON.
        #[serde(default, deserialize_with = "some_even_if_null")]
        #[schemars(required)]
        pub progress: Json,
    }
}

/// Progress that keeps all rules.
#[derive(Debug, Clone)]
pub struct CheckedProgress {
    /// Of which attempt.
    pub lease: LeaseRef,
    /// Who.
    pub worker: Option<WorkerName>,
    /// How far it is.
    pub progress: Value,
}

impl Body for Progress {
    type Checked = CheckedProgress;

    fn check(self, checks: &mut Checks) -> Option<CheckedProgress> {
        let lease = LeaseRef::check(checks, self.id, self.job_id, self.attempt);
        let progress = checks.required("progress", self.progress);
        let progress = progress.map(|Json(progress)| progress.decode());
        if progress.as_ref().is_some_and(Result::is_err) {
            checks.refuse("progress", "must be JSON");
        }
        Some(CheckedProgress {
            lease: lease?,
            worker: self.worker,
            progress: progress?.ok()?,
        })
    }
}

request! {
    /// A worker that registers.
    pub struct NewWorker {
        /// Its name.
        #[schemars(required)]
        pub name: WorkerName,
        /// The queues that it takes jobs from.
        pub queues: List<QueueName, 1, 100>,
        /// The kinds that it has handlers for; all but HTTP jobs if none are named.
        pub kinds: List<Kind, 1, 1000>,
        /// How many jobs it can run at once.
        pub slots: BoundedInt<1, 1_000_000>,
        /// The version of its program.
        pub version: WorkerName,
    }
}

impl Body for NewWorker {
    type Checked = (WorkerName, NewWorker);

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        let name = checks.required("name", self.name.clone());
        Some((name?, self))
    }
}

/// A worker, or a node of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// What it says about itself.
    pub about: Value,
    /// When its last heartbeat came.
    pub heartbeat_at: Timestamp,
    /// How long ago that was, in milliseconds.
    pub heartbeat_age_ms: Count,
    /// Whether it sent a heartbeat in the last 60 s.
    pub alive: bool,
    /// What an operator asks of it.
    pub signal: Option<WorkerSignal>,
}

/// A page of workers, by name.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WorkerPage {
    /// The workers.
    pub data: Vec<Worker>,
    /// Where the next page begins; null at the end of the list.
    pub next_cursor: Option<String>,
    /// Configuration differences between servers, one sentence each.
    pub differences: Vec<String>,
}
