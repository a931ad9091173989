//! Drives a worker pass by pass in virtual time, for tests that neither sleep nor wait.
//!
//! The passes are those of the real loops, in a fixed order, so a test sees what a running worker
//! would do. Virtual time advances only when every handler is idle: it sleeps by the clock or waits
//! for its stop signal. So a handler that waits for something real, such as an HTTP response, gets
//! it without any virtual time passing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::fairness::{ClaimPlan, Credit, Mix, Pool};
use windlass_core::{Job, JobId, QueueName, QueuePattern, Timestamp};
use windlass_store::{DueQueues, Filter, ListedState, PAGE_MAX, Page, QueueLimits, StoreError};

use crate::clock::{Clock as _, VirtualClock};
use crate::saturate::to_usize;
use crate::worker::Worker;

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// The number of attempts that started.
    pub attempts: usize,
}

/// Why a drain ended early.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// New jobs keep becoming due at one instant, so time never advances.
    #[error(
        "started {attempts} attempts at {at} and more jobs are due; does a handler enqueue itself without a delay?"
    )]
    NoProgress {
        /// The instant.
        at: Timestamp,
        /// The number of attempts that started at it.
        attempts: usize,
    },
}

/// The number of attempts that may start at one instant, before the jobs that are ready at that
/// point are added to the limit.
const ATTEMPTS_AT_ONCE: usize = 10_000;

/// Counts the attempts that start at one instant.
struct Tally {
    at: Timestamp,
    attempts: usize,
    limit: usize,
}

impl Worker {
    /// Does everything that is due now, until nothing more is due: fires schedules, sweeps, claims,
    /// runs handlers and settles. Time advances while handlers sleep; occurrences that become due
    /// meanwhile wait for the next pass.
    pub async fn pass(&self, clock: &VirtualClock) -> Result<Drained, DrainError> {
        let mut drained = Drained::default();
        let mut tally = Tally::new(clock.now());
        self.run_until_idle(clock).await?;
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

    /// Advances time from one due time to the next until no job of this worker is waiting or
    /// running.
    ///
    /// Schedules fire on the way, but time does not advance for them alone, because they never end.
    pub async fn drain(&self, clock: &VirtualClock) -> Result<Drained, DrainError> {
        self.drain_until(clock, Timestamp::MAX, DrainUntil::NothingActive)
            .await
    }

    /// Advances time up to `until`, and does everything that becomes due on the way. Handlers that
    /// sleep longer are still running at the end.
    pub async fn run_through(
        &self,
        clock: &VirtualClock,
        until: Timestamp,
    ) -> Result<Drained, DrainError> {
        let drained = self.drain_until(clock, until, DrainUntil::EndTime).await?;
        clock.advance_to(until);
        Ok(drained)
    }

    /// Advances from one event to the next: a handler wakes up or times out, a job or an occurrence
    /// becomes due, or a lease expires.
    async fn drain_until(
        &self,
        clock: &VirtualClock,
        end: Timestamp,
        until: DrainUntil,
    ) -> Result<Drained, DrainError> {
        let mut drained = Drained::default();
        let mut is_first = true;
        loop {
            self.run_until_idle(clock).await?;
            // Check before schedules fire: a schedule whose job sleeps for as long as its period
            // would otherwise keep the drain going forever.
            if until == DrainUntil::NothingActive && !is_first && !self.registry.has_running() {
                self.sweep().await?;
                let claimed = self.claim(&mut Tally::new(clock.now())).await?;
                if claimed == 0 && self.next_due(clock.now()).await?.is_none() {
                    return Ok(drained);
                }
                drained.attempts += claimed;
                self.run_until_idle(clock).await?;
            }
            is_first = false;
            drained.attempts += self.run_everything_due(clock).await?;
            let woken = self.next_wake(clock);
            let mut next = [self.next_due(clock.now()).await?, woken]
                .into_iter()
                .flatten()
                .min();
            if until == DrainUntil::EndTime || next.is_some() {
                let fires = self.scheduler.next_at().await?;
                next = [next, fires].into_iter().flatten().min();
            }
            match next.filter(|next| *next <= end) {
                Some(next) => clock.advance_to(next),
                // Only another task can ask the handler to stop.
                None if until == DrainUntil::NothingActive && self.registry.has_running() => {
                    self.registry.handler_returned().notified().await;
                }
                None => return Ok(drained),
            }
        }
    }

    /// Does everything that is due at this instant, until every handler is idle. Returns the number
    /// of attempts that started.
    async fn run_everything_due(&self, clock: &VirtualClock) -> Result<usize, DrainError> {
        let mut tally = Tally::new(clock.now());
        loop {
            let fired = self.scheduler.pass(self.engine.now()).await?;
            self.sweep().await?;
            let claimed = self.claim(&mut tally).await?;
            if claimed == 0 && fired == 0 {
                return Ok(tally.attempts);
            }
            self.run_until_idle(clock).await?;
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.signal_follower.pass().await?;
        let now = self.engine.now();
        self.sweeper.send_heartbeat(now).await?;
        self.sweeper.pass(now).await?;
        Ok(())
    }

    /// Claims jobs for the free slots and starts them. Returns how many.
    async fn claim(&self, tally: &mut Tally) -> Result<usize, DrainError> {
        self.fetcher.look_for_due_queues();
        let claimed = self.fetcher.pass().await?;
        let now = self.engine.now();
        if tally.at != now {
            *tally = Tally::new(now);
        }
        tally.attempts += claimed;
        if tally.attempts <= tally.limit {
            return Ok(claimed);
        }
        if tally.limit > ATTEMPTS_AT_ONCE {
            let (at, attempts) = (now, tally.attempts);
            return Err(DrainError::NoProgress { at, attempts });
        }
        let counts = self.engine.store().counts(now).await?;
        let ready: u64 = counts.values().map(|queue| queue.ready).sum();
        let ready = to_usize(ready);
        tally.limit = tally
            .attempts
            .saturating_add(ready)
            .max(ATTEMPTS_AT_ONCE + 1);
        Ok(claimed)
    }

    /// Runs one attempt of one due job, and nothing else. Returns false if it could not be claimed.
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

    /// Claims jobs and drops them, as if the process had been killed before a handler started.
    /// Returns how many.
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

    /// Claims jobs, runs their handlers and drops the outcomes, as if the process had been killed
    /// before it settled them. Returns how many.
    pub async fn crash_before_settle(&self, clock: &VirtualClock) -> Result<usize, StoreError> {
        self.fetcher.look_for_due_queues();
        let claimed = self.fetcher.pass().await?;
        while self.registry.has_running() {
            self.wait_for_handlers(clock).await;
        }
        self.committer.clear();
        self.registry.clear();
        Ok(claimed)
    }

    /// Runs one pass of the janitor.
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

    /// Runs handlers until each of them is idle, and settles those that return. No time passes.
    async fn run_until_idle(&self, clock: &VirtualClock) -> Result<(), StoreError> {
        let mut activity = HandlerActivity::Returned;
        loop {
            self.dispatcher.pass().await?; // a handler may be waiting for an alarm
            let settled = self.committer.pass().await?;
            if activity != HandlerActivity::Returned && settled == 0 {
                return Ok(());
            }
            activity = self.wait_until_idle(clock).await;
        }
    }

    /// Waits until a handler returns. Advances time only when all handlers are idle: a handler that
    /// waits for anything else, such as a remote response, gets it at the same instant.
    async fn wait_for_handlers(&self, clock: &VirtualClock) {
        if self.wait_until_idle(clock).await == HandlerActivity::Returned {
            return; // settle its outcome before time advances
        }
        match self.next_wake(clock) {
            Some(wake) => clock.advance_to(wake),
            // Only another task can ask the handler to stop.
            None => self.registry.handler_returned().notified().await,
        }
    }

    /// Waits until a handler returns or all handlers are idle.
    async fn wait_until_idle(&self, clock: &VirtualClock) -> HandlerActivity {
        let running = self.registry.running_count();
        let stuck = tokio::time::sleep(STUCK_AFTER);
        tokio::pin!(stuck);
        loop {
            if self.registry.running_count() < running {
                return HandlerActivity::Returned;
            }
            if self.registry.all_idle(clock) {
                return HandlerActivity::AllIdle;
            }
            tokio::select! {
                biased;
                () = self.registry.handler_returned().notified() => return HandlerActivity::Returned,
                () = clock.wait_for_sleeper() => {}
                () = tokio::time::sleep(IDLE_CHECK_EVERY) => {}
                // A handler may wait for another one that sleeps.
                () = &mut stuck, if clock.next_wake().is_some() => return HandlerActivity::Stuck,
            }
        }
    }

    /// When the next handler wakes up or times out.
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

    /// When something of this worker is due after `now`: a waiting job, an expiring lease, or a
    /// start that a rate limit allows.
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

    /// The queues whose jobs to list: each queue that the worker names, or all queues at once
    /// (`None`) if it discovers queues.
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
                return None; // this worker renews it
            }
            // After an outage, expired leases are held for a while.
            return Some(lease.until.max(self.sweeper.held_until().unwrap_or(now)))
                .filter(|at| *at > now);
        }
        self.config().handlers.get(&job.kind)?;
        let limits = limits.get(&job.queue);
        if !self.fetcher.may_claim() || limits.is_some_and(|limits| limits.paused.is_some()) {
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

/// How often to check whether all handlers are idle.
const IDLE_CHECK_EVERY: Duration = Duration::from_millis(1);
/// When nothing happens for this long (real time) although a handler waits for something other than
/// the clock, time advances for the others.
const STUCK_AFTER: Duration = Duration::from_secs(5);

impl Tally {
    fn new(at: Timestamp) -> Self {
        Tally {
            at,
            attempts: 0,
            limit: ATTEMPTS_AT_ONCE,
        }
    }
}

/// The state of the handlers after they had a chance to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandlerActivity {
    /// A handler has returned.
    Returned,
    /// Each handler is idle, or there is none.
    AllIdle,
    /// A handler waits for something other than the clock, and nothing happens.
    Stuck,
}

/// When a drain ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainUntil {
    NothingActive,
    EndTime,
}
