//! Claims with ids: how they are prepared, sent and repeated, and how their jobs start.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::warn;
use windlass_core::fairness::{ClaimPlan, Pool, Taken};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Job, QueueName};
use windlass_store::{AttemptId, Claim, ClaimRetry, Kinds, Renewed, StoreError, WorkerLocation};

use super::{Fetcher, IdleQueue};

/// A claim, and the pool of slots that it is for.
#[derive(Clone)]
pub(crate) struct OpenClaim {
    pub(crate) claim: Claim,
    pool: Pool,
    /// The claim was sent before, and its result is unknown.
    unknown: bool,
}

impl Fetcher {
    /// Prepares a claim. Returns `None` if the plan allows no job.
    pub(crate) fn open_claim(
        &self,
        queue: &QueueName,
        pool: Pool,
        plan: ClaimPlan,
    ) -> Option<OpenClaim> {
        let retry = self.rules(queue)?.retry;
        if plan.fresh_max == 0 && plan.retries_max == 0 {
            return None;
        }
        Some(OpenClaim {
            claim: self.new_claim(queue, retry, plan),
            pool,
            unknown: false,
        })
    }

    fn new_claim(
        &self,
        queue: &QueueName,
        retry: Option<Arc<RetryPolicy>>,
        plan: ClaimPlan,
    ) -> Claim {
        Claim {
            id: self.engine.ids().claim_id(),
            queue: queue.clone(),
            kinds: Kinds::Only(self.config.kinds.clone()),
            jobs: None,
            except: self.engine.lingering().here(),
            plan,
            worker: self.config.worker.clone(),
            worker_location: WorkerLocation::Local,
            lease: self.config.lease,
            retry: ClaimRetry {
                worker: self.config.retry.clone(),
                kinds: self.config.kind_retry.clone(),
                queue: retry,
            },
        }
    }

    /// Sends a claim and starts the jobs. The claim stays open while its result is unknown, and is
    /// repeated with the same id.
    ///
    /// Reads the clock directly before it sends the claim, because the lease counts from that time.
    pub(crate) async fn claim(&self, open: OpenClaim) -> Result<usize, StoreError> {
        self.state().open = Some(open.clone());
        let store = self.engine.store();
        let changes = *self.changes.borrow();
        let claimed = store.claim(&open.claim, self.engine.now()).await;
        let claimed = claimed.inspect_err(|error| match error {
            _ if open.unknown => {}
            StoreError::Indeterminate(_) => self.count_lost(&open),
            _ => self.state().open = None, // the store has leased nothing
        })?;
        let count = claimed.jobs.len();
        self.count(&open, claimed.taken());
        if let Some(until) = claimed.idle_until {
            let (queue, idle) = (open.claim.queue.clone(), &mut self.state().idle);
            if idle.len() >= IDLE_MAX {
                idle.clear();
            }
            idle.insert(queue, IdleQueue { changes, until });
        }
        let jobs = self.renew_worn(claimed.jobs).await?;
        for job in jobs {
            self.start(job, &open);
        }
        self.state().open = None;
        Ok(count)
    }

    /// Counts the slots that retries got.
    fn count(&self, open: &OpenClaim, taken: Taken) {
        let (queue, plan) = (&open.claim.queue, &open.claim.plan);
        if let Some(rules) = self.rules(queue) {
            let credits = &mut self.state().credits;
            credits.count(queue, rules.guards, open.pool, plan, taken);
        }
    }

    /// Counts the slots that retries may have got from a claim whose answer is lost.
    fn count_lost(&self, open: &OpenClaim) {
        let (queue, plan) = (&open.claim.queue, &open.claim.plan);
        if let Some(rules) = self.rules(queue) {
            let credits = &mut self.state().credits;
            credits.count_lost(queue, rules.guards, open.pool, plan);
        }
    }

    /// Renews the leases of jobs that have already lost more than a third of their lease, before
    /// their handlers start. Drops jobs whose lease is lost. On an error the claim stays open, and
    /// the leases are checked again when the claim is repeated.
    async fn renew_worn(&self, jobs: Vec<Job>) -> Result<Vec<Job>, StoreError> {
        let lease = self.config.lease;
        let now = self.engine.now();
        let worn = jobs.iter().filter(|job| job.should_renew_lease(now));
        let worn: Vec<AttemptId> = worn.map(attempt_id).collect();
        if worn.is_empty() || self.stop.is_cancelled() {
            return Ok(jobs);
        }
        let renewed = self.engine.store().renew(&worn, lease, now).await?;
        let now = self.engine.now();
        let mut renewed: BTreeMap<AttemptId, Renewed> = worn.into_iter().zip(renewed).collect();
        let mut kept = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            match renewed.remove(&attempt_id(&job)) {
                None => kept.push(job),
                Some(Renewed::Until { until, .. }) if until > now => {
                    if job.renew(until).is_ok() {
                        kept.push(job);
                    }
                }
                Some(Renewed::Until { .. }) => {
                    let slow = "the store takes longer than a lease to answer; use a longer lease";
                    return Err(StoreError::Unavailable(slow.into()));
                }
                Some(Renewed::LeaseLost) => {
                    warn!(job.id = %job.id, attempt = job.attempt, "lost the lease before the handler started");
                }
            }
        }
        Ok(kept)
    }

    /// The open claim of an earlier pass, marked as a repetition.
    pub(super) fn unresolved_claim(&self) -> Option<OpenClaim> {
        let open = self.state().open.clone()?;
        Some(OpenClaim {
            unknown: true,
            ..open
        })
    }

    fn start(&self, job: Job, open: &OpenClaim) {
        let now = self.engine.now();
        self.engine.emit_claimed(&job, now);
        if self.stop.is_cancelled() {
            return self.dispatcher.give_back(job);
        }
        let started_at = job.started_at.unwrap_or(now);
        if let Some(worker) = self.engine.lingering().elsewhere(job.id) {
            warn!(job.id = %job.id, attempt = job.attempt, worker, "a handler of an earlier attempt still runs on another worker");
        }
        let queue = &open.claim.queue;
        let source = self.config.sources.of(queue);
        let source = source.expect("the fetcher only claims from its sources");
        let lane = self.rules(queue).and_then(|rules| rules.lane());
        let rated = lane.is_some_and(|lane| lane.rate.is_some());
        let slots = &self.slots;
        let slot = slots.take((queue, source), open.pool, job.lane(), rated, started_at);
        self.dispatcher.start(job, slot, now);
    }
}

fn attempt_id(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}
/// The most queues that are remembered as idle.
const IDLE_MAX: usize = 10_000;
