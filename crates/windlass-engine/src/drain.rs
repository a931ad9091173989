//! A worker that is driven pass by pass, in virtual time: for tests that neither sleep nor wait.
//!
//! The passes are those of the loops, in a fixed order, so that a test sees what a running worker would do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::fairness::{ClaimPlan, Credit, Mix, Pool};
use windlass_core::{Job, JobId, QueueName, Timestamp};
use windlass_store::{Filter, ListedState, PAGE_MAX, Page, QueueLimits, StoreError};

use crate::clock::{Clock as _, VirtualClock};
use crate::worker::Worker;

/// What a drain did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// How many attempts were started.
    pub attempts: usize,
}

impl Worker {
    /// Does everything that is due at this moment, until nothing more is: fires schedules, sweeps, claims, runs handlers,
    /// settles. Handlers that sleep by the clock are slept through.
    pub async fn pass(&self, clock: &VirtualClock) -> Result<Drained, StoreError> {
        let mut attempts = 0;
        loop {
            let now = self.engine.now();
            self.scheduler.pass(now).await?;
            self.sweeper.vouch(now).await?;
            self.sweeper.pass(now).await?;
            let claimed = self.fetcher.pass().await?;
            self.finish_running(clock).await?;
            if claimed == 0 {
                return Ok(Drained { attempts });
            }
            attempts += claimed;
        }
    }

    /// Lets time pass from one due time to the next until none of this worker's jobs waits or runs.
    ///
    /// Schedules fire on the way, but time does not go on for them alone: they would never end.
    pub async fn drain(&self, clock: &VirtualClock) -> Result<Drained, StoreError> {
        self.drain_until(clock, Timestamp::MAX, Until::NothingWaits)
            .await
    }

    /// Lets time pass up to `until`, doing everything that is due on the way.
    pub async fn run_through(
        &self,
        clock: &VirtualClock,
        until: Timestamp,
    ) -> Result<Drained, StoreError> {
        let drained = self.drain_until(clock, until, Until::Then).await?;
        clock.advance_to(until);
        Ok(drained)
    }

    async fn drain_until(
        &self,
        clock: &VirtualClock,
        end: Timestamp,
        until: Until,
    ) -> Result<Drained, StoreError> {
        let mut drained = Drained::default();
        loop {
            drained.attempts += self.pass(clock).await?.attempts;
            let mut next = self.next_due(clock.now()).await?;
            if until == Until::Then {
                let fires = self.scheduler.next_at().await?;
                next = [next, fires].into_iter().flatten().min();
            }
            let Some(next) = next.filter(|next| *next <= end) else {
                return Ok(drained);
            };
            clock.advance_to(next);
        }
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
        for queue in 0..self.config().queues.len() {
            let Some(mut open) = self.fetcher.open_claim(queue, Pool::Main, plan) else {
                continue;
            };
            open.claim.jobs = Some(BTreeSet::from([id]));
            claimed = claimed || self.fetcher.claim(open).await? > 0;
        }
        self.finish_running(clock).await?;
        Ok(claimed)
    }

    /// Claims what fits and forgets it, as a process that is killed before a handler starts. How many.
    pub async fn crash_after_claim(&self) -> Result<usize, StoreError> {
        let now = self.engine.now();
        let mut claimed = 0;
        for (queue, of) in self.config().queues.iter().enumerate() {
            for (pool, slots) in [
                (Pool::Main, self.slots.of(queue)),
                (Pool::RetryLane, self.slots.of_lane(queue, now)),
            ] {
                let plan = of.guards.plan(pool, slots, Credit::default());
                if let Some(open) = self.fetcher.open_claim(queue, pool, plan) {
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

    /// Claims, runs the handlers and forgets how they ended, as a process that is killed before it tells. How many.
    pub async fn crash_before_settle(&self, clock: &VirtualClock) -> Result<usize, StoreError> {
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

    /// Waits until a handler returns. Time passes only when each of them sleeps or waits to be told to stop: one that waits for
    /// anything else, as an answer from afar, gets it at the same instant.
    async fn wait_for_handlers(&self, clock: &VirtualClock) {
        let running = self.registry.running_count();
        let quiet = tokio::time::sleep(QUIET);
        tokio::pin!(quiet);
        let all_idle = loop {
            if self.registry.running_count() < running {
                return; // its end is settled before time passes
            }
            if self.registry.all_idle(&clock.sleepers()) {
                break true;
            }
            tokio::select! {
                biased;
                () = self.registry.gone().notified() => return,
                () = clock.wait_for_sleeper() => {}
                () = tokio::time::sleep(TICK) => {}
                // It may wait for another one that sleeps.
                () = &mut quiet, if clock.next_wake().is_some() => break false,
            }
        };
        let alarm = self.registry.next_alarm().map(|at| {
            let left = at.saturating_sub(clock.elapsed());
            clock.now().saturating_add(left)
        });
        match (clock.next_wake(), alarm) {
            (Some(wake), Some(alarm)) => clock.advance_to(wake.min(alarm)),
            (Some(wake), None) => clock.advance_to(wake),
            (None, Some(alarm)) if all_idle => clock.advance_to(alarm),
            // Only somebody else can tell it to stop.
            (None, _) => self.registry.gone().notified().await,
        }
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
            for queue in &self.config().queues {
                let filter = Filter {
                    queue: Some(queue.name.clone()),
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

    fn due(
        &self,
        job: &Job,
        limits: &BTreeMap<QueueName, QueueLimits>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if let Some(lease) = job.lease() {
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
        let lane = self.config().queues.iter().find(|of| of.name == job.queue);
        let rate = rate.or_else(|| lane?.guards.retry_lane?.rate);
        rate.map(|rate| now.saturating_add(rate.period / rate.count.max(1)))
    }
}

/// So often it is looked whether all handlers wait for time to pass.
const TICK: Duration = Duration::from_millis(1);
/// When nothing happens for so long although one of them waits for something else, time passes for the others.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    NothingWaits,
    Then,
}
