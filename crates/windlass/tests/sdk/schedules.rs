//! Schedules as a program meets them. In virtual time, on every store.

use std::sync::Arc;

use crate::support::{every_store, seconds};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::admin::Page;
use windlass::events::{Event, Received, ScheduleEvent};
use windlass::schedule::{Expected, Missed, Overlap, ScheduleRef};
use windlass::testing::TestKit;
use windlass::{
    Client, Context, Error, Failure, Filter, Job, ListedState, Options, Schedule, State, Timestamp,
    Worker,
};
use windlass_core::schedule::NewSchedule;
use windlass_engine::{Engine, Ids, VirtualClock};
use windlass_memory::MemoryStore;
use windlass_store::{Fire, RecordRange};
use windlass_testkit::Faulty;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

impl Job for Add {
    const KIND: &'static str = "add";
}

async fn add(job: Add, _: Context) -> Result<i64, Failure> {
    Ok(job.a + job.b)
}

#[derive(Serialize, Deserialize)]
struct Slow;

impl Job for Slow {
    const KIND: &'static str = "slow";
}

fn one_and_one() -> Add {
    Add { a: 1, b: 1 }
}

fn minutely(name: &str) -> Schedule {
    Schedule::cron(name, "* * * * *", one_and_one())
}

fn worker(client: &Client) -> Worker {
    Worker::new(client, ()).handle(add)
}

async fn skipped(client: &Client) -> Vec<Value> {
    let store = windlass::admin::engine_of(client).store();
    let mut skipped = Vec::new();
    for schedule in store.schedules().await.unwrap().readable {
        let topic = Fire::skipped_topic(schedule.id);
        let records = store
            .records(&topic, RecordRange::OLDEST, 100)
            .await
            .unwrap();
        skipped.extend(records.into_iter().map(|record| record.value));
    }
    skipped
}

async fn names(client: &Client) -> Vec<String> {
    let all = client.schedules().await.unwrap();
    let names = all.iter().map(|one| one.definition.name.to_string());
    names.collect()
}

fn after(start: Timestamp, later: f64) -> Timestamp {
    start.saturating_add(seconds(later))
}

every_store! {
    async fn schedules_fire_and_go_with_the_code(kit: TestKit) {
        let client = kit.client();
        let minutely = || Schedule::cron("minutely", "* * * * *", Add { a: 1, b: 1 });
        let often = || Schedule::every("often", seconds(30.0), Add { a: 2, b: 2 });
        let worker = |schedules: Vec<Schedule>| Worker::new(client, ()).handle(add).schedules("tests", schedules);
        let both = kit.worker(worker(vec![minutely(), often()])).await.unwrap();
        let ran = both.run_for(seconds(120.0)).await.unwrap();
        assert_eq!(ran.attempts, 2 + 4);
        let one = kit.worker(worker(vec![minutely()])).await.unwrap();
        let names: Vec<_> = client.schedules().await.unwrap().iter().map(|one| one.definition.name.to_string()).collect();
        assert_eq!(names, ["minutely"], "what the code no longer declares is removed");
        client.pause_schedule("minutely").await.unwrap();
        assert_eq!(one.run_for(seconds(180.0)).await.unwrap().attempts, 0);
        client.resume_schedule("minutely").await.unwrap();
        assert_eq!(one.run_for(seconds(60.0)).await.unwrap().attempts, 1);
        let skipped = skipped(client).await;
        assert_eq!(skipped[0]["reason"], "paused");
        assert_eq!(skipped[0]["count"], 3);
    }

    async fn what_code_declares_may_have_fired_long_ago_or_be_paused(kit: TestKit) {
        let client = kit.client();
        let soon = kit.now().saturating_add(seconds(10.0));
        let worker = || {
            let once = Schedule::at("once", soon, Add { a: 1, b: 1 });
            let often = Schedule::every("often", seconds(60.0), Add { a: 1, b: 1 });
            Worker::new(client, ()).handle(add).schedules("tests", [once, often])
        };
        let first = kit.worker(worker()).await.unwrap();
        assert_eq!(first.run_for(seconds(30.0)).await.unwrap().attempts, 1);
        client.pause_schedule("often").await.unwrap();
        let before = client.schedules().await.unwrap();
        kit.advance(seconds(300.0));
        let next = kit.worker(worker()).await.unwrap();
        assert_eq!(client.schedules().await.unwrap(), before, "still paused, and nothing else changed");
        assert_eq!(before.len(), 1, "one that has fired for good is not listed");
        assert_eq!(next.run_for(seconds(300.0)).await.unwrap().attempts, 0);
    }

    async fn an_occurrence_that_meets_an_unfinished_one_does_as_overlap_says(kit: TestKit) {
        let client = kit.client();
        let count = async |state| {
            let filter = Filter { kind: Some(Slow::KIND.parse().unwrap()), ..Filter::state(state) };
            client.list(&filter, Page::first(99)).await.unwrap().jobs.len()
        };
        for (overlap, waiting, cancelled, skipped) in [
            (Overlap::Skip, 1, 0, 3),
            (Overlap::Queue, 2, 0, 2),
            (Overlap::Allow, 4, 0, 0),
            (Overlap::CancelRunning, 1, 3, 0),
        ] {
            let name = format!("{overlap:?}");
            let schedule = Schedule::every(&name, seconds(60.0), Slow).overlap(overlap);
            // Nobody here runs the jobs of the schedule: they stay unfinished.
            let worker = Worker::new(client, ()).handle(add).schedules(&name, [schedule]);
            let worker = kit.worker(worker).await.unwrap();
            let cancelled_before = count(ListedState::Cancelled).await;
            worker.run_for(seconds(240.0)).await.unwrap();
            let left_out: Vec<_> = super::skipped(client).await.iter().map(|one| one["count"].as_u64().unwrap()).collect();
            assert_eq!(count(ListedState::Ready).await, waiting, "{name}");
            assert_eq!(count(ListedState::Cancelled).await - cancelled_before, cancelled, "{name}");
            let one_range: Vec<u64> = Some(skipped).into_iter().filter(|count| *count > 0).collect();
            assert_eq!(left_out, one_range, "{name}: one record, lengthened");
            client.remove_schedule(&name).await.unwrap();
            let filter = Filter::state(ListedState::Ready);
            for job in client.list(&filter, Page::first(99)).await.unwrap().jobs {
                client.cancel(job.id).await.unwrap();
            }
        }
    }

    async fn a_schedule_that_was_away_catches_up_once(kit: TestKit) {
        let client = kit.client();
        let schedule = Schedule::cron("tens", "*/10 * * * * *", Add { a: 1, b: 1 });
        let worker = Worker::new(client, ()).handle(add).schedules("tests", [schedule]);
        let worker = kit.worker(worker).await.unwrap();
        kit.advance(seconds(603.0));
        assert_eq!(worker.pass().await.unwrap().attempts, 1, "one for all that was missed, or in time");
        assert_eq!(worker.run_for(seconds(27.0)).await.unwrap().attempts, 3, "then the grid");
    }

    async fn a_schedule_runs_now_beside_its_occurrences(kit: TestKit) {
        let client = kit.client();
        let worker = kit.worker(worker(client).schedules("tests", [minutely("m")])).await.unwrap();
        // Also at the very instant of an occurrence.
        kit.advance(seconds(60.0));
        let before = client.schedule(&ScheduleRef::Name("m".parse().unwrap())).await.unwrap().unwrap();
        let id = client.run_schedule_now("m").await.unwrap();
        let job = client.get(id).await.unwrap().unwrap();
        assert_eq!(job.run_at, kit.now());
        assert_eq!(job.occurrence.unwrap().schedule_id, before.id);
        let after = client.schedule(&ScheduleRef::Id(before.id)).await.unwrap().unwrap();
        assert_eq!((after.next_at, after.last_at), (before.next_at, before.last_at));
        worker.drain().await.unwrap();
        let fired = client.occurrences("m", None, 10).await.unwrap();
        assert_eq!(fired.len(), 2, "the occurrence fired next to the unfinished run: {fired:?}");
        assert_eq!(worker.run_for(seconds(60.0)).await.unwrap().attempts, 1);
        client.pause_schedule("m").await.unwrap();
        client.run_schedule_now("m").await.unwrap();
        let unknown = client.run_schedule_now("nobody").await;
        assert!(matches!(unknown, Err(Error::ScheduleNotFound(name)) if name == "nobody"));
    }

    async fn what_was_missed_is_filled_in_once(kit: TestKit) {
        let client = kit.client();
        let start = kit.now();
        let schedule = minutely("m").missed(Missed::Skip);
        let worker = kit.worker(worker(client).schedules("tests", [schedule])).await.unwrap();
        kit.advance(seconds(600.0));
        assert_eq!(worker.drain().await.unwrap().attempts, 1, "the one that is in time");
        let (from, to) = (after(start, 60.0), after(start, 300.0));
        assert_eq!(client.backfill("m", from, to).await.unwrap(), 5);
        assert_eq!(client.backfill("m", from, to).await.unwrap(), 0, "they were fired");
        assert_eq!(client.backfill("m", from, after(start, 600.0)).await.unwrap(), 4, "the last one was too");
        assert_eq!(worker.drain().await.unwrap().attempts, 9);
        let fired = client.occurrences("m", Some(after(start, 180.0)), 10).await.unwrap();
        let instants: Vec<_> = fired.iter().map(|one| one.scheduled_for).collect();
        assert_eq!(instants, [after(start, 120.0), after(start, 60.0)]);
        let future = client.backfill("m", from, after(start, 601.0)).await;
        assert!(matches!(future, Err(Error::Invalid(invalid)) if invalid.field() == "to"), "it lies ahead");
        let long_ago = "2020-01-01T00:00:00Z".parse().unwrap();
        let refused = client.backfill("m", long_ago, to).await;
        assert!(matches!(refused, Err(Error::Invalid(invalid)) if invalid.field() == "to"), "more than a thousand");
    }

    async fn what_comes_is_seen_before(kit: TestKit) {
        let client = kit.client();
        let start = kit.now();
        client.put_schedule(&minutely("m").ends_at(after(start, 180.0))).await.unwrap();
        let next = client.preview_schedule("m", 2).await.unwrap();
        let instants: Vec<_> = next.iter().map(|firing| firing.at).collect();
        assert_eq!(instants, [after(start, 60.0), after(start, 120.0)]);
        assert_eq!(client.preview_schedule("m", 10).await.unwrap().len(), 3, "it ends");
    }

    async fn a_schedule_that_moves_to_another_set_stays(kit: TestKit) {
        let client = kit.client();
        kit.worker(worker(client).schedules("a", [minutely("x"), minutely("y")])).await.unwrap();
        let moved = worker(client).schedules("b", [minutely("x")]).schedules("a", [minutely("y")]);
        kit.worker(moved).await.unwrap();
        assert_eq!(names(client).await, ["x", "y"]);
        // Another program, which knows only the set it has: what others declare is not its business.
        kit.worker(worker(client).schedules("a", [])).await.unwrap();
        assert_eq!(names(client).await, ["x"]);
    }

    async fn a_rule_that_gets_an_end_in_the_past_ends(kit: TestKit) {
        let client = kit.client();
        kit.worker(worker(client).schedules("tests", [minutely("m")])).await.unwrap();
        kit.advance(seconds(90.0));
        let ended = minutely("m").ends_at(after(kit.now(), 0.0));
        let next = kit.worker(worker(client).schedules("tests", [ended])).await.unwrap();
        assert_eq!(next.run_for(seconds(600.0)).await.unwrap().attempts, 0);
        assert!(names(client).await.is_empty());
    }

    async fn a_change_keeps_what_was_due_or_records_it(kit: TestKit) {
        let client = kit.client();
        let hourly = |minute: u32| Schedule::cron("h", &format!("{minute} * * * *"), one_and_one());
        let first = kit.worker(worker(client).schedules("tests", [hourly(0)])).await.unwrap();
        first.drain().await.unwrap();
        kit.advance(seconds(3.0 * 3600.0 + 600.0));
        // The same rule for another job: it catches up as it would have.
        let urgent = hourly(0).options(Options::new().priority(9));
        let next = kit.worker(worker(client).schedules("tests", [urgent])).await.unwrap();
        assert_eq!(next.drain().await.unwrap().attempts, 1);
        assert_eq!(skipped(client).await.len(), 1, "two of three");
        // Another rule: what the former one missed is recorded.
        kit.advance(seconds(2.0 * 3600.0));
        let next = kit.worker(worker(client).schedules("tests", [hourly(30)])).await.unwrap();
        assert_eq!(next.drain().await.unwrap().attempts, 0);
        let told = skipped(client).await;
        assert_eq!((&told[1]["reason"], &told[1]["count"]), (&"changed".into(), &2.into()));
        assert_eq!(next.run_for(seconds(3600.0)).await.unwrap().attempts, 1);
    }

    async fn a_writer_that_read_an_old_version_is_told(kit: TestKit) {
        let client = kit.client();
        client.put_schedule(&minutely("m")).await.unwrap();
        let found = client.schedule(&ScheduleRef::Name("m".parse().unwrap())).await.unwrap().unwrap();
        let first = client.write_schedule(found.definition.clone(), Expected::Version(found.version)).await.unwrap();
        assert_eq!(first.version, found.version + 1);
        let second = client.write_schedule(found.definition.clone(), Expected::Version(found.version)).await;
        assert!(matches!(second, Err(Error::ScheduleChanged { version: Some(version), .. }) if version == first.version));
        let again = client.write_schedule(found.definition, Expected::Absent).await;
        assert!(matches!(again, Err(Error::ScheduleChanged { .. })));
    }

    async fn what_is_told_is_what_happened(kit: TestKit) {
        let client = kit.client();
        let unique = Schedule::every("u", seconds(60.0), Slow).overlap(Overlap::Allow).options(Options::new().unique_key("k"));
        let worker = kit.worker(worker(client).schedules("tests", [unique])).await.unwrap();
        let mut events = client.events();
        worker.run_for(seconds(180.0)).await.unwrap();
        client.pause_schedule("u").await.unwrap();
        kit.advance(seconds(120.0));
        client.resume_schedule("u").await.unwrap();
        let (mut fired, mut told) = (0, Vec::new());
        while let Some(Received::Event(event)) = events.try_next() {
            match &*event {
                Event::Schedule { what: ScheduleEvent::Fired { .. }, .. } => fired += 1,
                Event::Schedule { what: ScheduleEvent::Skipped(range), .. } => told.push((range.reason.name(), range.count)),
                Event::Job { .. } | Event::Action { .. } => {}
            }
        }
        assert_eq!(fired, 1, "the others met its unique key");
        assert_eq!(told, [("duplicate", Some(1)), ("duplicate", Some(1)), ("paused", Some(2))]);
        let jobs = client.occurrences("u", None, 10).await.unwrap();
        assert_eq!(jobs.iter().filter(|one| one.job.is_some()).count(), 1);
        assert_eq!(jobs.len(), 3);
    }

    async fn a_schedule_that_is_over_goes_when_its_jobs_go(kit: TestKit) {
        let client = kit.client();
        let once = Schedule::at("once", after(kit.now(), 10.0), one_and_one());
        let worker = kit.worker(worker(client).schedules("tests", [once])).await.unwrap();
        worker.run_for(seconds(20.0)).await.unwrap();
        let which = ScheduleRef::Name("once".parse().unwrap());
        let day = 24.0 * 3600.0;
        kit.advance(seconds(6.0 * day));
        worker.tidy().await.unwrap();
        let over = client.schedule(&which).await.unwrap().unwrap();
        let fired = client.occurrences("once", None, 5).await.unwrap();
        assert_eq!(client.state(fired[0].job.unwrap()).await.unwrap(), Some(State::Succeeded));
        assert_eq!(over.next_at, None);
        kit.advance(seconds(2.0 * day));
        worker.tidy().await.unwrap();
        worker.tidy().await.unwrap();
        assert_eq!(client.schedule(&which).await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_code_declares_fires_though_the_store_says_that_it_is_over() {
    let kit = TestKit::new();
    let client = kit.client();
    client.put_schedule(&minutely("m")).await.unwrap();
    let mut found = client.schedules().await.unwrap().remove(0);
    let next_at = found.next_at.take();
    let version = Expected::Version(found.version);
    let store = windlass::admin::engine_of(client).store();
    store.put_schedule(&found, version).await.unwrap();
    client.put_schedule(&minutely("m")).await.unwrap();
    assert_eq!(client.schedules().await.unwrap()[0].next_at, next_at);
}

// Whatever the store answers in the middle of an edit, the schedule has the old rule or the new one, and fires by it.
#[tokio::test]
async fn an_edit_that_the_store_breaks_off_does_not_end_a_schedule() {
    for verb in ["put_schedule", "fire"] {
        let store = Faulty::new(Arc::new(MemoryStore::new()));
        let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let engine = Engine::new(Arc::clone(&store) as _, clock, Ids::seeded(1));
        let client = windlass::admin::client_of(Arc::new(engine));
        client.put_schedule(&minutely("m")).await.unwrap();
        let which = ScheduleRef::Name("m".parse().unwrap());
        let before = client.schedule(&which).await.unwrap().unwrap();
        let daily: NewSchedule = NewSchedule {
            expression: "0 0 * * *".parse().unwrap(),
            ..before.definition.clone()
        };
        store.fail(verb);
        let edited = client
            .write_schedule(daily.clone(), Expected::Version(before.version))
            .await;
        store.heal();
        let after = client.schedule(&which).await.unwrap().unwrap();
        match edited {
            Ok(_) => assert_eq!(after.definition, daily),
            Err(_) => assert_eq!(after, before, "{verb} failed: nothing changed"),
        }
        assert!(after.next_at.is_some(), "{verb} failed: it still fires");
    }
}
