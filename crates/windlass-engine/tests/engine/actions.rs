//! Bulk actions and replays in virtual time, on every store.

mod bulk;
mod replays;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_core::fairness::{Credit, Guards, Pool, Slots};
use windlass_core::retry::{Preset, WorkerRetry};
use windlass_core::{
    ActionCommand, ActionId, ActionState, AttemptError, BulkChange, BulkRevival, Delivery, Failure,
    Filter, Job, JobId, Lane, ListedState, NewJob, Patch, PayloadPatch, Phase, QueueName,
    ReplayProgress, ReplayRules, Report, SkipReason, State, StopReason, Unique, WaitingFor,
};
use windlass_engine::{
    ActionError, ActionRunner, ActionRunnerConfig, ActionStatus, Actions, Activity, Actor, Event,
    NewAction, Received, Work,
};
use windlass_store::{
    AttemptReport, Change, Claim, ClaimRetry, Kinds, Pause, QueueLimits, WorkerLocation,
};
use windlass_testkit::world::{World, new_job, seconds};

fn operator() -> Actor {
    Actor {
        id: "k1".to_owned(),
        name: "ann".to_owned(),
    }
}

/// Drives actions and runs jobs by hand.
struct Stage {
    world: World,
    actions: Actions,
    runner: ActionRunner,
}

impl Stage {
    fn new(world: World) -> Stage {
        let engine = Arc::clone(&world.engine);
        Stage {
            actions: Actions::new(Arc::clone(&engine)),
            runner: ActionRunner::new(engine, "one", ActionRunnerConfig::default()),
            world,
        }
    }

    /// Enqueues jobs of kind `k` and lets them all die with this error. Their payload is their
    /// number.
    async fn dead(&self, count: usize, error: &str) -> Vec<JobId> {
        let mut ids = Vec::new();
        for number in 0..count {
            let payload = json!({"number": number});
            let new = NewJob {
                payload: windlass_core::Payload::from_serialize(&payload, 100).unwrap(),
                ..new_job("k")
            };
            ids.push(self.world.enqueue(new).await);
        }
        let error = error.to_owned();
        self.run_jobs(usize::MAX, move |_| unrecoverable(&error))
            .await;
        self.advance(1.0);
        ids
    }

    /// Runs up to `limit` ready jobs.
    async fn run_jobs(&self, limit: usize, decide: impl Fn(&Job) -> Report) -> usize {
        let mut ran = 0;
        while ran < limit {
            let free = u32::try_from((limit - ran).min(1000)).unwrap();
            let jobs = self.claim(free).await;
            if jobs.is_empty() {
                break;
            }
            ran += jobs.len();
            let report = |job: &Job| AttemptReport {
                attempt_id: windlass_store::AttemptId {
                    job: job.id,
                    attempt: job.attempt,
                },
                report: decide(job),
                random: 0,
                detail: None,
            };
            let reports = jobs.iter().map(report).collect();
            let (store, now) = (self.world.engine.store(), self.world.engine.now());
            store.settle(reports, now).await.unwrap();
        }
        ran
    }

    async fn claim(&self, free: u32) -> Vec<Job> {
        let slots = Slots {
            free,
            total: free,
            retries_running: 0,
        };
        let guards = Guards {
            fresh_reserve: Some(0),
            ..Guards::default()
        };
        let claim = Claim {
            id: self.world.engine.ids().claim_id(),
            queue: QueueName::default(),
            kinds: Kinds::ALL,
            jobs: None,
            except: BTreeSet::new(),
            plan: guards.plan(Pool::Main, slots, Credit::default()),
            worker: "w".parse().unwrap(),
            worker_location: WorkerLocation::Local,
            lease: seconds(30.0),
            retry: ClaimRetry {
                worker: WorkerRetry {
                    policy: Some(Arc::new(Preset::Patient.policy())),
                    ..WorkerRetry::default()
                },
                ..ClaimRetry::default()
            },
        };
        let now = self.world.engine.now();
        self.world
            .engine
            .store()
            .claim(&claim, now)
            .await
            .unwrap()
            .jobs
    }

    fn advance(&self, by: f64) {
        self.world.clock.advance(seconds(by));
    }

    async fn pass(&self) -> Activity {
        self.runner.pass().await.unwrap()
    }

    /// Lets the runner work until it waits.
    async fn settle_down(&self) {
        for _ in 0..1000 {
            if self.pass().await != Activity::Busy {
                return;
            }
        }
        panic!("the runner never waits");
    }

    async fn get(&self, id: ActionId) -> ActionStatus {
        self.actions.get(id).await.unwrap()
    }

    async fn create(&self, filter: Filter, work: Work) -> ActionId {
        let new = NewAction {
            filter,
            work,
            reason: "the target is repaired".to_owned(),
        };
        self.actions.create(new, &operator()).await.unwrap().id
    }

    async fn replay(&self, rules: ReplayRules) -> ActionId {
        self.create(dead(), replay(rules, BulkRevival::default()))
            .await
    }

    async fn bulk(&self, filter: Filter, change: BulkChange) -> ActionStatus {
        // Ids of one instant sort at random, and an older action leaves alone what a newer one changed.
        self.advance(0.001);
        let id = self.create(filter, Work::Bulk { change, rate: None }).await;
        self.settle_down().await;
        self.get(id).await
    }

    async fn command(&self, id: ActionId, command: ActionCommand) -> Result<(), ActionError> {
        let done = self.actions.command(id, command, &operator()).await;
        done.map(|_| ())
    }
}

fn dead() -> Filter {
    Filter::state(ListedState::Dead)
}

fn replay(rules: ReplayRules, revival: BulkRevival) -> Work {
    Work::Replay {
        revival,
        rules,
        progress: ReplayProgress::default(),
    }
}

fn rules() -> ReplayRules {
    ReplayRules {
        canary_jobs: 5,
        rate: 100,
        min_sample: 10,
        ..ReplayRules::default()
    }
}

fn unrecoverable(error: &str) -> Report {
    Report::Failed(Failure::unrecoverable(AttemptError::new(error)))
}

fn succeeds(_: &Job) -> Report {
    Report::Succeeded(None)
}

fn phase(status: &ActionStatus) -> Phase {
    match &status.action.work {
        Work::Replay { progress, .. } => progress.phase,
        Work::Bulk { .. } => panic!("no replay"),
    }
}

/// `matched` = `to_do` + `revived` + `skipped`, at every moment.
fn check_sum(status: &ActionStatus) {
    let sum = status.to_do() + status.done() + status.action.skipped_total();
    assert_eq!(status.matched(), sum, "{status:?}");
}
