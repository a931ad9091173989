//! Ends the attempts of workers that died, and buries jobs whose deadline has passed.
//!
//! It also gives this node's sign of life. When nobody could reach the store for so long that leases may have run out, it was
//! the store that was away, and the workers get one lease to renew theirs before anything is swept. Whoever comes back first
//! tells that with its sign of life, and every other sweeper heeds it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{
    DeadReason, Hold, HoldNotice, JobId, SignsOfLife, Timestamp, Verdict, outage_hold,
};
use windlass_store::{Node, StoreError, Swept};

use crate::engine::Engine;
use crate::event::{JobEvent, JobRef};
use crate::lingering_handlers::LINGERING;
use crate::watchdog::Pulse;
use crate::worker::LEASE_MIN;

/// How it sweeps.
#[derive(Debug, Clone)]
pub struct SweeperConfig {
    /// The name of this node.
    pub node: String,
    /// What this node says about itself.
    pub about: Map<String, Value>,
    /// How long leases last. 30 s.
    pub lease: Duration,
    /// How often it looks: a lost job is found so long after its lease at the latest. 500 ms, or a third of a shorter lease.
    pub every: Duration,
    /// At most so many in one step. 1000.
    pub batch: usize,
}

impl SweeperConfig {
    /// Every setting at its default.
    pub fn new(node: String) -> Self {
        SweeperConfig {
            node,
            about: Map::new(),
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

#[derive(Debug)]
struct State {
    beat_at: Option<Timestamp>,
    hold: Option<Hold>,
    /// What was swept and could not be told yet.
    untold: Swept,
    /// The shortest lease of all nodes: it is the first to run out while the store is away.
    lease: Duration,
}

/// However long its own leases last, a node looks after the others so often: theirs may be shorter.
const BEAT_EVERY_MAX: Duration = Duration::from_secs(10);

/// Where a node tells, with its sign of life, until when expired leases are left alone.
const HOLD_UNTIL: &str = "hold_until";
/// Where it tells how long its leases last.
const LEASE_MS: &str = "lease_ms";

impl Sweeper {
    /// A sweeper.
    pub fn new(engine: Arc<Engine>, config: SweeperConfig) -> Self {
        let state = State {
            beat_at: None,
            hold: None,
            untold: Swept::default(),
            lease: config.lease,
        };
        Sweeper {
            engine,
            config,
            state: Mutex::new(state),
        }
    }

    /// Gives a sign of life, and sweeps unless the store was away.
    pub async fn pass(&self, now: Timestamp) -> Result<Swept, StoreError> {
        self.beat(now).await?;
        self.tell(now).await?;
        if self.held_until().is_some_and(|until| now < until) {
            return Ok(Swept::default());
        }
        let random = self.engine.ids().bits();
        let swept = self
            .engine
            .store()
            .sweep(self.config.batch, now, random)
            .await?;
        self.state().untold.clone_from(&swept);
        self.tell(now).await?;
        Ok(swept)
    }

    /// Looks when anybody last gave a sign of life, then gives one.
    async fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        let State {
            beat_at: own,
            lease,
            ..
        } = *self.state();
        let every = (lease / 3).min(BEAT_EVERY_MAX);
        // The heartbeat finds out when a store that refused writes accepts them again.
        let refused = self.engine.writes().problem().is_some();
        if !refused && own.is_some_and(|at| now < at.saturating_add(every)) {
            return Ok(());
        }
        let nodes = self.engine.store().nodes().await?;
        self.engine.lingering().learn(&nodes, &self.config.node);
        let leases = nodes.iter().filter_map(lease_of);
        let lease = leases.fold(self.config.lease, Duration::min);
        self.state().lease = lease;
        let signs = SignsOfLife {
            newest: nodes.iter().map(|node| node.beat_at).max(),
            own,
            held_until: nodes.iter().filter_map(|node| hold_of(node, now)).max(),
        };
        if let Some(hold) = outage_hold(signs, now, lease)
            && self.held_until() < Some(hold.until)
        {
            info!(until = %hold.until, "the store was away: nothing is swept until then");
            self.state().hold = Some(hold);
        }
        self.vouch(now).await
    }

    /// Gives a sign of life. Alone, it is for time that passed without this loop, in which the worker was well all the same.
    pub(crate) async fn vouch(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut about = self.config.about.clone();
        about.insert(
            LEASE_MS.to_owned(),
            json!(self.config.lease.as_millis() as u64),
        );
        if let Some(listed) = self.engine.lingering().listed() {
            about.insert(LINGERING.to_owned(), listed);
        }
        let hold = self.state().hold;
        if let Some(hold) = hold.filter(|hold| hold.everybody && now < hold.until) {
            about.insert(HOLD_UNTIL.to_owned(), json!(hold.until));
        }
        let store = self.engine.store();
        store.beat(&self.config.node, &about.into(), now).await?;
        self.state().beat_at = Some(now);
        Ok(())
    }

    /// Tells what was swept. Until that is done, nothing further is swept.
    async fn tell(&self, now: Timestamp) -> Result<(), StoreError> {
        let swept = self.state().untold.clone();
        let lost = swept.lost.iter().map(|(of, _)| of.job);
        let ids: Vec<JobId> = lost.chain(swept.expired.iter().copied()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let jobs = self.engine.readable(&ids).await?;
        self.state().untold = Swept::default();
        let (lost, expired) = jobs.split_at(swept.lost.len());
        for ((of, settlement), job) in swept.lost.iter().zip(lost) {
            let Some(job) = job else {
                // It cannot be read now; a fetcher looks for it all the same.
                if let Verdict::Waiting { run_at } = settlement.verdict {
                    self.engine.due_at(run_at, now);
                }
                continue;
            };
            let (attempt, ran) = (of.attempt, Duration::ZERO);
            self.engine.announce_end(job, attempt, settlement, ran, now);
        }
        for job in expired.iter().flatten() {
            let (reason, failures) = (DeadReason::Expired, job.failures);
            self.engine.narrator().expired(job, now);
            self.engine
                .emit_job(now, &JobRef::of(job), JobEvent::Dead { reason, failures });
        }
        Ok(())
    }

    /// Until when expired leases are left alone.
    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        Some(self.state().hold?.until)
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
            self.engine.narrator().summarise(clock.now());
            let wait = if full {
                Duration::ZERO
            } else {
                self.config.every.min(self.state().lease / 3)
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

/// Until when the hold that a node reports is honoured.
fn hold_of(node: &Node, now: Timestamp) -> Option<Timestamp> {
    let notice = HoldNotice {
        until: node.about.get(HOLD_UNTIL)?.as_str()?.parse().ok()?,
        beat_at: node.beat_at,
        lease: lease_of(node)?,
    };
    notice.honoured_until(now)
}

/// How long the leases of a node last, as it tells.
fn lease_of(node: &Node) -> Option<Duration> {
    let told = node.about.get(LEASE_MS)?.as_u64()?;
    Some(Duration::from_millis(told).max(LEASE_MIN))
}
