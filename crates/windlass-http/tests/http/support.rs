//! HTTP jobs on a store in virtual time, and a real target on this machine that answers by script.

pub(crate) mod log;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::{Value, json};
use windlass_core::retry::{Cap, Preset, WorkerRetry};
use windlass_core::{
    Job, JobId, NewJob, Outcome, PAYLOAD_BYTES_MAX, Payload, QueueName, State, Timestamp,
    WorkerName,
};
use windlass_engine::{Engine, Ids, QueueConfig, Recorder, VirtualClock, Worker, WorkerConfig};
use windlass_http::{HttpConfig, HttpJobs, NoSigningKeys, Resolve, SystemResolver};
use windlass_memory::MemoryStore;
use windlass_store::{Attempt, Enqueue, Store};

pub(crate) use windlass_testkit::target::{Reply, Seen, Target};

pub(crate) fn t0() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

/// Settings under which targets on this machine may be dialled.
pub(crate) fn local() -> HttpConfig {
    HttpConfig {
        allow: vec!["127.0.0.0/8".parse().expect("a range")],
        ..HttpConfig::default()
    }
}

/// A store with an engine in virtual time, and a worker of HTTP jobs.
pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) clock: VirtualClock,
    pub(crate) worker: Worker,
    pub(crate) http: HttpJobs,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(local())
    }

    pub(crate) fn with(config: HttpConfig) -> World {
        let http = HttpJobs::new(config).expect("settings that work");
        World::of(http, Arc::new(MemoryStore::new()))
    }

    pub(crate) fn resolving(config: HttpConfig, resolver: Arc<dyn Resolve>) -> World {
        let http = HttpJobs::with(config, resolver, Arc::new(NoSigningKeys)).expect("settings");
        World::of(http, Arc::new(MemoryStore::new()))
    }

    pub(crate) fn of(http: HttpJobs, store: Arc<dyn Store>) -> World {
        World::starting(http, store, t0())
    }

    pub(crate) fn starting(http: HttpJobs, store: Arc<dyn Store>, start: Timestamp) -> World {
        let clock = VirtualClock::new(start);
        let engine = Engine::new(store, Arc::new(clock.clone()), Ids::seeded(7));
        World::on(http, engine, clock)
    }

    /// What happens goes to a recorder too.
    pub(crate) fn recorded(recorder: Arc<dyn Recorder>) -> World {
        let http = HttpJobs::new(local()).expect("settings that work");
        let (store, clock) = (Arc::new(MemoryStore::new()), VirtualClock::new(t0()));
        let (time, ids) = (Arc::new(clock.clone()), Ids::seeded(7));
        let engine = Engine::with_recorder(store, time, ids, Some(recorder));
        World::on(http, engine, clock)
    }

    fn on(http: HttpJobs, engine: Engine, clock: VirtualClock) -> World {
        let engine = Arc::new(engine);
        let worker = Worker::new(Arc::clone(&engine), worker_config(&http)).expect("a worker");
        World {
            engine,
            clock,
            worker,
            http,
        }
    }

    pub(crate) async fn enqueue(&self, payload: Value) -> JobId {
        self.enqueue_job(http_job(payload)).await
    }

    pub(crate) async fn enqueue_job(&self, job: NewJob) -> JobId {
        enqueue(&self.engine, job).await
    }

    /// Enqueues a request and runs it to its end; the job and its history, oldest first.
    pub(crate) async fn deliver(&self, payload: Value) -> (Job, Vec<Attempt>) {
        self.deliver_job(http_job(payload)).await
    }

    pub(crate) async fn deliver_job(&self, job: NewJob) -> (Job, Vec<Attempt>) {
        let id = self.enqueue_job(job).await;
        self.worker.drain(&self.clock).await.expect("a store");
        (self.job(id).await, self.history(id).await)
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        let found = self.engine.store().get(&[id]).await.expect("a store");
        found.into_iter().flatten().next().expect("a job")
    }

    pub(crate) async fn state(&self, id: JobId) -> State {
        self.job(id).await.state()
    }

    pub(crate) async fn history(&self, id: JobId) -> Vec<Attempt> {
        let attempts = self.engine.store().attempts(id, 100).await;
        let mut attempts = attempts.expect("a store");
        attempts.reverse();
        attempts
    }
}

pub(crate) async fn enqueue(engine: &Engine, job: NewJob) -> JobId {
    let now = engine.now();
    let job = job.into_job(engine.ids().job(now), now).expect("a job");
    let id = job.id;
    let enqueued = engine.store().enqueue(Enqueue::all(vec![job.clone()]), now);
    enqueued.await.expect("a store");
    engine.enqueued([&job].into_iter(), now);
    id
}

/// A worker as the server has it: no cap of its own.
pub(crate) fn worker_config(http: &HttpJobs) -> WorkerConfig {
    let mut config = WorkerConfig::new(WorkerName::new("w1").expect("a name"));
    config.queues = vec![QueueConfig::new(QueueName::default(), 100)];
    config.retry = WorkerRetry {
        policy: Some(Arc::new(Preset::default().policy())),
        cap: Cap::Unlimited,
    };
    http.register(&mut config);
    config
}

pub(crate) fn http_job(payload: Value) -> NewJob {
    windlass_http::with_defaults(NewJob {
        payload: Payload::parse(&payload.to_string(), PAYLOAD_BYTES_MAX).expect("a payload"),
        ..NewJob::new(windlass_http::http_kind())
    })
}

/// When each attempt started, in seconds since the start of the test, its retry count, and how it ended.
pub(crate) fn timeline(history: &[Attempt]) -> Vec<(f64, u32, Outcome)> {
    let row = |row: &Attempt| {
        let at = row.started_at.since(t0()).as_secs_f64();
        (at, row.retry_count, row.outcome)
    };
    history.iter().map(row).collect()
}

/// What the row of an attempt says about its answer.
pub(crate) fn http_of(row: &Attempt) -> Value {
    let detail = row.detail.clone().unwrap_or(json!({}));
    detail.get("http").cloned().unwrap_or(json!({}))
}

pub(crate) fn error_of(row: &Attempt) -> String {
    row.error
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// Names that a test makes up, each with its answers one after the other; the last one stays.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>);

impl Names {
    pub(crate) fn new() -> Self {
        Names::default()
    }

    /// Adds an answer for a name.
    pub(crate) fn answer(self, name: &str, addresses: &[&str]) -> Self {
        let addresses = addresses
            .iter()
            .map(|text| text.parse().expect("an address"));
        let mut names = self.0.lock().expect("no test panics here");
        names
            .entry(name.to_owned())
            .or_default()
            .push(addresses.collect());
        drop(names);
        self
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let mut names = self.0.lock().expect("no test panics here");
        let Some(answers) = names.get_mut(host) else {
            return Err(io::Error::other("no such name"));
        };
        if answers.len() > 1 {
            return Ok(answers.remove(0));
        }
        Ok(answers.first().cloned().unwrap_or_default())
    }
}

pub(crate) fn system() -> Arc<dyn Resolve> {
    Arc::new(SystemResolver)
}
