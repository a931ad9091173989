//! The scheduler form against a real target, at the times that the target saw.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::{DeadReason, Job, Outcome, ScheduleId, ScheduleName, State, Timestamp};
use windlass_engine::{Clock as _, Received};
use windlass_http::HttpJobs;
use windlass_http::form::{SchedulerForm, failure_line};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{Expected, Filter, Page, Schedule, Store, Written};

use crate::support::{Reply, Target, World, local, t0, timeline};

fn seconds(seconds: u64) -> Timestamp {
    t0().saturating_add(Duration::from_secs(seconds))
}

/// Creates the schedule of a form, as the server does.
async fn create(world: &World, form: Value) -> ScheduleId {
    let now = world.engine.now();
    let name = ScheduleName::new("form").expect("a name");
    let form = SchedulerForm::from_json(&form.to_string()).expect("a form");
    let definition = form.into_schedule(name, now).expect("a schedule");
    let next_at = definition.recurrence(now).next(now).map(|firing| firing.at);
    let schedule = Schedule {
        id: world.engine.ids().schedule(now),
        version: 0,
        definition,
        created_at: now,
        last_at: None,
        next_at,
    };
    let written = world
        .engine
        .store()
        .put_schedule(&schedule, Expected::Absent);
    assert!(matches!(
        written.await.expect("a store"),
        Written::Version(_)
    ));
    schedule.id
}

/// The jobs of a schedule, in the order of their occurrences.
async fn jobs(world: &World, schedule: ScheduleId) -> Vec<Job> {
    let filter = Filter {
        schedule: Some(schedule),
        ..Filter::default()
    };
    let listed = world
        .engine
        .store()
        .list(&filter, Page::first(1000), world.engine.now());
    let mut jobs = listed.await.expect("a store").jobs;
    jobs.sort_by_key(|job| job.occurrence.map(|of| of.scheduled_for));
    jobs
}

/// When requests arrived, by the virtual clock.
type Arrivals = Arc<Mutex<Vec<Timestamp>>>;

/// A target that records the virtual time of each request.
async fn watching(world: &World, replies: &[Reply]) -> (Target, Arrivals) {
    let came = Arrivals::default();
    let (times, clock, replies) = (Arc::clone(&came), world.clock.clone(), replies.to_vec());
    let target = Target::start(move |_| {
        let mut times = times.lock().expect("no panic while locked");
        times.push(clock.now());
        let turn = times.len().min(replies.len()) - 1;
        replies.get(turn).cloned().expect("at least one reply")
    });
    (target.await, came)
}

/// What the target saw: how many seconds after the start each request arrived, and its retry count.
fn seen(target: &Target, came: &Arrivals) -> Vec<(u64, u32)> {
    let came = came.lock().expect("no panic while locked").clone();
    let requests = target.seen();
    assert_eq!(came.len(), requests.len());
    let one = |(came, request): (Timestamp, crate::support::Seen)| {
        let retries = request.header("windlass-retry-count").parse();
        (came.since(t0()).as_secs(), retries.expect("a number"))
    };
    came.into_iter().zip(requests).map(one).collect()
}

/// A world on memory, and one on a file in the folder.
fn worlds(folder: &tempfile::TempDir) -> [World; 2] {
    let sqlite = SqliteStore::open(folder.path().join("jobs.db"), t0(), 1).expect("a store");
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(sqlite)];
    stores.map(|store| World::of(HttpJobs::new(local()).expect("settings"), store))
}

#[tokio::test]
async fn a_failing_target_is_tried_at_0_1_3_and_7_seconds_and_then_at_the_next_occurrence() {
    let folder = tempfile::tempdir().unwrap();
    for world in worlds(&folder) {
        let (target, came) = watching(&world, &[Reply::Status(503)]).await;
        let form = json!({
            "schedule": "*/10 * * * * *", "api": target.url("/webhook"), "type": "AT_LEAST_ONCE",
            "isRecurring": true, "maxRetryCount": 3,
        });
        let id = create(&world, form).await;
        world
            .worker
            .run_through(&world.clock, seconds(20))
            .await
            .unwrap();
        let expected = [(10, 0), (11, 1), (13, 2), (17, 3), (20, 0)];
        assert_eq!(seen(&target, &came), expected);
        let first = jobs(&world, id).await.remove(0);
        assert_eq!(first.state(), State::Dead(DeadReason::Exhausted));
        let history = world.history(first.id).await;
        assert!(history.iter().all(|row| row.outcome == Outcome::Failed));
        assert_eq!(
            timeline(&history)
                .iter()
                .map(|row| row.1)
                .collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
    }
}

#[tokio::test]
async fn at_most_once_is_never_retried_and_its_one_time_schedule_ends() {
    let folder = tempfile::tempdir().unwrap();
    for world in worlds(&folder) {
        let (target, came) = watching(&world, &[Reply::Status(503)]).await;
        let form = json!({
            "schedule": "0 0 12 * * *", "api": target.url("/"), "type": "AT_MOST_ONCE",
            "isRecurring": false, "maxRetryCount": 5,
        });
        let id = create(&world, form).await;
        let day = 24 * 3600;
        world
            .worker
            .run_through(&world.clock, seconds(3 * day))
            .await
            .unwrap();
        assert_eq!(seen(&target, &came), [(86_400, 0)]);
        let jobs = jobs(&world, id).await;
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].state(), State::Dead(DeadReason::Exhausted));
        assert_eq!(
            world.history(jobs[0].id).await.len(),
            1,
            "its history is readable"
        );
        let schedules = world.engine.store().schedules().await.unwrap().readable;
        assert!(
            schedules.iter().all(|schedule| schedule.next_at.is_none()),
            "it never fires again"
        );
    }
}

#[tokio::test]
async fn a_success_on_the_third_attempt_leads_to_the_next_occurrence_with_count_0() {
    let folder = tempfile::tempdir().unwrap();
    for world in worlds(&folder) {
        let replies = [503, 503, 204, 200].map(Reply::Status);
        let (target, came) = watching(&world, &replies).await;
        let form = json!({
            "schedule": "*/5 * * * * *", "api": target.url("/"), "type": "AT_LEAST_ONCE",
            "isRecurring": true, "maxRetryCount": 2,
        });
        let id = create(&world, form).await;
        world
            .worker
            .run_through(&world.clock, seconds(10))
            .await
            .unwrap();
        assert_eq!(seen(&target, &came), [(5, 0), (6, 1), (8, 2), (10, 0)]);
        for job in jobs(&world, id).await {
            assert_eq!(job.state(), State::Succeeded);
        }
    }
}

#[tokio::test]
async fn a_target_that_hangs_fails_after_thirty_seconds_and_is_tried_one_second_later() {
    let world = World::new();
    let replies = [Reply::Hang(Vec::new()), Reply::Status(200)];
    let (target, came) = watching(&world, &replies).await;
    let form = json!({"schedule": "0 * * * * *", "api": target.url("/")});
    create(&world, form).await;
    let clock = world.clock.clone();
    let hanging = async {
        target.wait_for(1).await;
        clock.sleep_until(seconds(90)).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = world.worker.run_through(&world.clock, seconds(100)) => drop(done.unwrap()),
        () = hanging => {}
    }
    assert_eq!(seen(&target, &came), [(60, 0), (91, 1)]);
}

#[tokio::test]
async fn after_ten_minutes_of_downtime_at_least_once_catches_up_once_and_at_most_once_does_not() {
    for (delivery, times) in [
        ("AT_LEAST_ONCE", vec![(606, 0), (610, 0), (620, 0)]),
        ("AT_MOST_ONCE", vec![(610, 0), (620, 0)]),
    ] {
        let world = World::new();
        let (target, came) = watching(&world, &[Reply::Status(200)]).await;
        let form = json!({"schedule": "*/10 * * * * *", "api": target.url("/"), "type": delivery});
        create(&world, form).await;
        world.clock.advance_to(seconds(606)); // no worker ran
        let ran = world.worker.run_through(&world.clock, seconds(620));
        ran.await.unwrap();
        assert_eq!(seen(&target, &came), times, "{delivery}");
    }
}

#[tokio::test]
async fn method_headers_and_body_of_the_form_reach_the_target() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let world = World::new();
    let form = json!({
        "schedule": "* * * * *", "api": target.url("/"), "method": "PUT", "headers": {"x-a": "1"}, "body": {"n": 1},
    });
    create(&world, form).await;
    let ran = world.worker.run_through(&world.clock, seconds(60));
    ran.await.unwrap();
    let seen = target.seen();
    assert_eq!((seen.len(), seen[0].method.as_str()), (1, "PUT"));
    assert_eq!(
        (seen[0].body.as_slice(), seen[0].headers["x-a"].as_str()),
        (&br#"{"n":1}"#[..], "1")
    );
    let scheduled_for = &seen[0].headers["windlass-scheduled-for"];
    assert_eq!(scheduled_for, "2026-01-01T12:01:00Z");
}

/// The lines of all events so far.
async fn lines(world: &World, heard: &mut windlass_engine::Subscription) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(Received::Event(event)) = heard.try_next() {
        lines.extend(failure_line(&world.engine, &event).await.expect("a store"));
    }
    lines
}

#[tokio::test]
async fn failures_are_logged_in_the_fixed_wording() {
    let target = Target::replying(&[Reply::Status(503)]).await;
    let world = World::new();
    let mut heard = world.engine.subscribe();
    let form = json!({"schedule": "*/10 * * * * *", "api": target.url("/"), "maxRetryCount": 2});
    let id = create(&world, form).await;
    let ran = world.worker.run_through(&world.clock, seconds(15));
    ran.await.unwrap();
    assert_eq!(
        lines(&world, &mut heard).await,
        [
            format!("Job {id} failed, scheduling retry 1/2 in 1s (at 2026-01-01 12:00:11)"),
            format!("Job {id} failed, scheduling retry 2/2 in 2s (at 2026-01-01 12:00:13)"),
            format!(
                "Job {id} failed after 2 retries, rescheduled for next occurrence: 2026-01-01 12:00:20"
            ),
        ]
    );
}

#[tokio::test]
async fn the_end_of_a_one_time_schedule_is_logged_and_other_jobs_are_not() {
    let target = Target::replying(&[Reply::Status(503)]).await;
    let world = World::new();
    let mut heard = world.engine.subscribe();
    let form = json!({
        "schedule": "*/10 * * * * *", "api": target.url("/"), "type": "AT_MOST_ONCE", "isRecurring": false,
    });
    let id = create(&world, form).await;
    world.enqueue(json!({"url": target.url("/")})).await;
    let ran = world.worker.run_through(&world.clock, seconds(15));
    ran.await.unwrap();
    let expected = [format!("Job {id} failed after 0 retries, schedule deleted")];
    assert_eq!(lines(&world, &mut heard).await, expected);
}
