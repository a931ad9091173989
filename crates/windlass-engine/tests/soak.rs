//! Three workers and a long backlog, in real time, on stores in which every verb takes 5 ms. No
//! lease is lost, every job starts once and succeeds, and every claim reads the clock.
//! `./test --long` lets it last twenty leases.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what a test may, its helpers may"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::{Delivery, Job, JobId, NewJob, Report, State, Timestamp, WorkerName};
use windlass_engine::{
    CancellationToken, Clock as _, Engine, Ids, RunningAttempt, Stopped, SystemClock, Worker,
};
use windlass_sqlite::SqliteStore;
use windlass_store::{Enqueue, Store};
use windlass_testkit::running::Sleeping;
use windlass_testkit::world::{new_job, worker};
use windlass_testkit::{Faulty, cluster, seeds};

const VERB_TAKES: Duration = Duration::from_millis(5);
const WORKERS: u32 = 3;
/// How many jobs a worker runs at once.
const SLOTS: u32 = 4;
/// How long a short job runs.
const WORK: Duration = Duration::from_millis(40);
/// The jobs that run longer than a lease.
const LONG_JOBS: u32 = 3;
/// The most jobs that are stored or read at once.
const BATCH: usize = 1000;

/// How long the soak lasts.
#[derive(Debug, Clone, Copy)]
struct Length {
    lease: Duration,
    leases: u32,
}

impl Length {
    fn of_this_run() -> Length {
        let (seconds, leases) = if seeds::is_long() { (5, 20) } else { (5, 1) };
        Length {
            lease: Duration::from_secs(seconds),
            leases,
        }
    }

    /// The shortest time in which the backlog can be done.
    fn shortest(self) -> Duration {
        self.lease * self.leases
    }

    /// If the soak takes longer than this, something is stuck.
    fn longest(self) -> Duration {
        self.shortest() * 6 + Duration::from_secs(60)
    }

    /// As many short jobs as keep all slots busy for the whole time.
    fn short_jobs(self) -> u32 {
        let rounds = self.shortest().as_millis() / WORK.as_millis();
        u32::try_from(rounds).unwrap() * WORKERS * SLOTS
    }

    fn long_work(self) -> Duration {
        self.lease * 3 / 2
    }
}

/// What handlers saw.
#[derive(Default)]
struct Seen {
    /// How many handlers of each job started.
    starts: BTreeMap<JobId, u32>,
    /// How many jobs each worker got at one instant.
    claims: BTreeMap<(u32, Timestamp), u32>,
    /// The jobs whose lease had ended when their handler started.
    without_lease: Vec<JobId>,
}

struct Soak {
    length: Length,
    seen: Mutex<Seen>,
    /// How many handlers have returned.
    returned: watch::Sender<usize>,
}

impl Soak {
    /// A handler of the worker with this number.
    fn handler(
        self: &Arc<Self>,
        number: u32,
        work: Duration,
    ) -> impl Fn(Arc<RunningAttempt>) -> Sleeping + Send + Sync + 'static {
        let soak = Arc::clone(self);
        move |attempt| {
            let soak = Arc::clone(&soak);
            Box::pin(async move {
                soak.note(number, attempt.job(), attempt.engine().now());
                tokio::time::sleep(work).await;
                soak.returned.send_modify(|count| *count += 1);
                Report::Succeeded(None)
            })
        }
    }

    fn note(&self, number: u32, job: &Job, now: Timestamp) {
        let mut seen = self.seen.lock().unwrap();
        *seen.starts.entry(job.id).or_default() += 1;
        let claimed_at = job.started_at.unwrap();
        *seen.claims.entry((number, claimed_at)).or_default() += 1;
        if job.lease().is_none_or(|lease| lease.until <= now) {
            seen.without_lease.push(job.id);
        }
    }

    /// A worker with an engine of its own, as if it were alone in its process.
    async fn worker(self: &Arc<Self>, number: u32, store: Arc<dyn Store>) -> Worker {
        let slow = Faulty::new(store);
        slow.slow_every_verb(VERB_TAKES);
        let engine = engine(slow, u64::from(number)).await;
        let build = worker(SLOTS)
            .with("short", self.handler(number, WORK))
            .with("long", self.handler(number, self.length.long_work()));
        let (worker, _) = build
            .set(|config| {
                config.name = WorkerName::new(&format!("w{number}")).unwrap();
                config.lease = self.length.lease;
            })
            .on_engine(&engine);
        worker
    }
}

async fn engine(store: Arc<dyn Store>, seed: u64) -> Arc<Engine> {
    let clock = SystemClock::of_store(&store).await.unwrap();
    Arc::new(Engine::new(store, Arc::new(clock), Ids::seeded(seed)))
}

/// Stores the backlog: the long jobs first, every second job at most once. Returns the ids.
async fn store_backlog(client: &Engine, length: Length) -> Vec<JobId> {
    let now = client.now();
    let jobs = (0..LONG_JOBS + length.short_jobs()).map(|number| {
        let new = NewJob {
            delivery: match number % 2 {
                0 => Delivery::AtMostOnce,
                _ => Delivery::AtLeastOnce,
            },
            ..new_job(if number < LONG_JOBS { "long" } else { "short" })
        };
        new.into_job(client.ids().job(now), now).unwrap()
    });
    let jobs: Vec<Job> = jobs.collect();
    for part in jobs.chunks(BATCH) {
        let part = Enqueue::all(part.to_vec());
        client.store().enqueue(part, now).await.unwrap();
    }
    jobs.iter().map(|job| job.id).collect()
}

/// Runs the backlog with a worker on each of these stores, which hold the same jobs.
async fn a_backlog_of_several_leases_loses_none(stores: Vec<Arc<dyn Store>>) {
    let length = Length::of_this_run();
    let client = engine(Arc::clone(&stores[0]), 100).await;
    let ids = store_backlog(&client, length).await;
    let soak = Arc::new(Soak {
        length,
        seen: Mutex::default(),
        returned: watch::Sender::new(0),
    });
    let (stop, started) = (CancellationToken::new(), client.clock().elapsed());
    let mut running = Vec::new();
    for (number, store) in (1..).zip(stores) {
        let (worker, stop) = (soak.worker(number, store).await, stop.clone());
        let run = async move { worker.run(stop, CancellationToken::new()).await };
        running.push(tokio::spawn(run));
    }

    let mut returned = soak.returned.subscribe();
    let all = returned.wait_for(|count| *count >= ids.len());
    let ended = tokio::time::timeout(length.longest(), all).await.is_ok();
    let count = *soak.returned.borrow();
    assert!(ended, "only {count} of {} jobs ran", ids.len());
    let took = client.clock().elapsed() - started;
    assert!(took >= length.shortest(), "it lasted only {took:?}");
    stop.cancel();
    for worker in running {
        assert_eq!(worker.await.unwrap().unwrap(), Stopped::default());
    }
    check(&client, &soak, &ids).await;
}

async fn check(client: &Engine, soak: &Soak, ids: &[JobId]) {
    for part in ids.chunks(BATCH) {
        for job in client.store().get(part).await.unwrap() {
            let job = job.unwrap();
            // A lost lease would have led to a second attempt, or to a dead job.
            assert_eq!((job.state(), job.attempt), (State::Succeeded, 1), "{job:?}");
        }
    }
    let seen = soak.seen.lock().unwrap();
    assert_eq!(seen.starts.len(), ids.len(), "every job has started");
    assert!(seen.starts.values().all(|count| *count == 1), "and once");
    let without_lease = &seen.without_lease;
    assert!(without_lease.is_empty(), "{without_lease:?} had no lease");
    // A claim gets at most one job for each slot. More at one instant are those of several claims.
    let largest = seen.claims.values().max();
    assert!(
        largest <= Some(&SLOTS),
        "{largest:?} jobs of one worker count their leases from the same instant"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_backlog_of_several_leases_loses_none() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemClock::new().now();
    let store = SqliteStore::open(folder.path().join("jobs.db"), now, 0).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let stores = (0..WORKERS).map(|_| Arc::clone(&store));
    a_backlog_of_several_leases_loses_none(stores.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_backlog_of_several_leases_loses_none() {
    let url = cluster::database().await;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..WORKERS {
        stores.push(Arc::new(cluster::open(&url).await)); // a node of its own
    }
    a_backlog_of_several_leases_loses_none(stores).await;
}
