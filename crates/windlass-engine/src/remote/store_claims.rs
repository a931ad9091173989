//! Turns one claim of a remote worker into claims of the store.
//!
//! A store claim takes jobs of one queue, so a remote claim needs several of them: at least one per
//! queue, in strict order or by weight, until the limit is reached or the queues are empty. They
//! follow the same guards and retry credits as the engine's own fetcher.
//!
//! Each store claim has an id. For a remote claim with an id of its own, these ids are derived from
//! it: the n-th claim of a queue always has the same id. So a repeated remote claim asks the store
//! for the same ids and gets the same jobs. [`claim_again`] does this with a plan that takes no new
//! job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use windlass_core::fairness::{
    ClaimPlan, ClaimQueue, Credit, Guards, Pool, QueueOrder, Round, Slots,
};
use windlass_core::{Job, JobId, QueueName};
use windlass_store::{Claim, ClaimRetry, Claimed, Renewed, StoreError, WorkerLocation};

use super::claim::CheckedClaim;
use super::{Remote, RemoteError};
use crate::queue_settings::OperatorSettings;
use crate::saturate::{to_u32, to_usize};

/// The maximum number of jobs of one store claim. Each payload may have the maximum size.
const JOBS_PER_CLAIM_MAX: u32 = 64;
/// Once the payloads have this size, the claim takes no more jobs. The rest waits for the next
/// claim.
const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Claims up to as many jobs as the worker asked for. If a later store claim fails, the jobs of the
/// earlier ones are returned all the same, because they are already leased.
pub(super) async fn claim_jobs(
    remote: &Remote,
    claim: &CheckedClaim,
) -> Result<ClaimedJobs, RemoteError> {
    let mut claims = StoreClaims::new(remote, claim);
    let taken = match claim.request.order {
        QueueOrder::Strict => claims.take_strict().await,
        QueueOrder::Weighted => claims.take_weighted().await,
    };
    match taken {
        Err(error) if claims.jobs.is_empty() => return Err(error),
        Err(error) => {
            warn!(%error, jobs = claims.jobs.len(), "claim ended early; returning the jobs so far")
        }
        Ok(()) => {}
    }
    let now = remote.engine.now();
    let mut claimed = claims.into_claimed();
    let (worn, jobs): (Vec<Job>, Vec<Job>) = claimed
        .jobs
        .into_iter()
        .partition(|job| job.should_renew_lease(now));
    let (kept, lost) = renew_worn(remote, claim, worn).await;
    claimed.jobs = lost;
    remote.give_back(&claimed.new_jobs()).await;
    claimed.jobs = jobs;
    claimed.jobs.extend(kept);
    Ok(claimed)
}

/// Renews leases that are already partly used up. Returns the jobs, and those whose lease could not
/// be renewed.
async fn renew_worn(remote: &Remote, claim: &CheckedClaim, worn: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    if worn.is_empty() {
        return (worn, Vec::new());
    }
    let now = remote.engine.now();
    let answers = remote.renew_leases(worn.iter(), claim.lease, now).await;
    let answers = answers.unwrap_or_else(|error| {
        warn!(%error, "renewing worn leases failed; not handing out their jobs");
        BTreeMap::new()
    });
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    for mut job in worn {
        match answers.get(&job.id) {
            Some(Renewed::Until { until, .. }) if job.renew(*until).is_ok() => kept.push(job),
            _ => lost.push(job),
        }
    }
    (kept, lost)
}

/// Returns the jobs that the same claim got before and that still run. The store knows each of its
/// claims by id.
pub(super) async fn claim_again(
    remote: &Remote,
    claim: &CheckedClaim,
) -> Result<ClaimedJobs, RemoteError> {
    let mut claims = StoreClaims::new(remote, claim);
    for queue in &claim.queues {
        while claims.repeat_next(&queue.name).await? {}
    }
    Ok(claims.into_claimed())
}

/// The result of a claim.
#[derive(Debug, Default)]
pub(super) struct ClaimedJobs {
    pub(super) jobs: Vec<Job>,
    /// The same claim was answered before. It gets no other jobs, no matter how long it waits.
    pub(super) repeated: bool,
    /// The jobs of the earlier answer: the worker may already run them.
    handed_out: BTreeSet<JobId>,
}

impl ClaimedJobs {
    /// The jobs that no other answer has handed out, so that they can be given back.
    pub(super) fn new_jobs(&self) -> Vec<Job> {
        let is_new = |job: &&Job| !self.handed_out.contains(&job.id);
        self.jobs.iter().filter(is_new).cloned().collect()
    }

    /// Whether waiting longer would change nothing.
    pub(super) fn is_final(&self) -> bool {
        self.repeated || !self.jobs.is_empty()
    }
}

/// The store claims of one remote claim.
struct StoreClaims<'a> {
    remote: &'a Remote,
    claim: &'a CheckedClaim,
    jobs: Vec<Job>,
    bytes: usize,
    /// The number of store claims that each queue has had.
    claims_sent: BTreeMap<QueueName, u32>,
    /// The store knew the id of one of the claims.
    repeated: bool,
    /// The jobs that such a claim had got before, perhaps through another server.
    handed_out: BTreeSet<JobId>,
}

impl<'a> StoreClaims<'a> {
    fn new(remote: &'a Remote, claim: &'a CheckedClaim) -> Self {
        StoreClaims {
            remote,
            claim,
            jobs: Vec::new(),
            bytes: 0,
            claims_sent: BTreeMap::new(),
            repeated: false,
            handed_out: BTreeSet::new(),
        }
    }

    fn into_claimed(self) -> ClaimedJobs {
        ClaimedJobs {
            jobs: self.jobs,
            repeated: self.repeated,
            handed_out: self.handed_out,
        }
    }

    /// Empties the first queue before the second.
    async fn take_strict(&mut self) -> Result<(), RemoteError> {
        for queue in &self.claim.queues {
            while self.limit_left() > 0 && self.claim_from(&queue.name, self.limit_left()).await? {}
        }
        Ok(())
    }

    /// Gives each queue its share. What one queue does not use goes to the others.
    async fn take_weighted(&mut self) -> Result<(), RemoteError> {
        let (shared, queues) = (&self.remote.claim_state, &self.claim.queues);
        let mut round = Round::default();
        while let Some((queue, share)) = shared.next_offer(&mut round, self.limit_left(), queues) {
            if !self.claim_from(&queue, share).await? {
                round.emptied(&queue);
            }
        }
        Ok(())
    }

    /// The limit of the next store claim.
    fn limit_left(&self) -> u32 {
        let taken = to_u32(self.jobs.len());
        let limit_left = self.claim.request.limit.saturating_sub(taken);
        if self.bytes < PAYLOAD_BYTES_MAX {
            limit_left.min(JOBS_PER_CLAIM_MAX)
        } else {
            0
        }
    }

    /// Claims up to `free` jobs of a queue. Returns true if it got that many, so there may be more.
    async fn claim_from(&mut self, queue: &QueueName, free: u32) -> Result<bool, RemoteError> {
        let shared = &self.remote.claim_state;
        let settings = current_settings(self.remote, queue).await?;
        let plan = shared.plan(queue, settings.guards, self.slots(free));
        let mut claim = self.next_claim(queue, plan);
        claim.retry.queue.clone_from(&settings.retry);
        // Read the clock directly before the claim: the leases count from this time.
        let began = self.remote.attempt_times.elapsed();
        let now = self.remote.engine.now();
        let claimed = self.remote.engine.store().claim(&claim, now).await;
        let mut claimed = claimed.inspect_err(|error| {
            if let StoreError::Indeterminate(_) = error {
                shared.count_lost(queue, settings.guards, &plan);
            }
        })?;
        self.note_repeated(&claimed);
        shared.count(queue, settings.guards, &plan, claimed.taken());
        self.remote.attempt_times.claimed(&claimed.jobs, now, began);
        for job in &claimed.jobs {
            self.remote.engine.emit_claimed(job, now);
            self.remote.engine.emit_started(job, now);
        }
        shorten_leases(self.remote, &mut claimed.jobs).await;
        let full = claimed.jobs.len() >= to_usize(free);
        self.keep(claimed.jobs);
        Ok(full)
    }

    /// Asks for the jobs of the next store claim of a queue, if it was made before. Returns whether
    /// it was.
    async fn repeat_next(&mut self, queue: &QueueName) -> Result<bool, RemoteError> {
        let none = Slots::uncounted(0);
        let plan = Guards::default().plan(Pool::Single, none, Credit::default());
        let claim = self.next_claim(queue, plan);
        let now = self.remote.engine.now();
        let claimed = self.remote.engine.store().claim(&claim, now).await?;
        self.note_repeated(&claimed);
        self.keep(claimed.jobs);
        Ok(claimed.repeated)
    }

    fn note_repeated(&mut self, claimed: &Claimed) {
        if claimed.repeated {
            self.repeated = true;
            let ids = claimed.jobs.iter().map(|job| job.id);
            self.handed_out.extend(ids);
        }
    }

    /// The slots of the worker, some of which hold jobs of earlier store claims.
    fn slots(&self, free: u32) -> Slots {
        let claim = &self.claim.request;
        let Some(total) = claim.slots else {
            return Slots::uncounted(free);
        };
        let retries = self.jobs.iter().filter(|job| job.failures > 0).count();
        let retries = to_u32(retries);
        Slots {
            total: total.max(free),
            free,
            retries_running: claim.retries_running.saturating_add(retries),
        }
    }

    fn next_claim(&mut self, queue: &QueueName, plan: ClaimPlan) -> Claim {
        let nth = self.claims_sent.entry(queue.clone()).or_default();
        let id = self.claim.claim_id(self.remote, queue, *nth);
        *nth += 1;
        Claim {
            id,
            queue: queue.clone(),
            kinds: self.claim.kinds(&self.remote.config.reserved),
            jobs: self.claim.request.jobs.clone(),
            except: BTreeSet::new(),
            plan,
            worker: self.claim.request.worker.name().clone(),
            worker_location: WorkerLocation::Remote,
            lease: self.claim.lease,
            retry: ClaimRetry {
                worker: self.remote.config.retry.clone(),
                ..ClaimRetry::default()
            },
        }
    }

    fn keep(&mut self, jobs: Vec<Job>) {
        let sizes = jobs.iter().map(|job| job.payload.as_str().len());
        self.bytes += sizes.sum::<usize>();
        self.jobs.extend(jobs);
    }
}

/// Shortens leases that would outlast the timeout of their attempt. If this fails, a later renewal
/// or report notices the timeout.
async fn shorten_leases(remote: &Remote, jobs: &mut [Job]) {
    let now = remote.engine.now();
    let end = |job: &Job| job.lease().map(|lease| lease.until);
    let long = |job: &&mut Job| {
        job.lease_until_max()
            .is_some_and(|max| Some(max) < end(job))
    };
    let mut long: Vec<&mut Job> = jobs.iter_mut().filter(long).collect();
    let jobs = long.iter().map(|job| &**job);
    let renewed = remote.renew_leases(jobs, Duration::MAX, now).await;
    let renewed = renewed.unwrap_or_else(|error| {
        warn!(%error, "shortening leases to their timeouts failed");
        BTreeMap::new()
    });
    for job in &mut long {
        if let Some(Renewed::Until { until, .. }) = renewed.get(&job.id) {
            let cut = job.renew(*until);
            cut.unwrap_or_else(|conflict| warn!(%conflict, "a claimed job is not running"));
        }
    }
}

/// The shortest time after which a rate limit of the claim's queues allows another start.
pub(super) fn rate_step(remote: &Remote, claim: &CheckedClaim) -> Option<Duration> {
    let now = remote.engine.now();
    let settings = |queue: &ClaimQueue| remote.claim_state.settings(&queue.name, now);
    let rates = claim
        .queues
        .iter()
        .filter_map(|queue| settings(queue)?.rate);
    rates.map(|rate| rate.period / rate.count.max(1)).min()
}

async fn current_settings(
    remote: &Remote,
    queue: &QueueName,
) -> Result<Arc<OperatorSettings>, RemoteError> {
    let now = remote.engine.now();
    if let Some(settings) = remote.claim_state.settings(queue, now) {
        return Ok(settings);
    }
    let settings = Arc::new(remote.engine.operator_settings(queue).await?);
    remote.claim_state.keep_settings(queue, &settings, now);
    Ok(settings)
}
