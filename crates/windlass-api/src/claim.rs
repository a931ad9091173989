//! Requests of remote workers: claim, renew, report progress, register.

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
    Body, BoundedInt, Checks, Count, DurationText, Job, Json, List, Millis, Text, some_even_if_null,
};

/// The maximum length of a claim id, in bytes.
const CLAIM_ID_BYTES_MAX: usize = 128;

request! {
    /// A request of a worker for jobs.
    pub struct Claim {
        /// Queue to claim from. Default: `default`, or the queues of `ids`. Excludes `queues`.
        pub queue: QueueName,
        /// Queues to claim from: 1 to 100, each a name or an object with a weight. Excludes
        /// `queue`.
        pub queues: List<WeightedQueue, 1, 100>,
        /// In which order the server claims from the queues. Default: `weighted`.
        pub order: ClaimOrder,
        /// Kinds of jobs that the worker can run: 1 to 1000. Default: all kinds except HTTP jobs.
        pub kinds: List<Kind, 1, 1000>,
        /// Claim only these jobs: 1 to 1000 ids.
        pub ids: List<JobId, 1, 1000>,
        /// Most jobs to return. Default: 1.
        pub limit: BoundedInt<1, 1000>,
        /// How long each lease lasts: longer than 0s, at most 1 h unless configured. Default: 30 s.
        pub lease: DurationText,
        /// `lease` in milliseconds.
        pub lease_ms: Millis,
        /// Id of this claim, unique for the key. Repeating a claim with the same id returns the
        /// same jobs.
        #[schemars(length(min = 1, max = 128))]
        pub claim_id: String,
        /// How long to wait for jobs if none are ready: at most 60 s unless configured. Default: 0
        /// s.
        pub wait: DurationText,
        /// `wait` in milliseconds.
        pub wait_ms: Millis,
        /// Name of the worker. Default: a name derived from the API key.
        pub worker: WorkerName,
        /// How many jobs the worker can run at once.
        pub slots: BoundedInt<1, 1_000_000>,
        /// How many retries the worker is running now. Only allowed together with `slots`. Default:
        /// 0.
        pub retries_running: BoundedInt<0, 1_000_000>,
    }
}

/// In which order a claim takes jobs from its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ClaimOrder {
    /// Each queue gets a share in proportion to its weight.
    Weighted,
    /// The server empties the first queue before it claims from the second.
    Strict,
}

/// A queue to claim from: its name, or an object with its weight.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum WeightedQueue {
    /// The name of a queue with weight 1.
    Name(QueueName),
    /// A queue with its weight.
    Weighted(QueueWeight),
}

word_or_object!(
    WeightedQueue,
    Name(QueueName),
    Weighted(QueueWeight),
    "the name of a queue or an object"
);

/// A queue with its weight.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct QueueWeight {
    /// Name of the queue.
    pub name: QueueName,
    /// Share of this queue in the claim, relative to the other queues. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<BoundedInt<1, 1000>>,
}

/// A claim that was checked.
#[derive(Debug, Clone)]
pub struct CheckedClaim {
    /// The queues, if the claim names any.
    pub queues: Option<Vec<ClaimQueue>>,
    /// In which order to use the queues.
    pub order: QueueOrder,
    /// The kinds, if the claim names any.
    pub kinds: Option<BTreeSet<Kind>>,
    /// The only jobs to claim, if the claim names any.
    pub ids: Option<BTreeSet<JobId>>,
    /// The most jobs to return.
    pub limit: u32,
    /// How long each lease lasts.
    pub lease: Option<Duration>,
    /// The id of the claim.
    pub claim_id: Option<String>,
    /// How long the claim waits for jobs.
    pub wait: Duration,
    /// The name of the worker.
    pub worker: Option<WorkerName>,
    /// How many jobs the worker can run at once.
    pub slots: Option<u32>,
    /// How many retries the worker is running.
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
            checks.refuse(&format!("queues[{index}]"), "is listed twice");
        }
        checked.push(queue);
    }
    checked
}

/// Response of a claim.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClaimAnswer {
    /// The claimed jobs with their payloads. Pass `attempt` on when you renew, settle or report
    /// progress.
    pub data: Vec<Job>,
    /// Signal of an operator to the worker.
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

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WorkerState {
    /// It claims and runs jobs.
    Running,
    /// It claims no jobs until an operator resumes it.
    ClaimsPaused,
    /// It finishes its running jobs and ends.
    Stopping,
}

/// A running attempt, as the worker names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRef {
    /// The job.
    pub id: JobId,
    /// The number of the attempt.
    pub attempt: u32,
}

/// The number of an attempt, counted from 1.
pub type AttemptNumber = BoundedInt<1, { u32::MAX as i64 }>;

impl LeaseRef {
    /// Checks that `id` (or its alias `job_id`) and `attempt` are given.
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
    /// A heartbeat of a worker, with the leases to renew.
    pub struct Renewal {
        /// Name of the worker. Default: a name derived from the API key.
        pub worker: WorkerName,
        /// How long the leases last, counted from now: longer than 0s, at most 1 h unless
        /// configured. Default: 30 s.
        pub lease: DurationText,
        /// `lease` in milliseconds.
        pub lease_ms: Millis,
        /// Leases to renew: at most 1000. Without leases, the request is only a heartbeat.
        pub leases: List<RenewedLease, 0, 1000>,
    }
}

request! {
    /// The lease of a running attempt.
    #[schemars(inline)]
    pub struct RenewedLease {
        /// Id of the job. Required, unless `job_id` is given.
        pub id: JobId,
        /// Alias of `id`.
        pub job_id: JobId,
        /// Number of the attempt, counted from 1, as in the claimed job.
        #[schemars(required)]
        pub attempt: AttemptNumber,
    }
}

/// A renewal that was checked.
#[derive(Debug, Clone)]
pub struct CheckedRenewal {
    /// The name of the worker.
    pub worker: Option<WorkerName>,
    /// How long the leases last, counted from now.
    pub lease: Option<Duration>,
    /// The leases to renew.
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

/// Response of a renewal.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RenewAnswer {
    /// Result of each lease, in the order of the request.
    pub data: Vec<Renewed>,
    /// Signal of an operator to the worker.
    pub signal: Option<WorkerSignal>,
}

/// Result of renewing one lease.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Renewed {
    /// Id of the job.
    pub id: JobId,
    /// Number of the attempt.
    pub attempt: u32,
    /// Whether the lease was renewed.
    pub status: RenewStatus,
    /// Why the lease is lost. Only with `lease_lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// When the renewed lease expires. Only with `renewed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Timestamp>,
    /// True if the job was cancelled: stop the attempt and settle it as `cancelled`. Only with
    /// `renewed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested: Option<bool>,
}

/// Whether a lease was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RenewStatus {
    /// The lease was renewed.
    Renewed,
    /// The attempt ran longer than the timeout of its job and has ended. Stop it.
    TimedOut,
    /// The worker no longer holds the lease. Stop the attempt.
    LeaseLost,
}

/// Why a worker no longer holds a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LostReason {
    /// The attempt does not exist.
    Unknown,
    /// The attempt has ended.
    Over,
    /// Another worker holds the lease.
    OtherWorker,
}

request! {
    /// Progress of a running attempt.
    pub struct Progress {
        /// Id of the job. Required, unless `job_id` is given.
        pub id: JobId,
        /// Alias of `id`.
        pub job_id: JobId,
        /// Number of the attempt, counted from 1, as in the claimed job.
        #[schemars(required)]
        pub attempt: AttemptNumber,
        /// Name of the worker. Default: a name derived from the API key.
        pub worker: WorkerName,
        /// Progress as any JSON, such as `{"percent": 40}`. At most 16 KiB. Required, unless `lines`
        /// is given.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub progress: Json,
        /// New lines of the attempt's log: at most 1000. Each is cut to 1000 characters. The server
        /// keeps the last 1000 lines and 64 KiB of an attempt.
        pub lines: List<Text<0, { usize::MAX }>, 0, 1000>,
        /// Number of the first of `lines`, counted from 1 in the log of the attempt. Then the request
        /// can be repeated: the server skips lines that it has. Only with `lines`.
        pub first_line: BoundedInt<1, { i64::MAX }>,
    }
}

/// A progress report that was checked.
#[derive(Debug, Clone)]
pub struct CheckedProgress {
    /// The attempt.
    pub lease: LeaseRef,
    /// The name of the worker.
    pub worker: Option<WorkerName>,
    /// The progress.
    pub progress: Option<Value>,
    /// New lines of the log.
    pub lines: Vec<String>,
    /// The number of the first line.
    pub first_line: Option<u64>,
}

impl Body for Progress {
    type Checked = CheckedProgress;

    fn check(self, checks: &mut Checks) -> Option<CheckedProgress> {
        let lease = LeaseRef::check(checks, self.id, self.job_id, self.attempt);
        let progress = self.progress.map(|Json(progress)| progress.decode());
        let lines = self.lines.map(|lines| lines.0).unwrap_or_default();
        if progress.is_none() && lines.is_empty() {
            checks.refuse("progress", "is required, unless `lines` is given");
        }
        if self.first_line.is_some() && lines.is_empty() {
            checks.refuse("first_line", "is only allowed with `lines`");
        }
        if progress.as_ref().is_some_and(Result::is_err) {
            checks.refuse("progress", "must be JSON");
        }
        Some(CheckedProgress {
            lease: lease?,
            worker: self.worker,
            progress: progress.transpose().ok()?,
            lines: lines.into_iter().map(Text::into_string).collect(),
            first_line: self.first_line.map(BoundedInt::to),
        })
    }
}

request! {
    /// A worker to register.
    pub struct NewWorker {
        /// Name of the worker, unique among all workers.
        #[schemars(required)]
        pub name: WorkerName,
        /// Queues that the worker claims from: 1 to 100.
        pub queues: List<QueueName, 1, 100>,
        /// Kinds of jobs that the worker can run: 1 to 1000. Default: all kinds except HTTP jobs.
        pub kinds: List<Kind, 1, 1000>,
        /// How many jobs the worker can run at once.
        pub slots: BoundedInt<1, 1_000_000>,
        /// Version of the program.
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
    /// Name of the worker.
    pub name: String,
    /// What the worker reported about itself, such as `queues`, `kinds` and `slots`.
    pub about: Value,
    /// Time of the last heartbeat.
    pub heartbeat_at: Timestamp,
    /// Milliseconds since the last heartbeat.
    pub heartbeat_age_ms: Count,
    /// Whether the worker sent a heartbeat in the last 60 s.
    pub alive: bool,
    /// Signal of an operator to the worker. Null if there is none.
    pub signal: Option<WorkerSignal>,
    /// What the worker does. Null for a node that obeys no signals: a server, or a worker of an
    /// older version.
    pub state: Option<WorkerState>,
}

/// A page of workers, ordered by name.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WorkerPage {
    /// The workers.
    pub data: Vec<Worker>,
    /// Cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
    /// Configuration differences between servers, one sentence each.
    pub differences: Vec<String>,
}
