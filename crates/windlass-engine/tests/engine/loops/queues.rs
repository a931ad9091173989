//! Claims of a running worker: from which queues, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::{NewJob, QueueName, Report, Start};
use windlass_engine::{QUEUE_SETTINGS, QueueConfig, RunningAttempt};
use windlass_store::{Expected, Pause, QueueLimits};

use windlass_testkit::running::{Running, Sleeping, takes};
use windlass_testkit::world::{constant, failed, job, new_job, seconds, t0, worker};

#[tokio::test(start_paused = true)]
async fn the_poll_finds_jobs_without_a_notification() {
    let mut run = Running::new();
    run.start(
        worker(1)
            .set(|config| config.poll = seconds(100.0))
            .succeeds("a"),
    );
    // As another process would do it: this one does not know the due time. Sweeps are off, because
    // they would wake the fetcher.
    run.store.fail("sweep");
    let later = NewJob {
        start: Start::After(seconds(3.0)),
        ..new_job("a")
    };
    let now = run.engine.now();
    let made = later.into_job(run.engine.ids().job(now), now).unwrap();
    let id = made.id;
    let step = windlass_store::Enqueue::all(vec![made]);
    run.engine.store().enqueue(step, now).await.unwrap();
    run.until("succeeded", id).await;
    assert!(
        (seconds(80.0)..=seconds(120.0)).contains(&run.elapsed()),
        "{:?}",
        run.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_gives_no_jobs_until_it_is_resumed() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    let paused = QueueLimits {
        paused: Some(Pause {
            by: "ann".to_owned(),
            at: t0(),
            reason: None,
        }),
        ..QueueLimits::default()
    };
    let queue = QueueName::default();
    let store = run.engine.store();
    store.put_queue(&queue, &paused, None).await.unwrap();
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(10.0)).await;
    assert_eq!(job(&run.engine, id).await.attempt, 0);
    let engine = Arc::clone(&run.engine);
    engine
        .store()
        .put_queue(&queue, &QueueLimits::default(), None)
        .await
        .unwrap();
    run.until("succeeded", id).await;
    assert_eq!(run.elapsed(), seconds(10.0));
}

#[tokio::test(start_paused = true)]
async fn several_queues_share_the_slots_by_weight() {
    let mut run = Running::new();
    let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let (heavy, light) = (Arc::clone(&counts[0]), Arc::clone(&counts[1]));
    let counted = |count: Arc<AtomicUsize>| {
        move |attempt: Arc<RunningAttempt>| -> Sleeping {
            let count = Arc::clone(&count);
            Box::pin(async move {
                let clock = Arc::clone(attempt.engine().clock());
                clock
                    .sleep_until(clock.now().saturating_add(seconds(1.0)))
                    .await;
                count.fetch_add(1, Ordering::SeqCst);
                Report::Succeeded(None)
            })
        }
    };
    let queue = |name: &str, weight| QueueConfig {
        weight,
        ..QueueConfig::new(QueueName::new(name).unwrap(), 4)
    };
    for _ in 0..100 {
        for name in ["heavy", "light"] {
            let job = NewJob {
                queue: QueueName::new(name).unwrap(),
                ..new_job(name)
            };
            run.enqueue(job).await;
        }
    }
    run.start(
        worker(1)
            .with("heavy", counted(heavy))
            .with("light", counted(light))
            .set(|config| {
                config.queues = vec![queue("heavy", 3), queue("light", 1)];
                config.concurrency = Some(4);
            }),
    );
    tokio::time::sleep(seconds(20.5)).await;
    let done = counts.map(|count| count.load(Ordering::SeqCst));
    assert_eq!(done, [60, 20]);
    tokio::time::sleep(seconds(60.0)).await;
    let counts = run.engine.store().counts(run.engine.now()).await.unwrap();
    let succeeded: u64 = counts.values().map(|count| count.succeeded).sum();
    assert_eq!(succeeded, 200, "what one queue leaves, the other gets");
}

#[tokio::test(start_paused = true)]
async fn a_failed_claim_is_retried_soon_however_long_the_poll_interval_is() {
    let mut run = Running::new();
    let build = worker(1).policy(constant(0, 9)).succeeds("a");
    run.start(build.set(|config| config.poll = seconds(60.0)));
    tokio::time::sleep(seconds(1.0)).await;
    run.store.lose_answers("claim");
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(0.1)).await;
    run.store.heal();
    run.until("succeeded", id).await;
    assert!(run.elapsed() <= seconds(2.2), "{:?}", run.elapsed());
    assert_eq!(run.outcomes(id).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_due_time_that_comes_during_a_pass_is_not_missed() {
    for offset in [5, 15, 25, 30, 35, 45, 55, 65] {
        let mut run = Running::new();
        run.store.slow("claim", seconds(0.02));
        run.start(worker(5).succeeds("a"));
        tokio::time::sleep(seconds(0.3)).await;
        let at = |millis| NewJob {
            start: Start::At(t0().saturating_add(Duration::from_millis(millis))),
            ..new_job("a")
        };
        run.enqueue(at(500)).await;
        let second = run.enqueue(at(500 + offset)).await;
        run.until("started", second).await;
        let late = run.elapsed() - Duration::from_millis(500 + offset);
        assert!(late <= seconds(0.1), "{offset} ms after: {late:?} late");
    }
}

/// Changes the settings of the queue `default`, like an operator.
async fn set(run: &Running, settings: Value) {
    let (store, now) = (run.engine.store(), run.engine.now());
    let put = store.put_document(
        QUEUE_SETTINGS,
        "default",
        &settings,
        Expected::Any,
        None,
        now,
    );
    put.await.unwrap();
}

/// A handler whose first attempt fails.
fn second_time_lucky(attempt: Arc<RunningAttempt>) -> Sleeping {
    let report = match attempt.job().attempt {
        1 => failed("not yet"),
        _ => Report::Succeeded(None),
    };
    Box::pin(std::future::ready(report))
}

#[tokio::test(start_paused = true)]
async fn a_retry_lane_that_is_set_while_a_worker_runs_gets_slots_of_its_own_and_loses_them_again() {
    let mut run = Running::new();
    let build = worker(1).policy(constant(1, 9));
    run.start(
        build
            .with("flaky", second_time_lucky)
            .with("long", takes(1000.0)),
    );
    let first = run.enqueue(new_job("flaky")).await;
    run.until("retried", first).await;
    let long = run.enqueue(new_job("long")).await;
    run.until("started", long).await;
    // The only slot is taken: the retry waits until there is a lane for it.
    tokio::time::sleep(seconds(60.0)).await;
    assert_eq!(job(&run.engine, first).await.attempt, 1);
    set(&run, json!({"retry_lane": 1})).await;
    run.until("succeeded", first).await;
    assert!(run.elapsed() <= seconds(70.0), "{:?}", run.elapsed());
    run.until("succeeded", long).await;
    set(&run, json!({"retry_lane": null})).await;
    let second = run.enqueue(new_job("flaky")).await;
    run.until("retried", second).await;
    run.until("succeeded", second).await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_policy_applies_to_a_running_worker_until_it_is_removed() {
    let mut run = Running::new();
    run.start(
        worker(1)
            .policy(constant(1, 9))
            .with("a", second_time_lucky),
    );
    let before = run.enqueue(new_job("a")).await;
    run.until("succeeded", before).await;
    set(
        &run,
        json!({"retry": {"preset": "standard", "max_attempts": 1}, "max_depth": 5}),
    )
    .await;
    tokio::time::sleep(seconds(6.0)).await;
    let strict = run.enqueue(new_job("a")).await;
    run.until("dead", strict).await;
    // If the settings cannot be read, the worker uses its own policy again.
    set(&run, json!({"retry": "no such preset"})).await;
    tokio::time::sleep(seconds(6.0)).await;
    let own = run.enqueue(new_job("a")).await;
    run.until("succeeded", own).await;
    let newer = json!({"retry": {"preset": "standard", "max_attempts": 1}, "burst": 5});
    set(&run, newer).await;
    tokio::time::sleep(seconds(6.0)).await;
    let strict = run.enqueue(new_job("a")).await;
    run.until("dead", strict).await;
    set(&run, json!({})).await;
    tokio::time::sleep(seconds(6.0)).await;
    let after = run.enqueue(new_job("a")).await;
    run.until("succeeded", after).await;
}

#[tokio::test(start_paused = true)]
async fn settings_from_before_the_start_apply_to_the_first_claim() {
    let mut run = Running::new();
    set(
        &run,
        json!({"retry": {"preset": "standard", "max_attempts": 1}, "fresh_reserve": 1}),
    )
    .await;
    let id = run.enqueue(new_job("a")).await;
    // With one slot, no slot can be reserved for fresh jobs: the worker keeps its own guards. The
    // policy applies all the same.
    run.start(
        worker(1)
            .policy(constant(1, 9))
            .with("a", second_time_lucky),
    );
    run.until("dead", id).await;
}
