//! Claims jobs, as many as there are free slots.
//!
//! Woken by the store (something was enqueued or settled), by a slot that becomes free, and by the
//! time at which a job is known to be due; a poll finds the rest. A worker that discovers its
//! queues first looks which of them have due jobs, and claims from those alone. Invariant: nothing
//! is claimed that cannot start at once.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use windlass_core::fairness::{
    ClaimPlan, Pool, Rate, RetryLane, Round, Slots as FreeSlots, Taker, Turns,
};
use windlass_core::retry::{RetryPolicy, WorkerRetry};
use windlass_core::{Job, Kind, QueueName, Timestamp, WorkerName};
use windlass_store::{
    AttemptId, CLAIM_MAX, Claim, ClaimRetry, DueQueues, Kinds, PAGE_MAX, Renewed, StoreError,
    WorkerPlace,
};

use crate::credits::Credits;
use crate::discovery::Discovery;
use crate::dispatcher::Dispatcher;
use crate::engine::Engine;
use crate::loop_backoff::RetryWait;
use crate::slots::Slots;
use crate::sources::{NO_SLOTS, QueueRules, Source, Sources};
use crate::watchdog::Pulse;

/// What is claimed, and how.
#[derive(Debug, Clone)]
pub(crate) struct FetcherConfig {
    /// Who claims.
    pub(crate) worker: WorkerName,
    /// From where.
    pub(crate) sources: Sources,
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
    /// How queues are claimed about which something is set; the others by what their source says.
    rules: BTreeMap<QueueName, QueueRules>,
    /// The pools for retries alone of discovered queues.
    lanes: BTreeMap<QueueName, RetryLane>,
    turns: Turns,
    credits: Credits,
    discovery: Discovery,
    /// A claim whose result is unknown: it is repeated before anything else.
    open: Option<Open>,
    /// The shortest time after which a queue with a rate may give more.
    rate_step: Option<Duration>,
}

/// A claim, and the slots it is for.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) claim: Claim,
    pool: Pool,
    /// It was sent before, and its result is unknown.
    unknown: bool,
}

/// Why the fetcher goes on.
#[derive(PartialEq, Eq)]
enum Woken {
    BySlot,
    ByNews,
}

impl Fetcher {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: FetcherConfig,
        slots: Arc<Slots>,
        dispatcher: Arc<Dispatcher>,
        stop: CancellationToken,
    ) -> Self {
        let state = State {
            discovery: Discovery::new(config.sources.discovered.len()),
            ..State::default()
        };
        let fetcher = Fetcher {
            engine,
            config,
            slots,
            dispatcher,
            stop,
            state: Mutex::new(state),
        };
        fetcher.count_lanes();
        fetcher
    }

    /// Takes one turn over the queues: claims what fits and starts it; how many jobs it claimed.
    ///
    /// Each slot that is free at the start is offered once. Slots that become free meanwhile wait
    /// for the next turn, so that a long backlog keeps no one from looking at the stop signal, the
    /// rates, the rules and the other queues.
    pub(crate) async fn pass(&self) -> Result<usize, StoreError> {
        let mut started = 0;
        if let Some(open) = self.open() {
            started += self.claim(open).await?;
        }
        for queue in self.slots.take_freed() {
            self.state().discovery.freed(&queue);
        }
        let mut round = Round::default();
        started += self.fill(&mut round).await?;
        for (queue, slots) in self.free_lanes(&round) {
            started += self.ask(&queue, Pool::RetryLane, slots).await?;
        }
        Ok(started)
    }

    /// Offers the free slots to all queues by their weights; what one queue leaves, others get.
    async fn fill(&self, round: &mut Round) -> Result<usize, StoreError> {
        let (mut started, mut offered) = (0, self.slots.free());
        loop {
            if !round.has_offers() {
                self.discover(round, offered).await?;
            }
            let free = offered.min(self.slots.free());
            let Some((queue, share)) = self.next_offer(round, free) else {
                if free > 0 {
                    self.state().turns.start_over(); // no queue wants more
                }
                return Ok(started);
            };
            let slots = FreeSlots {
                free: share.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX)),
                ..self.slots_of(&queue)
            };
            let got = self.ask(&queue, Pool::Main, slots).await?;
            started += got;
            let got = u32::try_from(got).unwrap_or(u32::MAX);
            offered = offered.saturating_sub(got);
            if got < slots.free {
                round.emptied(&queue);
            }
            if let Some(Source::Pattern(pattern)) = self.config.sources.of(&queue) {
                let (now, state) = (self.engine.now(), &mut *self.state());
                let gave = (got, slots.free);
                state.discovery.gave(pattern, &queue, gave, now);
            }
        }
    }

    /// Looks which queues have due jobs, where the worker discovers queues and has slots for them.
    async fn discover(&self, round: &Round, offered: u32) -> Result<(), StoreError> {
        for (pattern, of) in self.config.sources.discovered.iter().enumerate() {
            let source = Source::Pattern(pattern);
            let free = self.slots.free_of(source, of.concurrency).min(offered);
            let wanted = usize::try_from(free).unwrap_or(usize::MAX).min(PAGE_MAX);
            let wanted = wanted.max(usize::from(!self.state().lanes.is_empty()));
            while let Some(look) = self.next_look(pattern, wanted, round) {
                let (now, limit) = (self.engine.now(), look.limit);
                let page = self.engine.store().due_queues(&look, now).await;
                let discovery = &mut self.state().discovery;
                let page = page.inspect_err(|_| discovery.failed(pattern))?;
                let serves = |queue: &QueueName| self.config.sources.of(queue) == Some(source);
                discovery.found(pattern, (page, limit), serves, now);
            }
        }
        Ok(())
    }

    fn next_look(&self, pattern: usize, wanted: usize, round: &Round) -> Option<DueQueues> {
        if wanted == 0 || self.stop.is_cancelled() {
            return None;
        }
        let (now, state) = (self.engine.now(), &mut *self.state());
        let (discovery, turn) = (&mut state.discovery, (round, &state.turns));
        let (after, limit) = discovery.next_look(pattern, wanted, turn, now)?;
        Some(DueQueues {
            kinds: self.config.kinds.clone(),
            pattern: self.config.sources.discovered.get(pattern)?.pattern.clone(),
            after,
            limit,
        })
    }

    fn next_offer(&self, round: &mut Round, free: u32) -> Option<(QueueName, u32)> {
        if free == 0 {
            return None;
        }
        let (now, state) = (self.engine.now(), &mut *self.state());
        let sources = &self.config.sources;
        let queues = sources.queues.iter().enumerate();
        let queues = queues.map(|(index, queue)| (&queue.name, Source::Queue(index)));
        let mut takers = BTreeMap::new();
        if !round.has_offers() {
            let discovered = (0..sources.discovered.len()).flat_map(|pattern| {
                let to_ask = state.discovery.to_ask(pattern, round, now);
                to_ask.map(move |queue| (queue, Source::Pattern(pattern)))
            });
            for (queue, source) in queues.chain(discovered) {
                let set = state.rules.get(queue).map(|rules| rules.weight);
                let weight = set.unwrap_or_else(|| sources.own_rules(source).weight);
                let most = self.slots.of(queue, source, sources.slots(source)).free;
                takers.insert(queue.clone(), Taker { weight, most });
            }
        }
        round.next(&mut state.turns, free, || takers)
    }

    /// The slots of a queue.
    pub(crate) fn slots_of(&self, queue: &QueueName) -> FreeSlots {
        let sources = &self.config.sources;
        let source = sources.of(queue);
        source.map_or(NO_SLOTS, |source| {
            self.slots.of(queue, source, sources.slots(source))
        })
    }

    /// Lets the next pass look for due queues: jobs may have become due.
    pub(crate) fn news(&self) {
        self.state().discovery.news();
    }

    /// Lets the next pass look for due queues at once, and leave none of them out.
    pub(crate) fn look_at_all(&self) {
        self.state().discovery.forget_times();
    }

    /// Sends a claim, unless it could get nothing or the worker is stopping.
    async fn ask(
        &self,
        queue: &QueueName,
        pool: Pool,
        slots: FreeSlots,
    ) -> Result<usize, StoreError> {
        let Some(rules) = self.rules(queue) else {
            return Ok(0);
        };
        let plan = self.state().credits.plan(queue, rules.guards, pool, slots);
        match self.open_claim(queue, pool, plan) {
            Some(open) if !self.stop.is_cancelled() => self.claim(open).await,
            _ => Ok(0),
        }
    }

    /// A claim that is not sent yet; none if it could get nothing.
    pub(crate) fn open_claim(
        &self,
        queue: &QueueName,
        pool: Pool,
        plan: ClaimPlan,
    ) -> Option<Open> {
        let retry = self.rules(queue)?.retry;
        if plan.fresh_max == 0 && plan.retries_max == 0 {
            return None;
        }
        Some(Open {
            claim: self.claim_of(queue, retry, plan),
            pool,
            unknown: false,
        })
    }

    fn claim_of(
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
        let (queue, plan) = (&open.claim.queue, &open.claim.plan);
        if let Some(rules) = self.rules(queue) {
            let credits = &mut self.state().credits;
            credits.count(queue, rules.guards, open.pool, plan, taken);
        }
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
        let queue = &open.claim.queue;
        let source = self.config.sources.of(queue);
        let source = source.expect("only queues of its sources are claimed");
        let lane = self.rules(queue).and_then(|rules| rules.lane());
        let rated = lane.is_some_and(|lane| lane.rate.is_some());
        let slots = &self.slots;
        let slot = slots.take((queue, source), open.pool, job.lane(), rated, started_at);
        self.dispatcher.start(job, slot, now);
    }

    /// Claims and starts until it is told to stop; then gives back what a claim of unknown fate may have got.
    pub(crate) async fn run(self: Arc<Self>, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut changes = self.engine.store().changes();
        let mut poll_at = clock.now();
        let mut retry = RetryWait::new();
        while !self.stop.is_cancelled() {
            if changes.has_changed().unwrap_or(false) {
                self.news();
            }
            changes.mark_unchanged();
            let now = clock.now();
            pulse.busy(now);
            if now >= poll_at {
                self.news();
                self.look_at_rates().await;
                poll_at = now.saturating_add(self.jittered_poll());
            }
            let claimed = self.pass().await;
            pulse.rest();
            match claimed {
                Ok(0) => {
                    retry.reset();
                    if self.wait(&mut changes, poll_at, now).await == Woken::ByNews {
                        self.news();
                    }
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
    ) -> Woken {
        let clock = self.engine.clock();
        let due_changed = self.engine.due_changed();
        let look_at = self.next_look_at();
        let rate_step = self.state().rate_step;
        let rate_at = rate_step.map(|step| clock.now().saturating_add(step));
        let times = [self.engine.next_due(looked_at), rate_at, look_at];
        let at = times.into_iter().flatten().fold(poll_at, Timestamp::min);
        // While a look waits for its time, further changes are part of it.
        let has_queues = !self.config.sources.queues.is_empty();
        let listens = self.slots.free() > 0 && (has_queues || !self.state().discovery.has_news());
        tokio::select! {
            () = self.stop.cancelled() => Woken::BySlot,
            () = self.slots.freed().notified() => Woken::BySlot,
            _ = changes.changed(), if listens => Woken::ByNews,
            () = due_changed => Woken::BySlot,
            () = clock.sleep_until(at) => Woken::ByNews,
        }
    }

    /// When to look for due queues again, if nothing happens before.
    fn next_look_at(&self) -> Option<Timestamp> {
        let discovered = &self.config.sources.discovered;
        let has_free = |pattern: usize| {
            let total = discovered.get(pattern).map_or(0, |of| of.concurrency);
            let free = self.slots.free_of(Source::Pattern(pattern), total);
            free.min(self.slots.free()) > 0
        };
        let now = self.engine.now();
        self.state().discovery.next_at(has_free, now)
    }

    /// A queue or a pool with a rate gives more as time goes by, which no event reports. A
    /// discovered queue rests instead.
    async fn look_at_rates(&self) {
        let queues = &self.config.sources.queues;
        if queues.is_empty() {
            return;
        }
        let lanes = queues
            .iter()
            .filter_map(|queue| self.rules(&queue.name)?.lane());
        let mut rates: Vec<Rate> = lanes.filter_map(|lane| lane.rate).collect();
        if let Ok(limits) = self.engine.store().queues().await {
            rates.extend(
                queues
                    .iter()
                    .filter_map(|queue| limits.get(&queue.name)?.rate),
            );
        }
        let step = |rate: Rate| rate.period / rate.count.max(1);
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
