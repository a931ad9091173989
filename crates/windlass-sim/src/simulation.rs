//! A simulation: the real engine on several nodes, in virtual time, from one seed.
//!
//! First chaos: clients submit jobs, operators interfere, and the faults that the seed chose
//! happen. Then all faults end, every job must finish, and the checker looks at the history.
//!
//! One thread runs everything. Time stands still while anything can run, and jumps to the next
//! timer when nothing can. So a seed gives the same history every time.

mod clock;
mod driver;
mod handler;
#[expect(
    clippy::indexing_slicing,
    reason = "an index is drawn below the length of its array"
)]
mod nemesis;
mod node;
#[expect(
    clippy::indexing_slicing,
    reason = "an index is drawn below the length of its array"
)]
mod plan;
pub(crate) mod reading;
mod remote;
mod restart;
pub(crate) mod tap;
#[expect(
    clippy::indexing_slicing,
    reason = "an index is drawn below the length of its array"
)]
mod workload;
mod world;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio::task::JoinSet;
use windlass_core::{Job, State};
use windlass_engine::{Actions, CancellationToken};
use windlass_store::{Store, StoreError};

pub use plan::{Driver, Ingredient, Shape};

use crate::checker::{self, Violation};
use crate::history::History;
use crate::panics;
use crate::planted::Bug;
use driver::OpenedStore;
use node::{Node, QUEUES, queue};
use plan::{CHAOS, DRAIN_MAX, Plan};
use remote::Servers;
use workload::Submitted;
use world::World;

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// What happened.
    pub history: History,
    /// The invariants that do not hold.
    pub violations: Vec<Violation>,
}

/// Runs one seed. An error means that the simulation itself could not run, for example because
/// there is no space for a SQLite file.
pub fn simulate(seed: u64, shape: &Shape) -> Result<Run, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| StoreError::Unavailable(error.into()))?;
    let plan = Arc::new(Plan::new(seed, shape));
    // They outlive the runtime, whose tasks use them.
    let mut opened = vec![driver::open(plan.driver, seed)?];
    panics::forget();
    let history = runtime.block_on(run(&plan, &mut opened))?;
    drop(runtime);
    let mut violations = checker::check(&history);
    violations.extend(panics::violation());
    Ok(Run {
        seed,
        history,
        violations,
    })
}

/// The running parts of a simulation.
struct Simulation<'a> {
    plan: Arc<Plan>,
    world: Arc<World>,
    /// The stores that were opened, the current one last.
    opened: &'a mut Vec<OpenedStore>,
    store: Arc<dyn Store>,
    servers: Servers,
    nodes: Vec<Node>,
    lives: u64,
}

async fn run(plan: &Arc<Plan>, opened: &mut Vec<OpenedStore>) -> Result<History, StoreError> {
    let first = opened.last().expect("the caller opened a store");
    let first = Arc::clone(&first.store);
    let mut simulation = Simulation {
        plan: Arc::clone(plan),
        world: World::new(),
        store: Bug::around_store(plan.planted, first),
        opened,
        servers: Servers::default(),
        nodes: Vec::new(),
        lives: 0,
    };
    for number in 0..plan.nodes {
        let ahead = nemesis::skew(plan, number);
        simulation.start_node(number, Arc::new(AtomicI64::new(ahead)));
    }
    if plan.has(Ingredient::Limits) {
        workload::set_limits(plan, &simulation.any_node(0).engine).await?;
    }
    let stop = CancellationToken::new();
    let mut workers = remote::start(&simulation, &stop);
    simulation.chaos().await?;
    simulation.heal().await?;
    simulation.drain().await?;
    stop.cancel();
    while workers.join_next().await.is_some() {}
    let (world, store) = (&simulation.world, &simulation.store);
    let mut last = reading::read_all(&**store, world.now()).await?;
    let actions = Actions::new(Arc::clone(&simulation.any_node(0).engine));
    last.tallies = reading::tallies(&actions).await;
    for node in simulation.nodes.drain(..) {
        node.finish(&simulation.world).await;
    }
    let entries = simulation.world.take_entries();
    simulation.world.end();
    Ok(History {
        entries,
        last: Some(last),
    })
}

impl Simulation<'_> {
    fn start_node(&mut self, number: u32, ahead: Arc<AtomicI64>) {
        self.lives += 1;
        let (plan, world) = (&self.plan, &self.world);
        let life = self.lives;
        let node = Node::start(plan, world, &self.store, number, life, ahead);
        match self.nodes.iter_mut().find(|node| node.number == number) {
            Some(old) => *old = node,
            None => self.nodes.push(node),
        }
        self.list_servers();
    }

    /// A living node if there is one.
    fn any_node(&self, bits: u64) -> &Node {
        let living: Vec<&Node> = self.nodes.iter().filter(|node| node.serves()).collect();
        let index = usize::try_from(bits).unwrap_or(0);
        let index = index.checked_rem(living.len()).unwrap_or(0);
        living
            .get(index)
            .copied()
            .or(self.nodes.first())
            .expect("a simulation has at least one node")
    }

    /// Clients, operators and faults, each at its time.
    async fn chaos(&mut self) -> Result<(), StoreError> {
        let submitted = Submitted::default();
        let mut clients = JoinSet::new();
        let mut random = self.plan.stream("routing", 0);
        let mut acts = workload::acts(&self.plan).into_iter().peekable();
        let mut faults = nemesis::faults(&self.plan).into_iter().peekable();
        loop {
            let act_at = acts.peek().map(|(at, _)| *at);
            let fault_at = faults.peek().map(|(at, _)| *at);
            let Some(at) = act_at.into_iter().chain(fault_at).min() else {
                break;
            };
            tokio::time::sleep(at.saturating_sub(self.world.elapsed())).await;
            if fault_at == Some(at) {
                if let Some((_, fault)) = faults.next() {
                    self.inject(fault).await?;
                    self.list_servers();
                }
                continue;
            }
            if let Some((_, act)) = acts.next() {
                let engine = Arc::clone(&self.any_node(random.bits()).engine);
                let shared = (Arc::clone(&self.plan), Arc::clone(&self.world));
                let submitted = Arc::clone(&submitted);
                clients.spawn(workload::perform(
                    shared.0, shared.1, engine, submitted, act,
                ));
            }
        }
        tokio::time::sleep(CHAOS.saturating_sub(self.world.elapsed())).await;
        while clients.join_next().await.is_some() {}
        Ok(())
    }

    /// Ends all faults: every node runs, no queue is paused.
    async fn heal(&mut self) -> Result<(), StoreError> {
        let dead: Vec<(u32, Arc<AtomicI64>)> = self
            .nodes
            .iter()
            .filter(|node| !node.serves())
            .map(|node| (node.number, Arc::clone(&node.ahead)))
            .collect();
        for (number, ahead) in dead {
            let stopping = self.nodes.iter().find(|node| node.number == number);
            if let Some(stopping) = stopping.filter(|node| !node.is_dead()) {
                stopping.kill(&self.world);
            }
            self.start_node(number, ahead);
        }
        for node in &self.nodes {
            node.heal();
        }
        let engine = Arc::clone(&self.any_node(0).engine);
        for name in QUEUES {
            workload::toggle(&engine, &queue(name), false).await?;
        }
        Ok(())
    }

    /// Waits until all jobs and actions are finished and no schedule fires again, at most
    /// [`DRAIN_MAX`].
    async fn drain(&self) -> Result<(), StoreError> {
        let until = self.world.elapsed() + DRAIN_MAX;
        let mut quiet = 0;
        let engine = Arc::clone(&self.any_node(0).engine);
        while quiet < 3 && self.world.elapsed() < until {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let actions = Actions::new(Arc::clone(&engine));
            let mut is_quiet = !has_active(&*self.store, self.world.now()).await?;
            let schedules = self.store.schedules().await?.readable;
            // Whether one has ended depends on the clocks of the nodes, which may be behind.
            is_quiet &= schedules.iter().all(|schedule| schedule.next_at.is_none());
            for replays in [true, false] {
                let listed = actions.list(replays, None, 10).await.unwrap_or_default();
                is_quiet &= listed.iter().all(|status| status.action.state.is_final());
            }
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
        Ok(())
    }
}

async fn has_active(store: &dyn Store, now: windlass_core::Timestamp) -> Result<bool, StoreError> {
    let counts = store.counts(now).await?;
    let active = counts.iter().filter(|(queue, _)| !queue.is_reserved());
    let states = [
        windlass_store::ListedState::Scheduled,
        windlass_store::ListedState::Ready,
        windlass_store::ListedState::Running,
    ];
    Ok(active
        .flat_map(|(_, counts)| states.map(|state| counts.of(Some(state))))
        .any(|count| count > 0))
}

impl Run {
    /// How many jobs there are, and how many of them succeeded.
    pub fn jobs(&self) -> (usize, usize) {
        let jobs: &[Job] = self.history.last.as_ref().map_or(&[], |last| &last.jobs);
        let succeeded = jobs.iter().filter(|job| job.state() == State::Succeeded);
        (jobs.len(), succeeded.count())
    }
}
