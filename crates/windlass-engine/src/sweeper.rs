//! Ends the attempts of workers that died, and buries jobs whose deadline has passed.
//!
//! It also gives this node's sign of life. When nobody at all could reach the store for a lease, it was the store that was
//! away, and the workers get one lease to renew theirs before anything is swept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{DeadReason, JobId, Timestamp, Verdict, outage_grace};
use windlass_store::{StoreError, Swept};

use crate::committer::tell_settlement;
use crate::engine::Engine;
use crate::event::{JobEvent, JobRef};
use crate::watchdog::Pulse;

/// How it sweeps.
#[derive(Debug, Clone)]
pub struct SweeperConfig {
    /// The name of this node.
    pub node: String,
    /// What this node says about itself.
    pub about: Value,
    /// How long leases last. 30 s.
    pub lease: Duration,
    /// How often it looks: a lost job is found so long after its lease at the latest. 500 ms.
    pub every: Duration,
    /// At most so many in one step. 1000.
    pub batch: usize,
}

impl SweeperConfig {
    /// Every setting at its default.
    pub fn new(node: String) -> Self {
        SweeperConfig {
            node,
            about: Value::Null,
            lease: Duration::from_secs(30),
            every: Duration::from_millis(500),
            batch: 1000,
        }
    }
}

/// Sweeps up after workers that died.
#[derive(Debug)]
pub struct Sweeper {
    engine: Arc<Engine>,
    config: SweeperConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    beat_at: Option<Timestamp>,
    hold_until: Option<Timestamp>,
}

impl Sweeper {
    /// A sweeper.
    pub fn new(engine: Arc<Engine>, config: SweeperConfig) -> Self {
        Sweeper {
            engine,
            config,
            state: Mutex::default(),
        }
    }

    /// Gives a sign of life, and sweeps unless the store was away.
    pub async fn pass(&self, now: Timestamp) -> Result<Swept, StoreError> {
        self.beat(now).await?;
        if self.state().hold_until.is_some_and(|until| now < until) {
            return Ok(Swept::default());
        }
        let random = self.engine.ids().bits();
        let swept = self
            .engine
            .store()
            .sweep(self.config.batch, now, random)
            .await?;
        self.tell(&swept, now).await?;
        Ok(swept)
    }

    /// Looks when anybody last gave a sign of life, then gives one.
    async fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        let beats_at = self
            .state()
            .beat_at
            .map(|at| at.saturating_add(self.config.lease / 3));
        if beats_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        let store = self.engine.store();
        let nodes = store.nodes().await?;
        let newest = nodes.iter().map(|node| node.beat_at).max();
        if let Some(until) = outage_grace(newest, now, self.config.lease) {
            info!(%until, "nobody reached the store for a lease: nothing is swept until then");
            self.state().hold_until = Some(until);
        }
        store
            .beat(&self.config.node, &self.config.about, now)
            .await?;
        self.state().beat_at = Some(now);
        Ok(())
    }

    /// Gives a sign of life for time that passed without this loop, in which the worker was well all the same.
    pub(crate) async fn vouch(&self, now: Timestamp) -> Result<(), StoreError> {
        let store = self.engine.store();
        store
            .beat(&self.config.node, &self.config.about, now)
            .await?;
        self.state().beat_at = Some(now);
        Ok(())
    }

    async fn tell(&self, swept: &Swept, now: Timestamp) -> Result<(), StoreError> {
        let lost = swept.lost.iter().map(|(of, _)| of.job);
        let ids: Vec<JobId> = lost.chain(swept.expired.iter().copied()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let jobs = self.engine.store().get(&ids).await?;
        let (lost, expired) = jobs.split_at(swept.lost.len());
        for ((of, settlement), job) in swept.lost.iter().zip(lost) {
            let Some(job) = job else { continue };
            warn!(job.id = %of.job, attempt = of.attempt, worker = ?job.worker, "an attempt was lost");
            if let Verdict::Waiting { run_at } = settlement.verdict {
                self.engine.due_at(run_at, now);
            }
            let named = JobRef {
                attempt: of.attempt,
                ..JobRef::of(job)
            };
            tell_settlement(&self.engine, now, settlement, Duration::ZERO, || {
                named.clone()
            });
        }
        for job in expired.iter().flatten() {
            let (reason, failures) = (DeadReason::Expired, job.failures);
            self.engine
                .emit_job(now, &JobRef::of(job), JobEvent::Dead { reason, failures });
        }
        Ok(())
    }

    /// Until when expired leases are left alone.
    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        self.state().hold_until
    }

    /// Sweeps until it is told to stop.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            let now = clock.now();
            pulse.busy(now);
            let full = match self.pass(now).await {
                Ok(swept) => swept.lost.len() + swept.expired.len() >= self.config.batch,
                Err(error) => {
                    warn!(%error, "sweeping failed, trying again at the next look");
                    false
                }
            };
            pulse.rest();
            let wait = if full {
                Duration::ZERO
            } else {
                self.config.every
            };
            let next = clock.now().saturating_add(wait);
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep_until(next) => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
