//! How claims are shared between fresh work and retries, end to end on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass_core::fairness::{Guards, Rate, Ratio, RetryLane};
use windlass_core::{Lane, Outcome, QueueName, Report};
use windlass_engine::RunningAttempt;
use windlass_store::{Filter, ListedState, Page, QueueLimits};
use windlass_testkit::world::{World, constant, failed, kind, new_job, seconds, worker};

/// Makes this many jobs of kind `r` fail once. Half of them are due again after a second, the
/// others after a long time.
async fn waiting_retries(world: &World, due: usize, future: usize) {
    for (count, delay) in [(due, 1), (future, 1000)] {
        let build = worker(1000).policy(constant(delay, 9));
        let (failing, _) = build.fails("r").build(world);
        for _ in 0..count {
            world.enqueue(new_job("r")).await;
        }
        failing.pass(&world.clock).await.unwrap();
    }
    world.clock.advance(seconds(1.0));
}

async fn fresh(world: &World, count: usize) {
    for _ in 0..count {
        world.enqueue(new_job("f")).await;
    }
}

/// How many retries and fresh jobs run now.
async fn running(world: &World) -> (usize, usize) {
    let filter = Filter::state(ListedState::Running);
    let now = world.engine.now();
    let store = world.engine.store();
    let jobs = store
        .list(&filter, Page::first(1000), now)
        .await
        .unwrap()
        .jobs;
    let retries = jobs.iter().filter(|job| job.lane() == Lane::Retry).count();
    (retries, jobs.len() - retries)
}

fn ratio(share: f64) -> Guards {
    Guards {
        retry_fetch_ratio: Some(Ratio::new(share).unwrap()),
        fresh_reserve: Some(0),
        ..Guards::default()
    }
}

async fn one_claim_is_shared_as_the_table_says(make: fn() -> World) {
    let reserve = Guards::default();
    for (due, future, fresh_jobs, slots, guards, expected) in [
        (5, 0, 20, 10, ratio(0.2), (2, 8)),
        (10, 0, 10, 10, ratio(0.5), (5, 5)),
        (1, 0, 4, 4, ratio(0.2), (1, 3)),
        (20, 0, 0, 10, ratio(0.2), (10, 0)),
        (5, 1, 2, 6, ratio(0.2), (4, 2)),
        (0, 9, 3, 10, ratio(0.2), (0, 3)),
        (100, 0, 0, 10, reserve, (9, 0)),
    ] {
        let world = make();
        waiting_retries(&world, due, future).await;
        fresh(&world, fresh_jobs).await;
        let build = worker(slots).guards(guards).succeeds("r").succeeds("f");
        let (worker, _) = build.build(&world);
        worker.crash_after_claim().await.unwrap();
        let got = running(&world).await;
        assert_eq!(
            got, expected,
            "{due} due, {future} future, {fresh_jobs} fresh, {slots} slots"
        );
    }
}

#[tokio::test]
async fn one_claim_is_shared_as_the_table_says_in_memory() {
    one_claim_is_shared_as_the_table_says(World::memory).await;
}

#[tokio::test]
async fn one_claim_is_shared_as_the_table_says_in_sqlite() {
    one_claim_is_shared_as_the_table_says(World::sqlite).await;
}

async fn single_claims_carry_the_credit_over(world: World) {
    waiting_retries(&world, 200, 0).await;
    fresh(&world, 200).await;
    let build = worker(1).guards(ratio(0.2)).succeeds("r").succeeds("f");
    let (worker, calls) = build.build(&world);
    worker.pass(&world.clock).await.unwrap();
    let calls = calls.lock().unwrap();
    let first: Vec<bool> = calls
        .iter()
        .take(100)
        .map(|call| call.0 == kind("r"))
        .collect();
    assert_eq!(first.iter().filter(|retry| **retry).count(), 20);
    let longest = first
        .split(|retry| *retry)
        .map(<[bool]>::len)
        .max()
        .unwrap();
    assert!(longest < 6, "{longest} fresh in a row");
    assert_eq!(calls.len(), 400, "retries run too");
}

/// The most retries and the most jobs that ran at once.
#[derive(Default)]
struct Peaks {
    retries: AtomicU32,
    retries_most: AtomicU32,
    all: AtomicU32,
    all_most: AtomicU32,
}

type Sleeping = std::pin::Pin<Box<dyn Future<Output = Report> + Send>>;

fn watched(peaks: &Arc<Peaks>) -> impl Fn(Arc<RunningAttempt>) -> Sleeping + use<> {
    let peaks = Arc::clone(peaks);
    move |attempt| {
        let peaks = Arc::clone(&peaks);
        Box::pin(async move {
            let retry = u32::from(attempt.job().lane() == Lane::Retry);
            let now = peaks.retries.fetch_add(retry, Ordering::SeqCst) + retry;
            peaks.retries_most.fetch_max(now, Ordering::SeqCst);
            let now = peaks.all.fetch_add(1, Ordering::SeqCst) + 1;
            peaks.all_most.fetch_max(now, Ordering::SeqCst);
            let clock = Arc::clone(attempt.engine().clock());
            clock
                .sleep_until(clock.now().saturating_add(seconds(1.0)))
                .await;
            peaks.retries.fetch_sub(retry, Ordering::SeqCst);
            peaks.all.fetch_sub(1, Ordering::SeqCst);
            Report::Succeeded(None)
        })
    }
}

async fn retries_in_flight_are_bounded_over_all_workers(world: World) {
    waiting_retries(&world, 60, 0).await;
    fresh(&world, 20).await;
    let guards = Guards {
        max_inflight_retries: Some(5),
        ..Guards::default()
    };
    let peaks = Arc::new(Peaks::default());
    let watch = || watched(&peaks);
    let build = || {
        worker(50)
            .guards(guards)
            .with("r", watch())
            .with("f", watch())
    };
    let (one, _) = build().build(&world);
    let (other, _) = build().build(&world);
    one.crash_after_claim().await.unwrap();
    other.crash_after_claim().await.unwrap();
    assert_eq!(running(&world).await, (5, 20));
    other.drain(&world.clock).await.unwrap();
    let counts = world
        .engine
        .store()
        .counts(world.engine.now())
        .await
        .unwrap();
    let succeeded: u64 = counts.values().map(|counts| counts.succeeded).sum();
    assert_eq!(succeeded, 80, "slots come back when leases expire");
    assert_eq!(peaks.retries_most.load(Ordering::SeqCst), 5);
}

async fn a_retry_lane_has_its_own_slots(world: World) {
    waiting_retries(&world, 40, 0).await;
    fresh(&world, 40).await;
    let guards = Guards {
        retry_lane: Some(RetryLane {
            concurrency: 2,
            rate: None,
        }),
        ..Guards::default()
    };
    let peaks = Arc::new(Peaks::default());
    let build = worker(10).guards(guards);
    let build = build.with("r", watched(&peaks)).with("f", watched(&peaks));
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(peaks.retries_most.load(Ordering::SeqCst), 2);
    assert_eq!(
        peaks.all_most.load(Ordering::SeqCst),
        12,
        "fresh work keeps all its slots"
    );
}

async fn a_retry_lane_keeps_its_rate(world: World) {
    waiting_retries(&world, 10, 0).await;
    let guards = Guards {
        retry_lane: Some(RetryLane {
            concurrency: 5,
            rate: Some(Rate {
                count: 2,
                period: seconds(60.0),
            }),
        }),
        ..Guards::default()
    };
    let start = world.engine.now();
    let build = worker(10).guards(guards).succeeds("r");
    let (worker, calls) = build.build(&world);
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 2);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 10);
    assert_eq!(world.engine.now().since(start), seconds(240.0));
}

async fn a_queue_keeps_its_rate_and_concurrency(world: World) {
    let limits = QueueLimits {
        concurrency: Some(3),
        rate: Some(Rate {
            count: 4,
            period: seconds(10.0),
        }),
        ..QueueLimits::default()
    };
    let store = world.engine.store();
    store
        .put_queue(&QueueName::default(), &limits, None)
        .await
        .unwrap();
    fresh(&world, 12).await;
    let peaks = Arc::new(Peaks::default());
    let (worker, _) = worker(10).with("f", watched(&peaks)).build(&world);
    let start = world.engine.now();
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(peaks.all_most.load(Ordering::SeqCst), 3);
    assert!(world.engine.now().since(start) >= seconds(20.0));
}

async fn a_kind_without_a_handler_is_never_claimed(world: World) {
    let unknown = world.enqueue(new_job("unknown")).await;
    let known = world.enqueue(new_job("f")).await;
    let (worker, _) = worker(4)
        .on("f", |_| failed("once"))
        .policy(constant(1, 2))
        .build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(
        world.job(unknown).await.attempt,
        0,
        "it stays queued, not failed"
    );
    assert_eq!(world.timeline(known).await[0].1, Outcome::Failed);
}

windlass_testkit::on_every_store! {
    single_claims_carry_the_credit_over;
    retries_in_flight_are_bounded_over_all_workers;
    a_retry_lane_has_its_own_slots;
    a_retry_lane_keeps_its_rate;
    a_queue_keeps_its_rate_and_concurrency;
    a_kind_without_a_handler_is_never_claimed;
}
