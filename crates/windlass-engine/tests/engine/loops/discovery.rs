//! Running workers that discover their queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use windlass_core::{NewJob, QueueName, QueuePattern, Report};
use windlass_engine::{DiscoverConfig, QUEUE_SETTINGS, RunningAttempt};
use windlass_store::{ENQUEUE_MAX, Enqueue, Expected, Pause, QueueLimits, Store as _};
use windlass_testkit::running::{Running, Sleeping, takes};
use windlass_testkit::world::{Build, constant, failed, job, new_job, seconds, t0, worker};

fn discovers(slots: u32) -> Build {
    worker(1).set(|config| {
        config.queues.clear();
        config.discovered = vec![DiscoverConfig::new(QueuePattern::all(), slots)];
    })
}

fn in_queue(name: &str, kind: &str) -> NewJob {
    NewJob {
        queue: QueueName::new(name).unwrap(),
        ..new_job(kind)
    }
}

async fn set(run: &Running, queue: &str, settings: Value) {
    let (store, now) = (run.engine.store(), run.engine.now());
    let any = Expected::Any;
    let put = store.put_document(QUEUE_SETTINGS, queue, &settings, any, None, now);
    put.await.unwrap();
}

/// Stores jobs of kind `a`, this many in each queue.
async fn fill(run: &Running, queues: impl IntoIterator<Item = (String, usize)>) {
    let now = run.engine.now();
    for (queue, count) in queues {
        let new = in_queue(&queue, "a");
        let job = new.into_job(run.engine.ids().job(now), now).unwrap();
        let mut left = count;
        while left > 0 {
            let part = left.min(ENQUEUE_MAX);
            let jobs = std::iter::repeat_with(|| {
                let mut job = job.clone();
                job.id = run.engine.ids().job(now);
                job
            });
            let step = Enqueue::all(jobs.take(part).collect());
            run.store.enqueue(step, now).await.unwrap();
            left -= part;
        }
    }
}

/// How many jobs have started in each queue.
type Starts = Arc<Mutex<BTreeMap<String, usize>>>;

/// A handler that takes a second and counts its starts.
fn counted() -> (
    Starts,
    impl Fn(Arc<RunningAttempt>) -> Sleeping + Send + Sync + 'static,
) {
    let starts = Starts::default();
    let counts = Arc::clone(&starts);
    let one_second = takes(1.0);
    let handler = move |attempt: Arc<RunningAttempt>| {
        let queue = attempt.job().queue.to_string();
        *counts.lock().unwrap().entry(queue).or_default() += 1;
        one_second(attempt)
    };
    (starts, handler)
}

#[tokio::test(start_paused = true)]
async fn each_of_ninety_nine_queues_starts_within_one_turn_of_one_with_a_million_jobs() {
    let mut run = Running::new();
    let small = (0..99).map(|number| (format!("small-{number:02}"), 1));
    fill(&run, [("large".to_owned(), 1_000_000)]).await;
    let (starts, handler) = counted();
    run.start(discovers(10).with("a", handler));
    tokio::time::sleep(seconds(3.5)).await;
    let before = starts.lock().unwrap()["large"];
    assert_eq!(before, 40, "alone, it has all slots");
    fill(&run, small).await;
    tokio::time::sleep(seconds(11.0)).await;
    let starts = starts.lock().unwrap();
    assert_eq!(starts.len(), 100, "all have started after 110 slots");
    assert_eq!(starts["large"] - before, 11, "the rest is its own");
}

#[tokio::test(start_paused = true)]
async fn discovered_queues_share_the_slots_by_the_weight_that_operators_set() {
    let mut run = Running::new();
    set(&run, "heavy", json!({"weight": 3})).await;
    fill(&run, ["heavy", "light"].map(|name| (name.to_owned(), 200))).await;
    let (starts, handler) = counted();
    run.start(discovers(4).with("a", handler));
    tokio::time::sleep(seconds(19.5)).await;
    let counts = starts.lock().unwrap().clone();
    assert_eq!((counts["heavy"], counts["light"]), (60, 20));
    set(&run, "heavy", json!({})).await;
    tokio::time::sleep(seconds(6.0)).await;
    let before = starts.lock().unwrap().clone();
    tokio::time::sleep(seconds(10.0)).await;
    let after = starts.lock().unwrap().clone();
    let shares = ["heavy", "light"].map(|name| after[name] - before[name]);
    assert_eq!(shares, [20, 20]);
}

#[tokio::test(start_paused = true)]
async fn pause_policy_and_retry_lane_apply_to_a_discovered_queue() {
    let mut run = Running::new();
    let flaky = |attempt: Arc<RunningAttempt>| -> Sleeping {
        let report = match attempt.job().attempt {
            1 => failed("not yet"),
            _ => Report::Succeeded(None),
        };
        Box::pin(std::future::ready(report))
    };
    let build = discovers(1).policy(constant(1, 9)).with("flaky", flaky);
    run.start(build.with("long", takes(1000.0)));
    set(
        &run,
        "strict",
        json!({"retry": {"preset": "standard", "max_attempts": 1}}),
    )
    .await;
    set(&run, "lane", json!({"retry_lane": 1})).await;
    tokio::time::sleep(seconds(6.0)).await;
    let strict = run.enqueue(in_queue("strict", "flaky")).await;
    run.until("dead", strict).await;
    let plain = run.enqueue(in_queue("plain", "flaky")).await;
    run.until("succeeded", plain).await;

    let by = "ann".to_owned();
    let paused = QueueLimits {
        paused: Some(Pause {
            by,
            at: t0(),
            reason: None,
        }),
        ..QueueLimits::default()
    };
    let queue = QueueName::new("plain").unwrap();
    let engine = Arc::clone(&run.engine);
    let store = engine.store();
    store.put_queue(&queue, &paused, None).await.unwrap();
    let held = run.enqueue(in_queue("plain", "flaky")).await;
    tokio::time::sleep(seconds(10.0)).await;
    assert_eq!(job(&run.engine, held).await.attempt, 0);
    let resumed = QueueLimits::default();
    store.put_queue(&queue, &resumed, None).await.unwrap();
    run.until("succeeded", held).await;

    let retried = run.enqueue(in_queue("lane", "flaky")).await;
    run.until("retried", retried).await;
    let long = run.enqueue(in_queue("other", "long")).await;
    run.until("started", long).await;
    run.until("succeeded", retried).await; // the only other slot is taken
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_looks_once_in_a_poll_and_a_burst_of_wake_ups_shares_looks() {
    let mut run = Running::new();
    run.store.fail("sweep"); // sweeps wake every fetcher of this store
    fill(&run, (0..1000).map(|number| (format!("q{number}"), 1))).await;
    run.start(discovers(4).succeeds("b"));
    tokio::time::sleep(seconds(1.0)).await;
    let looks = |run: &Running| (run.store.asked("due_queues"), run.store.asked("claim"));
    let (before, _) = looks(&run);
    tokio::time::sleep(seconds(100.0)).await;
    let (after, claims) = looks(&run);
    assert!((80..=130).contains(&(after - before)), "{}", after - before);
    assert_eq!(claims, 0, "no queue has jobs of its kind");
    // A thousand jobs of another kind, one in each millisecond.
    for _ in 0..1000 {
        run.enqueue(in_queue("q1", "a")).await;
        tokio::time::sleep(seconds(0.001)).await;
    }
    let burst = looks(&run).0 - after;
    assert!(burst <= 250, "{burst} looks");
    let id = run.enqueue(in_queue("q1", "b")).await;
    run.until("succeeded", id).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_in_one_of_ten_thousand_queues_is_picked_up_at_once() {
    let mut run = Running::new();
    fill(&run, (0..10_000).map(|number| (format!("q{number:05}"), 1))).await;
    run.start(discovers(4).succeeds("b"));
    tokio::time::sleep(seconds(30.0)).await;
    let id = run.enqueue(in_queue("q07777", "b")).await;
    run.until("succeeded", id).await;
    assert!(run.elapsed() <= seconds(30.02), "{:?}", run.elapsed());
    assert_eq!(run.store.asked("claim"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_look_for_due_queues_is_repeated() {
    let mut run = Running::new();
    run.start(discovers(1).succeeds("a"));
    tokio::time::sleep(seconds(1.0)).await;
    run.store.fail("due_queues");
    let id = run.enqueue(in_queue("q", "a")).await;
    tokio::time::sleep(seconds(5.0)).await;
    assert_eq!(job(&run.engine, id).await.attempt, 0);
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(run.stop().await.released, 0);
}
