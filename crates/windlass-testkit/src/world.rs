//! An engine in virtual time on a store of the test's choice, with scripted handlers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use windlass_core::fairness::Guards;
use windlass_core::retry::{Backoff, Jitter, Preset, RetryPolicy, WorkerRetry};
use windlass_core::{
    AttemptError, Failure, GroupMember, Job, JobId, Kind, NewJob, Outcome, QueueName, Report,
    State, Timestamp, WorkerName,
};
use windlass_engine::{
    Engine, Handler, Ids, QueueConfig, RunningAttempt, VirtualClock, Worker, WorkerConfig,
};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{
    Attempt, Enqueue, Enqueued, Filter, Fire, GroupFilter, ListedState, Page, RecordRange, Store,
};

use crate::cluster;

pub fn t0() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A store with an engine in virtual time.
pub struct World {
    pub engine: Arc<Engine>,
    pub clock: VirtualClock,
    pub store: Arc<dyn Store>,
    pub folder: Option<tempfile::TempDir>,
}

impl World {
    pub fn memory() -> World {
        World::on(Arc::new(MemoryStore::new()), None)
    }

    pub fn sqlite() -> World {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("jobs.db"), t0(), 1).unwrap();
        World::on(Arc::new(store), Some(folder))
    }

    pub async fn postgres() -> World {
        World::on(Arc::new(cluster::store().await), None)
    }

    pub fn on(store: Arc<dyn Store>, folder: Option<tempfile::TempDir>) -> World {
        let clock = VirtualClock::new(t0());
        let shared = Arc::clone(&store);
        let engine = Engine::new(shared, Arc::new(clock.clone()), Ids::seeded(7));
        World {
            engine: Arc::new(engine),
            clock,
            store,
            folder,
        }
    }

    pub async fn enqueue(&self, job: NewJob) -> JobId {
        enqueue(&self.engine, job).await
    }

    pub async fn job(&self, id: JobId) -> Job {
        job(&self.engine, id).await
    }

    pub async fn state(&self, id: JobId) -> State {
        self.job(id).await.state()
    }

    /// Returns the ended attempts, oldest first.
    pub async fn history(&self, id: JobId) -> Vec<Attempt> {
        let mut attempts = self.engine.store().attempts(id, 2000).await.unwrap();
        attempts.reverse();
        attempts
    }

    /// Returns when each attempt started, in seconds since the start of the test, and its outcome.
    pub async fn timeline(&self, id: JobId) -> Vec<(f64, Outcome)> {
        let history = self.history(id).await;
        let row = |row: &Attempt| (row.started_at.since(t0()).as_secs_f64(), row.outcome);
        history.iter().map(row).collect()
    }
}

pub async fn enqueue(engine: &Engine, new: NewJob) -> JobId {
    let now = engine.now();
    let job = new.into_job(engine.ids().job(now), now).unwrap();
    let answers = engine
        .store()
        .enqueue(Enqueue::all(vec![job.clone()]), now)
        .await
        .unwrap();
    engine.enqueued([&job].into_iter(), now);
    match answers[..] {
        [Enqueued::Created(id)] => id,
        ref other => panic!("{other:?}"),
    }
}

/// The records of skipped occurrences of all schedules.
pub async fn skipped(engine: &Engine) -> Vec<Value> {
    let mut skipped = Vec::new();
    for schedule in engine.store().schedules().await.expect("a store").readable {
        let topic = Fire::skipped_topic(schedule.id);
        let records = engine
            .store()
            .records(&topic, RecordRange::OLDEST, 100)
            .await
            .expect("a store");
        skipped.extend(records.into_iter().map(|record| record.value));
    }
    skipped
}

pub async fn job(engine: &Engine, id: JobId) -> Job {
    let found = engine.store().get(&[id]).await.unwrap();
    found.into_iter().next().flatten().unwrap()
}

pub fn kind(name: &str) -> Kind {
    Kind::new(name).unwrap()
}

pub fn new_job(name: &str) -> NewJob {
    NewJob::new(kind(name))
}

pub fn failed(message: &str) -> Report {
    Report::Failed(Failure::retryable(AttemptError::new(message)))
}

/// Builds a worker for the queue `default`.
pub struct Build {
    pub config: WorkerConfig,
    pub calls: Calls,
}

/// The attempts that were started, in order.
pub type Calls = Arc<Mutex<Vec<(Kind, JobId, u32)>>>;

pub fn worker(slots: u32) -> Build {
    let mut config = WorkerConfig::new(WorkerName::new("w1").unwrap());
    config.queues = vec![QueueConfig::new(QueueName::default(), slots)];
    Build {
        config,
        calls: Calls::default(),
    }
}

impl Build {
    /// Adds a handler that returns the report of `decide` at once.
    pub fn on(
        mut self,
        name: &str,
        decide: impl Fn(&RunningAttempt) -> Report + Send + Sync + 'static,
    ) -> Self {
        let calls = Arc::clone(&self.calls);
        let handler = move |attempt: Arc<RunningAttempt>| {
            let job = attempt.job();
            let call = (job.kind.clone(), job.id, job.attempt);
            calls.lock().unwrap().push(call);
            let report = decide(&attempt);
            async move { report }
        };
        self.config.handlers.add(kind(name), Arc::new(handler));
        self
    }

    /// Adds an async handler.
    pub fn with(mut self, name: &str, handler: impl Handler + 'static) -> Self {
        self.config.handlers.add(kind(name), Arc::new(handler));
        self
    }

    pub fn succeeds(self, name: &str) -> Self {
        self.on(name, |_| Report::Succeeded(None))
    }

    pub fn fails(self, name: &str) -> Self {
        self.on(name, |_| failed("boom"))
    }

    pub fn policy(mut self, policy: RetryPolicy) -> Self {
        self.config.retry = WorkerRetry {
            policy: Some(Arc::new(policy)),
            ..WorkerRetry::default()
        };
        self
    }

    pub fn no_policy(mut self) -> Self {
        self.config.retry.policy = None;
        self
    }

    pub fn guards(mut self, guards: Guards) -> Self {
        self.config.queues[0].guards = guards;
        self
    }

    pub fn set(mut self, change: impl FnOnce(&mut WorkerConfig)) -> Self {
        change(&mut self.config);
        self
    }

    pub fn on_engine(self, engine: &Arc<Engine>) -> (Worker, Calls) {
        let worker = Worker::new(Arc::clone(engine), self.config).unwrap();
        (worker, self.calls)
    }

    pub fn build(self, world: &World) -> (Worker, Calls) {
        self.on_engine(&world.engine)
    }
}

pub fn constant(seconds: u64, max_attempts: u32) -> RetryPolicy {
    let delay = Duration::from_secs(seconds);
    let policy = RetryPolicy::new(Backoff::Constant { delay }, Jitter::None).unwrap();
    policy.with_max_attempts(max_attempts).unwrap()
}

pub fn preset(preset: Preset) -> RetryPolicy {
    preset.policy()
}

pub fn count_by_kind(calls: &Calls) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (kind, _, _) in calls.lock().unwrap().iter() {
        *counts.entry(kind.to_string()).or_default() += 1;
    }
    counts
}

/// Checks that counts by state and failure groups equal a recount of all jobs.
pub async fn check_tallies(store: &dyn Store, now: Timestamp, about: &str) {
    let (mut groups, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let mut page = Page::first(1000);
    loop {
        let listed = store.list(&Filter::default(), page, now).await.unwrap();
        for job in &listed.jobs {
            let states: &mut BTreeMap<ListedState, u64> =
                counts.entry(job.queue.clone()).or_default();
            *states.entry(ListedState::of(job, now)).or_default() += 1;
            if let Some((key, member)) = job.group() {
                let (dead, retrying): &mut (u64, u64) = groups.entry(key).or_default();
                match member {
                    GroupMember::Dead => *dead += 1,
                    GroupMember::Retrying => *retrying += 1,
                }
            }
        }
        page.after = listed.next;
        if listed.next.is_none() {
            break;
        }
    }
    let mut kept = BTreeMap::new();
    let mut after = None;
    loop {
        let all = GroupFilter::default();
        let found = store.failure_groups(&all, after.as_ref(), 1000, now).await;
        let found = found.unwrap();
        after = found.last().map(|group| group.key.clone());
        let filled = found.iter().filter(|group| group.dead + group.retrying > 0);
        kept.extend(filled.map(|group| (group.key.clone(), (group.dead, group.retrying))));
        if after.is_none() {
            break;
        }
    }
    assert_eq!(kept, groups, "failure groups: {about}");
    for (queue, kept) in store.counts(now).await.unwrap() {
        let states = counts.remove(&queue).unwrap_or_default();
        for state in ListedState::ALL {
            let expected = states.get(&state).copied().unwrap_or(0);
            assert_eq!(
                kept.of(Some(state)),
                expected,
                "{state} in {queue}: {about}"
            );
        }
    }
    assert!(
        counts.is_empty(),
        "queues without counts: {counts:?}: {about}"
    );
}

/// Runs each scenario in virtual time on memory, SQLite and PostgreSQL.
#[macro_export]
macro_rules! on_every_store {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        mod on_memory {
            $(#[tokio::test] $(#[$meta])* async fn $name() { super::$name($crate::World::memory()).await; })*
        }
        mod on_sqlite {
            $(#[tokio::test] $(#[$meta])* async fn $name() { super::$name($crate::World::sqlite()).await; })*
        }
        mod on_postgres {
            $(#[tokio::test] $(#[$meta])* async fn $name() { super::$name($crate::World::postgres().await).await; })*
        }
    };
}
