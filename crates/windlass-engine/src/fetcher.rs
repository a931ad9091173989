//! Claims jobs for the free slots of one worker.
//!
//! The fetcher waits for a hint that there is something to claim: the store has changed, a slot has
//! become free, a known due time has come, or a rate limit allows another start. Hints can get
//! lost, so a poll every second finds the rest.
//!
//! One pass goes once over the queues and offers each free slot once. Weights and turns (from
//! `core`) decide which queue comes next and how many slots it is offered. A worker that discovers
//! its queues first asks the store which of them have due jobs, and claims only from those.
//!
//! A claim whose answer is lost is dangerous: the store may have leased jobs that no handler runs.
//! So every claim has an id and is kept as the open claim until its result is known. The fetcher
//! repeats the open claim with the same id, which returns the same jobs, before any other claim.
//!
//! Invariant: the fetcher claims only jobs that can start at once.

mod claim;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use windlass_core::fairness::{
    Pool, QueueDemand, Rate, RetryLane, Round, Slots as FreeSlots, Turns,
};
use windlass_core::retry::{RetryPolicy, WorkerRetry};
use windlass_core::{Kind, QueueName, Timestamp, WorkerName};
use windlass_store::{CLAIM_MAX, DueQueues, PAGE_MAX, StoreError};

pub(crate) use claim::OpenClaim;

use crate::credits::Credits;
use crate::discovery::Discovery;
use crate::dispatcher::Dispatcher;
use crate::engine::Engine;
use crate::failure_lines::FailureLines;
use crate::loop_backoff::LoopBackoff;
use crate::poison::lock;
use crate::saturate::{to_u32, to_usize};
use crate::slots::Slots;
use crate::sources::{NO_SLOTS, QueueRules, Source, Sources};
use crate::watchdog::Pulse;
use crate::worker_state::WorkerState;

/// What the fetcher claims, and how.
#[derive(Debug, Clone)]
pub(crate) struct FetcherConfig {
    /// The worker that claims.
    pub(crate) worker: WorkerName,
    /// The queues and patterns to claim from.
    pub(crate) sources: Sources,
    /// The kinds that have handlers.
    pub(crate) kinds: BTreeSet<Kind>,
    /// The worker's default retry policy and cap.
    pub(crate) retry: WorkerRetry,
    /// The retry policies of single kinds.
    pub(crate) kind_retry: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// The length of a lease. 30 s.
    pub(crate) lease: Duration,
    /// How often the fetcher looks for jobs without a hint. 1 s.
    pub(crate) poll: Duration,
}

/// Claims the jobs of one worker.
pub(crate) struct Fetcher {
    engine: Arc<Engine>,
    config: FetcherConfig,
    slots: Arc<Slots>,
    dispatcher: Arc<Dispatcher>,
    stop: CancellationToken,
    worker_state: watch::Receiver<WorkerState>,
    /// Counts the changes of the store.
    changes: watch::Receiver<u64>,
    state: Mutex<FetcherState>,
}

#[derive(Default)]
struct FetcherState {
    /// The rules of queues with operator settings. Other queues follow the worker's configuration.
    rules: BTreeMap<QueueName, QueueRules>,
    /// The retry lanes of discovered queues.
    lanes: BTreeMap<QueueName, RetryLane>,
    turns: Turns,
    credits: Credits,
    discovery: Discovery,
    /// A claim whose result is unknown. The fetcher repeats it before any other claim.
    open: Option<OpenClaim>,
    /// The queues in which nothing waits.
    idle: BTreeMap<QueueName, IdleQueue>,
    /// How often to check rate limits: the shortest time after which one of them allows another
    /// start.
    rate_step: Option<Duration>,
}

/// A queue in which nothing waited at the last claim.
struct IdleQueue {
    /// The number of changes of the store before that claim.
    changes: u64,
    until: Timestamp,
}

/// Why the fetcher continues after a wait.
#[derive(PartialEq, Eq)]
enum WakeReason {
    /// A slot is free, the worker stops, or the next due time has changed: look at everything
    /// again.
    Recheck,
    /// Jobs may have become due in any queue.
    JobsMayBeDue,
}

impl Fetcher {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: FetcherConfig,
        slots: Arc<Slots>,
        dispatcher: Arc<Dispatcher>,
        stop: CancellationToken,
        worker_state: watch::Receiver<WorkerState>,
    ) -> Self {
        let state = FetcherState {
            discovery: Discovery::new(config.sources.discovered.len()),
            ..FetcherState::default()
        };
        let fetcher = Fetcher {
            changes: engine.store().changes(),
            engine,
            config,
            slots,
            dispatcher,
            stop,
            worker_state,
            state: Mutex::new(state),
        };
        fetcher.count_lanes();
        fetcher
    }

    /// Goes once over the queues, claims jobs for the free slots and starts them. Returns the
    /// number of claimed jobs.
    ///
    /// Each slot that is free at the start is offered once. Slots that become free meanwhile wait
    /// for the next pass: even under a long backlog the loop checks the stop signal, the rates, the
    /// rules and the other queues after each pass.
    pub(crate) async fn pass(&self) -> Result<usize, StoreError> {
        let mut started = 0;
        if let Some(open) = self.unresolved_claim() {
            started += self.claim(open).await?;
        }
        for queue in self.slots.take_freed() {
            self.state().discovery.slot_freed(&queue);
        }
        let mut round = Round::default();
        started += self.fill(&mut round).await?;
        for (queue, slots) in self.free_lanes(&round) {
            started += self.claim_from(&queue, Pool::RetryLane, slots).await?;
        }
        Ok(started)
    }

    /// Offers the free slots to all queues by weight. Slots that one queue does not use go to
    /// others.
    async fn fill(&self, round: &mut Round) -> Result<usize, StoreError> {
        let (mut started, mut offered) = (0, self.slots.free());
        loop {
            if !round.has_offers() {
                self.discover(round, offered).await?;
            }
            let free = offered.min(self.slots.free());
            let Some((queue, share)) = self.next_offer(round, free) else {
                if free > 0 {
                    self.state().turns.start_over(); // no queue has more jobs
                }
                return Ok(started);
            };
            let slots = FreeSlots {
                free: share.min(to_u32(CLAIM_MAX)),
                ..self.slots_of(&queue)
            };
            let got = self.claim_from(&queue, Pool::Main, slots).await?;
            started += got;
            let got = to_u32(got);
            offered = offered.saturating_sub(got);
            if got < slots.free {
                round.emptied(&queue);
            }
            if let Some(Source::Pattern(pattern)) = self.config.sources.of(&queue) {
                let (now, state) = (self.engine.now(), &mut *self.state());
                let answer = (got, slots.free);
                state.discovery.queue_answered(pattern, &queue, answer, now);
            }
        }
    }

    /// Asks the store which discovered queues have due jobs, if there are free slots for them.
    async fn discover(&self, round: &Round, offered: u32) -> Result<(), StoreError> {
        for (pattern, discovered) in self.config.sources.discovered.iter().enumerate() {
            let source = Source::Pattern(pattern);
            let free = self
                .slots
                .free_of(source, discovered.concurrency)
                .min(offered);
            let free_slots = to_usize(free).min(PAGE_MAX);
            // Retry lanes have slots of their own: look even if no other slot is free.
            let free_slots = free_slots.max(usize::from(!self.state().lanes.is_empty()));
            while let Some(look) = self.next_look(pattern, free_slots, round) {
                let (now, limit) = (self.engine.now(), look.limit);
                let page = self.engine.store().due_queues(&look, now).await;
                let discovery = &mut self.state().discovery;
                let page = page.inspect_err(|_| discovery.look_failed(pattern))?;
                let serves = |queue: &QueueName| self.config.sources.of(queue) == Some(source);
                discovery.look_found(pattern, (page, limit), serves, now);
            }
        }
        Ok(())
    }

    fn next_look(&self, pattern: usize, free_slots: usize, round: &Round) -> Option<DueQueues> {
        if free_slots == 0 || !self.may_claim() {
            return None;
        }
        let (now, state) = (self.engine.now(), &mut *self.state());
        let (discovery, turn) = (&mut state.discovery, (round, &state.turns));
        let (after, limit) = discovery.next_look(pattern, free_slots, turn, now)?;
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
                let candidates = state.discovery.candidates(pattern, round, now);
                candidates.map(move |queue| (queue, Source::Pattern(pattern)))
            });
            for (queue, source) in queues.chain(discovered) {
                let set = state.rules.get(queue).map(|rules| rules.weight);
                let weight = set.unwrap_or_else(|| sources.own_rules(source).weight);
                let most = self.slots.of(queue, source, sources.slots(source)).free;
                takers.insert(queue.clone(), QueueDemand { weight, most });
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

    /// Jobs may have become due: the next pass looks for due queues again.
    pub(crate) fn jobs_may_be_due(&self) {
        self.state().discovery.jobs_may_be_due();
    }

    /// The next pass looks for due queues at once and considers all of them.
    pub(crate) fn look_for_due_queues(&self) {
        self.state().discovery.look_now();
    }

    /// Whether the worker may claim: it is neither stopping nor paused by an operator.
    pub(crate) fn may_claim(&self) -> bool {
        !self.stop.is_cancelled() && *self.worker_state.borrow() == WorkerState::Running
    }

    /// Claims from one queue, unless the plan allows no job or the worker may not claim.
    async fn claim_from(
        &self,
        queue: &QueueName,
        pool: Pool,
        slots: FreeSlots,
    ) -> Result<usize, StoreError> {
        let Some(rules) = self.rules(queue).filter(|_| !self.is_idle(queue)) else {
            return Ok(0);
        };
        let plan = self.state().credits.plan(queue, rules.guards, pool, slots);
        match self.open_claim(queue, pool, plan) {
            Some(open) if self.may_claim() => self.claim(open).await,
            _ => Ok(0),
        }
    }

    /// Whether a claim would find nothing: the last one left nothing, and the store has reported no
    /// change since.
    fn is_idle(&self, queue: &QueueName) -> bool {
        let mut state = self.state();
        let Some(idle) = state.idle.get(queue) else {
            return false;
        };
        if idle.changes == *self.changes.borrow() && self.engine.now() < idle.until {
            return true;
        }
        state.idle.remove(queue);
        false
    }

    /// Claims and starts jobs until the worker stops. Then resolves an open claim and gives its
    /// jobs back.
    pub(crate) async fn run(self: Arc<Self>, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut changes = self.engine.store().changes();
        let mut poll_at = clock.now();
        let mut backoff = LoopBackoff::new();
        let mut failures = FailureLines::default();
        while !self.stop.is_cancelled() {
            if !self.may_claim() && self.state().open.is_none() {
                self.wait_until_resumed().await;
                continue;
            }
            if changes.has_changed().unwrap_or(false) {
                self.jobs_may_be_due();
            }
            changes.mark_unchanged();
            let now = clock.now();
            pulse.busy(now);
            if now >= poll_at {
                self.jobs_may_be_due();
                self.refresh_rate_step().await;
                poll_at = now.saturating_add(self.jittered_poll());
            }
            let claimed = self.pass().await;
            pulse.rest();
            match claimed {
                Ok(0) => {
                    backoff.reset();
                    if self.wait(&mut changes, poll_at, now).await == WakeReason::JobsMayBeDue {
                        self.jobs_may_be_due();
                    }
                }
                Ok(started) => {
                    backoff.reset();
                    debug!(started, "claimed");
                }
                Err(error) => {
                    let wait = backoff.next();
                    if let Some(suppressed) = failures.admit(clock.elapsed()) {
                        warn!(%error, ?wait, suppressed, "claim failed; retrying");
                    }
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => {}
                        () = clock.sleep(wait) => {}
                    }
                }
            }
        }
        while let Some(open) = self.unresolved_claim() {
            pulse.busy(clock.now());
            let given_back = self.claim(open).await;
            pulse.rest();
            if let Err(error) = given_back {
                let wait = backoff.next();
                if let Some(suppressed) = failures.admit(clock.elapsed()) {
                    warn!(%error, ?wait, suppressed, "the result of the last claim is unknown; retrying");
                }
                clock.sleep(wait).await;
            }
        }
    }

    /// Waits until an operator resumes the worker, or it stops. Jobs may have become due meanwhile.
    async fn wait_until_resumed(&self) {
        let mut worker_state = self.worker_state.clone();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            // An error means that the worker was dropped; the fetcher ends with it.
            _ = worker_state.wait_for(|state| *state == WorkerState::Running) => {}
        }
        self.look_for_due_queues();
    }

    /// Waits until there may be something to claim and a slot for it. The last look was at
    /// `looked_at`.
    async fn wait(
        &self,
        changes: &mut tokio::sync::watch::Receiver<u64>,
        poll_at: Timestamp,
        looked_at: Timestamp,
    ) -> WakeReason {
        let clock = self.engine.clock();
        let due_changed = self.engine.due_changed();
        let look_at = self.next_look_at();
        let rate_step = self.state().rate_step;
        let rate_at = rate_step.map(|step| clock.now().saturating_add(step));
        let times = [self.engine.next_due(looked_at), rate_at, look_at];
        let at = times.into_iter().flatten().fold(poll_at, Timestamp::min);
        // While a look for due queues is already pending, it will also cover further changes.
        let has_queues = !self.config.sources.queues.is_empty();
        let listens =
            self.slots.free() > 0 && (has_queues || !self.state().discovery.has_pending_look());
        tokio::select! {
            biased;
            () = self.stop.cancelled() => WakeReason::Recheck,
            // Before the rechecks: on a busy worker a slot is freed all the time.
            _ = changes.changed(), if listens => WakeReason::JobsMayBeDue,
            () = clock.sleep_until(at) => WakeReason::JobsMayBeDue,
            () = self.slots.freed().notified() => WakeReason::Recheck,
            () = due_changed => WakeReason::Recheck,
        }
    }

    /// When to look for due queues again, if nothing happens before.
    fn next_look_at(&self) -> Option<Timestamp> {
        let discovered = &self.config.sources.discovered;
        let has_free = |pattern: usize| {
            let total = discovered
                .get(pattern)
                .map_or(0, |source| source.concurrency);
            let free = self.slots.free_of(Source::Pattern(pattern), total);
            free.min(self.slots.free()) > 0
        };
        let now = self.engine.now();
        self.state().discovery.next_at(has_free, now)
    }

    /// Updates the interval at which rate limits are checked. A rate limit allows more starts as
    /// time passes, and no event reports that. Discovered queues do not need this interval: a
    /// discovered queue rests for a while and is then tried again.
    async fn refresh_rate_step(&self) {
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

    /// The poll interval with jitter, so that many nodes do not poll at the same time.
    fn jittered_poll(&self) -> Duration {
        let drawn = self.engine.ids().bits() >> 40;
        let part = drawn as f64 / (1_u64 << 24) as f64;
        self.config.poll.mul_f64(0.8 + 0.4 * part)
    }

    fn state(&self) -> MutexGuard<'_, FetcherState> {
        lock(&self.state)
    }
}

/// The shortest interval at which a rate limit is checked.
const RATE_STEP_MIN: Duration = Duration::from_millis(10);

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
