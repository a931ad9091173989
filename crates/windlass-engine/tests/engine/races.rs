//! Races: concurrent changes of one job, two schedulers, and clocks that jump.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use windlass_core::retry::AttemptLimit;
use windlass_core::schedule::{Expression, NewSchedule};
use windlass_core::{
    DeadReason, Delivery, NewJob, Outcome, Report, Revival, ScheduleName, Start, State, WorkerName,
};
use windlass_engine::{
    Audit, AuditFilter, Janitor, JanitorConfig, Received, Scheduler, SchedulerConfig, Subscription,
    Sweeper, SweeperConfig,
};
use windlass_sqlite::SqliteStore;
use windlass_store::{
    AttemptId, AttemptReport, Change, Changed, Expected, Filter, ListedState, Page, Renewed,
    Schedule, Settled, Swept,
};
use windlass_testkit::world::{World, constant, failed, new_job, seconds, t0, worker};

fn report(attempt_id: AttemptId, report: Report) -> AttemptReport {
    AttemptReport {
        attempt_id,
        report,
        random: 0,
        detail: None,
    }
}

fn names(events: &mut Subscription) -> Vec<&'static str> {
    let heard = std::iter::from_fn(|| events.try_next());
    heard
        .map(|heard| match heard {
            Received::Event(event) => event.name(),
            Received::Missed(_) => panic!("too many events for the test"),
        })
        .collect()
}

async fn a_node_with_a_wrong_clock_delays_no_sweep(world: World) {
    let store = world.engine.store();
    let about = json!({"hold_until": "2027-01-01T00:00:00Z", "lease_ms": 30_000});
    store.beat("other", &about, t0()).await.unwrap();
    world.enqueue(new_job("a")).await;
    let (worker, _) = worker(1).succeeds("a").build(&world);
    worker.crash_after_claim().await.unwrap();
    let config = SweeperConfig::new("sweeper".to_owned());
    let sweeper = Sweeper::new(Arc::clone(&world.engine), config);
    let mut lost = 0;
    for _ in 0..12 {
        let swept = sweeper.pass(world.engine.now()).await.unwrap();
        lost += swept.lost.len();
        world.clock.advance(seconds(9.0));
    }
    assert_eq!(lost, 1);
}

/// The order in which a late report and the sweep reach the store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    ReportFirst,
    SweepFirst,
    /// Both are on their way at once: the store decides.
    Together,
}

/// The worker was only slow: its report races the sweep that ends its attempt as lost.
async fn a_late_report_and_a_sweep_that_race_end_each_attempt_once(world: World) {
    use Order::{ReportFirst, SweepFirst, Together};
    const JOBS: u32 = 8;
    let store = world.engine.store();
    let race = [Together; 12];
    for order in [ReportFirst, SweepFirst].into_iter().chain(race) {
        let mut ids = Vec::new();
        for _ in 0..JOBS {
            ids.push(world.enqueue(new_job("a")).await);
        }
        let (worker, _) = worker(JOBS).no_policy().succeeds("a").build(&world);
        worker.crash_after_claim().await.unwrap();
        world.clock.advance(seconds(31.0));
        let now = world.engine.now();
        let attempts = ids.iter().map(|id| AttemptId {
            job: *id,
            attempt: 1,
        });
        let settles = join_all(attempts.map(|of| async move {
            let end = report(of, Report::Succeeded(None));
            let settled = store.settle(vec![end], now).await.unwrap();
            (of, matches!(settled[..], [Settled::Done(_)]))
        }));
        let sweep = async { store.sweep(100, now, 0).await.unwrap().lost };
        let (settled, lost) = match order {
            ReportFirst => {
                let settled = settles.await;
                (settled, sweep.await)
            }
            SweepFirst => {
                let lost = sweep.await;
                (settles.await, lost)
            }
            Together => tokio::join!(settles, sweep),
        };
        for (of, is_settled) in settled {
            let is_lost = lost.iter().any(|(lost, _)| *lost == of);
            assert_ne!(is_settled, is_lost, "{order:?}: one of them ends {of:?}");
            match order {
                ReportFirst => assert!(is_settled, "an expired lease that nobody swept"),
                SweepFirst => assert!(is_lost, "a swept attempt settles nothing"),
                Together => {}
            }
            let (state, outcome) = match is_settled {
                true => (State::Succeeded, Outcome::Succeeded),
                false => (State::Dead(DeadReason::Exhausted), Outcome::Lost),
            };
            assert_eq!(world.state(of.job).await, state, "{order:?}");
            let rows = world.history(of.job).await;
            let outcomes: Vec<_> = rows.iter().map(|row| row.outcome).collect();
            assert_eq!(outcomes, [outcome], "{order:?}");
        }
        assert_eq!(store.sweep(100, now, 0).await.unwrap(), Swept::default());
    }
}

async fn only_one_of_cancel_complete_sweep_and_run_now_wins(world: World) {
    let store = world.engine.store();
    for first in ["cancel", "complete", "sweep"] {
        let once = NewJob {
            max_attempts: AttemptLimit::from_max_attempts(1).unwrap(),
            ..new_job("a")
        };
        let id = world.enqueue(once).await;
        let (worker, _) = worker(1).succeeds("a").build(&world);
        worker.crash_after_claim().await.unwrap();
        world.clock.advance(seconds(31.0));
        let now = world.engine.now();
        let of = AttemptId {
            job: id,
            attempt: 1,
        };
        let run_now = store
            .change(&[id], &Change::RunNow, None, now)
            .await
            .unwrap();
        assert_eq!(run_now, [Changed::Conflict(State::Running)]);
        let expected = match first {
            "cancel" => {
                store
                    .change(&[id], &Change::Cancel, None, now)
                    .await
                    .unwrap();
                store.sweep(10, now, 0).await.unwrap();
                State::Cancelled
            }
            "complete" => {
                store
                    .settle(vec![report(of, Report::Succeeded(None))], now)
                    .await
                    .unwrap();
                State::Succeeded
            }
            _ => {
                store.sweep(10, now, 0).await.unwrap();
                State::Dead(DeadReason::Exhausted)
            }
        };
        assert_eq!(world.state(id).await, expected, "{first} first");
        // Later changes get an answer that says so, and change nothing.
        let before = world.job(id).await;
        let late = store
            .settle(vec![report(of, failed("late"))], now)
            .await
            .unwrap();
        assert_eq!(late, [Settled::LeaseLost]);
        let renewed = store.renew(&[of], seconds(30.0), now).await.unwrap();
        assert_eq!(renewed, [Renewed::LeaseLost]);
        let cancelled = store
            .change(&[id], &Change::Cancel, None, now)
            .await
            .unwrap();
        assert!(
            matches!(cancelled[..], [Changed::Conflict(_)]),
            "{cancelled:?}"
        );
        assert_eq!(store.sweep(10, now, 0).await.unwrap(), Swept::default());
        assert_eq!(world.job(id).await, before);
    }
}

async fn put_every_minute(world: &World) {
    let name = ScheduleName::new("minutely").unwrap();
    let every = Expression::every(seconds(60.0)).unwrap();
    let schedule = Schedule {
        id: world.engine.ids().schedule(t0()),
        version: 0,
        definition: NewSchedule::new(name, every, new_job("a")),
        created_at: t0(),
        last_at: None,
        next_at: Some(t0().saturating_add(seconds(60.0))),
    };
    let store = world.engine.store();
    store
        .put_schedule(&schedule, Expected::Absent)
        .await
        .unwrap();
}

async fn two_schedulers_fire_an_occurrence_once(world: World) {
    put_every_minute(&world).await;
    let make = || Scheduler::new(Arc::clone(&world.engine), SchedulerConfig::default());
    let (one, other) = (make(), make());
    for minute in 1..=3 {
        world.clock.advance(seconds(60.0));
        let now = world.engine.now();
        let (a, b) = tokio::join!(one.pass(now), other.pass(now));
        // A later pass finds nothing more.
        let made = a.unwrap() + b.unwrap() + one.pass(now).await.unwrap();
        assert_eq!(made, 1, "minute {minute}");
        let filter = Filter::state(ListedState::Ready);
        let store = world.engine.store();
        let jobs = store.list(&filter, Page::first(9), now).await.unwrap().jobs;
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].occurrence.unwrap().scheduled_for, now);
        store
            .change(&[jobs[0].id], &Change::Cancel, None, now)
            .await
            .unwrap();
    }
}

async fn after_a_jump_ahead_leases_get_their_grace_and_due_jobs_run(world: World) {
    let running = world.enqueue(new_job("a")).await;
    let (worker, _) = worker(1).policy(constant(0, 9)).succeeds("a").build(&world);
    let config = SweeperConfig::new("n1".to_owned());
    let sweeper = Sweeper::new(Arc::clone(&world.engine), config);
    sweeper.pass(world.engine.now()).await.unwrap();
    worker.crash_after_claim().await.unwrap();
    let later = NewJob {
        start: Start::After(seconds(1800.0)),
        ..new_job("a")
    };
    let later = world.enqueue(later).await;
    world.clock.advance(seconds(3600.0));
    let jumped = world.engine.now();
    assert_eq!(
        sweeper.pass(jumped).await.unwrap(),
        Swept::default(),
        "grace"
    );
    let of = AttemptId {
        job: running,
        attempt: 1,
    };
    let store = world.engine.store();
    let renewed = store.renew(&[of], seconds(30.0), jumped).await.unwrap();
    assert!(
        matches!(renewed[..], [Renewed::Until { .. }]),
        "its worker lives"
    );
    assert!(world.job(later).await.is_ready(jumped));
    // One lease later, leases that were not renewed are swept.
    for step in [10.0, 10.0, 9.0] {
        world.clock.advance(seconds(step));
        let now = world.engine.now();
        assert_eq!(sweeper.pass(now).await.unwrap(), Swept::default());
    }
    world.clock.advance(seconds(1.0));
    let swept = sweeper.pass(world.engine.now()).await.unwrap();
    assert_eq!(swept.lost.len(), 1);
}

async fn after_an_outage_no_sweeper_ends_a_healthy_attempt(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let (worker, _) = worker(1).policy(constant(0, 9)).succeeds("a").build(&world);
    let sweeper = |name: &str| {
        Sweeper::new(
            Arc::clone(&world.engine),
            SweeperConfig::new(name.to_owned()),
        )
    };
    let mut sweepers = vec![sweeper("n1"), sweeper("n2")];
    for sweeper in &sweepers {
        sweeper.pass(t0()).await.unwrap();
    }
    worker.crash_after_claim().await.unwrap();
    world.clock.advance(seconds(90.0));
    // A sweeper that starts now knows about the outage too.
    sweepers.push(sweeper("n3"));
    for step in [0.0, 10.0, 10.0, 9.9] {
        world.clock.advance(seconds(step));
        for sweeper in &sweepers {
            let swept = sweeper.pass(world.engine.now()).await.unwrap();
            assert_eq!(swept, Swept::default());
        }
    }
    let of = AttemptId {
        job: id,
        attempt: 1,
    };
    let now = world.engine.now();
    let renewed = world.engine.store().renew(&[of], seconds(30.0), now).await;
    assert!(matches!(renewed.unwrap()[..], [Renewed::Until { .. }]));
    // The worker dies after all: its lease is swept as soon as it has expired.
    let mut lost = Vec::new();
    for _ in 0..3 {
        world.clock.advance(seconds(10.0));
        let swept = sweepers[1].pass(world.engine.now()).await.unwrap();
        lost.push(swept.lost.len());
    }
    assert_eq!(lost, [0, 0, 1]);
}

async fn old_data_is_removed_and_dead_jobs_stay(world: World) {
    let short = windlass_core::QueueName::new("short").unwrap();
    let done = world.enqueue(new_job("a")).await;
    let dead = world.enqueue(new_job("b")).await;
    let quick = NewJob {
        queue: short.clone(),
        ..new_job("a")
    };
    let quick = world.enqueue(quick).await;
    let build = worker(2)
        .no_policy()
        .succeeds("a")
        .fails("b")
        .set(|config| {
            let queue = windlass_engine::QueueConfig::new(short.clone(), 1);
            config.queues.push(queue);
        });
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    let day = Duration::from_secs(24 * 3600);
    let config = JanitorConfig {
        queues: [(short, day)].into(),
        ..JanitorConfig::default()
    };
    let janitor = Janitor::new(Arc::clone(&world.engine), config.clone());
    world.clock.advance(day + seconds(1.0));
    assert_eq!(janitor.pass(world.engine.now()).await.unwrap(), 1);
    let gone = |found: Vec<Option<windlass_core::Job>>| found[0].is_none();
    let store = world.engine.store();
    assert!(
        gone(store.get(&[quick]).await.unwrap()),
        "the queue has its own retention"
    );
    assert!(!gone(store.get(&[done]).await.unwrap()));
    world.clock.advance(6 * day);
    janitor.pass(world.engine.now()).await.unwrap();
    assert!(gone(store.get(&[done]).await.unwrap()));
    world.clock.advance(100 * day);
    janitor.pass(world.engine.now()).await.unwrap();
    assert!(
        !gone(store.get(&[dead]).await.unwrap()),
        "until a person purges it"
    );
    let config = JanitorConfig {
        dead_retention: Some(30 * day),
        ..config
    };
    let strict = Janitor::new(Arc::clone(&world.engine), config);
    assert_eq!(strict.pass(world.engine.now()).await.unwrap(), 1);
    let audit = Audit::new(Arc::clone(&world.engine));
    let page = audit.list(&AuditFilter::default(), None, 9).await;
    let records = page.unwrap().records;
    assert_eq!(records.len(), 1, "other removals are not recorded");
    assert_eq!(records[0].detail["jobs"], json!([dead]));
    assert!(
        store.nodes().await.unwrap().is_empty(),
        "silent nodes are forgotten"
    );
}

async fn every_event_is_told(world: World) {
    let mut events = world.engine.subscribe();
    put_every_minute(&world).await;
    let snooze = |attempt: &windlass_engine::RunningAttempt| match attempt.job().attempt {
        1 => Report::Snoozed {
            until: attempt.engine().now(),
        },
        2 => failed("once"),
        3 => Report::TimedOut {
            timeout: seconds(1.0),
            grace: Duration::ZERO,
        },
        4 => Report::Released { started: true },
        _ => Report::Cancelled,
    };
    let build = worker(4).policy(constant(1, 9)).on("many", snooze);
    let (worker, _) = build.succeeds("a").fails("dies").build(&world);
    let many = world.enqueue(new_job("many")).await;
    let dies = NewJob {
        max_attempts: AttemptLimit::from_max_attempts(1).unwrap(),
        ..new_job("dies")
    };
    let dies = world.enqueue(dies).await;
    worker.drain(&world.clock).await.unwrap();
    let until = t0().saturating_add(seconds(60.0));
    worker.run_through(&world.clock, until).await.unwrap();
    let lost = world.enqueue(new_job("a")).await;
    worker.crash_after_claim().await.unwrap();
    worker.drain(&world.clock).await.unwrap();
    // The schedule did not fire for an hour.
    world.clock.advance(seconds(3590.0));
    worker.pass(&world.clock).await.unwrap();
    let now = world.engine.now();
    world
        .engine
        .store()
        .change(&[dies], &Change::Revive(Revival::default()), None, now)
        .await
        .unwrap();
    let heard: BTreeSet<&str> = names(&mut events).into_iter().collect();
    for name in [
        "enqueued",
        "claimed",
        "started",
        "succeeded",
        "failed",
        "timed_out",
        "lost",
        "retried",
        "snoozed",
        "released",
        "cancelled",
        "dead",
        "fired",
        "skipped",
    ] {
        assert!(heard.contains(name), "{name} in {heard:?}");
    }
    assert_eq!(world.state(many).await, State::Cancelled);
    assert_eq!(world.state(lost).await, State::Succeeded);
}

async fn two_workers_never_share_a_job(world: World) {
    for _ in 0..200 {
        world.enqueue(new_job("a")).await;
    }
    let named = |name: &str| {
        let name = WorkerName::new(name).unwrap();
        worker(7)
            .set(move |config| config.name = name)
            .succeeds("a")
            .build(&world)
    };
    let ((one, one_calls), (other, other_calls)) = (named("one"), named("other"));
    let (a, b) = tokio::join!(one.pass(&world.clock), other.pass(&world.clock));
    assert_eq!(a.unwrap().attempts + b.unwrap().attempts, 200);
    let mut seen = BTreeSet::new();
    for calls in [one_calls, other_calls] {
        for (_, id, attempt) in calls.lock().unwrap().iter() {
            assert_eq!(*attempt, 1);
            assert!(seen.insert(*id), "{id} ran twice");
        }
    }
    assert_eq!(seen.len(), 200);
}

async fn an_old_attempt_does_not_overwrite_the_progress_of_a_later_one(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let zombie: Arc<std::sync::Mutex<Option<Arc<windlass_engine::RunningAttempt>>>> =
        Arc::default();
    let kept = Arc::clone(&zombie);
    let handler = move |attempt: Arc<windlass_engine::RunningAttempt>| {
        let kept = Arc::clone(&kept);
        async move {
            let before = kept.lock().unwrap().take();
            attempt
                .progress(attempt.job().attempt.into())
                .await
                .unwrap();
            match before {
                None => *kept.lock().unwrap() = Some(attempt),
                Some(zombie) => {
                    zombie.progress("old".into()).await.unwrap();
                    let name = zombie.job().id.to_string();
                    let store = attempt.engine().store();
                    let told = store
                        .document(windlass_engine::PROGRESS, &name, attempt.engine().now())
                        .await
                        .unwrap();
                    assert_eq!(told.unwrap().value["progress"], 2);
                }
            }
            Report::Succeeded(None)
        }
    };
    let (worker, _) = worker(1).with("a", handler).build(&world);
    worker.crash_before_settle(&world.clock).await.unwrap();
    worker.drain(&world.clock).await.unwrap();
    let rows = world.timeline(id).await;
    let outcomes: Vec<_> = rows.iter().map(|row| row.1).collect();
    assert_eq!(outcomes, [Outcome::Lost, Outcome::Succeeded]);
}

async fn handlers_sleep_side_by_side_in_virtual_time(world: World) {
    let naps = |naps: Vec<f64>| {
        move |attempt: Arc<windlass_engine::RunningAttempt>| {
            let naps = naps.clone();
            async move {
                let clock = Arc::clone(attempt.engine().clock());
                for nap in naps {
                    clock
                        .sleep_until(clock.now().saturating_add(seconds(nap)))
                        .await;
                }
                Report::Succeeded(None)
            }
        }
    };
    let build = worker(9).with("short", naps(vec![5.0, 5.0]));
    let build = build
        .with("long", naps(vec![20.0]))
        .with("none", naps(vec![]));
    let (worker, _) = build.build(&world);
    let mut ids = Vec::new();
    for name in ["long", "short", "none", "long"] {
        ids.push(world.enqueue(new_job(name)).await);
    }
    worker.drain(&world.clock).await.unwrap();
    for (id, took) in ids.into_iter().zip([20.0, 10.0, 0.0, 20.0]) {
        let row = world.history(id).await.remove(0);
        assert_eq!(row.finished_at.since(row.started_at), seconds(took));
    }
}

async fn an_at_most_once_job_that_failed_is_exhausted_and_one_that_timed_out_is_lost(world: World) {
    let once = |name| NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job(name)
    };
    let failed = world.enqueue(once("fails")).await;
    let timed_out = world.enqueue(once("hangs")).await;
    let build = worker(2).fails("fails").on("hangs", |_| Report::TimedOut {
        timeout: seconds(1.0),
        grace: Duration::ZERO,
    });
    let (worker, calls) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(
        world.state(failed).await,
        State::Dead(DeadReason::Exhausted)
    );
    assert_eq!(world.state(timed_out).await, State::Dead(DeadReason::Lost));
    assert_eq!(calls.lock().unwrap().len(), 2);
    assert_eq!(world.timeline(timed_out).await, [(0.0, Outcome::TimedOut)]);
}

#[tokio::test]
async fn jobs_that_an_embedded_store_lost_with_its_last_process_emit_events() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = SqliteStore::open(folder.path().join("jobs.db"), t0(), 1).unwrap();
        World::on(Arc::new(store), None)
    };
    let world = open();
    world.enqueue(new_job("a")).await;
    let build = || worker(1).policy(constant(1, 9)).succeeds("a");
    let (killed, _) = build().build(&world);
    killed.crash_after_claim().await.unwrap();
    drop((killed, world));
    let world = open();
    let mut events = world.engine.subscribe();
    let (worker, _) = build().build(&world);
    worker.drain(&world.clock).await.unwrap();
    let expected = [
        "lost",
        "failure_group_created",
        "retried",
        "claimed",
        "started",
        "succeeded",
    ];
    assert_eq!(names(&mut events), expected);
}

windlass_testkit::on_every_store! {
    a_node_with_a_wrong_clock_delays_no_sweep;
    a_late_report_and_a_sweep_that_race_end_each_attempt_once;
    only_one_of_cancel_complete_sweep_and_run_now_wins;
    two_schedulers_fire_an_occurrence_once;
    after_a_jump_ahead_leases_get_their_grace_and_due_jobs_run;
    after_an_outage_no_sweeper_ends_a_healthy_attempt;
    old_data_is_removed_and_dead_jobs_stay;
    every_event_is_told;
    two_workers_never_share_a_job;
    handlers_sleep_side_by_side_in_virtual_time;
    an_old_attempt_does_not_overwrite_the_progress_of_a_later_one;
    an_at_most_once_job_that_failed_is_exhausted_and_one_that_timed_out_is_lost;
}
