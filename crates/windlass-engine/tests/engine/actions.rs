//! Bulk actions and replays in virtual time, on every store.

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

windlass_testkit::on_every_store! {
    a_replay_goes_from_canary_to_rate_to_its_end;
    a_canary_that_fails_stops_the_replay_and_leaves_the_rest_alone;
    a_continued_replay_starts_with_another_canary;
    the_rate_and_the_pending_bound_hold;
    a_rate_phase_that_fails_stops_the_replay;
    a_replay_waits_for_a_paused_and_for_a_full_queue;
    jobs_that_changed_since_are_skipped;
    lost_jobs_need_force;
    a_taken_key_and_a_failed_patch_are_item_failures;
    another_runner_goes_on_when_the_lease_ends;
    each_bulk_action_does_what_it_says;
    a_bulk_action_keeps_to_its_rate_and_can_be_paused;
    a_preview_creates_nothing;
    commands_must_fit_the_state;
    a_filter_without_counters_is_counted_in_parts;
    the_end_of_a_replay_is_emitted_and_audited;
    revived_jobs_do_not_displace_fresh_ones;
}

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

async fn a_replay_goes_from_canary_to_rate_to_its_end(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(40, "no route to host").await;
    let id = stage.replay(rules()).await;
    assert_eq!(stage.get(id).await.action.matched, 40);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!((phase(&status), status.tally.pending), (Phase::Canary, 5));
    assert_eq!(status.action.waiting_for, Some(WaitingFor::Canary));
    stage.settle_down().await;
    assert_eq!(
        stage.get(id).await.tally.pending,
        5,
        "it waits for the canary"
    );
    assert_eq!(stage.run_jobs(100, succeeds).await, 5);
    let mut rounds = 0;
    while !stage.get(id).await.action.state.is_final() {
        stage.advance(0.1);
        stage.settle_down().await;
        stage.run_jobs(100, succeeds).await;
        check_sum(&stage.get(id).await);
        rounds += 1;
        assert!(rounds < 20, "{:?}", stage.get(id).await);
    }
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Finished);
    assert_eq!((status.tally.recovered, status.to_do()), (40, 0));
    assert_eq!(status.action.skipped_total(), 0);
    for job in jobs {
        assert_eq!(stage.world.state(job).await, State::Succeeded);
        assert_eq!(
            stage.world.history(job).await.len(),
            2,
            "each job ran once more"
        );
    }
}

async fn a_canary_that_fails_stops_the_replay_and_leaves_the_rest_alone(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(20, "no route to host").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage
        .run_jobs(1, |_| unrecoverable("no route to host"))
        .await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Stopped);
    assert_eq!(status.action.stop_reason, Some(StopReason::SameFingerprint));
    assert_eq!((status.done(), status.to_do()), (5, 15));
    check_sum(&status);
    stage.advance(60.0);
    stage.settle_down().await;
    assert_eq!(
        stage.get(id).await.done(),
        5,
        "a stopped replay revives nothing"
    );
    let mut dead = 0;
    for job in jobs {
        dead += usize::from(matches!(stage.world.state(job).await, State::Dead(_)));
    }
    assert_eq!(dead, 16);
}

async fn a_continued_replay_starts_with_another_canary(world: World) {
    let stage = Stage::new(world);
    stage.dead(20, "no route to host").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage
        .run_jobs(100, |_| unrecoverable("no route to host"))
        .await;
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.action.state, ActionState::Stopped);
    assert!(stage.command(id, ActionCommand::Resume).await.is_err());
    stage.command(id, ActionCommand::Continue).await.unwrap();
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, phase(&status)),
        (ActionState::Running, Phase::Canary)
    );
    assert_eq!((status.tally.pending, status.tally.failed_again), (5, 5));
    for _ in 0..10 {
        stage.run_jobs(100, succeeds).await;
        stage.advance(1.0);
        stage.settle_down().await;
    }
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Finished);
    assert_eq!((status.tally.recovered, status.tally.failed_again), (15, 5));
    check_sum(&status);
}

async fn the_rate_and_the_pending_bound_hold(world: World) {
    let stage = Stage::new(world);
    stage.dead(100, "boom").await;
    let rules = ReplayRules {
        rate: 10,
        max_pending: Some(15),
        ..rules()
    };
    let id = stage.replay(rules).await;
    stage.settle_down().await;
    stage.run_jobs(100, succeeds).await;
    stage.settle_down().await;
    let mut before = stage.get(id).await.done();
    for _ in 0..15 {
        stage.advance(0.1);
        stage.settle_down().await;
        let done = stage.get(id).await.done();
        assert!(done - before <= 1, "10 per second are 1 in 100 ms");
        before = done;
    }
    assert_eq!(before, 5 + 15);
    stage.advance(10.0);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.tally.pending, 15, "no more than max_pending");
    assert_eq!(status.action.waiting_for, Some(WaitingFor::MaxPending));
    stage.run_jobs(15, succeeds).await;
    stage.settle_down().await;
    assert_eq!(
        stage.get(id).await.tally.pending,
        10,
        "a pause is not made up for"
    );
}

async fn a_rate_phase_that_fails_stops_the_replay(world: World) {
    let stage = Stage::new(world);
    stage.dead(200, "boom").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage.run_jobs(100, succeeds).await;
    for _ in 0..10 {
        stage.advance(0.1);
        stage.settle_down().await;
        stage
            .run_jobs(100, |_| unrecoverable("something else"))
            .await;
    }
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Stopped);
    assert_eq!(status.action.stop_reason, Some(StopReason::FailedShare));
    assert!(status.to_do() > 100, "{status:?}");
}

async fn a_replay_waits_for_a_paused_and_for_a_full_queue(world: World) {
    let stage = Stage::new(world);
    stage.dead(10, "boom").await;
    let limits = |limits: QueueLimits| {
        let store = Arc::clone(&stage.world.store);
        async move {
            store
                .put_queue(&QueueName::default(), &limits, None)
                .await
                .unwrap()
        }
    };
    let none = QueueLimits::default;
    let paused = Pause {
        by: "ann".to_owned(),
        at: stage.world.engine.now(),
        reason: None,
    };
    limits(QueueLimits {
        paused: Some(paused),
        ..none()
    })
    .await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.waiting_for, Some(WaitingFor::QueuePaused));
    assert_eq!(status.action.waiting_queue, Some(QueueName::default()));
    assert_eq!(status.done(), 0);
    limits(QueueLimits {
        max_depth: Some(3),
        ..none()
    })
    .await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.waiting_for, Some(WaitingFor::QueueFull));
    assert_eq!(status.done(), 3);
    check_sum(&status);
    limits(none()).await;
    for _ in 0..10 {
        stage.settle_down().await;
        stage.run_jobs(100, succeeds).await;
        stage.advance(1.0);
    }
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.tally.recovered),
        (ActionState::Finished, 10)
    );
}

async fn jobs_that_changed_since_are_skipped(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(10, "boom").await;
    let id = stage.replay(rules()).await;
    stage.advance(1.0);
    let (store, now) = (stage.world.engine.store(), stage.world.engine.now());
    // One job is removed, one is revived by hand and dies again, one dies later.
    let by_hand = Change::Revive(windlass_core::Revival::default());
    store
        .change(&jobs[..1], &Change::Purge, None, now)
        .await
        .unwrap();
    store
        .change(&jobs[1..2], &by_hand, None, now)
        .await
        .unwrap();
    stage.run_jobs(1, |_| unrecoverable("boom")).await;
    stage.dead(1, "boom").await;
    for _ in 0..10 {
        stage.settle_down().await;
        stage.run_jobs(100, succeeds).await;
        stage.advance(1.0);
    }
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.tally.recovered),
        (ActionState::Finished, 8)
    );
    assert_eq!(status.action.skipped.get(&SkipReason::Changed), Some(&2));
    check_sum(&status);
}

async fn lost_jobs_need_force(world: World) {
    let stage = Stage::new(world);
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("k")
    };
    stage.world.enqueue(once).await;
    stage.run_jobs(1, |_| Report::Lost).await;
    stage.advance(1.0);
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Finished);
    assert_eq!(
        status.action.skipped.get(&SkipReason::LostNeedsForce),
        Some(&1)
    );
    assert_eq!(status.action.failures.len(), 1);
    let force = BulkRevival {
        force: true,
        ..BulkRevival::default()
    };
    let id = stage.create(dead(), replay(rules(), force)).await;
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.done(), 1);
}

async fn a_taken_key_and_a_failed_patch_are_item_failures(world: World) {
    let stage = Stage::new(world);
    let unique = || NewJob {
        unique: Some(Unique {
            key: "u".parse().unwrap(),
            unique_for: None,
            on_duplicate: windlass_core::OnDuplicate::Keep,
        }),
        ..new_job("k")
    };
    stage.world.enqueue(unique()).await;
    stage.run_jobs(1, |_| unrecoverable("boom")).await;
    stage.dead(1, "boom").await;
    stage.world.enqueue(unique()).await;
    stage.advance(1.0);
    let rename = json!([{"op": "move", "from": "/number", "path": "/n"}]);
    let revival = BulkRevival {
        payload_patch: Some(PayloadPatch::new(rename).unwrap()),
        ..BulkRevival::default()
    };
    let status = stage.bulk(dead(), BulkChange::Revive(revival)).await;
    assert_eq!((status.action.matched, status.done()), (2, 1));
    // The payload of the first job is null. Its key is checked before the patch.
    assert_eq!(status.action.skipped.get(&SkipReason::KeyTaken), Some(&1));
    let patch = Patch {
        payload: Some(PayloadPatch::new(json!([{"op": "remove", "path": "/x"}])).unwrap()),
        ..Patch::default()
    };
    let ready = Filter::state(ListedState::Ready);
    let status = stage.bulk(ready, BulkChange::Patch { patch }).await;
    assert_eq!(status.action.skipped.get(&SkipReason::Patch), Some(&2));
    assert_eq!(status.action.failures.len(), 2);
    let failure = &status.action.failures[0];
    assert!(failure.error.contains("/x"), "{failure:?}");
}

async fn another_runner_goes_on_when_the_lease_ends(world: World) {
    let stage = Stage::new(world);
    stage.dead(20, "boom").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    let engine = Arc::clone(&stage.world.engine);
    let second = ActionRunner::new(engine, "two", ActionRunnerConfig::default());
    stage.run_jobs(100, succeeds).await;
    stage.advance(1.0);
    assert_eq!(
        second.pass().await.unwrap(),
        Activity::Idle,
        "the first one holds it"
    );
    assert_eq!(stage.get(id).await.done(), 5);
    stage.advance(10.0);
    for _ in 0..20 {
        second.pass().await.unwrap();
        stage.run_jobs(100, succeeds).await;
        stage.advance(0.5);
    }
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.tally.recovered),
        (ActionState::Finished, 20)
    );
}

async fn each_bulk_action_does_what_it_says(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(3, "boom").await;
    let waiting = Filter {
        kind: Some("k".parse().unwrap()),
        ..Filter::default()
    };
    let status = stage
        .bulk(
            dead(),
            BulkChange::Revive(BulkRevival {
                run_at: Some(
                    stage
                        .world
                        .engine
                        .now()
                        .saturating_add(Duration::from_secs(3600)),
                ),
                keep_failures: true,
                ..BulkRevival::default()
            }),
        )
        .await;
    assert_eq!(
        (status.action.state, status.done()),
        (ActionState::Finished, 3)
    );
    let job = stage.world.job(jobs[0]).await;
    assert_eq!((job.failures, job.lane()), (1, Lane::Retry));
    stage.advance(1.0);
    let retrying = Filter {
        retrying: Some(true),
        ..Filter::default()
    };
    assert_eq!(stage.bulk(retrying, BulkChange::RunNow).await.done(), 3);
    assert!(
        stage
            .world
            .job(jobs[0])
            .await
            .is_ready(stage.world.engine.now())
    );
    let change = BulkChange::Reprioritise { priority: 9 };
    assert_eq!(stage.bulk(waiting.clone(), change).await.done(), 3);
    assert_eq!(stage.world.job(jobs[0]).await.priority, 9);
    let change = BulkChange::Move {
        queue: "other".parse().unwrap(),
    };
    assert_eq!(stage.bulk(waiting.clone(), change).await.done(), 3);
    assert_eq!(stage.world.job(jobs[0]).await.queue.as_str(), "other");
    stage.advance(1.0);
    assert_eq!(
        stage.bulk(waiting.clone(), BulkChange::Cancel).await.done(),
        3
    );
    assert_eq!(stage.world.state(jobs[0]).await, State::Cancelled);
    stage.advance(1.0);
    let cancelled = Filter {
        state: Some(ListedState::Cancelled),
        ..waiting
    };
    let status = stage.bulk(cancelled.clone(), BulkChange::Resolve).await;
    assert_eq!(status.action.skipped.get(&SkipReason::Changed), Some(&3));
    assert_eq!(stage.bulk(cancelled, BulkChange::Delete).await.done(), 3);
    let store = stage.world.engine.store();
    assert_eq!(store.get(&jobs).await.unwrap(), [None, None, None]);
}

async fn a_bulk_action_keeps_to_its_rate_and_can_be_paused(world: World) {
    let stage = Stage::new(world);
    stage.dead(30, "boom").await;
    let change = BulkChange::Delete;
    let id = stage
        .create(
            dead(),
            Work::Bulk {
                change,
                rate: Some(10),
            },
        )
        .await;
    stage.advance(0.5);
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.done(), 5);
    stage.command(id, ActionCommand::Pause).await.unwrap();
    stage.advance(5.0);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.done()),
        (ActionState::Paused, 5)
    );
    stage.command(id, ActionCommand::Resume).await.unwrap();
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.done(), 15, "at most one second at once");
    stage.command(id, ActionCommand::Abort).await.unwrap();
    stage.advance(5.0);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.done(), status.to_do()),
        (ActionState::Aborted, 15, 15)
    );
    let listed = stage.actions.list(false, None, 10).await.unwrap();
    assert_eq!(listed, [status]);
    assert!(stage.actions.list(true, None, 10).await.unwrap().is_empty());
}

async fn a_preview_creates_nothing(world: World) {
    let stage = Stage::new(world);
    stage.dead(8, "boom").await;
    let new = |filter| NewAction {
        filter,
        work: replay(rules(), BulkRevival::default()),
        reason: "just looking".to_owned(),
    };
    let preview = stage.actions.preview(new(dead())).await.unwrap();
    assert_eq!((preview.matched, preview.is_complete), (8, true));
    assert_eq!(preview.samples.len(), 5);
    let (before, after) = &preview.samples[0];
    assert!(matches!(before.state(), State::Dead(_)));
    assert_eq!(
        after.as_ref().unwrap().as_ref().unwrap().state(),
        State::Waiting
    );
    assert!(stage.actions.list(true, None, 10).await.unwrap().is_empty());
    stage.settle_down().await;
    let counts = stage
        .world
        .engine
        .store()
        .counts(stage.world.engine.now())
        .await
        .unwrap();
    assert_eq!(counts[&QueueName::default()].dead, 8);
    let refused = stage
        .actions
        .preview(new(Filter::default()))
        .await
        .unwrap_err();
    assert!(matches!(refused, ActionError::Invalid(_)), "{refused}");
}

async fn commands_must_fit_the_state(world: World) {
    let stage = Stage::new(world);
    let unknown = stage
        .command(ActionId::from_u128(1), ActionCommand::Abort)
        .await;
    assert!(matches!(unknown, Err(ActionError::NotFound(_))));
    stage.dead(1, "boom").await;
    let status = stage.bulk(dead(), BulkChange::Delete).await;
    assert_eq!(status.action.state, ActionState::Finished);
    let late = stage.command(status.action.id, ActionCommand::Abort).await;
    assert!(
        matches!(late, Err(ActionError::Conflict { .. })),
        "{late:?}"
    );
    let new = NewAction {
        filter: dead(),
        work: Work::Bulk {
            change: BulkChange::Delete,
            rate: None,
        },
        reason: String::new(),
    };
    let refused = stage.actions.create(new, &operator()).await.unwrap_err();
    assert!(refused.to_string().contains("reason"), "{refused}");
}

async fn a_filter_without_counters_is_counted_in_parts(world: World) {
    let stage = Stage::new(world);
    stage.dead(30, "connection refused").await;
    let filter = Filter {
        error: Some("REFUSED".to_owned()),
        ..dead()
    };
    let id = stage
        .create(filter, replay(rules(), BulkRevival::default()))
        .await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.matched, status.action.is_counted()),
        (30, true)
    );
    stage.settle_down().await;
    check_sum(&stage.get(id).await);
}

async fn the_end_of_a_replay_is_emitted_and_audited(world: World) {
    let stage = Stage::new(world);
    let mut events = stage.world.engine.subscribe();
    stage.dead(1, "boom").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage.run_jobs(1, |_| unrecoverable("boom")).await;
    stage.settle_down().await;
    let mut names = Vec::new();
    while let Some(Received::Event(event)) = events.try_next() {
        if matches!(*event, Event::Action { id: other, .. } if other == id) {
            names.push(event.name());
        }
    }
    assert_eq!(names, ["replay_stopped"]);
    let audit = windlass_engine::Audit::new(Arc::clone(&stage.world.engine));
    let check = audit.verify(None).await.unwrap();
    assert_eq!((check.records, check.broken), (2, None));
}

async fn revived_jobs_do_not_displace_fresh_ones(world: World) {
    let stage = Stage::new(world);
    stage.dead(20, "boom").await;
    stage
        .bulk(dead(), BulkChange::Revive(BulkRevival::default()))
        .await;
    for _ in 0..20 {
        stage.world.enqueue(new_job("k")).await;
    }
    let claimed = stage.claim(10).await;
    let retries = claimed.iter().filter(|job| job.lane() == Lane::Retry);
    assert_eq!(
        (claimed.len(), retries.count()),
        (10, 2),
        "a fifth of the slots"
    );
}
