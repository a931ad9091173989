//! Claims jobs for a remote worker, and waits for jobs if the claim asks to (a long poll).
//!
//! Three things make this harder than a single call to the store:
//!
//! - The client may disconnect at any time, which drops the request's future. If this happened in
//!   the middle of a store claim, no one would know about the leased jobs. So the store claim runs
//!   in a task of its own, which gives the jobs back when no one takes its result.
//! - A client that got no response repeats the request. With a claim id it gets the same jobs
//!   again. So jobs of a claim with an id are never given back just because one request was
//!   dropped: an earlier request with the same id may have handed them out.
//! - The caller's permission may end while it waits. [`Admission`] is checked before and after each
//!   store claim.
//!
//! While a claim waits, it stands in a line with claims that would find the same jobs
//! (`waiting_line.rs`), sends the worker's heartbeat and watches for signals from operators.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_core::fairness::{ClaimQueue, QueueOrder};
use windlass_core::{Job, JobId, Kind, QueueName, Report};
use windlass_store::{Kinds, StoreError};

use super::roster::HEARTBEAT_EVERY;
use super::signals::Signal;
use super::store_claims::ClaimedJobs;
use super::waiting_line::{Interest, Position};
use super::{Remote, RemoteError, RemoteWorker, store_claims};
use crate::worker_description::WorkerDescription;

/// A remote worker's request for jobs.
#[derive(Debug, Clone)]
pub struct RemoteClaim {
    /// The worker that claims.
    pub worker: RemoteWorker,
    /// The queues. Defaults to the queues of `jobs`, or to the default queue.
    pub queues: Option<Vec<ClaimQueue>>,
    /// The order in which to claim from the queues.
    pub order: QueueOrder,
    /// The kinds that the worker has handlers for. `None` means all except reserved kinds, whose
    /// jobs may contain secrets.
    pub kinds: Option<BTreeSet<Kind>>,
    /// Claims only these jobs.
    pub jobs: Option<BTreeSet<JobId>>,
    /// The maximum number of jobs.
    pub limit: u32,
    /// The length of each lease. Defaults to the configured one.
    pub lease: Option<Duration>,
    /// Makes the claim repeatable: the same worker gets the same jobs again for the same id. The
    /// caller must make ids of unrelated clients different, for example with a prefix for each
    /// client.
    pub claim_id: Option<String>,
    /// How long to wait for jobs.
    pub wait: Duration,
    /// The total number of slots of the worker, if known.
    pub slots: Option<u32>,
    /// How many of the slots run a retry.
    pub retries_running: u32,
}

impl RemoteClaim {
    /// A claim for one job from the default queue, with every other setting at its default.
    pub fn new(worker: RemoteWorker) -> Self {
        RemoteClaim {
            worker,
            queues: None,
            order: QueueOrder::default(),
            kinds: None,
            jobs: None,
            limit: 1,
            lease: None,
            claim_id: None,
            wait: Duration::ZERO,
            slots: None,
            retries_running: 0,
        }
    }
}

/// The response to a claim.
#[derive(Debug)]
pub struct RemoteClaimed {
    /// The jobs, each under a lease.
    pub jobs: Vec<Job>,
    /// The operator's signal to the worker, if there is one.
    pub signal: Option<Signal>,
}

/// Decides whether a caller may claim and wait. The server implements it, because the engine does
/// not know API keys.
pub trait Admission: Send + Sync + 'static {
    /// Why a caller is refused.
    type Refusal: Send + 'static;
    /// Held while a claim waits.
    type Permit: Send;

    /// Checks that the caller may still claim. Its key may be revoked or expire while it waits.
    fn check(&self) -> impl Future<Output = Result<(), Self::Refusal>> + Send;

    /// Asks for a permit to wait.
    fn wait(&self) -> Result<Self::Permit, Self::Refusal>;
}

/// Why a claim failed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError<R> {
    /// An error that all requests of remote workers share.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The caller may not claim, or may not wait.
    #[error("the caller was refused")]
    Refused(R),
    /// The process stopped, or a bug ended the claim. Leased jobs become available again when their
    /// leases expire.
    #[error("the claim was interrupted")]
    Interrupted,
}

impl<R> From<StoreError> for ClaimError<R> {
    fn from(error: StoreError) -> Self {
        ClaimError::Remote(error.into())
    }
}

/// A claim request whose settings were checked.
#[derive(Debug)]
pub(super) struct CheckedClaim {
    pub(super) request: RemoteClaim,
    /// The queues of the request, or those of the jobs that it names.
    pub(super) queues: Vec<ClaimQueue>,
    pub(super) lease: Duration,
    /// The worker's name and the claim id. Only a request with the same two repeats this claim.
    repeat_key: Option<String>,
}

impl CheckedClaim {
    async fn new(remote: &Remote, claim: RemoteClaim) -> Result<Self, RemoteError> {
        let lease = remote.lease(claim.lease)?;
        let queues = match (&claim.queues, &claim.jobs) {
            (Some(queues), _) => queues.clone(),
            (None, Some(jobs)) => queues_of_jobs(remote, jobs).await?,
            (None, None) => vec![ClaimQueue::plain(QueueName::default())],
        };
        let name = claim.worker.name();
        let repeat_key = claim.claim_id.as_ref().map(|id| format!("{name}\n{id}"));
        if let Some(key) = &repeat_key
            && claim.queues.is_some()
            && !remote.claim_state.keeps_queues(hash128(key), &queues)
        {
            return Err(RemoteError::ClaimIdReused);
        }
        Ok(CheckedClaim {
            request: claim,
            queues,
            lease,
            repeat_key,
        })
    }

    /// The kinds to claim. Jobs of reserved kinds may contain secrets, so only a worker that names
    /// these kinds gets them.
    pub(super) fn kinds(&self, reserved: &BTreeSet<Kind>) -> Kinds {
        match &self.request.kinds {
            Some(kinds) => Kinds::Only(kinds.clone()),
            None => Kinds::AllExcept(reserved.clone()),
        }
    }

    fn interest(&self) -> Interest {
        let claim = &self.request;
        Interest {
            queues: self.queues.iter().map(|queue| queue.name.clone()).collect(),
            kinds: claim.kinds.clone(),
            ids: claim.jobs.clone(),
            slots: claim.slots,
            retries_running: claim.retries_running,
        }
    }

    /// The id of the n-th store claim in a queue.
    pub(super) fn claim_id(&self, remote: &Remote, queue: &QueueName, nth: u32) -> u128 {
        match &self.repeat_key {
            None => remote.engine.ids().claim_id(),
            Some(key) => hash128(&format!("{key}\n{queue}\n{nth}")),
        }
    }
}

/// The queues of these jobs.
async fn queues_of_jobs(
    remote: &Remote,
    ids: &BTreeSet<JobId>,
) -> Result<Vec<ClaimQueue>, StoreError> {
    let ids: Vec<JobId> = ids.iter().copied().collect();
    let jobs = remote.jobs_of(&ids).await?.into_iter().flatten();
    let names: BTreeSet<QueueName> = jobs.map(|job| job.queue).collect();
    Ok(names.into_iter().map(ClaimQueue::plain).collect())
}

fn hash128(text: &str) -> u128 {
    let bytes = Sha256::digest(text.as_bytes());
    bytes
        .iter()
        .take(16)
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

impl Remote {
    /// Claims jobs for a worker. Waits until there are some, if the claim asks to.
    ///
    /// If the future is dropped during a store claim, that store claim still runs to its end in a
    /// task of its own, and its jobs are given back at once, unless the claim has an id. Cancelling
    /// `stop` ends the wait.
    pub async fn claim<A: Admission>(
        self: &Arc<Self>,
        claim: RemoteClaim,
        admission: A,
        stop: &CancellationToken,
    ) -> Result<RemoteClaimed, ClaimError<A::Refusal>> {
        let claim = CheckedClaim::new(self, claim).await?;
        self.record_claim_heartbeat(&claim).await?;
        let pending = PendingClaim {
            remote: Arc::clone(self),
            claim: Arc::new(claim),
            admission: Arc::new(admission),
        };
        pending.wait_for_jobs(stop).await
    }

    /// Records a heartbeat of the worker that claims.
    async fn record_claim_heartbeat(&self, claim: &CheckedClaim) -> Result<(), RemoteError> {
        let about = || WorkerDescription {
            patterns: Vec::new(),
            queues: Some(
                claim
                    .queues
                    .iter()
                    .map(|queue| queue.name.clone())
                    .collect(),
            ),
            kinds: claim.request.kinds.clone().map(Vec::from_iter),
            slots: claim.request.slots,
            version: None,
        };
        let worker = claim.request.worker.listed();
        Ok(self.roster.record_heartbeat(worker, about).await?)
    }

    /// Gives back claimed jobs that were not handed out.
    pub(super) async fn give_back(&self, jobs: &[Job]) {
        let released = |job| self.end_of(job, Report::Released { started: false });
        let ends = jobs.iter().map(released).collect();
        if let Err(error) = self.end(ends).await {
            warn!(%error, jobs = jobs.len(), "giving back claimed jobs failed; their leases expire");
        }
    }
}

/// A claim request that is being served.
struct PendingClaim<A> {
    remote: Arc<Remote>,
    claim: Arc<CheckedClaim>,
    admission: Arc<A>,
}

type ClaimResult<A> = Result<ClaimedJobs, ClaimError<<A as Admission>::Refusal>>;

impl<A: Admission> PendingClaim<A> {
    /// Claims jobs, and waits for them as long as the request allows. A worker that an operator
    /// asked to stop claiming waits too: otherwise it would send its next request at once.
    async fn wait_for_jobs(
        &self,
        stop: &CancellationToken,
    ) -> Result<RemoteClaimed, ClaimError<A::Refusal>> {
        let (remote, claim) = (&*self.remote, &*self.claim);
        let (engine, worker) = (&remote.engine, claim.request.worker.listed());
        let mut timeout = engine.clock().sleep(claim.request.wait);
        let mut heartbeat = engine.clock().sleep(HEARTBEAT_EVERY);
        let claimed = self.claim_again().await?;
        let (repeated, jobs) = (claimed.is_final(), claimed.jobs);
        let (mut position, mut permit) = (None, None);
        let mut changes = remote.signals.changes();
        loop {
            changes.mark_unchanged();
            let signal = remote.signals.get(worker).await?;
            if repeated || signal == Some(Signal::Stop) {
                return Ok(RemoteClaimed { jobs, signal });
            }
            if claim.request.wait.is_zero() {
                let jobs = match signal {
                    Some(_) => jobs,
                    None => self.claim_in_task().await?.jobs,
                };
                return Ok(RemoteClaimed { jobs, signal });
            }
            match signal {
                Some(_) => position = None,
                None => position = position.or_else(|| Some(remote.lines.join(claim.interest()))),
            }
            if let Some(position) = position.as_ref().filter(|position| position.should_probe()) {
                let claimed = self.probe(position).await?;
                if claimed.is_final() {
                    let jobs = claimed.jobs;
                    return Ok(RemoteClaimed { jobs, signal });
                }
            }
            if permit.is_none() {
                permit = Some(self.admission.wait().map_err(ClaimError::Refused)?);
            }
            let turn = async {
                match &position {
                    Some(position) => position.turn(engine).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut timeout => return Ok(RemoteClaimed { jobs, signal }),
                () = stop.cancelled() => return Ok(RemoteClaimed { jobs, signal }),
                () = &mut heartbeat => {
                    // A worker that waits here is alive.
                    heartbeat = engine.clock().sleep(HEARTBEAT_EVERY);
                    remote.record_claim_heartbeat(claim).await?;
                }
                () = remote.signals.changed(&mut changes) => {}
                () = turn => {}
            }
        }
    }

    /// Makes a claim on behalf of the whole line, and reports the result to the line.
    async fn probe(&self, position: &Position) -> ClaimResult<A> {
        let engine = &self.remote.engine;
        let probe = position.begin_probe(engine);
        let claimed = self.claim_in_task().await?;
        if !claimed.jobs.is_empty() {
            position.probe_found_jobs();
        } else if !claimed.repeated {
            // A repeated claim says nothing about the queues, so it is not reported to the line.
            let rate_step = store_claims::rate_step(&self.remote, &self.claim);
            position.probe_found_nothing(probe, rate_step, engine.ids().bits());
        }
        Ok(claimed)
    }

    /// Returns the jobs that an earlier request with the same claim id got.
    async fn claim_again(&self) -> ClaimResult<A> {
        let Some(key) = &self.claim.repeat_key else {
            return Ok(ClaimedJobs::default());
        };
        let _lock = self.remote.claim_state.lock_claim_id(hash128(key)).await;
        let claimed = store_claims::claim_again(&self.remote, &self.claim).await?;
        self.check().await?;
        Ok(claimed)
    }

    /// Claims in a task of its own. If the client has disconnected meanwhile, the task gives the
    /// jobs back, but not those of a claim with an id: a client that repeats it may already have
    /// them.
    async fn claim_in_task(&self) -> ClaimResult<A> {
        let (answer, answered) = oneshot::channel();
        let pending = PendingClaim {
            remote: Arc::clone(&self.remote),
            claim: Arc::clone(&self.claim),
            admission: Arc::clone(&self.admission),
        };
        tokio::spawn(async move {
            let remote = &pending.remote;
            let key = pending.claim.repeat_key.as_deref().map(hash128);
            let _lock = match key {
                Some(key) => Some(remote.claim_state.lock_claim_id(key).await),
                None => None,
            };
            let claimed = pending.claim_while_admitted().await;
            if let Err(Ok(claimed)) = answer.send(claimed)
                && pending.claim.repeat_key.is_none()
            {
                remote.give_back(&claimed.jobs).await;
            }
        });
        answered.await.unwrap_or(Err(ClaimError::Interrupted))
    }

    /// Checks that the caller may claim, claims, and checks again. If the permission has ended
    /// meanwhile, the jobs of this claim are given back.
    async fn claim_while_admitted(&self) -> ClaimResult<A> {
        self.check().await?;
        let claimed = store_claims::claim_jobs(&self.remote, &self.claim).await?;
        if let Err(refused) = self.check().await {
            // Not those that another request with the same id may have handed out.
            self.remote.give_back(&claimed.new_jobs()).await;
            return Err(refused);
        }
        Ok(claimed)
    }

    async fn check(&self) -> Result<(), ClaimError<A::Refusal>> {
        self.admission.check().await.map_err(ClaimError::Refused)
    }
}
