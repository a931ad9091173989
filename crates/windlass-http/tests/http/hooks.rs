//! Hooks: events of a store become signed requests to a real target.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing report or field fails the test"
)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use windlass_core::retry::AttemptLimit;
use windlass_core::{
    Filter, HOOK_QUEUE, HookDefinition, HookEvent, HookName, JobId, ListedState, NewJob, QueueName,
    ReplayRules, State, hook_queue,
};
use windlass_engine::{
    ActionRunner, ActionRunnerConfig, Actions, Actor, Clock as _, Engine, HookWatcher,
    HookWatcherConfig, Ids, NewAction, QueueConfig, StatisticsWriter, StoredHooks, SystemClock,
    Work, Worker, WorkerConfig,
};
use windlass_http::{HttpJobs, KeyError, SecretHosts, SigningKey, SigningKeys, WebhookSecret};
use windlass_memory::MemoryStore;
use windlass_store::{Expected, ListOrder, Page, Pause, QueueLimits, Store};
use windlass_testkit::World;
use windlass_testkit::cluster;
use windlass_testkit::world::{failed, new_job, t0};

use crate::support::log::Log;
use crate::support::{Reply, Target, local, system, worker_config};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

windlass_testkit::on_every_store! {
    deaths_of_one_cause_are_one_report_a_minute;
    a_new_cause_is_reported;
    a_replay_that_stops_itself_is_reported;
    a_queue_without_starts_is_reported_once;
    a_paused_queue_and_a_started_one_are_not_stalled;
    an_event_is_reported_although_its_process_died;
    the_deaths_of_reports_are_not_reported;
    a_paused_hook_reports_nothing_and_never_makes_up_for_it;
    a_hook_reports_only_its_queue_and_kind;
}

#[derive(Debug)]
struct Secrets;

#[async_trait]
impl SigningKeys for Secrets {
    async fn secret(&self, _: &str) -> Result<WebhookSecret, KeyError> {
        Ok(WebhookSecret {
            keys: vec![SigningKey::parse(SECRET).expect("a secret")],
            hosts: SecretHosts::Any,
        })
    }
}

/// A store whose events go to a target.
struct Stage {
    world: World,
    target: Target,
    watcher: HookWatcher,
    worker: Worker,
}

/// A worker for HTTP jobs in the queue of hooks, and for the kind `k`, which always fails.
fn worker_of(engine: &Arc<Engine>) -> Worker {
    let http = HttpJobs::with(local(), system(), Arc::new(Secrets)).expect("settings");
    let mut config: WorkerConfig = worker_config(&http);
    config.queues.push(QueueConfig::new(hook_queue(), 10));
    let handler = |_| async { failed("no connection to db1") };
    let kind = "k".parse().expect("a kind");
    config.handlers.add(kind, Arc::new(handler));
    Worker::new(Arc::clone(engine), config).expect("a worker")
}

fn watcher_of(engine: &Arc<Engine>) -> HookWatcher {
    HookWatcher::new(Arc::clone(engine), HookWatcherConfig::default())
}

impl Stage {
    async fn new(world: World, events: &[HookEvent]) -> Stage {
        let target = Target::replying(&[Reply::Status(200)]).await;
        let stage = Stage {
            watcher: watcher_of(&world.engine),
            worker: worker_of(&world.engine),
            world,
            target,
        };
        stage.put("ops", &stage.definition(events)).await;
        stage
    }

    fn definition(&self, events: &[HookEvent]) -> HookDefinition {
        HookDefinition::new(&self.target.url("/hook"), "k1", events.iter().copied())
    }

    async fn put(&self, name: &str, definition: &HookDefinition) {
        let (name, hooks) = (HookName::new(name).expect("a name"), self.hooks());
        let put = hooks.put(&name, definition, Expected::Any).await;
        put.expect("a hook");
    }

    fn hooks(&self) -> StoredHooks {
        StoredHooks::new(Arc::clone(&self.world.engine))
    }

    fn advance(&self, seconds: u64) {
        let next = self.world.clock.now();
        let next = next.saturating_add(Duration::from_secs(seconds));
        self.world.clock.advance_to(next);
    }

    /// Lets a job of kind `k` die.
    async fn die(&self) -> JobId {
        let id = self.world.enqueue(dying()).await;
        self.worker.pass(&self.world.clock).await.expect("a store");
        assert!(matches!(self.world.state(id).await, State::Dead(_)));
        id
    }

    /// Looks for events, and sends their reports.
    async fn report(&self) -> usize {
        let now = self.world.clock.now();
        let statistics = StatisticsWriter::new(Arc::clone(&self.world.engine));
        statistics.pass(now).await.expect("a store");
        let enqueued = self.watcher.pass(now).await.expect("a store");
        self.worker.pass(&self.world.clock).await.expect("a store");
        enqueued
    }

    fn bodies(&self) -> Vec<Value> {
        let seen = self.target.seen();
        let body = |seen: &windlass_testkit::target::Seen| {
            assert!(seen.headers.contains_key("webhook-signature"));
            serde_json::from_slice(&seen.body).expect("JSON")
        };
        seen.iter().map(body).collect()
    }
}

fn dying() -> NewJob {
    NewJob {
        max_attempts: Some(AttemptLimit::ONE),
        ..new_job("k")
    }
}

async fn deaths_of_one_cause_are_one_report_a_minute(world: World) {
    let stage = Stage::new(world, &[HookEvent::Dead]).await;
    let ids = [stage.die().await, stage.die().await, stage.die().await];
    assert_eq!(stage.report().await, 1);
    stage.advance(5);
    assert_eq!(stage.report().await, 0, "it looks back, and reports once");
    stage.advance(60);
    stage.die().await;
    assert_eq!(stage.report().await, 1);
    let bodies = stage.bodies();
    assert_eq!(bodies.len(), 2);
    assert_eq!(
        (&bodies[0]["event"], &bodies[0]["version"]),
        (&"dead".into(), &1.into())
    );
    assert_eq!(
        (&bodies[0]["queue"], &bodies[0]["kind"]),
        (&"default".into(), &"k".into())
    );
    assert_eq!(
        (&bodies[0]["dead"], &bodies[1]["dead"]),
        (&3.into(), &4.into())
    );
    assert_eq!(bodies[0]["reason"], "exhausted");
    let job = bodies[0]["job_id"].as_str().expect("an id");
    assert!(ids.iter().any(|id| id.to_string() == job));
    assert_eq!(bodies[0]["link"], format!("/api/v1/jobs/{job}"));
    assert!(bodies[0].get("error").is_none() && bodies[0].get("payload").is_none());
}

async fn a_new_cause_is_reported(world: World) {
    let stage = Stage::new(world, &[HookEvent::FailureGroupCreated]).await;
    let with_text = HookDefinition {
        include_error_text: true,
        ..stage.definition(&[HookEvent::FailureGroupCreated])
    };
    stage.put("with-text", &with_text).await;
    stage.die().await;
    assert_eq!(stage.report().await, 2, "one for each hook");
    stage.advance(60);
    stage.die().await;
    assert_eq!(stage.report().await, 0, "the cause is known");
    let day = 24 * 3600;
    stage.advance(day);
    stage.die().await;
    assert_eq!(stage.report().await, 2, "it counts as new after a day");
    let bodies = stage.bodies();
    assert_eq!(bodies[0]["event"], "failure_group_created");
    let texts = bodies.iter().filter_map(|body| body.get("error"));
    let texts: Vec<&Value> = texts.collect();
    assert_eq!(texts, ["no connection to db1", "no connection to db1"]);
}

async fn a_replay_that_stops_itself_is_reported(world: World) {
    let stage = Stage::new(world, &[HookEvent::ReplayStopped]).await;
    for _ in 0..3 {
        stage.die().await;
    }
    stage.advance(1);
    let engine = &stage.world.engine;
    let actions = Actions::new(Arc::clone(engine));
    let runner = ActionRunner::new(Arc::clone(engine), "r", ActionRunnerConfig::default());
    let replay = NewAction {
        filter: Filter::state(ListedState::Dead),
        work: Work::replay(ReplayRules {
            canary_jobs: 2,
            ..ReplayRules::default()
        }),
        reason: "test".to_owned(),
    };
    let (id, name) = ("k1".to_owned(), "ann".to_owned());
    let replay = actions
        .create(replay, &Actor { id, name })
        .await
        .expect("a replay");
    for _ in 0..5 {
        stage.advance(1);
        runner.pass().await.expect("a store");
        stage
            .worker
            .pass(&stage.world.clock)
            .await
            .expect("a store");
    }
    assert_eq!(stage.report().await, 1);
    stage.advance(5);
    assert_eq!(stage.report().await, 0);
    let body = &stage.bodies()[0];
    assert_eq!(body["event"], "replay_stopped");
    assert_eq!(body["replay_id"], replay.id.to_string());
    assert_eq!(body["reason"], "same_fingerprint");
    assert_eq!((&body["revived"], &body["to_do"]), (&2.into(), &1.into()));
}

/// Looks every 15 s for this many seconds. Returns how many reports were made.
async fn look_for(stage: &Stage, seconds: u64) -> usize {
    let mut enqueued = 0;
    for _ in 0..seconds / 15 {
        stage.advance(15);
        enqueued += stage.report().await;
    }
    enqueued
}

fn slow() -> QueueName {
    "slow".parse().expect("a name")
}

async fn a_queue_without_starts_is_reported_once(world: World) {
    let stage = Stage::new(world, &[HookEvent::QueueStalled]).await;
    let waiting = NewJob {
        queue: slow(),
        ..new_job("k")
    };
    stage.world.enqueue(waiting).await;
    assert_eq!(look_for(&stage, 300).await, 0);
    assert_eq!(look_for(&stage, 3600).await, 1, "once for each stall");
    let body = &stage.bodies()[0];
    assert_eq!(
        (&body["event"], &body["queue"]),
        (&"queue_stalled".into(), &"slow".into())
    );
    assert_eq!((&body["ready"], &body["running"]), (&1.into(), &0.into()));
    assert_eq!(body["link"], "/api/v1/queues/slow");
}

async fn a_paused_queue_and_a_started_one_are_not_stalled(world: World) {
    let stage = Stage::new(world, &[HookEvent::QueueStalled]).await;
    let waiting = NewJob {
        queue: slow(),
        ..new_job("k")
    };
    stage.world.enqueue(waiting).await;
    let paused = QueueLimits {
        paused: Some(Pause {
            by: "ann".to_owned(),
            at: t0(),
            reason: None,
        }),
        ..QueueLimits::default()
    };
    let store = Arc::clone(&stage.world.store);
    store
        .put_queue(&slow(), &paused, None)
        .await
        .expect("a store");
    assert_eq!(look_for(&stage, 900).await, 0, "it is paused");
    store
        .put_queue(&slow(), &QueueLimits::default(), None)
        .await
        .expect("a store");
    assert_eq!(
        look_for(&stage, 240).await,
        0,
        "the time counts from the end of the pause"
    );
    for _ in 0..4 {
        let starting = NewJob {
            queue: slow(),
            ..dying()
        };
        stage.world.enqueue(starting).await;
        starter_of(&stage)
            .pass(&stage.world.clock)
            .await
            .expect("a store");
        let waiting = NewJob {
            queue: slow(),
            ..new_job("k")
        };
        stage.world.enqueue(waiting).await;
        assert_eq!(look_for(&stage, 240).await, 0, "it starts jobs");
    }
    assert_eq!(look_for(&stage, 400).await, 1, "no worker is left");
}

/// A worker of the slow queue.
fn starter_of(stage: &Stage) -> Worker {
    let mut config = WorkerConfig::new("w2".parse().expect("a name"));
    config.queues = vec![QueueConfig::new(slow(), 1)];
    let handler = |_| async { failed("no") };
    let kind = "k".parse().expect("a kind");
    config.handlers.add(kind, Arc::new(handler));
    Worker::new(Arc::clone(&stage.world.engine), config).expect("a worker")
}

async fn an_event_is_reported_although_its_process_died(world: World) {
    let stage = Stage::new(world, &[HookEvent::Dead, HookEvent::FailureGroupCreated]).await;
    stage.die().await;
    // Another process on the same store has seen no event.
    stage.advance(3);
    let shared = Arc::clone(&stage.world.store);
    let other = Engine::new(shared, Arc::new(stage.world.clock.clone()), Ids::seeded(8));
    let other = Arc::new(other);
    let enqueued = watcher_of(&other).pass(other.now()).await.expect("a store");
    assert_eq!(enqueued, 2);
    worker_of(&other)
        .pass(&stage.world.clock)
        .await
        .expect("a store");
    assert_eq!(stage.bodies().len(), 2);
    assert_eq!(
        stage.report().await,
        0,
        "the first process has nothing to add"
    );
}

async fn the_deaths_of_reports_are_not_reported(world: World) {
    let mut stage = Stage::new(world, &HookEvent::ALL).await;
    stage.target = Target::replying(&[Reply::Status(500)]).await;
    stage.put("ops", &stage.definition(&HookEvent::ALL)).await;
    stage.die().await;
    assert_eq!(stage.report().await, 2);
    stage
        .worker
        .drain(&stage.world.clock)
        .await
        .expect("a store");
    let dead = Filter {
        queue: Some(hook_queue()),
        ..Filter::state(ListedState::Dead)
    };
    let page = Page {
        order: ListOrder::Finished,
        ..Page::first(10)
    };
    let dead = stage.world.store.list(&dead, page, stage.world.clock.now());
    assert_eq!(
        dead.await.expect("a store").jobs.len(),
        2,
        "they failed for too long"
    );
    assert_eq!(stage.target.seen().len(), 24);
    assert_eq!(look_for(&stage, 600).await, 0);
}

async fn a_paused_hook_reports_nothing_and_never_makes_up_for_it(world: World) {
    let stage = Stage::new(world, &[HookEvent::Dead]).await;
    let paused = HookDefinition {
        paused: true,
        ..stage.definition(&[HookEvent::Dead])
    };
    stage.put("ops", &paused).await;
    stage.die().await;
    assert_eq!(stage.report().await, 0);
    stage.advance(1);
    stage
        .put("ops", &stage.definition(&[HookEvent::Dead]))
        .await;
    assert_eq!(stage.report().await, 0);
    stage.advance(60);
    stage.die().await;
    assert_eq!(stage.report().await, 1);
}

async fn a_hook_reports_only_its_queue_and_kind(world: World) {
    let stage = Stage::new(world, &[HookEvent::Dead]).await;
    for (name, queue, kind) in [("ops", Some("other"), None), ("kind", None, Some("other"))] {
        let definition = HookDefinition {
            queue: queue.map(|name| name.parse().expect("a name")),
            kind: kind.map(|name| name.parse().expect("a name")),
            ..stage.definition(&[HookEvent::Dead])
        };
        stage.put(name, &definition).await;
    }
    stage.die().await;
    assert_eq!(stage.report().await, 0);
}

#[tokio::test]
async fn two_nodes_on_postgresql_make_one_report() {
    let url = cluster::database().await;
    let (one, two) = (cluster::open(&url).await, cluster::open(&url).await);
    let stage = Stage::new(World::on(Arc::new(one), None), &HookEvent::ALL).await;
    let (two, clock): (Arc<dyn Store>, _) = (Arc::new(two), stage.world.clock.clone());
    let other = Arc::new(Engine::new(two, Arc::new(clock), Ids::seeded(8)));
    let other_watcher = watcher_of(&other);
    for _ in 0..5 {
        stage.die().await;
        stage.advance(7);
        let now = stage.world.clock.now();
        let (first, second) = tokio::join!(stage.watcher.pass(now), other_watcher.pass(now));
        first.expect("a store");
        second.expect("a store");
    }
    let both = [worker_of(&stage.world.engine), worker_of(&other)];
    for worker in &both {
        worker.pass(&stage.world.clock).await.expect("a store");
    }
    let bodies = stage.bodies();
    let events: Vec<_> = bodies.iter().map(|body| body["event"].clone()).collect();
    assert_eq!(events.len(), 2, "one for each event: {events:?}");
}

#[tokio::test]
async fn the_target_can_verify_a_test_of_a_hook() {
    // A receiver compares with the time of its machine.
    let clock = windlass_engine::VirtualClock::new(SystemClock::new().now());
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::new(store, Arc::new(clock.clone()), Ids::seeded(7));
    let (engine, name) = (Arc::new(engine), HookName::new("ops").expect("a name"));
    let target = Target::replying(&[Reply::Status(200)]).await;
    let hooks = StoredHooks::new(Arc::clone(&engine));
    let definition = HookDefinition::new(&target.url("/"), "k1", [HookEvent::Dead]);
    hooks
        .put(&name, &definition, Expected::Any)
        .await
        .expect("a hook");
    let job = hooks.test(&name).await.expect("a job");
    assert_eq!(job.queue.as_str(), HOOK_QUEUE);
    worker_of(&engine).pass(&clock).await.expect("a store");
    let seen = target.seen();
    assert!(crate::signed::verified(SECRET, &seen[0]));
    let body: Value = serde_json::from_slice(&seen[0].body).expect("JSON");
    assert_eq!(
        (&body["event"], &body["hook"]),
        (&"test".into(), &"ops".into())
    );
    let reports = hooks.reports(&name, 10).await.expect("a store");
    assert_eq!(
        reports.iter().map(|job| job.id).collect::<Vec<_>>(),
        [job.id]
    );
    assert_eq!(reports[0].state(), State::Succeeded);
}

#[tokio::test]
async fn the_log_says_once_that_no_worker_sends_reports_and_when_one_does_again() {
    let log = Log::default();
    let _subscriber = tracing::subscriber::set_default(log.clone());
    let stage = Stage::new(World::memory(), &[HookEvent::Dead]).await;
    let look = async || {
        let now = stage.world.clock.now();
        stage.watcher.pass(now).await.expect("a store");
        stage.advance(20);
    };
    let (missing, back) = (
        "no live worker runs HTTP jobs",
        "a worker runs HTTP jobs again",
    );
    look().await; // workers may still be starting
    assert_eq!((log.count(missing), log.count(back)), (0, 0));
    look().await;
    look().await;
    assert_eq!((log.count(missing), log.count(back)), (1, 0));
    stage
        .worker
        .pass(&stage.world.clock)
        .await
        .expect("a store");
    look().await;
    look().await;
    assert_eq!((log.count(missing), log.count(back)), (1, 1));
}
