//! Cases of schedules and their occurrences.

use windlass_core::schedule::{NewSchedule, SkipReason, SkippedRange, Zone};
use windlass_core::{Job, NewJob, Occurrence, ScheduleId, ScheduleName};

use super::build::*;
use crate::{
    Change, Enqueued, Expected, Fire, Fired, FiredOccurrence, QueueLimits, RecordRange, Schedule,
    ScheduleRef, Written, fire_one,
};

fn schedule(number: u128, name: &str, next: u64) -> Schedule {
    let name = ScheduleName::new(name).unwrap();
    Schedule {
        id: ScheduleId::from_u128(number),
        version: 0,
        definition: NewSchedule::new(name, "*/5 * * * *".parse().unwrap(), NewJob::new(kind("a"))),
        created_at: at(0),
        last_at: None,
        next_at: Some(at(next)),
    }
}

/// A step that fires occurrences at these seconds, with jobs of these numbers.
pub fn step(schedule: &Schedule, numbers: &[u64]) -> Fire {
    let fired = |number: &u64| Job {
        occurrence: Some(Occurrence {
            schedule_id: schedule.id,
            scheduled_for: at(*number),
        }),
        ..job(*number)
    };
    Fire {
        jobs: numbers.iter().map(fired).collect(),
        last_at: numbers.last().map(|number| at(*number)),
        next_at: Some(at(1000)),
        ..Fire::nothing(schedule)
    }
}

/// Stores a schedule that is due at the second `next`.
pub async fn created(store: &Opened, number: u128, name: &str, next: u64) -> Schedule {
    let schedule = schedule(number, name, next);
    assert_eq!(
        store
            .put_schedule(&schedule, Expected::Absent)
            .await
            .unwrap(),
        Written::Version(1)
    );
    Schedule {
        version: 1,
        ..schedule
    }
}

async fn fire(store: &Opened, step: Fire, now: u64) -> Fired {
    fire_one(&**store, step, at(now)).await.unwrap()
}

fn made(numbers: &[u64]) -> Fired {
    let jobs = numbers.iter().map(|number| id(*number)).collect();
    Fired::Done { jobs }
}

pub async fn put_is_compare_and_set(store: &Opened) {
    let first = created(store, 1, "s", 10).await;
    let again = store.put_schedule(&first, Expected::Absent).await.unwrap();
    assert_eq!(again, Written::Conflict(Some(1)));
    let changed = Schedule {
        next_at: None,
        ..first.clone()
    };
    assert_eq!(
        store
            .put_schedule(&changed, Expected::Version(1))
            .await
            .unwrap(),
        Written::Version(2)
    );
    assert_eq!(
        store
            .put_schedule(&changed, Expected::Version(1))
            .await
            .unwrap(),
        Written::Conflict(Some(2))
    );
    let kept = Schedule {
        version: 2,
        ..changed
    };
    assert_eq!(
        store.schedules().await.unwrap().readable,
        std::slice::from_ref(&kept)
    );
    for which in [
        ScheduleRef::Id(kept.id),
        ScheduleRef::Name(kept.definition.name.clone()),
    ] {
        let found = store.schedule(&which).await.unwrap();
        assert_eq!(found.as_ref(), Some(&kept), "{which:?}");
    }
    for which in [
        ScheduleRef::Id(ScheduleId::from_u128(9)),
        ScheduleRef::Name(ScheduleName::new("other").unwrap()),
    ] {
        assert_eq!(store.schedule(&which).await.unwrap(), None, "{which:?}");
    }
    let remove = |version| store.remove_schedule(first.id, Expected::Version(version));
    assert_eq!(remove(1).await.unwrap(), Written::Conflict(Some(2)));
    assert_eq!(remove(2).await.unwrap(), Written::Version(2));
    assert_eq!(remove(2).await.unwrap(), Written::Conflict(None));
    assert_eq!(store.schedules().await.unwrap().readable, []);
}

pub async fn a_name_is_taken_once(store: &Opened) {
    created(store, 1, "b", 10).await;
    let same = schedule(2, "b", 10);
    assert_eq!(
        store.put_schedule(&same, Expected::Absent).await.unwrap(),
        Written::Conflict(Some(1))
    );
    created(store, 3, "a", 10).await;
    let names: Vec<String> = store
        .schedules()
        .await
        .unwrap()
        .readable
        .iter()
        .map(|s| s.definition.name.to_string())
        .collect();
    assert_eq!(names, ["a", "b"]);
}

pub async fn due_is_the_longest_due_first(store: &Opened) {
    for (number, next) in [(1, 30), (2, 10), (3, 20), (4, 99)] {
        created(store, number, &format!("s{number}"), next).await;
    }
    let due = |limit, now| async move {
        let due = store.due(limit, at(now)).await.unwrap();
        due.iter()
            .map(|schedule| schedule.id.as_u128())
            .collect::<Vec<_>>()
    };
    assert_eq!(due(10, 9).await, [] as [u128; 0]);
    assert_eq!(due(10, 30).await, [2, 3, 1]);
    assert_eq!(due(2, 30).await, [2, 3]);
}

pub async fn fire_moves_the_schedule_on(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let fired = fire(store, step(&schedule, &[10, 20]), 25).await;
    assert_eq!(fired, made(&[10, 20]));
    let kept = store.schedules().await.unwrap().readable.remove(0);
    assert_eq!(
        (kept.version, kept.last_at, kept.next_at),
        (2, Some(at(20)), Some(at(1000)))
    );
    let running = take(store, 5, at(25)).await;
    assert_eq!(running.len(), 2);
    assert_eq!(running[0].occurrence.unwrap().scheduled_for, at(10));
}

pub async fn an_occurrence_fires_once(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    fire(store, step(&schedule, &[10]), 25).await;
    let next = Schedule {
        version: 2,
        ..schedule
    };
    let mut again = step(&next, &[10, 20]);
    again.jobs[0].id = id(77);
    assert_eq!(fire(store, again, 25).await, made(&[20]));
    assert_eq!(store.get(&[id(77)]).await.unwrap(), [None]);
}

pub async fn a_full_queue_drops_no_occurrence(store: &Opened) {
    let limits = QueueLimits {
        max_depth: Some(1),
        ..QueueLimits::default()
    };
    let full = queue("default");
    store.put_queue(&full, &limits, None).await.unwrap();
    put(store, vec![job(5)]).await;
    let schedule = created(store, 1, "s", 10).await;
    let fired = fire(store, step(&schedule, &[10, 20]), 25).await;
    assert_eq!(fired, made(&[10, 20]));
}

pub async fn occurrences_are_kept_as_long_as_their_jobs(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let other = created(store, 2, "other", 10).await;
    put(
        store,
        vec![Job {
            unique: unique("k"),
            ..job(5)
        }],
    )
    .await;
    let mut first = step(&schedule, &[10, 20, 30]);
    first.jobs[1].unique = unique("k");
    assert_eq!(fire(store, first, 35).await, made(&[10, 30]));
    fire(store, step(&other, &[15]), 35).await;
    let fired = |number: u64, made: bool| FiredOccurrence {
        scheduled_for: at(number),
        job: made.then(|| id(number)),
    };
    let occurrences = |before, limit| store.occurrences(schedule.id, before, limit);
    let all = [fired(30, true), fired(20, false), fired(10, true)];
    assert_eq!(occurrences(None, 10).await.unwrap(), all);
    assert_eq!(occurrences(None, 2).await.unwrap(), all[..2]);
    assert_eq!(occurrences(Some(at(30)), 10).await.unwrap(), all[1..]);
    store
        .change(&[id(10)], &Change::Cancel, None, at(40))
        .await
        .unwrap();
    store
        .change(&[id(10)], &Change::Purge, None, at(0))
        .await
        .unwrap();
    assert_eq!(occurrences(None, 10).await.unwrap(), all[..2]);
    store
        .remove_schedule(schedule.id, Expected::Any)
        .await
        .unwrap();
    assert_eq!(occurrences(None, 10).await.unwrap(), []);
    let others = store.occurrences(other.id, None, 10).await.unwrap();
    assert_eq!(others, [fired(15, true)]);
}

pub async fn a_stale_step_writes_nothing(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let stale = Schedule {
        version: 7,
        ..schedule.clone()
    };
    let fired = fire(store, step(&stale, &[10]), 25).await;
    assert_eq!(fired, Fired::Stale);
    assert_eq!(store.get(&[id(10)]).await.unwrap(), [None]);
    assert_eq!(
        store.schedules().await.unwrap().readable,
        std::slice::from_ref(&schedule)
    );
    store
        .remove_schedule(schedule.id, Expected::Any)
        .await
        .unwrap();
    let fired = fire(store, step(&schedule, &[10]), 25).await;
    assert_eq!(fired, Fired::Stale);
}

pub async fn many_schedules_fire_in_one_call(store: &Opened) {
    let mut schedules = Vec::new();
    for number in 1..=4 {
        schedules.push(created(store, number, &format!("s{number}"), 10).await);
    }
    let mut steps = vec![
        step(&schedules[0], &[10]),
        step(&schedules[1], &[20, 21]),
        step(&schedules[2], &[30]),
        step(&schedules[3], &[]),
    ];
    steps[1].version = 7;
    steps[2].skipped = vec![SkippedRange::one(at(5), SkipReason::Missed)];
    let answers = store.fire(steps.clone(), at(35)).await.unwrap();
    let expected = [made(&[10]), Fired::Stale, made(&[30]), made(&[])];
    assert_eq!(answers, expected, "in the order of the steps");
    assert_eq!(take(store, 9, at(35)).await.len(), 2);
    let skipped = Fire::skipped_topic(schedules[2].id);
    let records = store.records(&skipped, RecordRange::OLDEST, 9).await;
    assert_eq!(records.unwrap().len(), 1);
    let moved = store.schedules().await.unwrap().readable;
    let versions: Vec<u64> = moved.iter().map(|one| one.version).collect();
    assert_eq!(versions, [2, 1, 2, 2]);
    let again = store.fire(steps, at(35)).await.unwrap();
    assert_eq!(again, vec![Fired::Stale; 4], "each step once");
    assert_eq!(store.fire(Vec::new(), at(35)).await.unwrap(), []);
}

pub async fn steps_of_one_schedule_take_effect_in_their_order(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let second = Fire {
        version: 2,
        last_at: Some(at(20)),
        ..step(&schedule, &[20])
    };
    let steps = vec![step(&schedule, &[10]), second.clone(), second];
    let answers = store.fire(steps, at(25)).await.unwrap();
    assert_eq!(answers, [made(&[10]), made(&[20]), Fired::Stale]);
    let kept = store.schedules().await.unwrap().readable.remove(0);
    assert_eq!((kept.version, kept.last_at), (3, Some(at(20))));
}

pub async fn a_unique_key_lets_one_of_many_occurrences_through(store: &Opened) {
    let holder = Job {
        unique: unique("held"),
        ..job(5)
    };
    put(store, vec![holder]).await;
    let mut steps = Vec::new();
    for number in 1..=3 {
        let schedule = created(store, u128::from(number), &format!("s{number}"), 10).await;
        let mut step = step(&schedule, &[number * 10, number * 10 + 1]);
        step.jobs[0].unique = unique("shared");
        step.jobs[1].unique = unique(if number == 1 { "held" } else { "other" });
        steps.push(step);
    }
    let answers = store.fire(steps, at(50)).await.unwrap();
    assert_eq!(answers, [made(&[10]), made(&[21]), made(&[])]);
    let fired = store.occurrences(ScheduleId::from_u128(3), None, 9).await;
    let jobs: Vec<_> = fired.unwrap().iter().map(|fired| fired.job).collect();
    assert_eq!(jobs, [None, None], "both fired, and made no job");
    let shared = Job {
        unique: unique("shared"),
        ..job(99)
    };
    let duplicate = Enqueued::Duplicate {
        id: id(10),
        payload_differs: true,
    };
    assert_eq!(enqueue_one(store, shared, at(50)).await.unwrap(), duplicate);
}

pub async fn unfinished_occurrences_wait_or_run(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let idle = created(store, 2, "idle", 10).await;
    let cancelled = step(&schedule, &[10, 20, 30]);
    fire(store, cancelled, 35).await;
    let running = take(store, 1, at(35)).await;
    assert_eq!(running[0].id, id(10));
    let cancel = Change::Cancel;
    store
        .change(&[id(20)], &cancel, None, at(40))
        .await
        .unwrap();
    let unknown = ScheduleId::from_u128(9);
    let schedules = [idle.id, schedule.id, unknown];
    let found = store.unfinished_occurrences(&schedules).await.unwrap();
    let ids = found.iter().map(|jobs| jobs.iter().map(|job| job.id));
    let ids: Vec<Vec<_>> = ids.map(Iterator::collect).collect();
    assert_eq!(ids, [vec![], vec![id(30), id(10)], vec![]]);
    assert_eq!(found[1][1].state(), windlass_core::State::Running);
}

pub async fn skipped_occurrences_are_recorded(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let range = SkippedRange {
        first: at(10),
        last: at(40),
        reason: SkipReason::Missed,
        count: Some(4),
    };
    let other = SkippedRange {
        first: at(45),
        last: at(45),
        reason: SkipReason::Overlap,
        count: Some(1),
    };
    let skipping = Fire {
        skipped: vec![range, other],
        ..step(&schedule, &[])
    };
    assert_eq!(fire(store, skipping, 50).await, made(&[]));
    let topic = Fire::skipped_topic(schedule.id);
    let records = store
        .records(&topic, RecordRange::OLDEST, 10)
        .await
        .unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].value["reason"], "overlap");
    assert_eq!(records[0].value["count"], 4);
    assert_eq!(records[0].value["reason"], "missed");
    assert_eq!(records[0].value["first"], at(10).to_string());
    let longer = Fire {
        version: 2,
        skipped: vec![SkippedRange {
            last: at(55),
            count: Some(2),
            ..other
        }],
        lengthened: Some(records[1].cursor),
        ..step(&schedule, &[])
    };
    assert_eq!(fire(store, longer, 60).await, made(&[]));
    let lengthened = store
        .records(&topic, RecordRange::OLDEST, 10)
        .await
        .unwrap();
    assert_eq!(lengthened.len(), 2);
    assert_eq!(lengthened[0], records[0]);
    assert_eq!(lengthened[1].value["count"], 2);
    store
        .remove_schedule(schedule.id, Expected::Any)
        .await
        .unwrap();
    assert_eq!(
        store
            .records(&topic, RecordRange::OLDEST, 10)
            .await
            .unwrap(),
        []
    );
}

pub async fn a_step_can_change_the_definition(store: &Opened) {
    let schedule = created(store, 1, "s", 10).await;
    let mut definition = schedule.definition.clone();
    definition.paused = true;
    let range = SkippedRange::one(at(10), SkipReason::Changed);
    let change = Fire {
        definition: Some(definition.clone()),
        skipped: vec![range],
        last_at: Some(at(20)),
        next_at: None,
        ..Fire::nothing(&schedule)
    };
    assert_eq!(fire(store, change.clone(), 20).await, made(&[]));
    assert_eq!(fire(store, change, 20).await, Fired::Stale);
    let kept = Schedule {
        version: 2,
        definition,
        last_at: Some(at(20)),
        next_at: None,
        ..schedule
    };
    assert_eq!(
        store.schedules().await.unwrap().readable,
        std::slice::from_ref(&kept)
    );
    let topic = Fire::skipped_topic(kept.id);
    assert_eq!(
        store
            .records(&topic, RecordRange::OLDEST, 10)
            .await
            .unwrap()
            .len(),
        1
    );
}

/// Stores two due schedules and calls `lose`, which makes the first one unreadable by removing its
/// time zone. For drivers that keep text.
pub async fn lose_a_zone(store: &Opened, lose: impl AsyncFnOnce()) -> (Schedule, Schedule) {
    let mut lost = schedule(1, "lost", 10);
    lost.definition.timezone = Zone::new("Europe/Berlin").unwrap();
    let written = store.put_schedule(&lost, Expected::Absent).await.unwrap();
    assert_eq!(written, Written::Version(1));
    let kept = created(store, 2, "kept", 20).await;
    lose().await;
    (lost, kept)
}

/// An unreadable schedule stops alone: the store lists it with the reason, and it can be replaced
/// and removed.
pub async fn unreadable_schedules_stand_aside(store: &Opened, lost: &Schedule, kept: &Schedule) {
    let only = std::slice::from_ref(kept);
    assert_eq!(store.schedules().await.unwrap().readable, only);
    assert_eq!(store.due(1, at(30)).await.unwrap(), only);
    let which = ScheduleRef::Id(lost.id);
    assert_eq!(store.schedule(&which).await.unwrap(), None);
    let unreadable = store.schedules().await.unwrap().unreadable;
    let listed: Vec<_> = unreadable.iter().map(|one| (one.id, &*one.name)).collect();
    assert_eq!(listed, [(lost.id, "lost")]);
    assert!(unreadable[0].reason.contains("timezone"), "{unreadable:?}");
    assert!(unreadable[0].definition.contains("Mars/Olympus"));
    assert_eq!(
        (unreadable[0].version, unreadable[0].created_at),
        (1, at(0))
    );
    let other = schedule(3, "lost", 10);
    assert_eq!(
        store.put_schedule(&other, Expected::Absent).await.unwrap(),
        Written::Conflict(Some(1)),
        "its name is taken"
    );
    let replaced = store
        .put_schedule(lost, Expected::Version(1))
        .await
        .unwrap();
    assert_eq!(replaced, Written::Version(2));
    assert_eq!(store.schedules().await.unwrap().unreadable, []);
    assert_eq!(store.due(9, at(30)).await.unwrap().len(), 2);
}
