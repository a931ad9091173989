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
use windlass_engine::Actions;
use windlass_store::{Filter, Page, Store, StoreError};

pub use plan::{Driver, Ingredient, Shape};

use crate::checker::{self, Violation};
use crate::history::{Final, History};
use node::{AboveTap, Node, QUEUES, queue};
use plan::{CHAOS, DRAIN_MAX, Plan};
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

/// Puts a store around another one.
pub(crate) type Wrap<'a> = &'a dyn Fn(Arc<dyn Store>) -> Arc<dyn Store>;

/// Wrappers around stores, for planted bugs.
#[derive(Default)]
pub(crate) struct Wrappers<'a> {
    /// Around the store that all nodes share.
    pub(crate) below: Option<Wrap<'a>>,
    /// Between a node and its view of the store.
    pub(crate) above: Option<&'a AboveTap>,
}

/// Runs one seed. An error means that the simulation itself could not run, for example because
/// there is no space for a SQLite file.
pub fn simulate(seed: u64, shape: &Shape) -> Result<Run, StoreError> {
    simulate_with(seed, shape, &Wrappers::default())
}

pub(crate) fn simulate_with(
    seed: u64,
    shape: &Shape,
    wrappers: &Wrappers<'_>,
) -> Result<Run, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| StoreError::Unavailable(error.into()))?;
    let plan = Arc::new(Plan::new(seed, shape));
    let opened = driver::open(plan.driver, seed)?;
    let history = runtime.block_on(run(&plan, &opened.store, wrappers))?;
    drop(runtime);
    let violations = checker::check(&history);
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
    store: Arc<dyn Store>,
    above: Option<&'a AboveTap>,
    nodes: Vec<Node>,
    lives: u64,
}

async fn run(
    plan: &Arc<Plan>,
    store: &Arc<dyn Store>,
    wrappers: &Wrappers<'_>,
) -> Result<History, StoreError> {
    let shared = wrappers
        .below
        .map_or(Arc::clone(store), |below| below(Arc::clone(store)));
    let mut simulation = Simulation {
        plan: Arc::clone(plan),
        world: World::new(),
        store: shared,
        above: wrappers.above,
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
    simulation.chaos().await;
    simulation.heal().await?;
    simulation.drain().await?;
    for node in simulation.nodes.drain(..) {
        node.finish().await;
    }
    let entries = simulation.world.take_entries();
    simulation.world.end();
    let last = read_all(&**store, simulation.world.now()).await?;
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
        let node = Node::start(plan, world, &self.store, self.above, number, life, ahead);
        match self.nodes.iter_mut().find(|node| node.number == number) {
            Some(old) => *old = node,
            None => self.nodes.push(node),
        }
    }

    /// A living node if there is one.
    fn any_node(&self, bits: u64) -> &Node {
        let living: Vec<&Node> = self.nodes.iter().filter(|node| !node.is_dead()).collect();
        let index = usize::try_from(bits).unwrap_or(0);
        let index = index.checked_rem(living.len()).unwrap_or(0);
        living
            .get(index)
            .copied()
            .or(self.nodes.first())
            .expect("a simulation has at least one node")
    }

    /// Clients, operators and faults, each at its time.
    async fn chaos(&mut self) {
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
                    self.inject(fault);
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
    }

    /// Ends all faults: every node runs, no queue is paused.
    async fn heal(&mut self) -> Result<(), StoreError> {
        let dead: Vec<(u32, Arc<AtomicI64>)> = self
            .nodes
            .iter()
            .filter(|node| node.is_dead())
            .map(|node| (node.number, Arc::clone(&node.ahead)))
            .collect();
        for (number, ahead) in dead {
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

    /// Waits until all jobs and actions are finished, at most [`DRAIN_MAX`].
    async fn drain(&self) -> Result<(), StoreError> {
        let until = self.world.elapsed() + DRAIN_MAX;
        let mut quiet = 0;
        let engine = Arc::clone(&self.any_node(0).engine);
        // A schedule may still fire until its end.
        tokio::time::sleep(Duration::from_secs(7)).await;
        while quiet < 3 && self.world.elapsed() < until {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let actions = Actions::new(Arc::clone(&engine));
            let mut is_quiet = !has_active(&*self.store, self.world.now()).await?;
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

/// Reads everything that the checker compares.
async fn read_all(store: &dyn Store, now: windlass_core::Timestamp) -> Result<Final, StoreError> {
    let mut last = Final::default();
    let mut page = Page::first(1000);
    loop {
        let listed = store.list(&Filter::default(), page, now).await?;
        last.jobs.extend(listed.jobs);
        page.after = listed.next;
        if listed.next.is_none() {
            break;
        }
    }
    for job in &last.jobs {
        let mut attempts = store.attempts(job.id, 1000).await?;
        attempts.reverse();
        last.attempts.push(attempts);
    }
    last.schedules = store.schedules().await?.readable;
    Ok(last)
}

impl Run {
    /// How many jobs there are, and how many of them succeeded.
    pub fn jobs(&self) -> (usize, usize) {
        let jobs: &[Job] = self.history.last.as_ref().map_or(&[], |last| &last.jobs);
        let succeeded = jobs.iter().filter(|job| job.state() == State::Succeeded);
        (jobs.len(), succeeded.count())
    }
}
