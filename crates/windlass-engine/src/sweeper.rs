//! Ends attempts whose leases have expired, and jobs whose deadline has passed.
//!
//! It also writes the heartbeat of this node and reads those of the others. When no node could
//! write a heartbeat for most of a lease, the store was unreachable, and healthy workers could not
//! renew their leases. Sweeping at once would end attempts that still run. So the sweeper holds: it
//! gives the workers one more lease to renew before it sweeps.
//!
//! The first node that comes back hides the outage from the others, because its heartbeat is new
//! again. So it writes the end of the hold into its heartbeat, and every other sweeper honours it.
//! `core` decides when to hold ([`outage_hold`]).

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{
    DeadReason, Heartbeats, HoldNotice, JobId, SweepHold, Timestamp, Verdict, outage_hold,
};
use windlass_store::{Node, StoreError, Swept};

use crate::engine::Engine;
use crate::event::{JobEvent, JobRef};
use crate::failure_lines::FailureLines;
use crate::lingering_handlers::LINGERING;
use crate::poison::lock;
use crate::watchdog::Pulse;
use crate::worker::LEASE_MIN;
use crate::worker_state::WorkerState;

/// The configuration of a sweeper.
#[derive(Debug, Clone)]
pub struct SweeperConfig {
    /// The name of this node.
    pub node: String,
    /// What the heartbeat of this node says about it.
    pub about: Map<String, Value>,
    /// The length of leases. 30 s.
    pub lease: Duration,
    /// The interval between sweeps, so the longest delay until an expired lease is found. 500 ms,
    /// or a third of a shorter lease.
    pub every: Duration,
    /// The maximum number of jobs of one sweep. 1000.
    pub batch: usize,
}

impl SweeperConfig {
    /// The default configuration.
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

/// Ends the attempts of workers that died.
#[derive(Debug)]
pub struct Sweeper {
    engine: Arc<Engine>,
    config: SweeperConfig,
    worker_state: Option<watch::Receiver<WorkerState>>,
    state: Mutex<SweeperState>,
}

#[derive(Debug)]
struct SweeperState {
    beat_at: Option<Timestamp>,
    hold: Option<SweepHold>,
    /// Swept jobs whose events could not be emitted yet.
    unreported: Swept,
    /// The shortest lease of all nodes, which is the first to expire in an outage.
    lease: Duration,
}

/// The longest interval between two heartbeats. Other nodes may have shorter leases than this one.
const HEARTBEAT_EVERY_MAX: Duration = Duration::from_secs(10);

/// The heartbeat field for the end of a hold.
const HOLD_UNTIL: &str = "hold_until";
/// The heartbeat field for the length of the node's leases.
const LEASE_MS: &str = "lease_ms";
/// The field of a heartbeat with the time that the node's own clock is ahead of the store's.
const CLOCK_OFFSET_MS: &str = "clock_offset_ms";

impl Sweeper {
    /// Creates a sweeper.
    pub fn new(engine: Arc<Engine>, config: SweeperConfig) -> Self {
        let state = SweeperState {
            beat_at: None,
            hold: None,
            unreported: Swept::default(),
            lease: config.lease,
        };
        Sweeper {
            engine,
            config,
            worker_state: None,
            state: Mutex::new(state),
        }
    }

    /// Reports the state of this node's worker in its heartbeats.
    pub(crate) fn reporting(self, worker_state: watch::Receiver<WorkerState>) -> Self {
        Sweeper {
            worker_state: Some(worker_state),
            ..self
        }
    }

    /// Writes a heartbeat if one is due, and sweeps unless there is a hold.
    pub async fn pass(&self, now: Timestamp) -> Result<Swept, StoreError> {
        self.check_heartbeats(now).await?;
        self.emit_swept(now).await?;
        if self.held_until().is_some_and(|until| now < until) {
            return Ok(Swept::default());
        }
        let random = self.engine.ids().bits();
        let swept = self
            .engine
            .store()
            .sweep(self.config.batch, now, random)
            .await?;
        self.state().unreported.clone_from(&swept);
        self.emit_swept(now).await?;
        Ok(swept)
    }

    /// Reads the heartbeats of all nodes to detect an outage, then writes the own one.
    async fn check_heartbeats(&self, now: Timestamp) -> Result<(), StoreError> {
        let SweeperState {
            beat_at: own,
            lease,
            ..
        } = *self.state();
        let every = (lease / 3).min(HEARTBEAT_EVERY_MAX);
        // A heartbeat also detects when a store that refused writes accepts them again.
        let refused = self.engine.writes().problem().is_some();
        if !refused && own.is_some_and(|at| now < at.saturating_add(every)) {
            return Ok(());
        }
        let nodes = self.engine.store().nodes().await?;
        self.engine.lingering().learn(&nodes, &self.config.node);
        let leases = nodes.iter().filter_map(lease_of);
        let lease = leases.fold(self.config.lease, Duration::min);
        self.state().lease = lease;
        let signs = Heartbeats {
            newest: nodes.iter().map(|node| node.beat_at).max(),
            own,
            held_until: nodes
                .iter()
                .filter_map(|node| honoured_hold(node, now))
                .max(),
        };
        if let Some(hold) = outage_hold(signs, now, lease)
            && self.held_until() < Some(hold.until)
        {
            info!(until = %hold.until, "the store was unreachable; holding expired leases");
            self.state().hold = Some(hold);
        }
        self.send_heartbeat(now).await
    }

    /// Writes a heartbeat. A drain calls it alone: virtual time passed without this loop, which is
    /// no outage.
    pub(crate) async fn send_heartbeat(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut about = self.config.about.clone();
        about.insert(
            LEASE_MS.to_owned(),
            json!(self.config.lease.as_millis() as u64),
        );
        if let Some(micros) = self.engine.clock().machine_ahead_micros() {
            about.insert(CLOCK_OFFSET_MS.to_owned(), json!(micros / 1000));
        }
        if let Some(state) = &self.worker_state {
            state.borrow().report(&mut about);
        }
        if let Some(listed) = self.engine.lingering().listed() {
            about.insert(LINGERING.to_owned(), listed);
        }
        let hold = self.state().hold;
        if let Some(hold) = hold.filter(|hold| hold.all_nodes && now < hold.until) {
            about.insert(HOLD_UNTIL.to_owned(), json!(hold.until));
        }
        let store = self.engine.store();
        store.beat(&self.config.node, &about.into(), now).await?;
        self.state().beat_at = Some(now);
        Ok(())
    }

    /// Emits the events of swept jobs. Nothing more is swept until this succeeds.
    async fn emit_swept(&self, now: Timestamp) -> Result<(), StoreError> {
        let swept = self.state().unreported.clone();
        let lost = swept.lost.iter().map(|(attempt_id, _)| attempt_id.job);
        let expired = swept.expired.iter().map(|expired| expired.job);
        let ids: Vec<JobId> = lost.chain(expired).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let jobs = self.engine.readable(&ids).await?;
        self.state().unreported = Swept::default();
        let (lost, expired) = jobs.split_at(swept.lost.len());
        for ((attempt_id, settlement), job) in swept.lost.iter().zip(lost) {
            let Some(job) = job else {
                // The job cannot be read, but a fetcher should look for it when it is due.
                if let Verdict::Waiting { run_at } = settlement.verdict {
                    self.engine.due_at(run_at, now);
                }
                continue;
            };
            let (attempt, ran) = (attempt_id.attempt, Duration::ZERO);
            self.engine.emit_ended(job, attempt, settlement, ran, now);
        }
        for (expired, job) in swept.expired.iter().zip(expired) {
            let Some(job) = job else {
                continue;
            };
            if let Some(fingerprint) = job.fingerprint.filter(|_| expired.is_new_group) {
                self.engine.new_groups().add(job, fingerprint, now);
                let what = JobEvent::FailureGroupCreated { fingerprint };
                self.engine.emit_job(now, &JobRef::of(job), what);
            }
            let (reason, failures) = (DeadReason::Expired, job.failures);
            self.engine.job_log().expired(job, now);
            self.engine
                .collector()
                .count(&job.queue, now, |queue| queue.dead += 1);
            self.engine
                .emit_job(now, &JobRef::of(job), JobEvent::Dead { reason, failures });
        }
        Ok(())
    }

    /// The end of the current or last hold.
    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        Some(self.state().hold?.until)
    }

    /// Sweeps until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut failures = FailureLines::default();
        loop {
            let now = clock.now();
            pulse.busy(now);
            let full = match self.pass(now).await {
                Ok(swept) => swept.lost.len() + swept.expired.len() >= self.config.batch,
                Err(error) => {
                    if let Some(suppressed) = failures.admit(clock.elapsed()) {
                        warn!(%error, suppressed, "sweep failed; retrying at the next pass");
                    }
                    false
                }
            };
            pulse.rest();
            self.engine.job_log().summarise(clock.now());
            let wait = if full {
                Duration::ZERO
            } else {
                self.config.every.min(self.state().lease / 3)
            };
            let next = clock.now().saturating_add(wait);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep_until(next) => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, SweeperState> {
        lock(&self.state)
    }
}

/// The time until which to honour the hold that a node's heartbeat announces.
fn honoured_hold(node: &Node, now: Timestamp) -> Option<Timestamp> {
    let notice = HoldNotice {
        until: node.about.get(HOLD_UNTIL)?.as_str()?.parse().ok()?,
        beat_at: node.beat_at,
        lease: lease_of(node)?,
    };
    notice.valid_until(now)
}

/// The length of a node's leases, according to its heartbeat.
fn lease_of(node: &Node) -> Option<Duration> {
    let millis = node.about.get(LEASE_MS)?.as_u64()?;
    Some(Duration::from_millis(millis).max(LEASE_MIN))
}
