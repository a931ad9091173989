//! A backlog that takes longer than a lease, on a store with slow claims: leases count from their
//! own claim, other queues get their turn, and a stop is noticed. In paused time, and in real time
//! on every store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use windlass_core::{DeadReason, Delivery, Job, NewJob, QueueName, Report, Start, State};
use windlass_engine::{
    CancellationToken, Engine, Ids, QueueConfig, RunningAttempt, Stopped, SystemClock,
};
use windlass_store::{Enqueue, Filter, ListedState, PAGE_MAX, Page, Store};
use windlass_testkit::Faulty;
use windlass_testkit::running::{Running, Sleeping};
use windlass_testkit::world::{Build, World, job, new_job, worker};

const LEASE: Duration = Duration::from_secs(1);
/// A claim of three slots takes 5 ms: the backlog lasts longer than the lease.
const BACKLOG: usize = 900;
const CLAIM_TAKES: Duration = Duration::from_millis(5);

/// Two queues: `default`, where a long job takes one of four slots, and `other`, whose slots are
/// free.
struct Scene {
    engine: Arc<Engine>,
    store: Arc<Faulty>,
    /// Lets the long job end.
    enough: Arc<Notify>,
    /// How many jobs of the backlog have run.
    ran: Arc<AtomicUsize>,
    /// How many claims had been sent when the job of `other` started.
    other_started: Arc<AtomicUsize>,
}

impl Scene {
    fn new(store: Arc<Faulty>, engine: Arc<Engine>) -> Scene {
        store.slow("claim", CLAIM_TAKES);
        Scene {
            engine,
            store,
            enough: Arc::default(),
            ran: Arc::default(),
            other_started: Arc::default(),
        }
    }

    /// In real time, on any store.
    fn real(store: Arc<dyn Store>) -> Scene {
        let store = Faulty::new(store);
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Engine::new(shared, Arc::new(SystemClock::new()), Ids::seeded(3));
        Scene::new(store, Arc::new(engine))
    }

    fn worker(&self) -> Build {
        let enough = Arc::clone(&self.enough);
        let long = move |_: Arc<RunningAttempt>| -> Sleeping {
            let enough = Arc::clone(&enough);
            Box::pin(async move {
                enough.notified().await;
                Report::Succeeded(None)
            })
        };
        let ran = Arc::clone(&self.ran);
        let short = move |_: Arc<RunningAttempt>| -> Sleeping {
            let ran = Arc::clone(&ran);
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(4)).await;
                ran.fetch_add(1, Ordering::SeqCst);
                Report::Succeeded(None)
            })
        };
        let (started, store) = (Arc::clone(&self.other_started), Arc::clone(&self.store));
        let other = move |_: &RunningAttempt| {
            started.store(store.asked("claim"), Ordering::SeqCst);
            Report::Succeeded(None)
        };
        let build = worker(4).with("long", long).with("short", short);
        build.on("other", other).set(|config| {
            config.lease = LEASE;
            let other = QueueName::new("other").unwrap();
            config.queues.push(QueueConfig::new(other, 4));
        })
    }

    /// Stores at-most-once jobs that are due at once.
    async fn enqueue(&self, kind: &str, queue: &QueueName, count: usize) {
        let now = self.engine.now();
        let made = (0..count).map(|_| {
            let new = NewJob {
                queue: queue.clone(),
                delivery: Delivery::AtMostOnce,
                start: Start::At(now),
                ..new_job(kind)
            };
            new.into_job(self.engine.ids().job(now), now).unwrap()
        });
        let made: Vec<Job> = made.collect();
        for part in made.chunks(1000) {
            let step = Enqueue::all(part.to_vec());
            self.engine.store().enqueue(step, now).await.unwrap();
        }
    }

    /// Waits until this many jobs of the backlog have run.
    async fn until_ran(&self, count: usize) {
        let mut changes = self.engine.store().changes();
        let reached = async {
            while self.ran.load(Ordering::SeqCst) < count {
                changes.changed().await.unwrap();
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(120), reached).await;
        let ran = self.ran.load(Ordering::SeqCst);
        assert!(reached.is_ok(), "only {ran} of {count} jobs ran");
    }

    async fn jobs(&self, state: ListedState) -> Vec<Job> {
        let (mut page, mut jobs) = (Page::first(PAGE_MAX), Vec::new());
        loop {
            let (filter, now) = (Filter::state(state), self.engine.now());
            let listed = self.engine.store().list(&filter, page, now).await.unwrap();
            jobs.extend(listed.jobs);
            let Some(after) = listed.next else {
                return jobs;
            };
            page.after = Some(after);
        }
    }
}

async fn a_backlog_longer_than_a_lease_loses_no_job(scene: Scene) {
    let queue = QueueName::default();
    scene.enqueue("long", &queue, 1).await;
    scene.enqueue("short", &queue, BACKLOG).await;
    let (worker, _) = scene.worker().on_engine(&scene.engine);
    let stop = CancellationToken::new();
    let until = stop.clone();
    let running = tokio::spawn(async move { worker.run(until, CancellationToken::new()).await });

    scene.until_ran(BACKLOG / 3).await;
    let asked = scene.store.asked("claim");
    let other = QueueName::new("other").unwrap();
    scene.enqueue("other", &other, 1).await;
    scene.until_ran(BACKLOG).await;
    let claims = scene.other_started.load(Ordering::SeqCst) - asked;
    assert!(claims <= 6, "another queue waited for {claims} claims");

    scene.enough.notify_one();
    stop.cancel();
    assert_eq!(running.await.unwrap().unwrap(), Stopped::default());
    let jobs = scene.jobs(ListedState::Succeeded).await;
    assert_eq!(jobs.len(), BACKLOG + 2, "every job ends as its handler did");
    assert!(jobs.iter().all(|job| job.attempt == 1));
    let started: BTreeSet<_> = jobs.iter().filter_map(|job| job.started_at).collect();
    assert!(
        started.len() >= BACKLOG / 4,
        "{} instants: each claim has its own",
        started.len()
    );
}

async fn a_stop_touches_the_jobs_of_at_most_one_claim(scene: Scene) {
    let queue = QueueName::default();
    scene.enqueue("short", &queue, 10_000).await;
    let (worker, _) = scene.worker().on_engine(&scene.engine);
    let stop = CancellationToken::new();
    let until = stop.clone();
    let running = tokio::spawn(async move { worker.run(until, CancellationToken::new()).await });
    scene.until_ran(20).await;
    stop.cancel();
    let asked = scene.store.asked("claim");
    running.await.unwrap().unwrap();
    let further = scene.store.asked("claim") - asked;
    assert!(further <= 1, "{further} claims were sent after the stop");
    let waiting = scene.jobs(ListedState::Ready).await;
    let touched = waiting.iter().filter(|job| job.attempt > 0).count();
    assert!(touched <= 4, "{touched} jobs were claimed and given back");
    assert!(scene.jobs(ListedState::Dead).await.is_empty());
}

fn paused() -> Scene {
    let run = Running::new();
    Scene::new(run.store, run.engine)
}

#[tokio::test(start_paused = true)]
async fn a_backlog_longer_than_a_lease_loses_no_job_in_paused_time() {
    a_backlog_longer_than_a_lease_loses_no_job(paused()).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_touches_the_jobs_of_at_most_one_claim_in_paused_time() {
    a_stop_touches_the_jobs_of_at_most_one_claim(paused()).await;
}

async fn in_real_time_a_backlog_longer_than_a_lease_loses_no_job(world: World) {
    a_backlog_longer_than_a_lease_loses_no_job(Scene::real(Arc::clone(&world.store))).await;
}

async fn in_real_time_a_stop_touches_the_jobs_of_at_most_one_claim(world: World) {
    a_stop_touches_the_jobs_of_at_most_one_claim(Scene::real(Arc::clone(&world.store))).await;
}

windlass_testkit::on_every_store! {
    in_real_time_a_backlog_longer_than_a_lease_loses_no_job;
    in_real_time_a_stop_touches_the_jobs_of_at_most_one_claim;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_takes_longer_than_a_third_of_its_lease_is_renewed_before_anything_starts() {
    let mut run = Running::new();
    run.store.slow_answer("claim", Duration::from_secs(11));
    let (store, renewals) = (Arc::clone(&run.store), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&renewals);
    let id = run.enqueue(new_job("a")).await;
    run.start(worker(2).on("a", move |_| {
        seen.fetch_max(store.asked("renew"), Ordering::SeqCst);
        Report::Succeeded(None)
    }));
    run.until("started", id).await;
    let started = run.elapsed();
    assert!(renewals.load(Ordering::SeqCst) >= 1, "renewed first");
    let job = job(&run.engine, id).await;
    if let Some(lease) = job.lease() {
        let now = run.engine.now();
        assert!(lease.until.since(now) > Duration::from_secs(29));
    }
    assert!(started >= Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn a_claimed_job_whose_lease_cannot_be_renewed_is_not_started() {
    let mut run = Running::new();
    // The answer arrives after the lease has expired and was swept.
    run.store.slow_answer("claim", Duration::from_secs(40));
    let build = worker(2).succeeds("a");
    let calls = Arc::clone(&build.calls);
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("a")
    };
    let id = run.enqueue(once).await;
    run.start(build);
    run.until("dead", id).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let job = job(&run.engine, id).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Lost));
    assert!(
        calls.lock().unwrap().is_empty(),
        "its handler never started"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_leases_cannot_be_renewed_now_is_repeated_and_starts_each_job_once() {
    let mut run = Running::new();
    run.store.slow_answer("claim", Duration::from_secs(11));
    run.store.fail("renew");
    let build = worker(2).succeeds("a");
    let calls = Arc::clone(&build.calls);
    let id = run.enqueue(new_job("a")).await;
    run.start(build);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(calls.lock().unwrap().is_empty(), "not without a lease");
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(calls.lock().unwrap().len(), 1);
    assert_eq!(job(&run.engine, id).await.attempt, 1);
}
