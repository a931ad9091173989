//! Claims jobs for a remote worker, and waits for some if it asks to.

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

use super::waiting_line::{Interest, Position};
use super::roster::HEARD_EVERY;
use super::signals::Signal;
use super::store_claims::Found;
use super::{Remote, RemoteError, RemoteWorker, store_claims};
use crate::worker_description::WorkerAbout;

/// What a remote worker asks for.
#[derive(Debug, Clone)]
pub struct RemoteClaim {
    /// Who claims.
    pub worker: RemoteWorker,
    /// From where; none means the queues of `jobs`, or the default queue.
    pub queues: Option<Vec<ClaimQueue>>,
    /// How it goes through them.
    pub order: QueueOrder,
    /// The kinds that the worker has handlers for; all but HTTP jobs if none are named.
    pub kinds: Option<BTreeSet<Kind>>,
    /// Only these jobs, if some are named.
    pub jobs: Option<BTreeSet<JobId>>,
    /// At most this many.
    pub limit: u32,
    /// How long each lease lasts.
    pub lease: Option<Duration>,
    /// Repeated with the same id by the same worker, a claim gets the same jobs. The caller keeps
    /// the ids of callers that do not know each other apart.
    pub claim_id: Option<String>,
    /// How long it may wait until there is something.
    pub wait: Duration,
    /// How many slots the worker has in all, if it says.
    pub slots: Option<u32>,
    /// How many of them hold a retry.
    pub retries_running: u32,
}

impl RemoteClaim {
    /// A claim of one job of the default queue, with every other setting at its default.
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

/// What a claim got.
#[derive(Debug)]
pub struct RemoteClaimed {
    /// The jobs, each under a lease.
    pub jobs: Vec<Job>,
    /// What an operator wants of the worker.
    pub signal: Option<Signal>,
}

/// What the owner of this process knows of one who claims.
pub trait Admission: Send + Sync + 'static {
    /// Why one is refused.
    type Refusal: Send + 'static;
    /// Held while a claim waits.
    type Permit: Send;

    /// Whether it may still claim: its key may be revoked or expire while it waits.
    fn check(&self) -> impl Future<Output = Result<(), Self::Refusal>> + Send;

    /// Whether it may wait.
    fn wait(&self) -> Result<Self::Permit, Self::Refusal>;
}

/// Why a claim got nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError<R> {
    /// As for everything that remote workers ask for.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The caller may not claim, or may not wait.
    #[error("the caller was refused")]
    Refused(R),
    /// The process ended, or a bug ended the claim. What it had claimed is released when its leases
    /// expire.
    #[error("the claim was interrupted")]
    Interrupted,
}

impl<R> From<StoreError> for ClaimError<R> {
    fn from(error: StoreError) -> Self {
        ClaimError::Remote(error.into())
    }
}

/// A claim, checked.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) claim: RemoteClaim,
    /// The queues that it names, or those of the jobs that it names.
    pub(super) queues: Vec<ClaimQueue>,
    pub(super) lease: Duration,
    /// What the id of the claim and the name of the worker make together: no other claim is
    /// repeated by it.
    named: Option<String>,
}

impl Wanted {
    async fn new(remote: &Remote, claim: RemoteClaim) -> Result<Self, RemoteError> {
        let lease = remote.lease(claim.lease)?;
        let queues = match (&claim.queues, &claim.jobs) {
            (Some(queues), _) => queues.clone(),
            (None, Some(jobs)) => queues_of(remote, jobs).await?,
            (None, None) => vec![ClaimQueue::plain(QueueName::default())],
        };
        let name = claim.worker.name();
        let named = claim.claim_id.as_ref().map(|id| format!("{name}\n{id}"));
        Ok(Wanted {
            claim,
            queues,
            lease,
            named,
        })
    }

    /// A worker that takes all it finds knows nothing of reserved kinds, whose jobs may hold
    /// secrets. One that does names them.
    pub(super) fn kinds(&self, reserved: &BTreeSet<Kind>) -> Kinds {
        match &self.claim.kinds {
            Some(kinds) => Kinds::Only(kinds.clone()),
            None => Kinds::AllBut(reserved.clone()),
        }
    }

    fn interest(&self) -> Interest {
        let claim = &self.claim;
        Interest {
            queues: self.queues.iter().map(|queue| queue.name.clone()).collect(),
            kinds: claim.kinds.clone(),
            ids: claim.jobs.clone(),
            slots: claim.slots,
            retries_running: claim.retries_running,
        }
    }

    /// The store's name for the n-th step of the claim in a queue.
    pub(super) fn claim_id(&self, remote: &Remote, queue: &QueueName, nth: u32) -> u128 {
        match &self.named {
            None => remote.engine.ids().claim_id(),
            Some(named) => digest(&format!("{named}\n{queue}\n{nth}")),
        }
    }
}

/// The queues of these jobs.
async fn queues_of(remote: &Remote, ids: &BTreeSet<JobId>) -> Result<Vec<ClaimQueue>, StoreError> {
    let ids: Vec<JobId> = ids.iter().copied().collect();
    let jobs = remote.jobs_of(&ids).await?.into_iter().flatten();
    let names: BTreeSet<QueueName> = jobs.map(|job| job.queue).collect();
    Ok(names.into_iter().map(ClaimQueue::plain).collect())
}

fn digest(text: &str) -> u128 {
    let bytes = Sha256::digest(text.as_bytes());
    bytes
        .iter()
        .take(16)
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

impl Remote {
    /// Claims jobs for a worker, and waits until there are some if the claim asks to.
    ///
    /// The claim itself runs to its end in a task of its own: if the future is dropped meanwhile,
    /// the jobs are given back at once, unless the claim has an id. Waiting ends when `stop` is
    /// cancelled.
    pub async fn claim<A: Admission>(
        self: &Arc<Self>,
        claim: RemoteClaim,
        admission: A,
        stop: &CancellationToken,
    ) -> Result<RemoteClaimed, ClaimError<A::Refusal>> {
        let wanted = Wanted::new(self, claim).await?;
        self.hear_claim(&wanted).await?;
        let claiming = Claiming {
            remote: Arc::clone(self),
            wanted: Arc::new(wanted),
            admission: Arc::new(admission),
        };
        claiming.wait_for_jobs(stop).await
    }

    /// Takes the heartbeat of the worker.
    async fn hear_claim(&self, wanted: &Wanted) -> Result<(), RemoteError> {
        let about = || WorkerAbout {
            patterns: Vec::new(),
            queues: Some(
                wanted
                    .queues
                    .iter()
                    .map(|queue| queue.name.clone())
                    .collect(),
            ),
            kinds: wanted.claim.kinds.clone().map(Vec::from_iter),
            slots: wanted.claim.slots,
            version: None,
        };
        let worker = wanted.claim.worker.listed();
        Ok(self.roster.hear(worker, about).await?)
    }

    /// Gives back jobs that were claimed and not handed out.
    pub(super) async fn give_back(&self, jobs: &[Job]) {
        let released = |job| self.end_of(job, Report::Released { started: false });
        let ends = jobs.iter().map(released).collect();
        if let Err(error) = self.end(ends).await {
            warn!(%error, jobs = jobs.len(), "giving back claimed jobs failed; their leases expire");
        }
    }
}

/// A claim on its way.
struct Claiming<A> {
    remote: Arc<Remote>,
    wanted: Arc<Wanted>,
    admission: Arc<A>,
}

type Got<A> = Result<Found, ClaimError<<A as Admission>::Refusal>>;

impl<A: Admission> Claiming<A> {
    /// Claims, and waits until there is something to claim, for as long as the claim may. A worker
    /// that is to be quiet waits too: it would only ask again.
    async fn wait_for_jobs(
        &self,
        stop: &CancellationToken,
    ) -> Result<RemoteClaimed, ClaimError<A::Refusal>> {
        let (remote, wanted) = (&*self.remote, &*self.wanted);
        let (engine, worker) = (&remote.engine, wanted.claim.worker.listed());
        let mut over = engine.clock().sleep(wanted.claim.wait);
        let mut heartbeat = engine.clock().sleep(HEARD_EVERY);
        let found = self.claimed_before().await?;
        let (repeated, jobs) = (found.is_final(), found.jobs);
        let (mut position, mut permit) = (None, None);
        let mut changes = remote.signals.changes();
        loop {
            changes.mark_unchanged();
            let signal = remote.signals.get(worker).await?;
            if repeated || signal == Some(Signal::Stop) {
                return Ok(RemoteClaimed { jobs, signal });
            }
            if wanted.claim.wait.is_zero() {
                let jobs = match signal {
                    Some(_) => jobs,
                    None => self.claim_safely().await?.jobs,
                };
                return Ok(RemoteClaimed { jobs, signal });
            }
            match signal {
                Some(_) => position = None,
                None => position = position.or_else(|| Some(remote.lines.join(wanted.interest()))),
            }
            if let Some(position) = position.as_ref().filter(|position| position.looks_now()) {
                let found = self.look(position).await?;
                if found.is_final() {
                    let jobs = found.jobs;
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
                () = &mut over => return Ok(RemoteClaimed { jobs, signal }),
                () = stop.cancelled() => return Ok(RemoteClaimed { jobs, signal }),
                () = &mut heartbeat => {
                    // A worker that waits here is alive.
                    heartbeat = engine.clock().sleep(HEARD_EVERY);
                    remote.hear_claim(wanted).await?;
                }
                () = remote.signals.changed(&mut changes) => {}
                () = turn => {}
            }
        }
    }

    /// Claims on behalf of a line, and reports to it what the claim found.
    async fn look(&self, position: &Position) -> Got<A> {
        let engine = &self.remote.engine;
        let look = position.begin(engine);
        let found = self.claim_safely().await?;
        if !found.jobs.is_empty() {
            position.found();
        } else if !found.repeated {
            // A repeated claim says nothing about the queues: others in the line look for
            // themselves.
            let rate_step = store_claims::rate_step(&self.remote, &self.wanted);
            position.found_nothing(look, rate_step, engine.ids().bits());
        }
        Ok(found)
    }

    /// The jobs of a claim that is repeated with its id.
    async fn claimed_before(&self) -> Got<A> {
        let Some(named) = &self.wanted.named else {
            return Ok(Found::default());
        };
        let _turn = self.remote.claims.turn(digest(named)).await;
        let found = store_claims::take_again(&self.remote, &self.wanted).await?;
        self.check().await?;
        Ok(found)
    }

    /// Claims in a task of its own: if the client has gone meanwhile, the jobs are given back at
    /// once. Those of a claim with an id are not: a client that repeats it may hold them already.
    async fn claim_safely(&self) -> Got<A> {
        let (answer, answered) = oneshot::channel();
        let claiming = Claiming {
            remote: Arc::clone(&self.remote),
            wanted: Arc::clone(&self.wanted),
            admission: Arc::clone(&self.admission),
        };
        tokio::spawn(async move {
            let remote = &claiming.remote;
            let turn = claiming.wanted.named.as_deref().map(digest);
            let _turn = match turn {
                Some(name) => Some(remote.claims.turn(name).await),
                None => None,
            };
            let claimed = claiming.claim_while_admitted().await;
            if let Err(Ok(found)) = answer.send(claimed)
                && claiming.wanted.named.is_none()
            {
                remote.give_back(&found.jobs).await;
            }
        });
        answered.await.unwrap_or(Err(ClaimError::Interrupted))
    }

    /// Claims for one who may claim now. If that ends meanwhile, the jobs of this claim are given
    /// back.
    async fn claim_while_admitted(&self) -> Got<A> {
        self.check().await?;
        let begun_at = self.remote.engine.now();
        let found = store_claims::take(&self.remote, &self.wanted).await?;
        if let Err(refused) = self.check().await {
            // An earlier request with the same id may have handed out what was claimed before this
            // one began.
            let is_new = |job: &Job| job.started_at.is_some_and(|at| at >= begun_at);
            let new: Vec<Job> = found.jobs.into_iter().filter(is_new).collect();
            self.remote.give_back(&new).await;
            return Err(refused);
        }
        Ok(found)
    }

    async fn check(&self) -> Result<(), ClaimError<A::Refusal>> {
        self.admission.check().await.map_err(ClaimError::Refused)
    }
}
