//! Running handlers: retries, renewals, timeouts, cancellation and hooks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;
use windlass_store::Change;

use windlass_core::retry::AttemptLimit;
use windlass_core::{
    Delivery, NewJob, Outcome, Report, Start, State, Timeout, Timestamp, WorkerName,
};
use windlass_engine::{
    Hooks, PROGRESS, PROGRESS_BYTES_MAX, Progress, RunningAttempt, StopReason, SystemClock,
};

use windlass_testkit::running::{Running, Sleeping, stuck, takes, waits};
use windlass_testkit::world::{constant, failed, job, new_job, seconds, t0, worker};

#[tokio::test(start_paused = true)]
async fn retries_run_at_their_time_without_a_poll() {
    let mut run = Running::new();
    run.start(worker(4).policy(constant(5, 3)).fails("a"));
    let id = run.enqueue(new_job("a")).await;
    run.until("dead", id).await;
    let expected = [0.0, 5.0, 10.0].map(|at| (at, Outcome::Failed));
    assert_eq!(run.outcomes(id).await, expected);
    let later = NewJob {
        start: Start::After(seconds(3.25)),
        ..new_job("a")
    };
    let id = run.enqueue(later).await;
    run.until("started", id).await;
    assert_eq!(run.elapsed(), seconds(13.25));
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_ten_leases_is_never_swept_while_it_is_renewed() {
    let mut run = Running::new();
    run.start(worker(1).with("a", takes(300.0)));
    let id = run.enqueue(new_job("a")).await;
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
    let renewals = run.store.asked("renew");
    assert!((29..=31).contains(&renewals), "{renewals} renewals");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_attempt_first_and_the_slot_stays_taken_until_the_handler_returns() {
    let mut run = Running::new();
    let most = Arc::new(AtomicU32::new(0));
    let inside = Arc::new(AtomicU32::new(0));
    let (seen_most, seen_inside) = (Arc::clone(&most), Arc::clone(&inside));
    let slow = move |attempt: Arc<RunningAttempt>| -> Sleeping {
        let (most, inside) = (Arc::clone(&seen_most), Arc::clone(&seen_inside));
        Box::pin(async move {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let clock = Arc::clone(attempt.engine().clock());
            let reason = attempt.stop().wait().await;
            assert_eq!(reason, StopReason::TimedOut);
            clock
                .sleep_until(clock.now().saturating_add(seconds(2.0)))
                .await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Report::Succeeded(None)
        })
    };
    let hooks = Arc::new(Count::default());
    let told = Arc::clone(&hooks);
    let build = worker(1).policy(constant(0, 2)).with("a", slow);
    run.start(build.set(|config| config.hooks = Some(told)));
    let id = run
        .enqueue(NewJob {
            timeout: Some(Timeout::After(seconds(10.0))),
            ..new_job("a")
        })
        .await;
    run.until("timed_out", id).await;
    assert_eq!(run.elapsed(), seconds(10.0));
    run.until("dead", id).await;
    let expected = [(0.0, Outcome::TimedOut), (15.0, Outcome::TimedOut)];
    assert_eq!(
        run.outcomes(id).await,
        expected,
        "what it returned late is not told, and the retry waits for the grace"
    );
    assert_eq!(most.load(Ordering::SeqCst), 1, "one slot, one handler");
    assert_eq!(run.stop().await.unsettled, 0);
    let ends = hooks.0.load(Ordering::SeqCst);
    assert_eq!(ends, 2, "the end of each attempt is told once");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_stop_is_aborted_after_its_grace() {
    let mut run = Running::new();
    run.start(worker(1).with("stuck", stuck).succeeds("b"));
    let job = NewJob {
        timeout: Some(Timeout::After(seconds(10.0))),
        max_attempts: AttemptLimit::from_max_attempts(1).unwrap(),
        ..new_job("stuck")
    };
    let id = run.enqueue(job).await;
    run.until("started", id).await;
    let behind = run.enqueue(new_job("b")).await;
    run.until("succeeded", behind).await;
    assert_eq!(
        run.elapsed(),
        seconds(15.0),
        "timeout, then five seconds of grace"
    );
}

/// Counts ended attempts.
#[derive(Default)]
struct Count(AtomicU32);

impl Hooks for Count {
    fn before(&self, _: &RunningAttempt) {}

    fn after(&self, _: &RunningAttempt, _: &Report) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Panics;

impl Hooks for Panics {
    fn before(&self, attempt: &RunningAttempt) {
        assert!(attempt.job().attempt > 1, "before");
    }

    fn after(&self, _: &RunningAttempt, _: &Report) {
        panic!("after");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_loses_no_job() {
    let mut run = Running::new();
    let hooks = Arc::new(Panics);
    run.start(
        worker(1)
            .set(|config| config.hooks = Some(hooks))
            .succeeds("a"),
    );
    let id = run.enqueue(new_job("a")).await;
    run.until("succeeded", id).await;
    let outcomes: Vec<_> = run
        .outcomes(id)
        .await
        .into_iter()
        .map(|row| row.1)
        .collect();
    assert_eq!(outcomes, [Outcome::Failed, Outcome::Succeeded]);
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_running_job_stops_its_handler() {
    let mut run = Running::new();
    let told = Arc::default();
    run.start(worker(1).with("a", waits(Arc::clone(&told))));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.engine
        .store()
        .change(&[id], &Change::Cancel, None, t0())
        .await
        .unwrap();
    run.until("cancelled", id).await;
    assert_eq!(run.elapsed(), seconds(10.0), "with the next renewal");
    assert_eq!(*told.lock().unwrap(), [StopReason::Cancelled]);
    assert_eq!(job(&run.engine, id).await.state(), State::Cancelled);
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.engine.change(&[id], &Change::Cancel).await.unwrap();
    run.until("cancelled", id).await;
    assert_eq!(
        run.elapsed(),
        seconds(10.0),
        "at once from within the process"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_a_cancel_is_aborted_after_its_grace() {
    for (grace, delivery) in [
        (5.0, Delivery::AtLeastOnce),
        (5.0, Delivery::AtMostOnce),
        (40.0, Delivery::AtLeastOnce),
    ] {
        let mut run = Running::new();
        let build = worker(1).with("stuck", stuck).succeeds("b");
        run.start(build.set(|config| config.cancel_grace = seconds(grace)));
        let new = NewJob {
            delivery,
            ..new_job("stuck")
        };
        let id = run.enqueue(new).await;
        run.until("started", id).await;
        run.engine.change(&[id], &Change::Cancel).await.unwrap();
        run.until("cancelled", id).await;
        assert_eq!(run.elapsed(), seconds(grace));
        assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Cancelled)]);
        let behind = run.enqueue(new_job("b")).await;
        run.until("succeeded", behind).await;
        assert_eq!(run.elapsed(), seconds(grace), "its slot is free");
    }
}

/// Reports its attempt number as progress, then works for a minute or until it should stop.
fn tells(attempt: Arc<RunningAttempt>) -> Sleeping {
    Box::pin(async move {
        let told = attempt.progress(attempt.job().attempt.into()).await;
        assert_eq!(told.unwrap(), Progress::Recorded);
        let stopped = tokio::time::timeout(seconds(60.0), attempt.stop().wait());
        if stopped.await.is_err() {
            return Report::Succeeded(None);
        }
        let late = attempt.progress("late".into()).await;
        assert_eq!(late.unwrap(), Progress::LeaseLost);
        failed("told to stop")
    })
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_lost_its_lease_neither_overwrites_nor_removes_the_progress_of_the_next() {
    let mut run = Running::new();
    for name in ["w1", "w2"] {
        let name = WorkerName::new(name).unwrap();
        let build = worker(1).policy(constant(0, 9)).with("a", tells);
        run.start(build.set(|config| config.name = name));
    }
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(1.0)).await;
    let late = t0().saturating_add(seconds(31.0));
    run.engine.store().sweep(10, late, 0).await.unwrap();
    run.engine
        .store()
        .change(&[id], &Change::RunNow, None, run.engine.now())
        .await
        .unwrap();
    run.until("started", id).await;
    tokio::time::sleep(seconds(20.0)).await;
    let name = id.to_string();
    let told = run
        .engine
        .store()
        .document(PROGRESS, &name, run.engine.now())
        .await
        .unwrap();
    assert_eq!(told.unwrap().value["progress"], 2);
    run.until("succeeded", id).await;
    tokio::time::sleep(seconds(1.0)).await;
    let told = run
        .engine
        .store()
        .document(PROGRESS, &name, run.engine.now())
        .await
        .unwrap();
    assert_eq!(told, None, "it is over");
}

#[tokio::test(start_paused = true)]
async fn progress_is_bounded_and_removing_it_blocks_nothing() {
    let mut run = Running::new();
    let handler = |attempt: Arc<RunningAttempt>| -> Sleeping {
        Box::pin(async move {
            let long = "x".repeat(PROGRESS_BYTES_MAX).into();
            let refused = attempt.progress(long).await.unwrap_err().to_string();
            assert!(
                refused.starts_with("`progress` must be at most"),
                "{refused}"
            );
            attempt.progress("half".into()).await.unwrap();
            Report::Succeeded(None)
        })
    };
    run.start(worker(1).with("a", handler).succeeds("b"));
    run.store.hang("remove_document");
    let id = run.enqueue(new_job("a")).await;
    run.until("succeeded", id).await;
    assert_eq!(run.elapsed(), Duration::ZERO);
    let behind = run.enqueue(new_job("b")).await;
    run.until("succeeded", behind).await;
    assert_eq!(
        run.elapsed(),
        seconds(5.0),
        "its slot is free after a while"
    );
}

/// A clock whose wall clock is off by the returned number of microseconds.
fn skewed_clock() -> (SystemClock, Arc<AtomicI64>) {
    let skew = Arc::new(AtomicI64::new(0));
    let (seen, started) = (Arc::clone(&skew), tokio::time::Instant::now());
    let wall = move || {
        let micros = t0().saturating_add(started.elapsed()).as_micros();
        Timestamp::from_micros(micros + seen.load(Ordering::SeqCst)).unwrap()
    };
    (SystemClock::following(Arc::new(wall)), skew)
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_ahead_times_out_no_handler() {
    let (clock, skew) = skewed_clock();
    let mut run = Running::with_clock(clock);
    let works = |attempt: Arc<RunningAttempt>| -> Sleeping {
        Box::pin(async move {
            tokio::time::sleep(seconds(60.0)).await;
            let left = attempt.time_left().unwrap();
            assert_eq!(left, seconds(3540.0), "of the hour that is the default");
            Report::Succeeded(None)
        })
    };
    run.start(worker(1).with("a", works));
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("a")
    };
    let id = run.enqueue(once).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(5.0)).await;
    skew.store(3_700_000_000, Ordering::SeqCst);
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_ahead_does_not_cut_the_shutdown_short() {
    let (clock, skew) = skewed_clock();
    let mut run = Running::with_clock(clock);
    run.start(worker(1).with("a", |_| -> Sleeping {
        Box::pin(async {
            tokio::time::sleep(seconds(20.0)).await;
            Report::Succeeded(None)
        })
    }));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.stop.cancel();
    skew.store(3_700_000_000, Ordering::SeqCst);
    assert_eq!(run.stop().await.released, 0);
    assert_eq!(job(&run.engine, id).await.state(), State::Succeeded);
}
