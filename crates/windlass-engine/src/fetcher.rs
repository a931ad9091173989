//! Claims jobs, as many as there are free slots.
//!
//! Woken by the store (something was enqueued or settled), by a slot that becomes free, and by the time at which a job is
//! known to be due; a poll finds what nobody told. Invariant: nothing is claimed that cannot start at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use windlass_core::fairness::{ClaimPlan, Guards, Pool, Round, Slots as FreeSlots, Taker, Turns};
use windlass_core::retry::{RetryPolicy, WorkerRetry};
use windlass_core::{Invalid, Job, Kind, QueueName, Timestamp, WorkerName};
use windlass_store::{
    AttemptId, CLAIM_MAX, Claim, ClaimRetry, Kinds, Renewed, StoreError, WorkerPlace,
};

use crate::credits::Credits;
use crate::dispatcher::Dispatcher;
use crate::engine::Engine;
use crate::retry_wait::RetryWait;
use crate::slots::Slots;
use crate::watchdog::Pulse;

/// A queue that a worker takes jobs from.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// Its name.
    pub name: QueueName,
    /// At most so many of its jobs run at once in this worker.
    pub concurrency: u32,
    /// Its share of the worker's slots beside other queues, where there are fewer slots than the queues could use. 1.
    pub weight: u32,
    /// How fresh work and retries share its slots.
    pub guards: Guards,
    /// The policy of jobs that have none of their own and no kind with one.
    pub retry: Option<Arc<RetryPolicy>>,
}

impl QueueConfig {
    /// A queue with every other setting at its default.
    pub fn new(name: QueueName, concurrency: u32) -> Self {
        QueueConfig {
            name,
            concurrency,
            weight: 1,
            guards: Guards::default(),
            retry: None,
        }
    }
}

/// How the jobs of a queue are claimed: what may change while a worker runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueueRules {
    /// How fresh work and retries share its slots.
    pub(crate) guards: Guards,
    /// The policy of jobs that have none of their own and no kind with one.
    pub(crate) retry: Option<Arc<RetryPolicy>>,
}

/// What is claimed, and how.
#[derive(Debug, Clone)]
pub(crate) struct FetcherConfig {
    /// Who claims.
    pub(crate) worker: WorkerName,
    /// From where.
    pub(crate) queues: Vec<QueueConfig>,
    /// The kinds that have handlers.
    pub(crate) kinds: BTreeSet<Kind>,
    /// The worker's default policy and cap.
    pub(crate) retry: WorkerRetry,
    /// The policies of the kinds.
    pub(crate) kind_retry: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// How long a lease lasts. 30 s.
    pub(crate) lease: Duration,
    /// After so long it looks even if nobody told it to. 1 s.
    pub(crate) poll: Duration,
}

/// Claims the jobs of one worker.
pub(crate) struct Fetcher {
    engine: Arc<Engine>,
    config: FetcherConfig,
    slots: Arc<Slots>,
    dispatcher: Arc<Dispatcher>,
    stop: CancellationToken,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How each queue is claimed now.
    rules: Vec<QueueRules>,
    turns: Turns,
    credits: Credits,
    /// A claim of which it is not known what became of it: it is asked again before anything else.
    open: Option<Open>,
    /// The shortest time after which a queue with a rate may give more.
    rate_step: Option<Duration>,
}

/// A claim, and the slots it is for.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) claim: Claim,
    queue: usize,
    pool: Pool,
    /// It was asked before, and nobody knows what came of it.
    unknown: bool,
}

impl Fetcher {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: FetcherConfig,
        slots: Arc<Slots>,
        dispatcher: Arc<Dispatcher>,
        stop: CancellationToken,
    ) -> Self {
        let rules = |queue: &QueueConfig| QueueRules {
            guards: queue.guards,
            retry: queue.retry.clone(),
        };
        let state = State {
            rules: config.queues.iter().map(rules).collect(),
            ..State::default()
        };
        Fetcher {
            engine,
            config,
            slots,
            dispatcher,
            stop,
            state: Mutex::new(state),
        }
    }

    /// Takes one turn over the queues: claims what fits and starts it; how many jobs it claimed.
    ///
    /// Each slot that is free at the start is offered once. Slots that become free meanwhile wait for the next turn, so that
    /// a long backlog keeps no one from looking at the stop signal, the rates, the rules and the other queues.
    pub(crate) async fn pass(&self) -> Result<usize, StoreError> {
        let mut started = 0;
        if let Some(open) = self.open() {
            started += self.claim(open).await?;
        }
        started += self.fill().await?;
        for queue in 0..self.config.queues.len() {
            let slots = self.slots.of_lane(queue, self.engine.now());
            if slots.free > 0 {
                started += self.ask(queue, Pool::RetryLane, slots).await?;
            }
        }
        Ok(started)
    }

    /// Offers the free slots to all queues by their weights; what one queue leaves, others get.
    async fn fill(&self) -> Result<usize, StoreError> {
        let (mut started, mut offered) = (0, self.slots.free());
        let mut round = Round::new(self.config.queues.len());
        while let Some((queue, share)) = self.next_offer(&mut round, offered) {
            let slots = FreeSlots {
                free: share.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX)),
                ..self.slots.of(queue)
            };
            let got = self.ask(queue, Pool::Main, slots).await?;
            started += got;
            let got = u32::try_from(got).unwrap_or(u32::MAX);
            offered = offered.saturating_sub(got);
            if got < slots.free {
                round.emptied(queue);
            }
        }
        Ok(started)
    }

    fn next_offer(&self, round: &mut Round, offered: u32) -> Option<(usize, u32)> {
        let queues = self.config.queues.iter().enumerate();
        let taker = |(index, queue): (usize, &QueueConfig)| Taker {
            weight: queue.weight,
            most: self.slots.of(index).free,
        };
        let takers: Vec<Taker> = queues.map(taker).collect();
        let free = offered.min(self.slots.free());
        round.next(&mut self.state().turns, free, &takers)
    }

    fn guards(&self, queue: usize) -> Guards {
        let state = self.state();
        let rules = state.rules.get(queue);
        rules.map_or_else(Guards::default, |rules| rules.guards)
    }

    /// Claims by other rules from now on.
    pub(crate) fn set_rules(&self, queue: &QueueName, rules: QueueRules) -> Result<(), Invalid> {
        let mut queues = self.config.queues.iter();
        let place = queues.position(|of| of.name == *queue);
        let of = place.and_then(|place| self.config.queues.get(place));
        let of = of.ok_or_else(|| Invalid::new("queue", "must be one that the worker serves"))?;
        rules.guards.check(of.concurrency)?;
        let mut state = self.state();
        if let Some((place, kept)) =
            place.and_then(|place| Some((place, state.rules.get_mut(place)?)))
            && *kept != rules
        {
            self.slots.set_lane(place, rules.guards.retry_lane);
            *kept = rules;
        }
        Ok(())
    }

    /// Sends a claim, unless it could get nothing or the worker is stopping.
    async fn ask(&self, queue: usize, pool: Pool, slots: FreeSlots) -> Result<usize, StoreError> {
        let Some(of) = self.config.queues.get(queue) else {
            return Ok(0);
        };
        let guards = self.guards(queue);
        let plan = self.state().credits.plan(&of.name, guards, pool, slots);
        match self.open_claim(queue, pool, plan) {
            Some(open) if !self.stop.is_cancelled() => self.claim(open).await,
            _ => Ok(0),
        }
    }

    /// A claim that is not asked yet; none if it could get nothing.
    pub(crate) fn open_claim(&self, queue: usize, pool: Pool, plan: ClaimPlan) -> Option<Open> {
        let of = self.config.queues.get(queue)?;
        if plan.fresh_max == 0 && plan.retries_max == 0 {
            return None;
        }
        let retry = self.state().rules.get(queue)?.retry.clone();
        Some(Open {
            claim: self.claim_of(of, retry, plan),
            queue,
            pool,
            unknown: false,
        })
    }

    fn claim_of(
        &self,
        of: &QueueConfig,
        retry: Option<Arc<RetryPolicy>>,
        plan: ClaimPlan,
    ) -> Claim {
        Claim {
            id: self.engine.ids().claim_id(),
            queue: of.name.clone(),
            kinds: Kinds::Only(self.config.kinds.clone()),
            jobs: None,
            except: self.engine.lingering().here(),
            plan,
            worker: self.config.worker.clone(),
            place: WorkerPlace::Here,
            lease: self.config.lease,
            retry: ClaimRetry {
                worker: self.config.retry.clone(),
                kinds: self.config.kind_retry.clone(),
                queue: retry,
            },
        }
    }

    /// Claims and starts. While the result of a claim is unknown, it stays open and is repeated with the same id.
    ///
    /// The instant is read directly before the claim is sent: a lease counts from it.
    pub(crate) async fn claim(&self, open: Open) -> Result<usize, StoreError> {
        self.state().open = Some(open.clone());
        let store = self.engine.store();
        let claimed = store.claim(&open.claim, self.engine.now()).await;
        let claimed = claimed.inspect_err(|error| {
            if !open.unknown && !matches!(error, StoreError::Indeterminate(_)) {
                self.state().open = None; // nothing came of it
            }
        })?;
        let (count, taken) = (claimed.jobs.len(), claimed.taken());
        let jobs = self.renew_worn(claimed.jobs).await?;
        let (guards, plan) = (self.guards(open.queue), &open.claim.plan);
        let queue = &open.claim.queue;
        self.state()
            .credits
            .count(queue, guards, open.pool, plan, taken);
        for job in jobs {
            self.start(job, &open);
        }
        self.state().open = None;
        Ok(count)
    }

    /// Renews leases that have run for more than a third of their time before any handler starts, and drops the jobs whose
    /// lease is lost. On an error the claim stays open: the leases are looked at again when it is repeated.
    async fn renew_worn(&self, jobs: Vec<Job>) -> Result<Vec<Job>, StoreError> {
        let lease = self.config.lease;
        let now = self.engine.now();
        let worn = jobs.iter().filter(|job| job.has_worn_lease(now));
        let worn: Vec<AttemptId> = worn.map(of).collect();
        if worn.is_empty() || self.stop.is_cancelled() {
            return Ok(jobs);
        }
        let renewed = self.engine.store().renew(&worn, lease, now).await?;
        let now = self.engine.now();
        let mut renewed: BTreeMap<AttemptId, Renewed> = worn.into_iter().zip(renewed).collect();
        let mut kept = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            match renewed.remove(&of(&job)) {
                None => kept.push(job),
                Some(Renewed::Until { until, .. }) if until > now => {
                    if job.renew(until).is_ok() {
                        kept.push(job);
                    }
                }
                Some(Renewed::Until { .. }) => {
                    let slow = "the store takes longer than a lease to answer";
                    return Err(StoreError::Unavailable(slow.into()));
                }
                Some(Renewed::LeaseLost) => {
                    warn!(job.id = %job.id, attempt = job.attempt, "lost a lease before its handler started");
                }
            }
        }
        Ok(kept)
    }

    /// The claim of which it is not known what became of it.
    fn open(&self) -> Option<Open> {
        let open = self.state().open.clone()?;
        Some(Open {
            unknown: true,
            ..open
        })
    }

    fn start(&self, job: Job, open: &Open) {
        let now = self.engine.now();
        self.engine.announce_claim(&job, now);
        if self.stop.is_cancelled() {
            return self.dispatcher.give_back(job);
        }
        let started_at = job.started_at.unwrap_or(now);
        if let Some(worker) = self.engine.lingering().elsewhere(job.id) {
            warn!(job.id = %job.id, attempt = job.attempt, worker, "the handler of an earlier attempt still runs on another worker");
        }
        let slot = self
            .slots
            .take(open.queue, open.pool, job.lane(), started_at);
        self.dispatcher.start(job, slot, now);
    }

    /// Claims and starts until it is told to stop; then gives back what a claim of unknown fate may have got.
    pub(crate) async fn run(self: Arc<Self>, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut changes = self.engine.store().changes();
        let mut poll_at = clock.now();
        let mut retry = RetryWait::new();
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            let now = clock.now();
            pulse.busy(now);
            if now >= poll_at {
                self.look_at_rates().await;
                poll_at = now.saturating_add(self.jittered_poll());
            }
            let claimed = self.pass().await;
            pulse.rest();
            match claimed {
                Ok(0) => {
                    retry.reset();
                    self.wait(&mut changes, poll_at, now).await;
                }
                Ok(started) => {
                    retry.reset();
                    debug!(started, "claimed");
                }
                Err(error) => {
                    let wait = retry.next();
                    warn!(%error, ?wait, "claiming failed, trying again");
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = clock.sleep(wait) => {}
                    }
                }
            }
        }
        while let Some(open) = self.open() {
            pulse.busy(clock.now());
            let given_back = self.claim(open).await;
            pulse.rest();
            if let Err(error) = given_back {
                let wait = retry.next();
                warn!(%error, ?wait, "what the last claim got is not known, trying again");
                clock.sleep(wait).await;
            }
        }
    }

    /// Waits until there may be something to claim, and a slot for it. At `looked_at` there was nothing.
    async fn wait(
        &self,
        changes: &mut tokio::sync::watch::Receiver<u64>,
        poll_at: Timestamp,
        looked_at: Timestamp,
    ) {
        let clock = self.engine.clock();
        let due_changed = self.engine.due_changed();
        let rate_step = self.state().rate_step;
        let rate_at = rate_step.map(|step| clock.now().saturating_add(step));
        let times = [self.engine.next_due(looked_at), rate_at];
        let at = times.into_iter().flatten().fold(poll_at, Timestamp::min);
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.slots.freed().notified() => {}
            _ = changes.changed(), if self.slots.free() > 0 => {}
            () = due_changed => {}
            () = clock.sleep_until(at) => {}
        }
    }

    /// A queue or a pool with a rate gives more as time goes by, which nobody tells.
    async fn look_at_rates(&self) {
        let lanes = |state: &State| {
            let lanes = state.rules.iter().filter_map(|of| of.guards.retry_lane);
            lanes.filter_map(|lane| lane.rate).collect()
        };
        let mut rates: Vec<_> = lanes(&self.state());
        if let Ok(queues) = self.engine.store().queues().await {
            let ours = self.config.queues.iter();
            rates.extend(ours.filter_map(|queue| queues.get(&queue.name)?.rate));
        }
        let step = |rate: windlass_core::fairness::Rate| rate.period / rate.count.max(1);
        let shortest = rates.into_iter().map(step).min();
        self.state().rate_step = shortest.map(|step| step.max(RATE_STEP_MIN));
    }

    /// Polls of many nodes do not meet.
    fn jittered_poll(&self) -> Duration {
        let drawn = self.engine.ids().bits() >> 40;
        let part = drawn as f64 / (1_u64 << 24) as f64;
        self.config.poll.mul_f64(0.8 + 0.4 * part)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}

/// A rate is not followed in finer steps than this.
const RATE_STEP_MIN: Duration = Duration::from_millis(10);

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
