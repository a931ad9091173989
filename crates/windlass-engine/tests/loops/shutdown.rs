//! How a worker ends.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::{DeadReason, Delivery, NewJob, Outcome, State};
use windlass_engine::{StopReason, Stopped};

use crate::support::running::{Running, stuck, takes, waits};
use crate::support::{job, new_job, seconds, worker};

#[tokio::test(start_paused = true)]
async fn l27_shutdown_waits_then_gives_back_what_is_left() {
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
        "CR13: never both"
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
