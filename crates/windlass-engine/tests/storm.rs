//! Running workers on a real file and real threads, while the store fails, loses answers and hangs,
//! and workers are killed and restarted. No worker knows the due times of another one's jobs. Then
//! all faults end, everything is drained, and the history must be consistent. A failure prints its
//! seed.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::{
    Delivery, Job, JobId, NewJob, Outcome, Payload, Random, Report, Start, State, Timestamp,
    WorkerName,
};
use windlass_engine::{
    CancellationToken, Clock as _, Engine, Ids, RunningAttempt, SystemClock, Worker,
};
use windlass_sqlite::SqliteStore;
use windlass_store::{Attempt, Filter, ListedState, Page, Store};
use windlass_testkit::world::{constant, enqueue, failed, job, new_job, worker};
use windlass_testkit::{Faulty, seeds};

const VERBS: [&str; 7] = ["claim", "settle", "renew", "sweep", "beat", "nodes", "get"];
const LEASE: Duration = Duration::from_millis(300);
/// How long faults are injected, and in which steps.
const STEP: Duration = Duration::from_millis(20);
const STEPS: usize = 120;
/// If the test takes longer than this, something is stuck.
const BOUND: Duration = Duration::from_secs(60);

/// What handlers observed, recorded independently of the store.
#[derive(Default)]
struct Sink {
    starts: Vec<(JobId, u32)>,
    /// Running attempts, and those that started while another attempt of their job was running
    /// under a lease that had not ended.
    inside: BTreeMap<JobId, Vec<Arc<RunningAttempt>>>,
    together: Vec<(JobId, u32)>,
    payloads: BTreeMap<JobId, Payload>,
    leases: Leases,
}

/// The latest end of the lease that anyone saw for each attempt.
#[derive(Default)]
struct Leases(BTreeMap<(JobId, u32), Timestamp>);

impl Leases {
    fn saw(&mut self, job: &Job) {
        if let Some(lease) = job.lease() {
            let until = self.0.entry((job.id, job.attempt)).or_insert(lease.until);
            *until = lease.until.max(*until);
        }
    }

    /// Whether a sweep declared the attempt lost although it still had its lease. The last report
    /// of a dropped worker may also say so: of an at-most-once job whose handler it has aborted.
    fn was_swept_too_early(&self, job: JobId, row: &Attempt) -> bool {
        let error = row.error.as_ref();
        let is_swept = error.is_some_and(|error| error.message().contains("the lease expired"));
        let until = self.0.get(&(job, row.attempt));
        is_swept && until.is_some_and(|until| *until > row.finished_at)
    }
}

type Shared = Arc<Mutex<Sink>>;

/// Records an attempt until its handler returns.
struct Noted(Shared, Arc<RunningAttempt>);

impl Noted {
    fn new(sink: &Shared, attempt: Arc<RunningAttempt>) -> Noted {
        let (id, number) = (attempt.job().id, attempt.job().attempt);
        let mut noted = sink.lock().unwrap();
        noted.starts.push((id, number));
        noted.payloads.insert(id, attempt.job().payload.clone());
        let others = noted.inside.entry(id).or_default();
        let now = attempt.engine().now();
        let is_leased = |other: &Arc<RunningAttempt>| {
            let lease = other.job().lease();
            lease.is_some_and(|lease| lease.until > now)
        };
        let meets = others.iter().any(is_leased);
        others.push(Arc::clone(&attempt));
        if meets {
            noted.together.push((id, number));
        }
        noted.leases.saw(attempt.job());
        drop(noted);
        Noted(Arc::clone(sink), attempt)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut noted = self.0.lock().unwrap();
        let inside = noted.inside.entry(self.1.job().id).or_default();
        inside.retain(|other| !Arc::ptr_eq(other, &self.1));
    }
}

/// A worker in a task of its own, which can be killed.
struct Living {
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

fn start(engine: &Arc<Engine>, sink: &Shared, name: &str) -> Living {
    let seen = Arc::clone(sink);
    // The number of an attempt decides whether it fails, so that a seed repeats the same run.
    let handler = move |attempt: Arc<RunningAttempt>| {
        let noted = Noted::new(&seen, Arc::clone(&attempt));
        async move {
            let clock = Arc::clone(attempt.engine().clock());
            clock.sleep(Duration::from_millis(5)).await;
            drop(noted);
            match attempt.job().attempt % 3 {
                1 => failed("not yet"),
                _ => Report::Succeeded(None),
            }
        }
    };
    let build = worker(4)
        .policy(constant(0, 200))
        .with("a", handler)
        .set(|config| {
            config.name = WorkerName::new(name).unwrap();
            config.lease = LEASE;
            config.poll = Duration::from_millis(100);
            config.patience = Duration::from_millis(400);
            config.cancel_grace = Duration::from_millis(50);
            config.shutdown_grace = Duration::from_secs(5);
        });
    let (worker, _): (Worker, _) = build.on_engine(engine);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        let ran = worker.run(stopped, CancellationToken::new()).await;
        ran.expect("a store that works");
    });
    Living { task, stop }
}

async fn storm(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let clock = SystemClock::new();
    let store = SqliteStore::open(folder.path().join("jobs.db"), clock.now(), seed).unwrap();
    let healthy: Arc<dyn Store> = Arc::new(store);
    let faulty = Faulty::new(Arc::clone(&healthy));
    // Each worker has its own engine, as if it were alone in its process.
    let engine = |seed| {
        let shared = Arc::clone(&faulty) as Arc<dyn Store>;
        Arc::new(Engine::new(
            shared,
            Arc::new(clock.clone()),
            Ids::seeded(seed),
        ))
    };
    let client = engine(seed);
    let sink = Shared::default();
    let mut random = Random::new(seed);
    let mut workers = Vec::new();
    for number in 0..3 {
        workers.push(start(&engine(random.bits()), &sink, &format!("w{number}")));
    }
    let mut jobs: BTreeMap<JobId, (Delivery, Payload)> = BTreeMap::new();
    for step in 0..STEPS {
        match random.bits() % 10 {
            0..=3 => {
                let delivery = match random.bits() % 3 {
                    0 => Delivery::AtMostOnce,
                    _ => Delivery::AtLeastOnce,
                };
                let payload = Payload::from_serialize(&format!("{seed} {step}"), 100).unwrap();
                let job = NewJob {
                    delivery,
                    payload: payload.clone(),
                    start: Start::After(Duration::from_millis(random.bits() % 50)),
                    ..new_job("a")
                };
                jobs.insert(enqueue(&client, job).await, (delivery, payload));
            }
            4 => faulty.fail(VERBS[(random.bits() % 7) as usize]),
            5 => faulty.lose_answers(VERBS[(random.bits() % 7) as usize]),
            6 => faulty.hang(VERBS[(random.bits() % 7) as usize]),
            7 => VERBS.iter().for_each(|verb| faulty.fail(verb)),
            8 => {
                // Killed: its run is dropped at any point.
                let place = (random.bits() % 3) as usize;
                workers[place].task.abort();
                let name = format!("w{place}-{step}");
                workers[place] = start(&engine(random.bits()), &sink, &name);
            }
            _ => faulty.heal(),
        }
        tokio::time::sleep(STEP).await;
        observe_leases(&healthy, &sink, clock.now()).await;
    }
    faulty.heal();
    drained(&client, &jobs, seed).await;
    for living in workers {
        living.stop.cancel();
        living.task.await.unwrap();
    }
    check(&client, &sink, jobs, seed).await;
}

/// Records the leases of all running attempts, as the store has them.
async fn observe_leases(store: &Arc<dyn Store>, sink: &Shared, now: Timestamp) {
    let running = Filter::state(ListedState::Running);
    let running = store.list(&running, Page::first(1000), now).await.unwrap();
    let mut seen = sink.lock().unwrap();
    running.jobs.iter().for_each(|job| seen.leases.saw(job));
}

/// Waits until every job has finished.
async fn drained(engine: &Engine, jobs: &BTreeMap<JobId, (Delivery, Payload)>, seed: u64) {
    let ids: Vec<JobId> = jobs.keys().copied().collect();
    let over = async {
        loop {
            let found = engine.store().get(&ids).await.unwrap();
            if found.iter().flatten().all(|job| job.state().is_final()) {
                return;
            }
            tokio::time::sleep(STEP).await;
        }
    };
    let over = tokio::time::timeout(BOUND, over).await;
    assert!(over.is_ok(), "seed {seed}: something is stuck");
}

/// The invariants I1 to I12, as far as the final data shows them.
async fn check(
    engine: &Engine,
    sink: &Shared,
    jobs: BTreeMap<JobId, (Delivery, Payload)>,
    seed: u64,
) {
    let seen = std::mem::take(&mut *sink.lock().unwrap());
    let unique: BTreeSet<_> = seen.starts.iter().copied().collect();
    assert_eq!(
        unique.len(),
        seen.starts.len(),
        "seed {seed}: I8, started twice"
    );
    assert_eq!(seen.together, [], "seed {seed}: I5, two live leases");
    let invented = seen.payloads.keys().find(|id| !jobs.contains_key(id));
    assert_eq!(invented, None, "seed {seed}: I2, nobody asked for it");
    for (id, (delivery, payload)) in jobs {
        let job = job(engine, id).await; // I1: it exists
        let mut rows = engine.store().attempts(id, 2000).await.unwrap();
        rows.reverse();
        let starts: Vec<u32> = seen
            .starts
            .iter()
            .filter(|one| one.0 == id)
            .map(|one| one.1)
            .collect();
        let told = || format!("seed {seed}: {job:?}\n{rows:?}\nstarts {starts:?}");
        assert!(job.state().is_final(), "I4, I6: {}", told());
        let numbers: Vec<u32> = rows.iter().map(|row| row.attempt).collect();
        let expected: Vec<u32> = (1..=job.attempt).collect();
        assert_eq!(numbers, expected, "I5, I10, I12: {}", told());
        let too_early = rows
            .iter()
            .find(|row| seen.leases.was_swept_too_early(id, row));
        assert_eq!(too_early, None, "I5, its lease was live: {}", told());
        for pair in rows.windows(2) {
            assert!(pair[0].finished_at <= pair[1].started_at, "I5: {}", told());
        }
        let failures = rows.iter().filter(|row| row.outcome.counts_as_failure());
        assert_eq!(failures.count(), job.failures as usize, "I7: {}", told());
        assert!(
            starts.iter().all(|start| expected.contains(start)),
            "I2: {}",
            told()
        );
        if let Some(got) = seen.payloads.get(&id) {
            assert_eq!(*got, payload, "I11: {}", told());
        }
        let succeeded = rows.iter().filter(|row| row.outcome == Outcome::Succeeded);
        let succeeded: Vec<u32> = succeeded.map(|row| row.attempt).collect();
        assert!(
            succeeded.iter().all(|one| starts.contains(one)),
            "I9: {}",
            told()
        );
        match (delivery, job.state()) {
            (Delivery::AtMostOnce, _) => assert!(starts.len() <= 1, "I6b: {}", told()),
            (Delivery::AtLeastOnce, State::Succeeded) => {
                assert_eq!(succeeded, [job.attempt], "I4: {}", told());
            }
            (Delivery::AtLeastOnce, _) => panic!("I7, it is dead before its limit: {}", told()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_any_fault_running_workers_lose_no_job_and_run_none_twice() {
    for seed in seeds(0, 4) {
        storm(seed).await;
    }
}
