//! One node: an engine with a worker, which can be killed, stopped and started again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::retry::{Backoff, Jitter, RetryPolicy, WorkerRetry};
use windlass_core::{Kind, QueueName, WorkerName};
use windlass_engine::remote::{Remote, RemoteConfig};
use windlass_engine::{
    CancellationToken, Clock, Engine, Handlers, Ids, QueueConfig, Worker, WorkerConfig,
};
use windlass_store::Store;

use super::clock::NodeClock;
use super::handler::ScriptHandler;
use super::plan::Plan;
use super::tap::{Faults, Gate, Tap};
use super::world::World;
use crate::history::Event;
use crate::planted::Bug;

/// The lease of simulated workers.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const QUEUES: [&str; 3] = ["default", "limited", "other"];
pub(crate) const KINDS: [&str; 3] = ["one", "two", "three"];

/// A node.
pub(crate) struct Node {
    pub(crate) number: u32,
    pub(crate) engine: Arc<Engine>,
    pub(crate) remote: Arc<Remote>,
    pub(crate) tap: Arc<Tap>,
    pub(crate) ahead: Arc<AtomicI64>,
    pub(crate) gate: Arc<Gate>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Node {
    /// Starts a process. `life` counts the processes of the same node.
    pub(crate) fn start(
        plan: &Plan,
        world: &Arc<World>,
        store: &Arc<dyn Store>,
        number: u32,
        life: u64,
        ahead: Arc<AtomicI64>,
    ) -> Node {
        let gate = Arc::new(Gate::default());
        let clock = NodeClock::new(world, Arc::clone(&ahead), Arc::clone(&gate));
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let mut random = plan.stream("node", u64::from(number) << 32 | life);
        let (store, seed) = (Arc::clone(store), random.bits());
        let shared = (Arc::clone(&clock), Arc::clone(&gate));
        let tap = Tap::new(number, store, world, shared.0, shared.1, seed);
        world.add_tap(Arc::clone(&tap));
        tap.record(Event::Booted);
        let seen = Bug::around_view(plan.planted, Arc::clone(&tap) as Arc<dyn Store>);
        let engine = Arc::new(Engine::new(seen, clock, Ids::seeded(random.bits())));
        let stop = CancellationToken::new();
        let heard = match plan.planted {
            Some(Bug::IgnoreStop) => CancellationToken::new(),
            _ => stop.clone(),
        };
        let task = run(&engine, &tap, number, heard);
        let config = RemoteConfig {
            lease: LEASE,
            retry: retry(),
            ..RemoteConfig::default()
        };
        let remote = Arc::new(Remote::new(&engine, config));
        Node {
            number,
            remote,
            engine,
            tap,
            ahead,
            gate,
            stop,
            task,
        }
    }

    /// Ends the process at once.
    pub(crate) fn kill(&self, world: &World) {
        self.tap.die();
        self.task.abort();
        world.remove_tap(&self.tap);
        world.record(self.number, Event::Killed);
        self.gate.open();
    }

    /// Asks the process to stop. It finishes its jobs, or gives them back.
    pub(crate) fn shut_down(&self, world: &World) {
        if !self.is_stopping() {
            world.record(self.number, Event::Stopping);
            self.stop.cancel();
        }
    }

    /// Ends with the process, or when it is asked to stop.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Whether clients and remote workers can use it.
    pub(crate) fn serves(&self) -> bool {
        !self.is_dead() && !self.is_stopping()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.tap.is_dead()
    }

    /// Ends all faults of this node.
    pub(crate) fn heal(&self) {
        self.tap.set_faults(|faults| *faults = Faults::default());
        self.gate.open();
    }

    pub(crate) fn jump(&self, micros: i64) {
        self.ahead.fetch_add(micros, Ordering::SeqCst);
    }

    pub(crate) async fn finish(self, world: &World) {
        self.shut_down(world);
        // The worker has its own limits for a shutdown.
        let _ = tokio::time::timeout(Duration::from_secs(60), self.task).await;
    }
}

fn run(
    engine: &Arc<Engine>,
    tap: &Arc<Tap>,
    number: u32,
    stop: CancellationToken,
) -> JoinHandle<()> {
    let worker = Worker::new(Arc::clone(engine), config(tap, number));
    tokio::spawn(async move {
        let worker = worker.expect("the configuration is fixed");
        let _ = worker.run(stop, CancellationToken::new()).await;
    })
}

fn config(tap: &Arc<Tap>, number: u32) -> WorkerConfig {
    let name = WorkerName::new(&format!("node-{number}")).expect("a valid name");
    let mut config = WorkerConfig::new(name);
    let queues = QUEUES.iter().map(|name| queue(name));
    config.queues = queues.map(|name| QueueConfig::new(name, 4)).collect();
    config.lease = LEASE;
    config.shutdown_grace = Duration::from_secs(8);
    config.cancel_grace = Duration::from_secs(1);
    config.outcome_retry_max = Duration::from_secs(30);
    config.retry = retry();
    let handler = Arc::new(ScriptHandler(Arc::clone(tap)));
    let mut handlers = Handlers::new();
    for kind in KINDS {
        let kind = Kind::new(kind).expect("a valid kind");
        handlers.add(kind, Arc::clone(&handler) as _);
    }
    config.handlers = handlers;
    config
}

fn retry() -> WorkerRetry {
    let policy = constant(Duration::from_millis(500), 4);
    WorkerRetry {
        policy: Some(Arc::new(policy)),
        ..WorkerRetry::default()
    }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}

pub(crate) fn constant(delay: Duration, max_attempts: u32) -> RetryPolicy {
    let policy = RetryPolicy::new(Backoff::Constant { delay }, Jitter::None);
    let policy = policy.and_then(|policy| policy.with_max_attempts(max_attempts));
    policy.expect("a valid policy")
}
