//! Statistics of all processes of a store: written every 10 s, rolled up once, kept for a while.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use windlass_core::statistics::{Period, QueueStatistics, StatisticsRange};
use windlass_core::{NewJob, QueueName, Timestamp};
use windlass_engine::{
    Engine, Ids, Janitor, JanitorConfig, StatisticsSeries, StatisticsWriter, VirtualClock,
};
use windlass_memory::MemoryStore;
use windlass_store::{RECORDS_MAX, RecordRange, Store};
use windlass_testkit::running::{Running, takes};
use windlass_testkit::world::{World, constant, enqueue, new_job, seconds, t0, worker};
use windlass_testkit::{Faulty, on_every_store};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

on_every_store! {
    every_outcome_is_counted_once;
    the_sums_of_all_processes_are_the_same_in_every_period;
    old_statistics_are_removed;
}

/// Another process on the same store. `seed` tells its ids from those of others.
fn process(world: &World, seed: u64) -> Arc<Engine> {
    process_on(&world.store, &world.clock, seed)
}

fn process_on(store: &Arc<dyn Store>, clock: &VirtualClock, seed: u64) -> Arc<Engine> {
    let clock = Arc::new(clock.clone());
    Arc::new(Engine::new(Arc::clone(store), clock, Ids::seeded(seed)))
}

async fn pass(engine: &Arc<Engine>) {
    let writer = StatisticsWriter::new(Arc::clone(engine));
    writer.pass(engine.now()).await.unwrap();
}

async fn flush(engine: &Arc<Engine>) {
    let writer = StatisticsWriter::new(Arc::clone(engine));
    writer.flush(engine.now()).await.unwrap();
}

fn in_queue(name: &str) -> NewJob {
    NewJob {
        queue: QueueName::new(name).unwrap(),
        ..new_job("a")
    }
}

/// The statistics since the start of the test, or of as long as this period is kept.
async fn read(engine: &Engine, step: Period, queue: Option<&str>) -> StatisticsSeries {
    let now = engine.now();
    let from = t0().max(now.saturating_sub(step.kept()));
    let end = now.saturating_add(Duration::from_secs(1));
    let range = StatisticsRange::new(from, end, Some(step.length()), now).unwrap();
    assert_eq!(range.period(), step);
    let queue = queue.map(|queue| QueueName::new(queue).unwrap());
    engine.statistics(range, queue.as_ref()).await.unwrap()
}

async fn total(engine: &Engine, step: Period) -> QueueStatistics {
    read(engine, step, None).await.total()
}

async fn record_count(store: &dyn Store) -> usize {
    let records = store.records("statistics", RecordRange::OLDEST, RECORDS_MAX);
    records.await.unwrap().len()
}

async fn every_outcome_is_counted_once(world: World) {
    let build = worker(10).policy(constant(5, 2)).fails("bad");
    let (worker, _) = build.succeeds("good").build(&world);
    for kind in ["good", "good", "bad"] {
        world.enqueue(new_job(kind)).await;
    }
    worker.drain(&world.clock).await.unwrap();
    flush(&world.engine).await;
    let series = read(&world.engine, Period::TenSeconds, Some("default")).await;
    let numbers = series.total();
    let pair = <(u64, u64)>::from;
    assert_eq!(numbers.enqueued, 3);
    assert_eq!(pair(numbers.started), (3, 1));
    assert_eq!(pair(numbers.succeeded), (2, 0));
    assert_eq!(pair(numbers.failed), (1, 1));
    assert_eq!((numbers.retried, numbers.dead), (1, 1));
    assert_eq!((numbers.wait.count(), numbers.run.count()), (4, 4));
    let other = read(&world.engine, Period::TenSeconds, Some("other")).await;
    assert!(other.points.is_empty() && other.total().is_empty());
}

async fn the_sums_of_all_processes_are_the_same_in_every_period(world: World) {
    let others = [process(&world, 1), process(&world, 2)];
    for number in 0..400u64 {
        for (engine, queue) in others.iter().zip(["x", "y"]) {
            enqueue(engine, in_queue(queue)).await;
            if number.is_multiple_of(3) {
                enqueue(engine, in_queue("both")).await;
            }
        }
        world.clock.advance(seconds(17.0));
        for engine in &others {
            pass(engine).await;
        }
    }
    // The processes are gone, and another one reads.
    for engine in others {
        flush(&engine).await;
    }
    let queues = [("x", 400), ("y", 400), ("both", 268)];
    for period in Period::ALL {
        let all = read(&world.engine, period, None).await;
        assert_eq!(all.total().enqueued, 1068, "{period:?}");
        for (name, count) in queues {
            let of_all = &all.queues.queues[&QueueName::new(name).unwrap()];
            assert_eq!(of_all.enqueued, count, "{period:?}");
            let one = read(&world.engine, period, Some(name)).await;
            assert_eq!(one.total().enqueued, count, "{period:?}");
            let points = one.points.values().map(|point| point.enqueued);
            assert_eq!(points.sum::<u64>(), count);
        }
    }
    let hours = read(&world.engine, Period::Hour, None).await;
    assert_eq!(hours.points.len(), 2);
    assert_eq!(hours.points[&t0()].enqueued, 212 * 2 + 71 * 2);
}

async fn old_statistics_are_removed(world: World) {
    let janitor = Janitor::new(Arc::clone(&world.engine), JanitorConfig::default());
    world.enqueue(new_job("a")).await;
    let mut counts = Vec::new();
    for time in [
        MINUTE,
        MINUTE,
        2 * HOUR,
        22 * HOUR,
        29 * 24 * HOUR,
        25 * HOUR,
    ] {
        world.clock.advance(time);
        pass(&world.engine).await;
        janitor.pass(world.engine.now()).await.unwrap();
        // Read with an earlier time, at which none had expired, to see which still exist.
        let documents = |collection: &'static str| world.store.documents(collection, t0());
        counts.push((
            record_count(&*world.store).await,
            documents("statistics/1m/2026-01-01T12:00:00Z")
                .await
                .unwrap()
                .len(),
            documents("statistics/1h/2026-01-01T00:00:00Z")
                .await
                .unwrap()
                .len(),
        ));
    }
    assert_eq!(
        counts,
        [
            (1, 0, 0),
            (1, 1, 1),
            (0, 1, 1),
            (0, 0, 1),
            (0, 0, 1),
            (0, 0, 0)
        ]
    );
}

#[tokio::test]
async fn a_killed_process_loses_only_its_last_interval() {
    let world = World::memory();
    let killed = process(&world, 1);
    for _ in 0..3 {
        enqueue(&killed, new_job("a")).await;
        world.clock.advance(seconds(10.0));
        pass(&killed).await;
    }
    enqueue(&killed, new_job("a")).await;
    world.clock.advance(seconds(9.0));
    pass(&killed).await;
    drop(killed);
    for period in Period::ALL {
        assert_eq!(total(&world.engine, period).await.enqueued, 3, "{period:?}");
    }
}

#[tokio::test]
async fn a_record_belongs_to_the_10_s_in_which_it_happened() {
    let world = World::memory();
    world.clock.advance(seconds(25.0));
    world.enqueue(new_job("a")).await;
    world.clock.advance(seconds(4.0));
    pass(&world.engine).await;
    assert_eq!(
        record_count(&*world.store).await,
        0,
        "its 10 s are not over"
    );
    world.clock.advance(seconds(1.0));
    pass(&world.engine).await;
    pass(&world.engine).await;
    assert_eq!(record_count(&*world.store).await, 1);
    let series = read(&world.engine, Period::TenSeconds, None).await;
    let starts: Vec<f64> = series.points.keys().map(since_start).collect();
    assert_eq!(starts, [20.0]);
}

fn since_start(at: &Timestamp) -> f64 {
    at.since(t0()).as_secs_f64()
}

#[tokio::test]
async fn one_process_per_minute_rolls_up() {
    let world = World::memory();
    let store = Faulty::new(Arc::clone(&world.store));
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    let engines = [1, 2, 3].map(|seed| process_on(&shared, &world.clock, seed));
    for engine in &engines {
        enqueue(engine, new_job("a")).await;
    }
    for _ in 0..12 {
        world.clock.advance(seconds(10.0));
        for engine in &engines {
            pass(engine).await;
        }
    }
    assert_eq!(store.asked("append"), 3, "one record for each process");
    // Each process tries to take the lease once in each of three minutes. The one that gets it in the
    // second minute writes a minute, an hour and the progress.
    assert_eq!(store.asked("put_document"), 3 * 3 + 3);
    assert_eq!(total(&world.engine, Period::Hour).await.enqueued, 3);
}

#[tokio::test]
async fn a_crash_between_two_steps_of_a_roll_up_counts_nothing_twice() {
    let world = World::memory();
    world.enqueue(new_job("a")).await;
    world.clock.advance(seconds(10.0));
    pass(&world.engine).await;
    world.clock.advance(2 * MINUTE);
    pass(&world.engine).await;
    // The progress is lost, as if the process had died before it was written.
    let removed =
        world
            .store
            .remove_document("statistics", "progress", windlass_store::Expected::Any);
    removed.await.unwrap();
    for period in Period::ALL {
        assert_eq!(total(&world.engine, period).await.enqueued, 1, "{period:?}");
    }
    world.clock.advance(MINUTE);
    pass(&process(&world, 5)).await;
    for period in Period::ALL {
        assert_eq!(total(&world.engine, period).await.enqueued, 1, "{period:?}");
    }
}

#[tokio::test]
async fn a_store_that_was_closed_for_days_rolls_up_what_is_left() {
    let world = World::memory();
    world.enqueue(new_job("a")).await;
    flush(&world.engine).await;
    world.clock.advance(3 * 24 * HOUR);
    pass(&process(&world, 1)).await;
    assert_eq!(record_count(&*world.store).await, 0);
    let hours = read(&world.engine, Period::Hour, None).await;
    assert_eq!(hours.points[&t0()].enqueued, 1);
}

#[tokio::test]
async fn while_the_store_fails_the_numbers_wait_in_memory() {
    let world = World::memory();
    let store = Faulty::new(Arc::clone(&world.store));
    let engine = process_on(&(Arc::clone(&store) as Arc<dyn Store>), &world.clock, 1);
    let writer = StatisticsWriter::new(Arc::clone(&engine));
    store.fail("append");
    for _ in 0..30 {
        enqueue(&engine, new_job("a")).await;
        world.clock.advance(seconds(10.0));
        writer.pass(engine.now()).await.unwrap_err();
    }
    store.heal();
    writer.pass(engine.now()).await.unwrap();
    assert_eq!(record_count(&*world.store).await, 2, "the rest was merged");
    assert_eq!(total(&engine, Period::TenSeconds).await.enqueued, 30);
}

#[tokio::test]
async fn a_record_whose_append_got_no_answer_is_not_counted_twice() {
    let world = World::memory();
    let store = Faulty::new(Arc::clone(&world.store));
    let engine = process_on(&(Arc::clone(&store) as Arc<dyn Store>), &world.clock, 1);
    let writer = StatisticsWriter::new(Arc::clone(&engine));
    // Others write in between.
    let other = process(&world, 2);
    for loses_answers in [true, false] {
        if loses_answers {
            store.lose_answers("append");
        } else {
            store.hang("append");
        }
        enqueue(&engine, new_job("a")).await;
        world.clock.advance(seconds(10.0));
        let answer = writer.pass(engine.now()).now_or_never();
        assert!(!matches!(answer, Some(Ok(()))), "failed or aborted");
        for _ in 0..3 {
            enqueue(&other, in_queue("other")).await;
            flush(&other).await;
        }
        store.heal();
        writer.pass(engine.now()).await.unwrap();
    }
    let queue = read(&engine, Period::TenSeconds, Some("default")).await;
    assert_eq!(queue.total().enqueued, 2);
    assert_eq!(record_count(&*world.store).await, 8);
}

#[tokio::test(start_paused = true)]
async fn a_worker_writes_every_10_s_and_when_it_stops() {
    let mut run = Running::new();
    run.start(worker(1).with("a", takes(1.0)));
    let first = run.enqueue(new_job("a")).await;
    run.until("succeeded", first).await;
    let at_10_s = t0().saturating_add(seconds(10.5));
    run.engine.clock().sleep_until(at_10_s).await;
    let written = total(&run.engine, Period::TenSeconds).await;
    assert_eq!((written.enqueued, written.succeeded.total()), (1, 1));
    let second = run.enqueue(new_job("a")).await;
    run.until("succeeded", second).await;
    run.stop().await;
    let written = total(&run.engine, Period::TenSeconds).await;
    assert_eq!((written.enqueued, written.succeeded.total()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_no_job_and_no_shutdown_for_long() {
    let mut run = Running::new();
    run.store.hang("append");
    run.start(worker(1).succeeds("a"));
    for _ in 0..5 {
        let id = run.enqueue(new_job("a")).await;
        run.until("succeeded", id).await;
        run.engine.clock().sleep(seconds(10.0)).await;
    }
    let elapsed = run.elapsed();
    assert_eq!(run.stop().await.unsettled, 0);
    assert!(run.elapsed() - elapsed < seconds(3.0));
}

/// What a process does, and when: (milliseconds since the last step, process, jobs to enqueue).
type Step = (u64, usize, u64);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn totals_of_all_periods_agree(
        steps in prop::collection::vec((0..90_000u64, 0..3usize, 0..4u64), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check_totals(&steps));
    }
}

async fn check_totals(steps: &[Step]) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let clock = VirtualClock::new(t0());
    let engines = [1, 2, 3].map(|seed| process_on(&store, &clock, seed));
    let mut enqueued = 0;
    for (millis, process, jobs) in steps {
        clock.advance(Duration::from_millis(*millis));
        let engine = &engines[*process];
        for _ in 0..*jobs {
            enqueue(engine, new_job("a")).await;
        }
        enqueued += jobs;
        pass(engine).await;
    }
    for engine in &engines {
        flush(engine).await;
    }
    for period in Period::ALL {
        assert_eq!(total(&engines[0], period).await.enqueued, enqueued);
    }
}
