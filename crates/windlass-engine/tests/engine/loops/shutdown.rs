//! The shutdown of a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass_core::{DeadReason, Delivery, NewJob, Outcome, State, WorkerName};
use windlass_engine::{RunningAttempt, StopReason, Stopped};

use windlass_store::StoreError;

use windlass_testkit::running::{Running, Sleeping, stuck, takes, waits};
use windlass_testkit::world::{constant, job, new_job, seconds, worker};

#[tokio::test(start_paused = true)]
async fn shutdown_waits_then_gives_back_the_remaining_jobs() {
    let mut run = Running::new();
    let told = Arc::default();
    run.start(
        worker(5)
            .with("quick", takes(20.0))
            .with("slow", waits(Arc::clone(&told)))
            .succeeds("late"),
    );
    let quick = run.enqueue(new_job("quick")).await;
    let slow = run.enqueue(new_job("slow")).await;
    let once = run
        .enqueue(NewJob {
            delivery: Delivery::AtMostOnce,
            ..new_job("slow")
        })
        .await;
    for id in [quick, slow, once] {
        run.until("started", id).await;
    }
    run.stop.cancel();
    let late = run.enqueue(new_job("late")).await;
    let stopped = run.stop().await;
    assert_eq!(
        stopped,
        Stopped {
            released: 2,
            unsettled: 0
        }
    );
    assert_eq!(run.elapsed(), seconds(30.0), "the grace period");
    assert_eq!(run.outcomes(quick).await, [(0.0, Outcome::Succeeded)]);
    let given_back = job(&run.engine, slow).await;
    assert_eq!(
        (given_back.state(), given_back.failures),
        (State::Waiting, 0)
    );
    assert!(given_back.is_ready(run.engine.now()), "due at once");
    assert_eq!(
        run.outcomes(slow).await,
        [(0.0, Outcome::Released)],
        "never both"
    );
    let lost = job(&run.engine, once).await;
    assert_eq!(lost.state(), State::Dead(DeadReason::Lost));
    assert_eq!(*told.lock().unwrap(), [StopReason::Shutdown; 2]);
    assert_eq!(
        job(&run.engine, late).await.attempt,
        0,
        "nothing is claimed any more"
    );
    assert!(run.engine.store().nodes().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_stops_at_once() {
    let mut run = Running::new();
    run.start(worker(1).with("a", stuck));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.stop.cancel();
    run.stop_now.cancel();
    let stopped = run.stop().await;
    assert_eq!(stopped.released, 1);
    assert_eq!(run.elapsed(), Duration::ZERO);
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Released)]);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_run_aborts_its_handlers() {
    let mut run = Running::new();
    let alive = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&alive);
    let slow = move |attempt: Arc<RunningAttempt>| -> Sleeping {
        let inside = Inside::enter(&count);
        Box::pin(async move {
            let report = stuck(attempt).await;
            drop(inside);
            report
        })
    };
    let build = worker(1).policy(constant(0, 9)).with("a", slow);
    let (dropped, _) = build.on_engine(&run.engine);
    let id = run.enqueue(new_job("a")).await;
    let running = dropped.run(run.stop.clone(), run.stop_now.clone());
    let ended = tokio::time::timeout(seconds(2.0), running).await;
    assert!(ended.is_err(), "it was dropped");
    tokio::time::sleep(seconds(1.0)).await;
    assert_eq!(
        alive.load(Ordering::SeqCst),
        0,
        "nothing runs without renewals"
    );
    assert!(run.engine.health().is_empty(), "no loop is left");
    // The lease expires, and another worker runs the job.
    let second = WorkerName::new("w2").unwrap();
    let build = worker(1).policy(constant(0, 9)).succeeds("a");
    run.start(build.set(|config| config.name = second));
    run.until("succeeded", id).await;
}

/// Counts the running handlers.
struct Inside(Arc<AtomicU32>);

impl Inside {
    fn enter(count: &Arc<AtomicU32>) -> Inside {
        count.fetch_add(1, Ordering::SeqCst);
        Inside(Arc::clone(count))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_keep_a_worker_from_stopping() {
    for (verb, at_once, bound) in [
        ("remove_node", false, 2.0),
        ("remove_node", true, 2.0),
        ("settle", false, 41.0), // the grace, and what comes after it
        ("settle", true, 3.0),
        ("claim", true, 3.0),
        ("sweep", false, 2.0),
    ] {
        let mut run = Running::new();
        run.start(worker(1).succeeds("a"));
        tokio::time::sleep(seconds(5.0)).await;
        run.store.hang(verb);
        run.enqueue(new_job("a")).await;
        tokio::time::sleep(seconds(1.0)).await;
        let before = run.elapsed();
        if at_once {
            run.stop_now.cancel();
        }
        let stopped = run.stop().await;
        let took = run.elapsed() - before;
        assert!(took <= seconds(bound), "{verb}, {at_once}: {took:?}");
        assert_eq!(stopped.unsettled, usize::from(verb == "settle"), "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_back_the_jobs_of_a_claim_whose_answer_was_lost() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    run.store.lose_answers("claim");
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("a")
    };
    let id = run.enqueue(once).await;
    tokio::time::sleep(seconds(0.5)).await;
    assert_eq!(job(&run.engine, id).await.state(), State::Running);
    run.stop.cancel();
    tokio::time::sleep(seconds(5.0)).await;
    run.store.heal();
    run.stop().await;
    let given_back = job(&run.engine, id).await;
    assert_eq!(given_back.state(), State::Waiting, "it never started");
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Released)]);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_does_not_delay_the_shutdown_of_an_idle_worker() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    tokio::time::sleep(seconds(5.0)).await;
    run.store.away();
    tokio::time::sleep(seconds(5.0)).await;
    let before = run.elapsed();
    run.stop().await;
    let took = run.elapsed() - before;
    assert!(
        took <= seconds(1.0),
        "{took:?}: a claim that failed got nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stops_for_good_cancels_the_handlers_and_ends_the_worker() {
    let mut run = Running::new();
    let told = Arc::default();
    run.start(
        worker(2)
            .with("waits", waits(Arc::clone(&told)))
            .with("stuck", stuck),
    );
    let waiting = run.enqueue(new_job("waits")).await;
    let stuck = run.enqueue(new_job("stuck")).await;
    for id in [waiting, stuck] {
        run.until("started", id).await;
    }
    assert!(run.engine.writes().problem().is_none());
    run.store.stop_for_good();
    let ended = run.workers.remove(0).await.unwrap();
    assert!(matches!(ended, Err(StoreError::Stopped(_))), "{ended:?}");
    assert_eq!(*told.lock().unwrap(), [StopReason::Shutdown]);
    assert!(run.engine.writes().problem().is_some());
    assert!(run.engine.health().is_empty(), "no loop is left");
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_detects_that_writes_fail_and_that_they_succeed_again() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    run.engine.clock().sleep(seconds(20.0)).await;
    assert_eq!(run.engine.writes().problem(), None);
    run.store.fail("beat");
    run.engine.clock().sleep(seconds(10.0)).await;
    assert!(run.engine.writes().problem().is_some());
    run.store.heal();
    run.engine.clock().sleep(seconds(1.0)).await;
    assert_eq!(run.engine.writes().problem(), None, "it is asked at once");
    run.stop().await;
}
