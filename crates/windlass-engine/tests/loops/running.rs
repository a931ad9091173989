//! Handlers that run: their retries, renewals, timeouts, cancellation and hooks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass_core::retry::AttemptLimit;
use windlass_core::{NewJob, Outcome, Report, Start, State, Timeout};
use windlass_engine::{Hooks, RunningAttempt, StopReason};

use crate::support::running::{Running, Sleeping, stuck, takes, waits};
use crate::support::{constant, job, new_job, seconds, t0, worker};

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
async fn l26_a_handler_of_ten_leases_is_never_swept_while_it_is_renewed() {
    let mut run = Running::new();
    run.start(worker(1).with("a", takes(300.0)));
    let id = run.enqueue(new_job("a")).await;
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
    let renewals = run.store.asked("renew");
    assert!((29..=31).contains(&renewals), "{renewals} renewals");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_fences_first_and_the_slot_stays_taken_until_the_handler_is_gone() {
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
    let expected = [(0.0, Outcome::TimedOut), (12.0, Outcome::TimedOut)];
    assert_eq!(
        run.outcomes(id).await,
        expected,
        "what it returned late is not told"
    );
    assert_eq!(most.load(Ordering::SeqCst), 1, "one slot, one handler");
    assert_eq!(run.stop().await.unsettled, 0);
    let ends = hooks.0.load(Ordering::SeqCst);
    assert_eq!(ends, 2, "the end of each attempt is told once");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_stop_is_cut_off_after_its_grace() {
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

/// Counts the ends of attempts.
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
async fn a_running_job_that_is_called_off_is_told() {
    let mut run = Running::new();
    let told = Arc::default();
    run.start(worker(1).with("a", waits(Arc::clone(&told))));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.engine.store().cancel(&[id], t0()).await.unwrap();
    run.until("cancelled", id).await;
    assert_eq!(run.elapsed(), seconds(10.0), "with the next renewal");
    assert_eq!(*told.lock().unwrap(), [StopReason::Cancelled]);
    assert_eq!(job(&run.engine, id).await.state(), State::Cancelled);
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    let now = run.engine.now();
    run.engine.store().cancel(&[id], now).await.unwrap();
    run.engine.call_off(&[id]);
    run.until("cancelled", id).await;
    assert_eq!(
        run.elapsed(),
        seconds(10.0),
        "at once from within the process"
    );
}
