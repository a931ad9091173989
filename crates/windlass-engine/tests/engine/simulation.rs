//! A seeded simulation: workers are killed at bad moments, the store fails, loses answers and
//! becomes unreachable, and time jumps. Then all faults end, everything is drained, and the history
//! must be consistent. A failure prints its seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::{
    Delivery, JobId, NewJob, Outcome, Random, Report, Start, State, Timeout, WorkerName,
};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::Store;
use windlass_testkit::world::{World, constant, failed, new_job, seconds, t0, worker};
use windlass_testkit::{Faulty, seeds};

const VERBS: [&str; 6] = ["claim", "settle", "renew", "sweep", "beat", "nodes"];

async fn simulate(seed: u64, store: Arc<dyn Store>) {
    let faulty = Faulty::new(store);
    let world = World::on(Arc::clone(&faulty) as Arc<dyn Store>, None);
    let mut random = Random::new(seed);
    let mut workers = Vec::new();
    for name in ["one", "two", "three"] {
        let name = WorkerName::new(name).unwrap();
        // The number of an attempt decides whether it fails, so that a seed repeats the same run.
        let build = worker(3)
            .policy(constant(1, 20))
            .set(|config| config.name = name)
            .on("flaky", |attempt| match attempt.job().attempt % 3 {
                0 => Report::Succeeded(None),
                _ => failed("not yet"),
            })
            .succeeds("plain");
        workers.push(build.build(&world));
    }
    let mut jobs: BTreeMap<JobId, Delivery> = BTreeMap::new();
    for _ in 0..60 {
        let (worker, _) = &workers[(random.bits() % 3) as usize];
        match random.bits() % 12 {
            0..=2 => {
                faulty.heal();
                for _ in 0..random.bits() % 4 {
                    let delivery = if random.bits().is_multiple_of(4) {
                        Delivery::AtMostOnce
                    } else {
                        Delivery::AtLeastOnce
                    };
                    let name = if random.bits().is_multiple_of(2) {
                        "flaky"
                    } else {
                        "plain"
                    };
                    let job = NewJob {
                        delivery,
                        start: Start::After(seconds((random.bits() % 40) as f64 / 10.0)),
                        timeout: Some(Timeout::None),
                        ..new_job(name)
                    };
                    jobs.insert(world.enqueue(job).await, delivery);
                }
            }
            3 => drop(worker.crash_after_claim().await),
            4 => drop(worker.crash_before_settle(&world.clock).await),
            5 => faulty.fail(VERBS[(random.bits() % 6) as usize]),
            6 => faulty.lose_answers(VERBS[(random.bits() % 6) as usize]),
            7 => faulty.away(),
            8 => faulty.heal(),
            9 => world.clock.advance(seconds((random.bits() % 50) as f64)),
            // The store injects errors. A later pass retries, as a running loop would.
            _ => drop(worker.pass(&world.clock).await),
        }
    }
    faulty.heal();
    for (worker, _) in &workers {
        worker.drain(&world.clock).await.unwrap();
    }
    let mut started: BTreeMap<JobId, Vec<u32>> = BTreeMap::new();
    for (_, calls) in &workers {
        for (_, id, attempt) in calls.lock().unwrap().iter() {
            started.entry(*id).or_default().push(*attempt);
        }
    }
    for (id, delivery) in jobs {
        let job = world.job(id).await;
        let history = world.history(id).await;
        let starts = started.get(&id).cloned().unwrap_or_default();
        let told = || format!("seed {seed}: {job:?}\n{history:?}\nstarts {starts:?}");
        assert!(job.state().is_final(), "nothing is stuck: {}", told());
        assert_eq!(
            history.len(),
            job.attempt as usize,
            "each attempt is accounted: {}",
            told()
        );
        let failures = history.iter().filter(|row| row.outcome.counts_as_failure());
        assert_eq!(failures.count(), job.failures as usize, "{}", told());
        let mut once = starts.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(
            once.len(),
            starts.len(),
            "no attempt was started twice: {}",
            told()
        );
        match delivery {
            Delivery::AtMostOnce => assert!(starts.len() <= 1, "at most once: {}", told()),
            Delivery::AtLeastOnce if job.state() == State::Succeeded => {
                let last = history.last().unwrap();
                assert_eq!(last.outcome, Outcome::Succeeded, "{}", told());
                assert!(starts.contains(&last.attempt), "{}", told());
            }
            Delivery::AtLeastOnce => {
                assert!(
                    job.failures >= 20,
                    "it is dead before its limit: {}",
                    told()
                );
            }
        }
    }
}

#[tokio::test]
async fn after_any_crash_every_job_finishes_and_every_attempt_is_in_the_history() {
    for seed in seeds(0, 300) {
        simulate(seed, Arc::new(MemoryStore::new())).await;
    }
}

#[tokio::test]
async fn the_same_in_sqlite() {
    for seed in seeds(1000, 20) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("jobs.db"), t0(), seed).unwrap();
        simulate(seed, Arc::new(store)).await;
    }
}
