//! Remote workers on a store of the test's choice.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use windlass_core::fairness::ClaimQueue;
use windlass_core::retry::WorkerRetry;
use windlass_core::{Job, JobId, NewJob, QueueName, WorkerName, WorkerReport};
use windlass_engine::remote::{
    Admission, ClaimError, Remote, RemoteClaim, RemoteClaimed, RemoteConfig, RemoteOutcome,
    RemoteSettled, RemoteWorker,
};
use windlass_engine::{CancellationToken, Received, Subscription, VirtualClock};
use windlass_store::{AttemptId, Store, StoreError, Wrapper};

use windlass_testkit::world::{World, constant, new_job};

/// A key that passes a number of checks and has a number of permits to wait.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) checks: Arc<AtomicUsize>,
    pub(crate) permits: AtomicUsize,
}

impl Key {
    pub(crate) fn good() -> Key {
        Key::good_for(usize::MAX)
    }

    pub(crate) fn good_for(checks: usize) -> Key {
        Key {
            checks: Arc::new(AtomicUsize::new(checks)),
            permits: AtomicUsize::new(usize::MAX),
        }
    }
}

fn take(left: &AtomicUsize, refusal: &'static str) -> Result<(), &'static str> {
    let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    });
    taken.map(|_| ()).map_err(|_| refusal)
}

impl Admission for Key {
    type Refusal = &'static str;
    type Permit = ();

    async fn check(&self) -> Result<(), &'static str> {
        take(&self.checks, "revoked")
    }

    fn wait(&self) -> Result<(), &'static str> {
        take(&self.permits, "no permit")
    }
}

pub(crate) type Answer = Result<RemoteClaimed, ClaimError<&'static str>>;

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) remote: Arc<Remote>,
    pub(crate) stop: CancellationToken,
    pub(crate) events: Subscription,
}

impl Scene {
    /// Failed jobs run again after one second.
    pub(crate) fn new(world: World) -> Scene {
        let config = RemoteConfig {
            retry: WorkerRetry {
                policy: Some(Arc::new(constant(1, 9))),
                ..WorkerRetry::default()
            },
            reserved: [windlass_core::Kind::new("http").unwrap()].into(),
            ..RemoteConfig::default()
        };
        Scene {
            remote: Arc::new(Remote::new(&world.engine, config)),
            events: world.engine.subscribe(),
            stop: CancellationToken::new(),
            world,
        }
    }

    /// The same store with slow answers.
    pub(crate) fn slow(world: World) -> (Scene, Arc<Slow>) {
        let slow = Arc::new(Slow {
            store: Arc::clone(&world.store),
            clock: OnceLock::new(),
            takes: Mutex::default(),
            held: Mutex::default(),
            fails: Mutex::default(),
        });
        let shared = Arc::clone(&slow) as Arc<dyn Store>;
        let world = World::on(shared, world.folder);
        slow.clock.set(world.clock.clone()).unwrap();
        (Scene::new(world), slow)
    }

    pub(crate) async fn ask(&self, claim: RemoteClaim, key: Key) -> Answer {
        self.remote.claim(claim, key, &self.stop).await
    }

    pub(crate) async fn claim(&self, claim: RemoteClaim) -> Vec<Job> {
        self.ask(claim, Key::good()).await.unwrap().jobs
    }

    /// Claims in a task of its own.
    pub(crate) fn start(&self, claim: RemoteClaim, key: Key) -> JoinHandle<Answer> {
        let (remote, stop) = (Arc::clone(&self.remote), self.stop.clone());
        tokio::spawn(async move { remote.claim(claim, key, &stop).await })
    }

    /// Claims in a task of its own, and waits until the claim has joined a line.
    pub(crate) async fn wait(&self, claim: RemoteClaim, key: Key) -> JoinHandle<Answer> {
        let before = self.remote.waiting();
        let waiting = self.start(claim, key);
        self.until(|| self.remote.waiting() > before).await;
        waiting
    }

    pub(crate) async fn until(&self, condition: impl Fn() -> bool) {
        let until = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        let met = tokio::time::timeout(Duration::from_secs(60), until).await;
        met.expect("it comes in time");
    }

    /// Stores a job of a queue.
    pub(crate) async fn job(&self, queue: &str) -> JobId {
        let queue = queue.parse().unwrap();
        let job = NewJob {
            queue,
            ..new_job("a")
        };
        self.world.enqueue(job).await
    }

    /// Whether a job runs, and in which attempt.
    pub(crate) async fn attempt(&self, id: JobId) -> (u32, bool) {
        let job = self.world.job(id).await;
        (job.attempt, job.lease().is_some())
    }

    pub(crate) async fn settle(
        &self,
        by: &str,
        attempt_id: AttemptId,
        reported: WorkerReport,
    ) -> RemoteSettled {
        let outcome = RemoteOutcome {
            attempt_id,
            reported,
            log: Vec::new(),
        };
        let settled = self.remote.settle(&named(by), &[outcome]).await;
        settled.unwrap().remove(0)
    }

    /// The names of the events about a job since the last call.
    pub(crate) fn names(&mut self, id: JobId) -> Vec<&'static str> {
        let heard = std::iter::from_fn(|| self.events.try_next());
        let name = |heard| match heard {
            Received::Event(event) => (event.job() == Some(id)).then(|| event.name()),
            Received::Missed(_) => panic!("too many events for the test"),
        };
        heard.filter_map(name).collect()
    }
}

pub(crate) fn named(name: &str) -> RemoteWorker {
    RemoteWorker::Named(WorkerName::new(name).unwrap())
}

/// A claim of a worker that names queues.
pub(crate) fn claim(by: &str, queues: &[&str]) -> RemoteClaim {
    let queue = |name: &&str| ClaimQueue::plain(QueueName::new(name).unwrap());
    RemoteClaim {
        queues: Some(queues.iter().map(queue).collect()),
        ..RemoteClaim::new(named(by))
    }
}

pub(crate) fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

pub(crate) fn of(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}

/// A store call that reports when its work is done, and returns when the test lets it.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    verb: &'static str,
    pub(crate) done: Arc<Notify>,
    pub(crate) answer: Arc<Notify>,
}

/// A store whose answers take virtual time, wait for the test, or never come.
#[derive(Debug)]
pub(crate) struct Slow {
    store: Arc<dyn Store>,
    clock: OnceLock<VirtualClock>,
    takes: Mutex<BTreeMap<&'static str, Duration>>,
    fails: Mutex<Vec<&'static str>>,
    held: Mutex<Option<Held>>,
}

impl Slow {
    pub(crate) fn takes(&self, verb: &'static str, time: Duration) {
        self.takes.lock().unwrap().insert(verb, time);
    }

    pub(crate) fn fails(&self, verb: &'static str) {
        self.fails.lock().unwrap().push(verb);
    }

    /// Delays the next answer of a verb until the test releases it.
    pub(crate) fn hold(&self, verb: &'static str) -> Held {
        let held = Held {
            verb,
            done: Arc::default(),
            answer: Arc::default(),
        };
        *self.held.lock().unwrap() = Some(held.clone());
        held
    }
}

impl Wrapper for Slow {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if self.fails.lock().unwrap().contains(&verb) {
            return Err(StoreError::Unavailable("out of order".into()));
        }
        let answer = step.await;
        let time = self.takes.lock().unwrap().get(verb).copied();
        if let (Some(time), Some(clock)) = (time, self.clock.get()) {
            clock.advance(time);
        }
        let held = self.held.lock().unwrap().take_if(|held| held.verb == verb);
        if let Some(held) = held {
            held.done.notify_one();
            held.answer.notified().await;
        }
        answer
    }
}
