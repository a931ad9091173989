//! Ten thousand schedules at once, ten thousand missed minutes, and changes at the very instant of
//! firing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use windlass_core::schedule::{Missed, NewSchedule};
use windlass_core::{QueueName, ScheduleId, ScheduleName, Timestamp};
use windlass_engine::{Engine, Event, Received, ScheduleEvent, Scheduler, SchedulerConfig};
use windlass_store::{Expected, PAGE_MAX, Schedule, Written};
use windlass_testkit::world::{World, new_job, skipped, t0};

const MANY: usize = 10_000;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// A schedule that fires every minute, from the first full one on.
fn minutely(engine: &Engine, name: &str) -> Schedule {
    let name = ScheduleName::new(name).unwrap();
    let definition = NewSchedule::new(name, "* * * * *".parse().unwrap(), new_job("nobody"));
    Schedule {
        id: engine.ids().schedule(t0()),
        version: 0,
        definition,
        created_at: t0(),
        last_at: None,
        next_at: Some(t0().saturating_add(minutes(1))),
    }
}

async fn put(engine: &Engine, schedule: &Schedule, expected: Expected) -> Written {
    let written = engine.store().put_schedule(schedule, expected).await;
    written.unwrap()
}

async fn ready(engine: &Engine) -> u64 {
    let counts = engine.store().counts(engine.now()).await.unwrap();
    let of_queue = counts.get(&QueueName::default());
    of_queue.map_or(0, |counts| counts.ready)
}

fn scheduler(engine: &Arc<Engine>) -> Scheduler {
    Scheduler::new(Arc::clone(engine), SchedulerConfig::default())
}

/// The nominal times that have fired, newest first.
async fn fired(engine: &Engine, schedule: ScheduleId) -> Vec<Timestamp> {
    let store = engine.store();
    let occurrences = store.occurrences(schedule, None, PAGE_MAX).await.unwrap();
    occurrences.iter().map(|one| one.scheduled_for).collect()
}

async fn ten_thousand_schedules_due_in_one_second_fire_once_each(world: World) {
    let engine = &world.engine;
    let written = futures_util::stream::iter(0..MANY)
        .map(async |number| {
            let schedule = minutely(engine, &format!("s{number}"));
            put(engine, &schedule, Expected::Absent).await
        })
        .buffer_unordered(256);
    assert_eq!(written.count().await, MANY);
    let mut heard = engine.subscribe();
    world.clock.advance(minutes(1));
    let (one, other) = (scheduler(engine), scheduler(engine));
    let mut made = 0;
    let mut names = BTreeSet::new();
    for _ in 0..=MANY / 1000 {
        let now = engine.now();
        let (a, b) = tokio::join!(one.pass(now), other.pass(now));
        made += a.unwrap() + b.unwrap();
        while let Some(Received::Event(event)) = heard.try_next() {
            if let Event::Schedule { name, what, .. } = &*event {
                assert!(matches!(what, ScheduleEvent::Fired { .. }), "{what:?}");
                assert!(names.insert(name.clone()), "told once");
            }
        }
    }
    assert_eq!((made, names.len()), (MANY, MANY));
    assert_eq!(ready(engine).await, u64::try_from(MANY).unwrap());
    assert_eq!(one.pass(engine.now()).await.unwrap(), 0);
}

async fn ten_thousand_missed_minutes_are_fired_or_recorded_by_the_policy(world: World) {
    let engine = &world.engine;
    let mut ids = Vec::new();
    for missed in [Missed::Skip, Missed::Once, Missed::All] {
        let mut schedule = minutely(engine, missed.name());
        schedule.definition.missed = Some(missed);
        schedule.definition.overlap = windlass_core::schedule::Overlap::Allow;
        put(engine, &schedule, Expected::Absent).await;
        ids.push(schedule.id);
    }
    // Late by half a minute: none of them is in time.
    let back_at = t0().saturating_add(minutes(10_000) + Duration::from_secs(30));
    world.clock.advance_to(back_at);
    let scheduler = scheduler(engine);
    let made = scheduler.pass(back_at).await.unwrap();
    assert_eq!(made, 1 + 100);
    assert_eq!(
        scheduler.pass(back_at).await.unwrap(),
        0,
        "all of it in one step"
    );
    let last = t0().saturating_add(minutes(10_000));
    for (id, count) in ids.into_iter().zip([0u64, 1, 100]) {
        let fired = fired(engine, id).await;
        assert_eq!(fired.len(), usize::try_from(count).unwrap());
        assert!(fired.first().is_none_or(|newest| *newest == last));
        let records = skipped(engine).await;
        let own: Vec<_> = records
            .iter()
            .filter(|record| record["schedule_id"] == id.to_string())
            .collect();
        assert_eq!(own.len(), 1, "one range, not ten thousand rows");
        assert_eq!(own[0]["first"], t0().saturating_add(minutes(1)).to_string());
        let until = last.saturating_sub(minutes(count));
        assert_eq!(own[0]["last"], until.to_string());
        assert_eq!(own[0]["reason"], "missed");
    }
    // After that, the regular occurrences continue.
    let next = last.saturating_add(minutes(1));
    world.clock.advance_to(next);
    assert_eq!(scheduler.pass(next).await.unwrap(), 3);
}

async fn a_change_at_the_instant_of_firing_is_the_old_rule_or_the_new_one_once(world: World) {
    let engine = &world.engine;
    let store = engine.store();
    for number in 0..20 {
        let name = format!("s{number}");
        let mut schedule = minutely(engine, &name);
        schedule.next_at = Some(engine.now().saturating_add(minutes(1)));
        schedule.created_at = engine.now();
        put(engine, &schedule, Expected::Absent).await;
        let found = store.schedules().await.unwrap().readable;
        let found = found.into_iter().find(|one| one.id == schedule.id).unwrap();
        world.clock.advance(minutes(1));
        let now = engine.now();
        let ready_before = ready(engine).await;
        let scheduler = scheduler(engine);
        let edited = Schedule {
            next_at: None,
            definition: NewSchedule {
                paused: true,
                ..found.definition.clone()
            },
            ..found.clone()
        };
        let change = async {
            match number % 2 {
                0 => put(engine, &edited, Expected::Version(found.version)).await,
                _ => {
                    store
                        .remove_schedule(found.id, Expected::Any)
                        .await
                        .unwrap();
                    Written::Version(0)
                }
            }
        };
        let (passed, changed) = if number % 4 < 2 {
            tokio::join!(scheduler.pass(now), change)
        } else {
            let (changed, passed) = tokio::join!(change, scheduler.pass(now));
            (passed, changed)
        };
        let made = u64::try_from(passed.unwrap()).unwrap();
        assert!(made <= 1);
        assert_eq!(ready(engine).await, ready_before + made);
        if number % 2 == 0 {
            // Who changes it knows which version it was: either it fired before, and the writer is
            // told, or it did not.
            let told = matches!(changed, Written::Conflict(_));
            assert_eq!(told, made == 1, "{changed:?}");
            store
                .remove_schedule(found.id, Expected::Any)
                .await
                .unwrap();
        }
        assert_eq!(scheduler.pass(now).await.unwrap(), 0, "never a second time");
    }
}

#[tokio::test]
async fn ten_thousand_fire_once_each_on_memory() {
    ten_thousand_schedules_due_in_one_second_fire_once_each(World::memory()).await;
}

#[tokio::test]
async fn ten_thousand_fire_once_each_on_sqlite() {
    ten_thousand_schedules_due_in_one_second_fire_once_each(World::sqlite()).await;
}

windlass_testkit::on_every_store! {
    ten_thousand_missed_minutes_are_fired_or_recorded_by_the_policy;
    a_change_at_the_instant_of_firing_is_the_old_rule_or_the_new_one_once;
}
