//! Schedules that overlap, run on two nodes or cannot fire; and retention. On every store.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass_core::schedule::{Expression, Missed, NewSchedule, Overlap};
use windlass_core::{Job, JobId, NewJob, QueueName, ScheduleName};
use windlass_engine::{
    Clock as _, Engine, Event, Ids, Janitor, JanitorConfig, ManualRun, Received, ScheduleEvent,
    Scheduler, SchedulerConfig, VirtualClock, manual_run_job,
};
use windlass_memory::MemoryStore;
use windlass_store::{
    Change, Enqueue, Expected, Filter, Fire, ListedState, Page, SCAN_MAX, Schedule, ScheduleRef,
    Store, StoreError, Wrapper,
};
use windlass_testkit::Faulty;
use windlass_testkit::world::{World, new_job, seconds, skipped, t0, worker};

async fn put(engine: &Engine, name: &str, every: f64, change: impl FnOnce(&mut NewSchedule)) {
    let expression = Expression::every(seconds(every)).unwrap();
    let name = ScheduleName::new(name).unwrap();
    let mut definition = NewSchedule::new(name, expression, new_job("nobody"));
    change(&mut definition);
    let schedule = Schedule {
        id: engine.ids().schedule(t0()),
        version: 0,
        definition,
        created_at: t0(),
        last_at: None,
        next_at: Some(t0().saturating_add(seconds(every))),
    };
    let written = engine.store().put_schedule(&schedule, Expected::Absent);
    written.await.unwrap();
}

fn scheduler(engine: &Arc<Engine>) -> Scheduler {
    Scheduler::new(Arc::clone(engine), SchedulerConfig::default())
}

async fn count(engine: &Engine, state: ListedState) -> usize {
    let (filter, page) = (Filter::state(state), Page::first(100));
    let listed = engine.store().list(&filter, page, engine.now());
    listed.await.unwrap().jobs.len()
}

windlass_testkit::on_every_store! {
    a_pass_removes_at_most_a_thousand_expired_documents;
    skipped_occurrences_are_recorded;
    each_skipped_occurrence_is_emitted_once;
    each_range_of_skipped_occurrences_has_its_own_reason;
    old_jobs_behind_jobs_that_are_kept_longer_are_removed_too;
    a_thousand_schedules_in_one_second_fire_once_each;
    all_missed_occurrences_run_one_after_the_other_at_the_default_overlap;
    catch_up_stops_at_the_limit_of_the_schedule;
    the_newest_due_occurrences_fire;
    manual_runs_hide_no_unfinished_occurrence;
    overlap_ignores_manual_runs;
}

async fn all_missed_occurrences_run_one_after_the_other_at_the_default_overlap(world: World) {
    put(&world.engine, "s", 60.0, |schedule| {
        schedule.missed = Some(Missed::All);
    })
    .await;
    world.clock.advance(seconds(330.0));
    let scheduler = scheduler(&world.engine);
    let made = scheduler.pass(world.engine.now()).await.unwrap();
    assert_eq!(made, 5, "they do not keep each other from it");
    assert_eq!(skipped(&world.engine).await, [] as [Value; 0]);
    let (filter, page) = (Filter::state(ListedState::Ready), Page::first(100));
    let listed = world.engine.store().list(&filter, page, world.engine.now());
    let keys: Vec<_> = listed
        .await
        .unwrap()
        .jobs
        .into_iter()
        .map(|job| job.concurrency.unwrap())
        .collect();
    assert!(
        keys.iter().all(|key| key.limit == 1 && *key == keys[0]),
        "one behind the other"
    );
    world.clock.advance(seconds(60.0));
    assert_eq!(scheduler.pass(world.engine.now()).await.unwrap(), 0);
    assert_eq!(skipped(&world.engine).await[0]["reason"], "overlap");
}

async fn catch_up_stops_at_the_limit_of_the_schedule(world: World) {
    put(&world.engine, "s", 60.0, |schedule| {
        schedule.missed = Some(Missed::All);
        schedule.catch_up_max = 2;
    })
    .await;
    world.clock.advance(seconds(330.0));
    let made = scheduler(&world.engine).pass(world.engine.now()).await;
    assert_eq!(made.unwrap(), 2);
    assert_eq!(skipped(&world.engine).await[0]["count"], 3);
}

async fn the_newest_due_occurrences_fire(world: World) {
    put(&world.engine, "s", 60.0, |_| {}).await;
    world.clock.advance(seconds(330.0));
    let made = scheduler(&world.engine).pass(world.engine.now()).await;
    assert_eq!(made.unwrap(), 1);
    let schedule = world
        .engine
        .store()
        .schedules()
        .await
        .unwrap()
        .readable
        .remove(0);
    let fired = world.engine.store().occurrences(schedule.id, None, 10);
    let newest = t0().saturating_add(seconds(300.0));
    assert_eq!(fired.await.unwrap()[0].scheduled_for, newest);
}

/// Creates manual runs at times that are 1 µs apart.
async fn run_extra(world: &World, name: &str, extra: ManualRun, micros: Range<u64>) -> Vec<JobId> {
    let (store, now) = (world.engine.store(), world.engine.now());
    let which = ScheduleRef::Name(ScheduleName::new(name).unwrap());
    let schedule = store.schedule(&which).await.unwrap().unwrap();
    let jobs = micros.map(|micros| {
        let at = now.saturating_add(Duration::from_micros(micros));
        manual_run_job(&world.engine, &schedule, extra, at, now)
    });
    let fire = Fire {
        jobs: jobs.collect(),
        ..Fire::nothing(&schedule)
    };
    let ids = fire.jobs.iter().map(|job| job.id).collect();
    store.fire(vec![fire], now).await.unwrap();
    ids
}

async fn manual_runs_hide_no_unfinished_occurrence(world: World) {
    put(&world.engine, "s", 60.0, |_| {}).await;
    world.clock.advance(seconds(60.0));
    let scheduler = scheduler(&world.engine);
    assert_eq!(scheduler.pass(world.engine.now()).await.unwrap(), 1);
    let store = world.engine.store();
    for (extra, micros) in [(ManualRun::RunNow, 1..120), (ManualRun::Backfill, 120..240)] {
        let ids = run_extra(&world, "s", extra, micros).await;
        store
            .change(&ids, &Change::Cancel, None, world.engine.now())
            .await
            .unwrap();
    }
    world.clock.advance(seconds(60.0));
    let made = scheduler.pass(world.engine.now()).await.unwrap();
    assert_eq!(made, 0, "the first occurrence is unfinished");
}

async fn overlap_ignores_manual_runs(world: World) {
    let rules = [Overlap::Skip, Overlap::Queue, Overlap::CancelRunning];
    let mut extra = Vec::new();
    for overlap in rules {
        put(&world.engine, overlap.name(), 60.0, |schedule| {
            schedule.overlap = overlap;
        })
        .await;
        extra.extend(run_extra(&world, overlap.name(), ManualRun::RunNow, 1..3).await);
        extra.extend(run_extra(&world, overlap.name(), ManualRun::Backfill, 3..5).await);
    }
    world.clock.advance(seconds(60.0));
    let scheduler = scheduler(&world.engine);
    let made = scheduler.pass(world.engine.now()).await.unwrap();
    assert_eq!(made, rules.len(), "no run of a person holds one back");
    let store = world.engine.store();
    let extra = store.get(&extra).await.unwrap();
    assert!(extra.iter().flatten().all(|job| !job.state().is_final()));
    for schedule in store.schedules().await.unwrap().readable {
        let fired = store.occurrences(schedule.id, None, 1).await.unwrap();
        let nominal = store.get(&[fired[0].job.unwrap()]).await.unwrap();
        let nominal = nominal[0].as_ref().unwrap();
        let key = &nominal.concurrency;
        let waits_for = |job: &Job| key.is_some() && job.concurrency == *key;
        assert!(!extra.iter().flatten().any(waits_for), "{nominal:?}");
    }
}

async fn a_pass_removes_at_most_a_thousand_expired_documents(world: World) {
    let store = world.engine.store();
    let (now, value) = (world.engine.now(), json!({}));
    let soon = Some(now.saturating_add(seconds(1.0)));
    for number in 0..=1000 {
        let name = number.to_string();
        let put = store.put_document("notes", &name, &value, Expected::Absent, soon, now);
        put.await.unwrap();
    }
    let janitor = Janitor::new(Arc::clone(&world.engine), JanitorConfig::default());
    // Read at a time before they expired, to see which documents still exist.
    let left = async || store.documents("notes", now).await.unwrap().len();
    janitor.pass(now).await.unwrap();
    assert_eq!(left().await, 1001);
    world.clock.advance(seconds(1.0));
    janitor.pass(world.engine.now()).await.unwrap();
    assert_eq!(left().await, 1);
    janitor.pass(world.engine.now()).await.unwrap();
    assert_eq!(left().await, 0);
}

async fn skipped_occurrences_are_recorded(world: World) {
    put(&world.engine, "s", 60.0, |schedule| {
        schedule.overlap = Overlap::CancelRunning;
        schedule.missed = Some(Missed::All);
    })
    .await;
    world.clock.advance(seconds(301.0));
    let made = scheduler(&world.engine).pass(world.engine.now()).await;
    assert_eq!(
        made.unwrap(),
        1,
        "the last of five takes the place of the others"
    );
    let told = skipped(&world.engine).await;
    assert_eq!(told.len(), 1);
    assert_eq!(
        (&told[0]["reason"], &told[0]["count"]),
        (&"overlap".into(), &4.into())
    );
}

async fn each_skipped_occurrence_is_emitted_once(world: World) {
    put(&world.engine, "s", 60.0, |_| {}).await;
    let mut events = world.engine.subscribe();
    let mut emitted = Vec::new();
    for _ in 0..5 {
        world.clock.advance(seconds(60.0));
        let fired = scheduler(&world.engine).pass(world.engine.now()).await;
        fired.unwrap();
        while let Some(Received::Event(event)) = events.try_next() {
            if let Event::Schedule {
                what: ScheduleEvent::Skipped(range),
                ..
            } = &*event
            {
                emitted.push(range.count.unwrap());
            }
        }
    }
    assert_eq!(
        emitted,
        [1, 1, 1, 1],
        "the first occurrence fired and stays unfinished"
    );
    assert_eq!(skipped(&world.engine).await[0]["count"], 4, "one record");
}

async fn each_range_of_skipped_occurrences_has_its_own_reason(world: World) {
    put(&world.engine, "s", 2.0, |_| {}).await;
    world.clock.advance(seconds(20.5));
    let made = scheduler(&world.engine).pass(world.engine.now()).await;
    assert_eq!(made.unwrap(), 1);
    let told = skipped(&world.engine).await;
    let range = |value: &Value| {
        let text = |field: &str| value[field].as_str().unwrap()[17..19].to_owned();
        (
            text("first"),
            text("last"),
            value["reason"].as_str().unwrap().to_owned(),
        )
    };
    let ranges: Vec<_> = told.iter().map(range).collect();
    let named =
        |first: &str, last: &str, why: &str| (first.to_owned(), last.to_owned(), why.to_owned());
    assert_eq!(
        ranges,
        [named("02", "14", "missed"), named("16", "18", "overlap")]
    );
}

async fn old_jobs_behind_jobs_that_are_kept_longer_are_removed_too(world: World) {
    let short = QueueName::new("short").unwrap();
    let brief = NewJob {
        queue: short.clone(),
        ..new_job("a")
    };
    let old = world.enqueue(brief).await;
    let now = world.engine.now();
    // More jobs in front of it than one list call returns.
    let crowd = (0..SCAN_MAX + 500).map(|_| {
        new_job("a")
            .into_job(world.engine.ids().job(now), now)
            .unwrap()
    });
    let crowd: Vec<_> = crowd.collect();
    let ids: Vec<JobId> = crowd.iter().map(|job| job.id).collect();
    let store = world.engine.store();
    for part in crowd.chunks(1000) {
        store
            .enqueue(Enqueue::all(part.to_vec()), now)
            .await
            .unwrap();
    }
    store
        .change(&[old], &Change::Cancel, None, now)
        .await
        .unwrap();
    for part in ids.chunks(1000) {
        store
            .change(part, &Change::Cancel, None, now)
            .await
            .unwrap();
    }
    let day = Duration::from_secs(24 * 3600);
    let config = JanitorConfig {
        queues: [(short, day)].into(),
        ..JanitorConfig::default()
    };
    let janitor = Janitor::new(Arc::clone(&world.engine), config);
    world.clock.advance(2 * day);
    for _ in 0..5 {
        janitor.pass(world.engine.now()).await.unwrap();
    }
    assert_eq!(store.get(&[old]).await.unwrap(), [None]);
    assert!(store.get(&ids[..1]).await.unwrap()[0].is_some());
}

async fn a_thousand_schedules_in_one_second_fire_once_each(world: World) {
    for number in 0..1000 {
        put(&world.engine, &format!("s{number}"), 60.0, |_| {}).await;
    }
    world.clock.advance(seconds(60.0));
    let (one, other) = (scheduler(&world.engine), scheduler(&world.engine));
    let now = world.engine.now();
    let (a, b) = tokio::join!(one.pass(now), other.pass(now));
    assert_eq!(a.unwrap() + b.unwrap(), 1000);
    assert_eq!(one.pass(now).await.unwrap(), 0);
    let counts = world.engine.store().counts(now).await.unwrap();
    assert_eq!(counts[&QueueName::default()].ready, 1000);
}

/// A store whose first answer to `due` comes late.
#[derive(Debug)]
struct Late {
    store: Arc<dyn Store>,
    asked: AtomicBool,
    go_on: Notify,
}

impl Wrapper for Late {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let answer = step.await;
        if verb == "due" && !self.asked.swap(true, Ordering::SeqCst) {
            self.go_on.notified().await;
        }
        answer
    }
}

#[tokio::test]
async fn a_late_scheduler_cancels_no_job_that_another_one_fired() {
    let store = Arc::new(Late {
        store: Arc::new(MemoryStore::new()),
        asked: AtomicBool::new(false),
        go_on: Notify::new(),
    });
    let clock = VirtualClock::new(t0());
    let shared: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let engine = Arc::new(Engine::new(shared, Arc::new(clock.clone()), Ids::seeded(7)));
    put(&engine, "s", 60.0, |schedule| {
        schedule.overlap = Overlap::CancelRunning;
    })
    .await;
    clock.advance(seconds(60.0));
    let (late, first) = (scheduler(&engine), scheduler(&engine));
    let now = clock.now();
    let in_time = async {
        let made = first.pass(now).await.unwrap();
        store.go_on.notify_one();
        made
    };
    let (late, in_time) = tokio::join!(late.pass(now), in_time);
    assert_eq!((late.unwrap(), in_time), (0, 1));
    assert_eq!(count(&engine, ListedState::Ready).await, 1);
    assert_eq!(count(&engine, ListedState::Cancelled).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_cannot_fire_is_tried_again_now_and_then() {
    let store = Faulty::new(Arc::new(MemoryStore::new()));
    let clock = windlass_engine::SystemClock::starting_at(t0());
    let shared: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let engine = Arc::new(Engine::new(shared, Arc::new(clock), Ids::seeded(7)));
    put(&engine, "s", 60.0, |_| {}).await;
    let (worker, _) = worker(1).succeeds("a").on_engine(&engine);
    let stop = windlass_engine::CancellationToken::new();
    let running = worker.run(stop.clone(), stop.clone());
    store.fail("fire");
    let watch = async {
        engine
            .clock()
            .sleep_until(t0().saturating_add(seconds(70.0)))
            .await;
        let asked = store.asked("fire");
        store.heal();
        engine
            .clock()
            .sleep_until(t0().saturating_add(seconds(72.0)))
            .await;
        let fired = count(&engine, ListedState::Ready).await;
        stop.cancel();
        (asked, fired)
    };
    let (_, (asked, fired)) = tokio::join!(running, watch);
    assert!((5..=20).contains(&asked), "{asked} times in ten seconds");
    assert_eq!(fired, 1);
}

#[tokio::test]
async fn a_schedule_that_the_database_refuses_does_not_hold_up_the_others() {
    let world = World::sqlite();
    for name in ["bad", "good", "later"] {
        put(&world.engine, name, 60.0, |_| {}).await;
    }
    let store = world.engine.store();
    let which = ScheduleRef::Name(ScheduleName::new("bad").unwrap());
    let bad = store.schedule(&which).await.unwrap().unwrap();
    let path = world.folder.as_ref().unwrap().path().join("jobs.db");
    let file = rusqlite::Connection::open(path).unwrap();
    let sql = format!(
        "create trigger refuse before insert on occurrences when new.schedule = x'{:032x}'
         begin select raise(abort, 'no'); end",
        bad.id.as_u128()
    );
    file.execute_batch(&sql).unwrap();
    let scheduler = scheduler(&world.engine);
    world.clock.advance(seconds(60.0));
    assert_eq!(scheduler.pass(world.engine.now()).await.unwrap(), 2);
    let retry_at = scheduler.next_at().await.unwrap();
    assert_eq!(
        retry_at,
        Some(world.engine.now().saturating_add(seconds(1.0)))
    );
    assert_eq!(scheduler.pass(world.engine.now()).await.unwrap(), 0);
    world.clock.advance(seconds(1.0));
    assert_eq!(
        scheduler.pass(world.engine.now()).await.unwrap(),
        0,
        "refused again"
    );
    let retry_at = scheduler.next_at().await.unwrap();
    assert_eq!(
        retry_at,
        Some(world.engine.now().saturating_add(seconds(2.0)))
    );
    file.execute_batch("drop trigger refuse").unwrap();
    world.clock.advance(seconds(2.0));
    assert_eq!(scheduler.pass(world.engine.now()).await.unwrap(), 1);
    assert_eq!(
        scheduler.next_at().await.unwrap(),
        Some(t0().saturating_add(seconds(120.0)))
    );
}
