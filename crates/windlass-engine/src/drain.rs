//! A worker that is driven pass by pass, in virtual time: for tests that neither sleep nor wait.
//!
//! The passes are those of the loops, in a fixed order, so that a test sees what a running worker would do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::fairness::{ClaimPlan, Credit, Mix, Pool};
use windlass_core::{Job, JobId, QueueName, QueuePattern, Timestamp};
use windlass_store::{DueQueues, Filter, ListedState, PAGE_MAX, Page, QueueLimits, StoreError};

use crate::clock::{Clock as _, VirtualClock};
use crate::worker::Worker;

/// What a drain did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// How many attempts were started.
    pub attempts: usize,
}

/// Why a drain ended early.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// Jobs keep coming at one instant, so that time never passes.
    #[error(
        "started {attempts} attempts at {at} and more jobs are due; does a handler enqueue itself without a delay?"
    )]
    Spinning {
        /// The instant.
        at: Timestamp,
        /// How many attempts started at it.
        attempts: usize,
    },
}

/// How many attempts may start at one instant. The jobs that are ready at this point may start too.
const ATTEMPTS_AT_ONCE: usize = 10_000;

/// The attempts that started at one instant.
struct Tally {
    at: Timestamp,
    attempts: usize,
    most: usize,
}

impl Worker {
    /// Does everything that is due at this moment, until nothing more is: fires schedules, sweeps,
    /// claims, runs handlers, settles. Time passes while handlers sleep by the clock; occurrences
    /// that come due meanwhile wait for the next pass.
    pub async fn pass(&self, clock: &VirtualClock) -> Result<Drained, DrainError> {
        let mut drained = Drained::default();
        let mut tally = Tally::new(clock.now());
        self.rest(clock).await?;
        while self.scheduler.pass(self.engine.now()).await? > 0 {}
        loop {
            self.sweep().await?;
            let claimed = self.claim(&mut tally).await?;
            self.finish_running(clock).await?;
            if claimed == 0 {
                return Ok(drained);
            }
            drained.attempts += claimed;
        }
    }

    /// Lets time pass from one due time to the next until none of this worker's jobs waits or runs.
    ///
    /// Schedules fire on the way, but time does not go on for them alone: they would never end.
    pub async fn drain(&self, clock: &VirtualClock) -> Result<Drained, DrainError> {
        self.drain_until(clock, Timestamp::MAX, Until::NothingWaits)
            .await
    }

    /// Lets time pass up to `until`, doing everything that is due on the way. Handlers that sleep
    /// for longer are still running at the end.
    pub async fn run_through(
        &self,
        clock: &VirtualClock,
        until: Timestamp,
    ) -> Result<Drained, DrainError> {
        let drained = self.drain_until(clock, until, Until::Then).await?;
        clock.advance_to(until);
        Ok(drained)
    }

    /// Goes from one instant at which something happens to the next: a handler wakes up or times
    /// out, a job or a lease is due, an occurrence is.
    async fn drain_until(
        &self,
        clock: &VirtualClock,
        end: Timestamp,
        until: Until,
    ) -> Result<Drained, DrainError> {
        let mut drained = Drained::default();
        let mut is_first = true;
        loop {
            self.rest(clock).await?;
            // Before schedules fire, or one whose job sleeps as long as its period would never end.
            if until == Until::NothingWaits && !is_first && !self.registry.has_running() {
                self.sweep().await?;
                let claimed = self.claim(&mut Tally::new(clock.now())).await?;
                if claimed == 0 && self.next_due(clock.now()).await?.is_none() {
                    return Ok(drained);
                }
                drained.attempts += claimed;
                self.rest(clock).await?;
            }
            is_first = false;
            drained.attempts += self.turns(clock).await?;
            let woken = self.next_wake(clock);
            let mut next = [self.next_due(clock.now()).await?, woken]
                .into_iter()
                .flatten()
                .min();
            if until == Until::Then || next.is_some() {
                let fires = self.scheduler.next_at().await?;
                next = [next, fires].into_iter().flatten().min();
            }
            match next.filter(|next| *next <= end) {
                Some(next) => clock.advance_to(next),
                // Only somebody else can tell it to stop.
                None if until == Until::NothingWaits && self.registry.has_running() => {
                    self.registry.gone().notified().await;
                }
                None => return Ok(drained),
            }
        }
    }

    /// Does everything that is due at this instant, until every handler sleeps. How many attempts
    /// started.
    async fn turns(&self, clock: &VirtualClock) -> Result<usize, DrainError> {
        let mut tally = Tally::new(clock.now());
        loop {
            let fired = self.scheduler.pass(self.engine.now()).await?;
            self.sweep().await?;
            let claimed = self.claim(&mut tally).await?;
            if claimed == 0 && fired == 0 {
                return Ok(tally.attempts);
            }
            self.rest(clock).await?;
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let now = self.engine.now();
        self.sweeper.vouch(now).await?;
        self.sweeper.pass(now).await?;
        Ok(())
    }

    /// Claims what fits and starts it; how many.
    async fn claim(&self, tally: &mut Tally) -> Result<usize, DrainError> {
        self.fetcher.look_at_all();
        let claimed = self.fetcher.pass().await?;
        let now = self.engine.now();
        if tally.at != now {
            *tally = Tally::new(now);
        }
        tally.attempts += claimed;
        if tally.attempts <= tally.most {
            return Ok(claimed);
        }
        if tally.most > ATTEMPTS_AT_ONCE {
            let (at, attempts) = (now, tally.attempts);
            return Err(DrainError::Spinning { at, attempts });
        }
        let counts = self.engine.store().counts(now).await?;
        let ready: u64 = counts.values().map(|queue| queue.ready).sum();
        let ready = usize::try_from(ready).unwrap_or(usize::MAX);
        tally.most = tally
            .attempts
            .saturating_add(ready)
            .max(ATTEMPTS_AT_ONCE + 1);
        Ok(claimed)
    }

    /// Runs one attempt of one job that is due, and nothing else. Whether it could be claimed.
    pub async fn run_one(&self, clock: &VirtualClock, id: JobId) -> Result<bool, StoreError> {
        let plan = ClaimPlan {
            limit: 1,
            fresh_max: 1,
            retries_max: 1,
            mix: Mix::Strict,
            max_inflight_retries: None,
        };
        let mut claimed = false;
        let found = self.engine.store().get(&[id]).await?;
        for job in found.into_iter().flatten() {
            let open = self.fetcher.open_claim(&job.queue, Pool::Main, plan);
            if let Some(mut open) = open {
                open.claim.jobs = Some(BTreeSet::from([id]));
                claimed = self.fetcher.claim(open).await? > 0;
            }
        }
        self.finish_running(clock).await?;
        Ok(claimed)
    }

    /// Claims what fits and forgets it, as a process that is killed before a handler starts. How many.
    pub async fn crash_after_claim(&self) -> Result<usize, StoreError> {
        let now = self.engine.now();
        let mut claimed = 0;
        for queue in self.due_queues().await? {
            let Some(rules) = self.fetcher.rules(&queue) else {
                continue;
            };
            let mut pools = vec![(Pool::Main, self.fetcher.slots_of(&queue))];
            let lane = rules.lane();
            let lane = lane.map(|lane| self.slots.of_lane(&queue, lane, now));
            pools.extend(lane.map(|slots| (Pool::RetryLane, slots)));
            for (pool, slots) in pools {
                let plan = rules.guards.plan(pool, slots, Credit::default());
                if let Some(open) = self.fetcher.open_claim(&queue, pool, plan) {
                    claimed += self
                        .engine
                        .store()
                        .claim(&open.claim, now)
                        .await?
                        .jobs
                        .len();
                }
            }
        }
        Ok(claimed)
    }

    /// The queues of this worker that have due jobs of its kinds.
    async fn due_queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let mut look = DueQueues {
            kinds: self.config().handlers.kinds().cloned().collect(),
            pattern: QueuePattern::all(),
            after: None,
            limit: PAGE_MAX,
        };
        let mut queues = Vec::new();
        loop {
            let page = self.engine.store().due_queues(&look, self.engine.now());
            let page = page.await?;
            look.after = page.last().cloned();
            let is_last = page.len() < PAGE_MAX;
            queues.extend(page.into_iter().filter(|queue| self.serves(queue)));
            if is_last {
                return Ok(queues);
            }
        }
    }

    fn serves(&self, queue: &QueueName) -> bool {
        self.fetcher.sources().of(queue).is_some()
    }

    /// Claims, runs the handlers and forgets how they ended, as a process that is killed before it tells. How many.
    pub async fn crash_before_settle(&self, clock: &VirtualClock) -> Result<usize, StoreError> {
        self.fetcher.look_at_all();
        let claimed = self.fetcher.pass().await?;
        while self.registry.has_running() {
            self.wait_for_handlers(clock).await;
        }
        self.committer.clear();
        self.registry.clear();
        Ok(claimed)
    }

    /// Tidies up once.
    pub async fn tidy(&self) -> Result<usize, StoreError> {
        self.janitor.pass(self.engine.now()).await
    }

    async fn finish_running(&self, clock: &VirtualClock) -> Result<(), StoreError> {
        while self.registry.has_running() {
            self.wait_for_handlers(clock).await;
            self.dispatcher.pass().await?;
            self.committer.pass().await?;
        }
        while self.committer.pass().await? > 0 {}
        Ok(())
    }

    /// Lets handlers run until each of them sleeps or waits to be told to stop, and settles those
    /// that end. No time passes.
    async fn rest(&self, clock: &VirtualClock) -> Result<(), StoreError> {
        let mut waiting = Waiting::Ended;
        loop {
            self.dispatcher.pass().await?; // an alarm may be what a handler waits for
            let settled = self.committer.pass().await?;
            if waiting != Waiting::Ended && settled == 0 {
                return Ok(());
            }
            waiting = self.wait_until_idle(clock).await;
        }
    }

    /// Waits until a handler returns. Time passes only when each of them sleeps or waits to be told to stop: one that waits for
    /// anything else, as an answer from afar, gets it at the same instant.
    async fn wait_for_handlers(&self, clock: &VirtualClock) {
        if self.wait_until_idle(clock).await == Waiting::Ended {
            return; // its end is settled before time passes
        }
        match self.next_wake(clock) {
            Some(wake) => clock.advance_to(wake),
            // Only somebody else can tell it to stop.
            None => self.registry.gone().notified().await,
        }
    }

    /// Waits until a handler returns, or all of them wait for time to pass or to be told to stop.
    async fn wait_until_idle(&self, clock: &VirtualClock) -> Waiting {
        let running = self.registry.running_count();
        let quiet = tokio::time::sleep(QUIET);
        tokio::pin!(quiet);
        loop {
            if self.registry.running_count() < running {
                return Waiting::Ended;
            }
            if self.registry.all_idle(clock) {
                return Waiting::Idle;
            }
            tokio::select! {
                biased;
                () = self.registry.gone().notified() => return Waiting::Ended,
                () = clock.wait_for_sleeper() => {}
                () = tokio::time::sleep(TICK) => {}
                // It may wait for another one that sleeps.
                () = &mut quiet, if clock.next_wake().is_some() => return Waiting::Quiet,
            }
        }
    }

    /// When the first handler wakes up or times out.
    fn next_wake(&self, clock: &VirtualClock) -> Option<Timestamp> {
        if !self.registry.has_running() {
            return None;
        }
        let alarm = self.registry.next_alarm().map(|at| {
            let left = at.saturating_sub(clock.elapsed());
            clock.now().saturating_add(left)
        });
        [clock.next_wake(), alarm].into_iter().flatten().min()
    }

    /// When something of this worker is due after `now`: a job that waits, a lease that ends, room under a rate.
    async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let limits = self.engine.store().queues().await?;
        let mut next: Option<Timestamp> = None;
        for state in [
            ListedState::Scheduled,
            ListedState::Running,
            ListedState::Ready,
        ] {
            for queue in self.listed_queues() {
                let filter = Filter {
                    queue,
                    ..Filter::state(state)
                };
                let mut page = Page::first(PAGE_MAX);
                loop {
                    let listed = self.engine.store().list(&filter, page, now).await?;
                    let due = listed
                        .jobs
                        .iter()
                        .filter_map(|job| self.due(job, &limits, now));
                    next = due.chain(next).min();
                    let Some(after) = listed.next else { break };
                    page.after = Some(after);
                }
            }
        }
        Ok(next)
    }

    /// The queues whose jobs are listed: each that the worker names, or all at once if it discovers
    /// queues.
    fn listed_queues(&self) -> Vec<Option<QueueName>> {
        let config = self.config();
        if !config.discovered.is_empty() {
            return vec![None];
        }
        let names = config.queues.iter().map(|queue| Some(queue.name.clone()));
        names.collect()
    }

    fn due(
        &self,
        job: &Job,
        limits: &BTreeMap<QueueName, QueueLimits>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if !self.serves(&job.queue) {
            return None;
        }
        if let Some(lease) = job.lease() {
            if !self.registry.running(&[job.id]).is_empty() {
                return None; // it is renewed in time
            }
            // After an outage leases are left alone for a while.
            return Some(lease.until.max(self.sweeper.held_until().unwrap_or(now)))
                .filter(|at| *at > now);
        }
        self.config().handlers.get(&job.kind)?;
        let limits = limits.get(&job.queue);
        if limits.is_some_and(|limits| limits.paused.is_some()) {
            return None;
        }
        if job.run_at > now {
            return Some(job.run_at);
        }
        let rate = limits.and_then(|limits| limits.rate);
        let rate = rate.or_else(|| self.fetcher.rules(&job.queue)?.lane()?.rate);
        rate.map(|rate| now.saturating_add(rate.period / rate.count.max(1)))
    }
}

/// So often it is looked whether all handlers wait for time to pass.
const TICK: Duration = Duration::from_millis(1);
/// When nothing happens for so long although one of them waits for something else, time passes for the others.
const QUIET: Duration = Duration::from_secs(5);

impl Tally {
    fn new(at: Timestamp) -> Self {
        Tally {
            at,
            attempts: 0,
            most: ATTEMPTS_AT_ONCE,
        }
    }
}

/// What handlers do after they had their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// One of them returned.
    Ended,
    /// Each sleeps or waits to be told to stop; or there is none.
    Idle,
    /// One waits for something else, and nothing happens.
    Quiet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    NothingWaits,
    Then,
}
