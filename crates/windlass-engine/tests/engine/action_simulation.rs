//! A seeded simulation of replays and bulk actions: runners die between two writes, the store fails
//! and loses answers, people interfere. Then all faults end and everything is carried to its end.
//! A failure prints its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::fairness::{Credit, Guards, Pool, Slots};
use windlass_core::retry::WorkerRetry;
use windlass_core::{
    ActionCommand, ActionId, ActionState, AttemptError, BulkChange, BulkRevival, Failure, Filter,
    Job, JobId, ListedState, QueueName, Random, ReplayProgress, ReplayRules, Report, Revival,
};
use windlass_engine::{ActionRunner, ActionRunnerConfig, Actions, Actor, NewAction, Work};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{
    AttemptId, AttemptReport, Change, Claim, ClaimRetry, Kinds, Store, WorkerLocation,
};
use windlass_testkit::world::{World, check_tallies, constant, new_job, seconds, t0};
use windlass_testkit::{Faulty, seeds};

const VERBS: [&str; 8] = [
    "change",
    "put_document",
    "remove_document",
    "documents",
    "list",
    "action_tally",
    "settle",
    "get",
];

struct Simulation {
    seed: u64,
    random: Random,
    world: World,
    faulty: Arc<Faulty>,
    /// The same store without faults.
    healthy: Arc<dyn Store>,
    actions: Actions,
    runners: Vec<ActionRunner>,
    jobs: Vec<JobId>,
    replays: Vec<ActionId>,
    /// Which actions were seen as the last one of which jobs.
    changed: BTreeSet<(ActionId, JobId)>,
}

impl Simulation {
    fn new(seed: u64, store: Arc<dyn Store>) -> Simulation {
        let faulty = Faulty::new(Arc::clone(&store));
        let world = World::on(Arc::clone(&faulty) as Arc<dyn Store>, None);
        let actions = Actions::new(Arc::clone(&world.engine));
        let mut simulation = Simulation {
            seed,
            random: Random::new(seed),
            world,
            faulty,
            healthy: store,
            actions,
            runners: Vec::new(),
            jobs: Vec::new(),
            replays: Vec::new(),
            changed: BTreeSet::new(),
        };
        simulation.runners = (0..2).map(|_| simulation.new_runner()).collect();
        simulation
    }

    /// A runner of a new process.
    fn new_runner(&mut self) -> ActionRunner {
        let name = format!("runner {}", self.random.bits());
        let engine = Arc::clone(&self.world.engine);
        ActionRunner::new(engine, &name, ActionRunnerConfig::default())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.bits() % limit
    }

    async fn create(&mut self, filter: Filter, work: Work) {
        let is_replay = work.is_replay();
        let new = NewAction {
            filter,
            work,
            reason: "simulated".to_owned(),
        };
        let actor = Actor {
            id: "s".to_owned(),
            name: "simulation".to_owned(),
        };
        if let Ok(action) = self.actions.create(new, &actor).await
            && is_replay
        {
            self.replays.push(action.id);
        }
    }

    async fn step(&mut self) {
        match self.below(16) {
            0 | 1 => {
                self.faulty.heal();
                for _ in 0..self.below(20) {
                    let kind = ["a", "b"][self.below(2) as usize];
                    self.jobs.push(self.world.enqueue(new_job(kind)).await);
                }
            }
            2..=4 => self.run_jobs().await,
            5 => {
                let rules = ReplayRules {
                    canary_jobs: 1 + self.below(4) as u32,
                    rate: 1 + self.below(30) as u32,
                    canary_timeout_ms: 10_000,
                    failed_share: 0.5,
                    min_sample: 5,
                    same_fingerprint: Some(self.below(3) as u32),
                    ..ReplayRules::default()
                };
                let work = Work::Replay {
                    revival: BulkRevival {
                        keep_failures: self.below(4) == 0,
                        ..BulkRevival::default()
                    },
                    rules,
                    progress: ReplayProgress::default(),
                };
                self.create(Filter::state(ListedState::Dead), work).await;
            }
            6 => {
                // Only one at a time: `observe` sees only the last action of each job.
                self.faulty.heal();
                let bulk = self.actions.list(false, None, 1).await.unwrap();
                if bulk.iter().any(|status| !status.action.state.is_final()) {
                    return;
                }
                let kind = Some("a".parse().unwrap());
                let filter = Filter {
                    kind,
                    ..Filter::default()
                };
                let change = match self.below(3) {
                    0 => BulkChange::RunNow,
                    1 => BulkChange::Cancel,
                    _ => BulkChange::Reprioritise { priority: 3 },
                };
                self.create(filter, Work::Bulk { change, rate: None }).await;
            }
            7 => {
                let verb = VERBS[self.below(8) as usize];
                self.faulty.fail(verb);
            }
            8 => {
                let verb = VERBS[self.below(8) as usize];
                self.faulty.lose_answers(verb);
            }
            9 => self.faulty.heal(),
            10 => {
                let runner = self.new_runner();
                let position = self.below(2) as usize;
                self.runners[position] = runner;
            }
            11 => self.interfere().await,
            12 => {
                let by = self.below(15) as f64;
                self.world.clock.advance(seconds(by));
            }
            _ => {
                self.world.clock.advance(seconds(0.3));
                let position = self.below(2) as usize;
                // The store injects errors. A later pass retries, as a running loop would.
                drop(self.runners[position].pass().await);
            }
        }
    }

    /// Notes which jobs were changed by which actions.
    async fn observe(&mut self) {
        let found = self.healthy.get(&self.jobs).await.unwrap();
        let changed = found.iter().flatten().filter_map(|job| {
            let action = job.interventions.last_action?;
            Some((action, job.id))
        });
        self.changed.extend(changed);
    }

    /// Something that people do meanwhile.
    async fn interfere(&mut self) {
        let Some(position) = self.below(self.jobs.len().max(1) as u64).try_into().ok() else {
            return;
        };
        let change = match self.below(3) {
            0 => Change::Purge,
            1 => Change::Revive(Revival::default()),
            _ => Change::Cancel,
        };
        if let Some(job) = self.jobs.get::<usize>(position) {
            drop(self.world.engine.change(&[*job], &change).await);
        }
        let commands = [
            ActionCommand::Pause,
            ActionCommand::Resume,
            ActionCommand::Continue,
        ];
        let command = commands[self.below(3) as usize];
        let actor = Actor {
            id: "s".to_owned(),
            name: "simulation".to_owned(),
        };
        if let Some(replay) = self.replays.last() {
            drop(self.actions.command(*replay, command, &actor).await);
        }
    }

    /// Runs some ready jobs. The number of the attempt and the job decide whether it fails, so that
    /// a seed repeats the same run.
    async fn run_jobs(&mut self) {
        let slots = Slots {
            free: 8,
            total: 8,
            retries_running: 0,
        };
        let claim = Claim {
            id: self.world.engine.ids().claim_id(),
            queue: QueueName::default(),
            kinds: Kinds::ALL,
            jobs: None,
            except: BTreeSet::new(),
            plan: Guards::default().plan(Pool::Main, slots, Credit::default()),
            worker: "w".parse().unwrap(),
            worker_location: WorkerLocation::Local,
            lease: seconds(30.0),
            retry: ClaimRetry {
                worker: WorkerRetry {
                    policy: Some(Arc::new(constant(1, 2))),
                    ..WorkerRetry::default()
                },
                ..ClaimRetry::default()
            },
        };
        let (store, now) = (self.world.engine.store(), self.world.engine.now());
        let Ok(claimed) = store.claim(&claim, now).await else {
            return;
        };
        let report = |job: &Job| {
            let failed = !job.id.as_u128().is_multiple_of(3) && job.attempt < 4;
            let error = if job.id.as_u128().is_multiple_of(2) {
                "refused"
            } else {
                "timed out"
            };
            AttemptReport {
                attempt_id: AttemptId {
                    job: job.id,
                    attempt: job.attempt,
                },
                report: if failed {
                    Report::Failed(Failure::retryable(AttemptError::new(error)))
                } else {
                    Report::Succeeded(None)
                },
                random: 0,
                detail: None,
            }
        };
        let reports = claimed.jobs.iter().map(report).collect();
        drop(store.settle(reports, now).await);
        drop(store.sweep(100, now, 0).await);
    }

    /// Ends all faults, and lets everything come to its end.
    async fn heal_and_drain(&mut self) {
        self.faulty.heal();
        for _ in 0..60 {
            self.world.clock.advance(seconds(5.0));
            self.run_jobs().await;
            for position in 0..self.runners.len() {
                self.runners[position].pass().await.unwrap();
                self.observe().await;
            }
        }
    }

    /// Checks that the numbers of bulk actions are those of the jobs.
    async fn check_bulk_actions(&self) {
        let seed = self.seed;
        for status in self.actions.list(false, None, 1000).await.unwrap() {
            let action = &status.action;
            let changed = self.changed.iter().filter(|(id, _)| *id == action.id);
            let counts = (status.done(), status.to_do());
            assert_eq!(
                counts,
                (changed.count() as u64, 0),
                "seed {seed}: {status:?}"
            );
            let sum = status.done() + action.skipped_total();
            assert_eq!(status.matched(), sum, "seed {seed}: {status:?}");
            let state = action.state;
            assert_eq!(state, ActionState::Finished, "seed {seed}: {status:?}");
        }
    }

    async fn check(&self) {
        let seed = self.seed;
        self.check_bulk_actions().await;
        let store = self.world.engine.store();
        check_tallies(store, self.world.engine.now(), &format!("seed {seed}")).await;
        let mut revived: BTreeMap<ActionId, u64> = BTreeMap::new();
        let found = store.get(&self.jobs).await.unwrap();
        for job in found.iter().flatten() {
            let by = job
                .interventions
                .revived
                .as_ref()
                .and_then(|revived| revived.by);
            *revived
                .entry(by.unwrap_or(ActionId::from_u128(0)))
                .or_default() += 1;
        }
        for replay in &self.replays {
            let status = self.actions.get(*replay).await.unwrap();
            let (action, tally) = (&status.action, status.tally);
            let sum = status.to_do() + status.done() + action.skipped_total();
            assert_eq!(status.matched(), sum, "seed {seed}: {status:?}");
            let now_its = revived.get(replay).copied().unwrap_or(0);
            assert!(tally.changed() >= now_its, "seed {seed}: {status:?}");
            let firsts = tally.first_succeeded + tally.first_failed + tally.first_failed_alike;
            assert!(firsts <= tally.changed(), "seed {seed}: {status:?}");
            if action.state == ActionState::Finished {
                assert_eq!(
                    (status.to_do(), tally.pending),
                    (0, 0),
                    "seed {seed}: {status:?}"
                );
            }
            assert_ne!(
                action.state,
                ActionState::Running,
                "seed {seed}: {status:?}"
            );
        }
    }
}

async fn simulate(seed: u64, store: Arc<dyn Store>) {
    let mut simulation = Simulation::new(seed, store);
    for _ in 0..120 {
        simulation.step().await;
        simulation.observe().await;
    }
    simulation.heal_and_drain().await;
    simulation.check().await;
}

#[tokio::test]
async fn replays_and_tallies_survive_every_fault() {
    for seed in seeds(0, 100) {
        simulate(seed, Arc::new(MemoryStore::new())).await;
    }
}

#[tokio::test]
async fn the_same_in_sqlite() {
    for seed in seeds(1000, 10) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("jobs.db"), t0(), seed).unwrap();
        simulate(seed, Arc::new(store)).await;
    }
}
