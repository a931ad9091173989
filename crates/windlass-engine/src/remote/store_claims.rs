//! A claim of a remote worker in steps: each takes some jobs of one queue, by the same guards that
//! the engine's own fetcher keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use windlass_core::fairness::{
    ClaimPlan, ClaimQueue, Credit, Guards, Pool, QueueOrder, Round, Slots,
};
use windlass_core::{Job, QueueName};
use windlass_store::{Claim, ClaimRetry, Renewed, WorkerPlace};

use super::claim::Wanted;
use super::{Remote, RemoteError};
use crate::event::JobRef;
use crate::queue_settings::SetRules;

/// One step takes at most this many jobs: each may have a payload of the largest size.
const STEP_MAX: u32 = 64;
/// A claim ends with the step that brings its payloads to this size; what is left waits for the
/// next one.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// Takes as many jobs as the claim wants. Once there are some, they are returned even if a later
/// step fails: they are leased.
pub(super) async fn take(remote: &Remote, wanted: &Wanted) -> Result<Found, RemoteError> {
    let mut steps = Steps::new(remote, wanted);
    let taken = match wanted.claim.order {
        QueueOrder::Strict => steps.take_strict().await,
        QueueOrder::Weighted => steps.take_weighted().await,
    };
    match taken {
        Err(error) if steps.jobs.is_empty() => return Err(error),
        Err(error) => warn!(%error, jobs = steps.jobs.len(), "a claim ended early"),
        Ok(()) => {}
    }
    let now = remote.engine.now();
    let (worn, mut jobs): (Vec<Job>, Vec<Job>) = steps
        .jobs
        .into_iter()
        .partition(|job| job.has_worn_lease(now));
    jobs.extend(renewed(remote, wanted, worn).await);
    let repeated = steps.repeated;
    Ok(Found { jobs, repeated })
}

/// Those of the jobs whose lease could be renewed. The others are given back.
async fn renewed(remote: &Remote, wanted: &Wanted, worn: Vec<Job>) -> Vec<Job> {
    if worn.is_empty() {
        return worn;
    }
    let now = remote.engine.now();
    let answers = remote.prolong(worn.iter(), wanted.lease, now).await;
    let answers = answers.unwrap_or_else(|error| {
        warn!(%error, "renewing leases before handing them out failed");
        BTreeMap::new()
    });
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    for mut job in worn {
        match answers.get(&job.id) {
            Some(Renewed::Until { until, .. }) if job.renew(*until).is_ok() => kept.push(job),
            _ => lost.push(job),
        }
    }
    remote.give_back(&lost).await;
    kept
}

/// What the same claim took before, as far as it still runs: each step is known to the store by its
/// name.
pub(super) async fn take_again(remote: &Remote, wanted: &Wanted) -> Result<Found, RemoteError> {
    let mut steps = Steps::new(remote, wanted);
    for queue in &wanted.queues {
        while steps.step_again(&queue.name).await? {}
    }
    Ok(Found {
        jobs: steps.jobs,
        repeated: steps.repeated,
    })
}

/// What a claim found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) jobs: Vec<Job>,
    /// The same claim was answered before: it gets no other jobs, however long it waits.
    pub(super) repeated: bool,
}

impl Found {
    /// Whether waiting would bring nothing more.
    pub(super) fn is_final(&self) -> bool {
        self.repeated || !self.jobs.is_empty()
    }
}

struct Steps<'a> {
    remote: &'a Remote,
    wanted: &'a Wanted,
    jobs: Vec<Job>,
    bytes: usize,
    /// How many steps each queue has had.
    asked: BTreeMap<QueueName, u32>,
    /// A step was known to the store.
    repeated: bool,
}

impl<'a> Steps<'a> {
    fn new(remote: &'a Remote, wanted: &'a Wanted) -> Self {
        Steps {
            remote,
            wanted,
            jobs: Vec::new(),
            bytes: 0,
            asked: BTreeMap::new(),
            repeated: false,
        }
    }

    /// The first queue is emptied before the second.
    async fn take_strict(&mut self) -> Result<(), RemoteError> {
        for queue in &self.wanted.queues {
            while self.room() > 0 && self.step(&queue.name, self.room()).await? {}
        }
        Ok(())
    }

    /// Each queue gets its share; what one leaves, others get.
    async fn take_weighted(&mut self) -> Result<(), RemoteError> {
        let (claims, queues) = (&self.remote.claims, &self.wanted.queues);
        let mut round = Round::default();
        while let Some((queue, share)) = claims.next_offer(&mut round, self.room(), queues) {
            if !self.step(&queue, share).await? {
                round.emptied(&queue);
            }
        }
        Ok(())
    }

    /// How many jobs the next step may take.
    fn room(&self) -> u32 {
        let taken = u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
        let room = self.wanted.claim.limit.saturating_sub(taken);
        match self.bytes < BYTES_MAX {
            true => room.min(STEP_MAX),
            false => 0,
        }
    }

    /// Takes up to `free` jobs of a queue; returns whether it got that many, so that there may be
    /// more.
    async fn step(&mut self, queue: &QueueName, free: u32) -> Result<bool, RemoteError> {
        let claims = &self.remote.claims;
        let rules = fresh_rules(self.remote, queue).await?;
        let plan = claims.plan(queue, rules.guards, self.slots(free));
        let mut claim = self.next_claim(queue, plan);
        claim.retry.queue.clone_from(&rules.retry);
        // Directly before the claim: its leases are counted from this instant.
        let began = self.remote.attempts.elapsed();
        let now = self.remote.engine.now();
        let mut claimed = self.remote.engine.store().claim(&claim, now).await?;
        self.repeated |= claimed.repeated;
        claims.count(queue, rules.guards, &plan, claimed.taken());
        self.remote.attempts.claimed(&claimed.jobs, now, began);
        for job in &claimed.jobs {
            self.remote.engine.announce_claim(job, now);
            let named = JobRef::of(job);
            self.remote.engine.announce_start(&named, now);
        }
        cut_leases(self.remote, &mut claimed.jobs).await;
        let full = claimed.jobs.len() >= usize::try_from(free).unwrap_or(usize::MAX);
        self.keep(claimed.jobs);
        Ok(full)
    }

    /// Asks for what the next step in a queue got before; answers whether there was such a step.
    async fn step_again(&mut self, queue: &QueueName) -> Result<bool, RemoteError> {
        let none = Slots::uncounted(0);
        let plan = Guards::default().plan(Pool::Single, none, Credit::default());
        let claim = self.next_claim(queue, plan);
        let now = self.remote.engine.now();
        let claimed = self.remote.engine.store().claim(&claim, now).await?;
        self.repeated |= claimed.repeated;
        self.keep(claimed.jobs);
        Ok(claimed.repeated)
    }

    /// The slots of the worker, some of which hold jobs of earlier steps.
    fn slots(&self, free: u32) -> Slots {
        let claim = &self.wanted.claim;
        let Some(total) = claim.slots else {
            return Slots::uncounted(free);
        };
        let retries = self.jobs.iter().filter(|job| job.failures > 0).count();
        let retries = u32::try_from(retries).unwrap_or(u32::MAX);
        Slots {
            total: total.max(free),
            free,
            retries_running: claim.retries_running.saturating_add(retries),
        }
    }

    fn next_claim(&mut self, queue: &QueueName, plan: ClaimPlan) -> Claim {
        let nth = self.asked.entry(queue.clone()).or_default();
        let id = self.wanted.claim_id(self.remote, queue, *nth);
        *nth += 1;
        Claim {
            id,
            queue: queue.clone(),
            kinds: self.wanted.kinds(&self.remote.config.reserved),
            jobs: self.wanted.claim.jobs.clone(),
            except: BTreeSet::new(),
            plan,
            worker: self.wanted.claim.worker.name().clone(),
            place: WorkerPlace::Elsewhere,
            lease: self.wanted.lease,
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

/// Lets no lease outlast the timeout of its attempt. Where that fails, a later renewal or report
/// finds the timeout over.
async fn cut_leases(remote: &Remote, jobs: &mut [Job]) {
    let now = remote.engine.now();
    let end = |job: &Job| job.lease().map(|lease| lease.until);
    let long = |job: &&mut Job| {
        job.lease_until_max()
            .is_some_and(|max| Some(max) < end(job))
    };
    let mut long: Vec<&mut Job> = jobs.iter_mut().filter(long).collect();
    let jobs = long.iter().map(|job| &**job);
    let renewed = remote.prolong(jobs, Duration::MAX, now).await;
    let renewed = renewed.unwrap_or_else(|error| {
        warn!(%error, "leases outlast their timeouts");
        BTreeMap::new()
    });
    for job in &mut long {
        if let Some(Renewed::Until { until, .. }) = renewed.get(&job.id) {
            let cut = job.renew(*until);
            cut.unwrap_or_else(|conflict| warn!(%conflict, "a job that was claimed does not run"));
        }
    }
}

/// The shortest time after which the rate of one of the claim's queues allows another start.
pub(super) fn rate_step(remote: &Remote, wanted: &Wanted) -> Option<Duration> {
    let now = remote.engine.now();
    let settings = |queue: &ClaimQueue| remote.claims.settings(&queue.name, now);
    let rates = wanted
        .queues
        .iter()
        .filter_map(|queue| settings(queue)?.rate);
    rates.map(|rate| rate.period / rate.count.max(1)).min()
}

async fn fresh_rules(remote: &Remote, queue: &QueueName) -> Result<Arc<SetRules>, RemoteError> {
    let now = remote.engine.now();
    if let Some(rules) = remote.claims.settings(queue, now) {
        return Ok(rules);
    }
    let rules = Arc::new(remote.engine.set_rules(queue).await?);
    remote.claims.keep_settings(queue, &rules, now);
    Ok(rules)
}
