//! A store that fails, loses answers, hangs or becomes unreachable, and workers that die.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass_core::retry::AttemptLimit;
use windlass_core::{
    DeadReason, Delivery, NewJob, Outcome, QueueName, State, Timeout, Timestamp, WorkerName,
};
use windlass_engine::{Event, Recorder, StopReason};
use windlass_store::Counts;

use windlass_testkit::running::{Running, stuck, takes, waits};
use windlass_testkit::world::{constant, job, new_job, seconds, t0, worker};

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_the_handler_and_its_result_is_ignored() {
    let mut run = Running::new();
    let told = Arc::default();
    run.start(
        worker(1)
            .policy(constant(60, 5))
            .with("a", waits(Arc::clone(&told))),
    );
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    // As if the worker had been paused: another node sweeps its lease.
    let late = t0().saturating_add(seconds(31.0));
    let swept = run.engine.store().sweep(10, late, 0).await.unwrap();
    assert_eq!(swept.lost.len(), 1);
    let before = job(&run.engine, id).await;
    run.until("started", id).await;
    assert_eq!(*told.lock().unwrap(), [StopReason::LeaseLost]);
    let row = &run.outcomes(id).await[0];
    assert_eq!(
        row.1,
        Outcome::Lost,
        "the end of the old attempt changed nothing"
    );
    assert_eq!(before.failures, 1);
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_kept_while_the_store_fails_and_settled_afterwards() {
    let mut run = Running::new();
    run.start(worker(2).succeeds("a"));
    run.store.fail("settle");
    let ids = [
        run.enqueue(new_job("a")).await,
        run.enqueue(new_job("a")).await,
    ];
    for id in ids {
        run.until("started", id).await;
    }
    tokio::time::sleep(seconds(90.0)).await; // three leases, in paused time
    for id in ids {
        assert_eq!(job(&run.engine, id).await.state(), State::Running);
        assert!(run.outcomes(id).await.is_empty(), "renewed, so not swept");
    }
    run.store.heal();
    for id in ids {
        run.until("succeeded", id).await;
        assert_eq!(run.outcomes(id).await.len(), 1, "ran once");
    }
}

#[tokio::test(start_paused = true)]
async fn no_jobs_are_claimed_while_the_store_accepts_no_outcomes() {
    let mut run = Running::new();
    let build = worker(3).succeeds("a");
    let calls = Arc::clone(&build.calls);
    run.start(build);
    run.store.fail("settle");
    for _ in 0..50 {
        run.enqueue(new_job("a")).await;
    }
    tokio::time::sleep(seconds(20.0)).await;
    let started = calls.lock().unwrap().len();
    assert!(started <= 7, "{started} of 50 started with 3 slots");
    run.store.heal();
    tokio::time::sleep(seconds(5.0)).await;
    assert_eq!(calls.lock().unwrap().len(), 50);
}

#[tokio::test(start_paused = true)]
async fn slots_come_back_after_an_outage_also_if_lookups_still_fail() {
    let mut run = Running::new();
    let build = worker(3).succeeds("a");
    let calls = Arc::clone(&build.calls);
    run.start(build);
    run.store.fail("settle");
    for _ in 0..50 {
        run.enqueue(new_job("a")).await;
    }
    tokio::time::sleep(seconds(20.0)).await;
    run.store.heal();
    run.store.fail("get");
    tokio::time::sleep(seconds(5.0)).await;
    assert_eq!(calls.lock().unwrap().len(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_settle_whose_answer_is_lost_is_repeated_and_counts_once() {
    let mut run = Running::new();
    run.start(worker(1).policy(constant(5, 9)).fails("a"));
    run.store.lose_answers("settle");
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(1.0)).await;
    run.store.heal();
    tokio::time::sleep(seconds(1.0)).await;
    let once = job(&run.engine, id).await;
    assert_eq!(
        (once.attempt, once.failures),
        (1, 1),
        "failed and waiting, both or none"
    );
    assert_eq!(run.outcomes(id).await.len(), 1);
    run.until("started", id).await;
    assert_eq!(run.elapsed(), seconds(5.0));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_repeated_and_loses_no_job() {
    let mut run = Running::new();
    run.start(worker(5).succeeds("a"));
    run.store.lose_answers("claim");
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(3.0)).await;
    assert_eq!(job(&run.engine, id).await.state(), State::Running);
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await.len(), 1);
    assert_eq!(job(&run.engine, id).await.attempt, 1, "the same lease");
}

/// Three workers with different leases, an outage of the store, and jobs that run longer than it.
async fn after_an_outage_of(away: f64, leases: [f64; 3]) {
    let mut run = Running::new();
    for (name, lease) in ["w1", "w2", "w3"].into_iter().zip(leases) {
        let build = worker(30).with("a", takes(200.0)).set(|config| {
            config.name = WorkerName::new(name).unwrap();
            config.lease = seconds(lease);
        });
        run.start(build);
    }
    let mut ids = Vec::new();
    for n in 0..90 {
        let delivery = if n % 2 == 0 {
            Delivery::AtLeastOnce
        } else {
            Delivery::AtMostOnce
        };
        let job = NewJob {
            delivery,
            ..new_job("a")
        };
        ids.push(run.enqueue(job).await);
    }
    for id in &ids {
        run.until("started", *id).await;
    }
    tokio::time::sleep(seconds(15.3)).await;
    run.store.away();
    tokio::time::sleep(seconds(away)).await;
    run.store.heal();
    for id in &ids {
        run.until("succeeded", *id).await;
        assert_eq!(run.outcomes(*id).await, [(0.0, Outcome::Succeeded)]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_three_leases_no_job_runs_twice() {
    after_an_outage_of(90.0, [30.0, 30.0, 30.0]).await;
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_in_which_a_lease_just_expired_no_job_runs_twice() {
    after_an_outage_of(26.0, [30.0, 30.0, 30.0]).await;
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_a_long_lease_does_not_hide_the_outage_from_a_short_one() {
    after_an_outage_of(90.0, [300.0, 30.0, 20.0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_starts_after_an_outage_sweeps_no_healthy_worker() {
    let mut run = Running::new();
    run.start(worker(1).with("a", takes(200.0)));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.store.away();
    tokio::time::sleep(seconds(90.0)).await;
    run.store.heal();
    // The first worker is back and has sent its heartbeat, but cannot renew yet.
    run.store.fail("renew");
    tokio::time::sleep(seconds(2.0)).await;
    let second = WorkerName::new("w2").unwrap();
    let build = worker(1).with("a", takes(200.0));
    run.start(build.set(|config| config.name = second));
    tokio::time::sleep(seconds(5.0)).await;
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_worker_is_found_within_its_lease_and_a_second() {
    let mut run = Running::new();
    let (dead, _) = worker(1)
        .set(|config| config.name = WorkerName::new("dead").unwrap())
        .policy(constant(0, 5))
        .succeeds("a")
        .on_engine(&run.engine);
    let id = run.enqueue(new_job("a")).await;
    dead.crash_after_claim().await.unwrap();
    run.start(worker(1).policy(constant(0, 5)).succeeds("a"));
    run.until("lost", id).await;
    assert!(run.elapsed() <= seconds(31.0), "{:?}", run.elapsed());
    run.until("succeeded", id).await;
    assert!(run.elapsed() <= seconds(31.0), "{:?}", run.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_shorter_lease_finds_a_dead_worker_sooner() {
    let mut run = Running::new();
    let short = || {
        worker(1)
            .set(|config| config.lease = seconds(6.0))
            .policy(constant(0, 5))
    };
    let (dead, _) = short().succeeds("a").on_engine(&run.engine);
    let id = run.enqueue(new_job("a")).await;
    dead.crash_after_claim().await.unwrap();
    run.start(short().succeeds("a"));
    run.until("succeeded", id).await;
    assert!(run.elapsed() <= seconds(7.0), "{:?}", run.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_is_reported_and_restarted() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    run.store.hang("claim");
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(100.0)).await;
    let health = run.engine.health();
    let fetcher = health.iter().find(|one| one.name == "w1 fetcher").unwrap();
    assert!(
        fetcher.restarts >= 1 && fetcher.stalled_at.is_some(),
        "{fetcher:?}"
    );
    run.store.heal();
    run.until("succeeded", id).await;
    let others = health.iter().filter(|one| one.name != "w1 fetcher");
    assert!(
        others.into_iter().all(|one| one.restarts == 0),
        "{health:?}"
    );
    assert_eq!(health.len(), 13, "every loop is watched");
}

#[tokio::test(start_paused = true)]
async fn a_settle_that_hangs_loses_no_outcome() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    run.store.hang("settle");
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(50.0)).await;
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_outcome_is_retried_alone_and_delays_no_other() {
    let mut run = Running::new();
    run.start(worker(4).succeeds("a"));
    run.store.refuse("settle");
    let bad = [
        run.enqueue(new_job("a")).await,
        run.enqueue(new_job("a")).await,
    ];
    for id in bad {
        run.until("started", id).await;
    }
    tokio::time::sleep(seconds(64.0)).await;
    let asked = run.store.asked("settle");
    assert!(asked <= 15, "{asked} times: ever more rarely, each alone");
    run.store.heal();
    let good = run.enqueue(new_job("a")).await;
    run.until("succeeded", good).await;
    assert_eq!(run.elapsed(), seconds(64.0), "it is not held up");
    for id in bad {
        run.until("succeeded", id).await;
        assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
    }
    assert!(run.elapsed() <= seconds(64.0 + 60.0), "{:?}", run.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_the_store_keeps_refusing_is_dropped_and_the_attempt_is_lost() {
    let mut run = Running::new();
    let refused = Arc::new(CountRefused::default());
    run.record(Arc::clone(&refused) as Arc<dyn Recorder>);
    let build = worker(1).policy(constant(1, 9)).succeeds("a").succeeds("b");
    run.start(build.set(|config| config.outcome_retry_max = seconds(100.0)));
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("a")
    };
    run.store.refuse("settle");
    let ids = [
        run.enqueue(new_job("a")).await,
        run.enqueue(once).await,
        run.enqueue(new_job("a")).await,
    ];
    run.until("lost", ids[0]).await;
    let lost = run.elapsed();
    assert!(lost >= seconds(100.0), "it is retried until then: {lost:?}");
    assert!(lost <= seconds(131.0), "then its lease expires: {lost:?}");
    run.until("dead", ids[1]).await;
    tokio::time::sleep(seconds(600.0)).await;
    assert!(refused.0.load(Ordering::SeqCst) >= 3, "each is counted");
    run.store.heal();
    let behind = run.enqueue(new_job("b")).await;
    run.until("succeeded", behind).await; // its slot is free again
    tokio::time::sleep(seconds(200.0)).await;
    assert_eq!(job(&run.engine, ids[2]).await.state(), State::Succeeded);
    let dead = job(&run.engine, ids[1]).await;
    assert_eq!(dead.state(), State::Dead(DeadReason::Lost));
    assert_eq!(run.stop().await.unsettled, 0);
}

/// Counts the outcomes that were dropped.
#[derive(Debug, Default)]
struct CountRefused(AtomicU32);

impl Recorder for CountRefused {
    fn event(&self, _: &Event) {}

    fn store_op(&self, _: &'static str, _: Duration) {}

    fn counts(&self, _: &BTreeMap<QueueName, Counts>, _: Timestamp) {}

    fn outcome_refused(&self, _: &QueueName) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_retries_of_a_refused_outcome_drops_nothing() {
    let mut run = Running::new();
    let build = worker(1).succeeds("a");
    run.start(build.set(|config| config.outcome_retry_max = seconds(100.0)));
    run.store.fail("settle");
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(600.0)).await;
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
}

#[tokio::test(start_paused = true)]
async fn a_settle_whose_answer_is_lost_emits_its_events_once() {
    for (name, expected) in [
        ("good", &["succeeded"][..]),
        ("bad", &["failed", "retried"][..]),
        ("last", &["failed", "dead"][..]),
    ] {
        let mut run = Running::new();
        let build = worker(1).policy(constant(60, 9)).succeeds("good");
        run.start(build.fails("bad").fails("last"));
        run.store.lose_answers("settle");
        let once = if name == "last" { 1 } else { 9 };
        let id = run
            .enqueue(NewJob {
                max_attempts: AttemptLimit::from_max_attempts(once).unwrap(),
                ..new_job(name)
            })
            .await;
        run.until("started", id).await;
        tokio::time::sleep(seconds(1.0)).await;
        // The result is known only when the job can be read again.
        run.store.heal();
        run.store.fail("get");
        tokio::time::sleep(seconds(5.0)).await;
        run.store.heal();
        tokio::time::sleep(seconds(5.0)).await;
        assert_eq!(run.names(), expected, "{name}");
        assert_eq!(run.outcomes(id).await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_swept_jobs_are_emitted_even_if_the_first_read_fails() {
    let mut run = Running::new();
    let (dead, _) = worker(1)
        .set(|config| config.name = WorkerName::new("dead").unwrap())
        .policy(constant(60, 5))
        .succeeds("a")
        .on_engine(&run.engine);
    let id = run.enqueue(new_job("a")).await;
    dead.crash_after_claim().await.unwrap();
    run.start(worker(1).policy(constant(60, 5)).succeeds("a"));
    run.store.fail("get");
    tokio::time::sleep(seconds(40.0)).await;
    assert_eq!(run.outcomes(id).await.len(), 1, "it is swept");
    assert_eq!(run.names(), ["enqueued"]);
    run.store.heal();
    run.until("lost", id).await;
    run.until("retried", id).await;
    run.until("succeeded", id).await;
}

#[tokio::test(start_paused = true)]
async fn a_swept_job_that_cannot_be_read_does_not_stop_the_sweeper() {
    let mut run = Running::new();
    let (dead, _) = worker(1)
        .set(|config| config.name = WorkerName::new("dead").unwrap())
        .policy(constant(600, 5))
        .succeeds("a")
        .on_engine(&run.engine);
    run.start(worker(1).succeeds("b"));
    run.store.refuse("get");
    for _ in 0..2 {
        let id = run.enqueue(new_job("a")).await;
        dead.crash_after_claim().await.unwrap();
        tokio::time::sleep(seconds(40.0)).await;
        assert_eq!(run.outcomes(id).await.len(), 1, "it is swept");
    }
}

#[tokio::test(start_paused = true)]
async fn an_accepted_outcome_whose_job_cannot_be_read_leaves_the_committer() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    run.store.lose_answers("settle");
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(1.0)).await;
    run.store.heal();
    run.store.refuse("get");
    tokio::time::sleep(seconds(30.0)).await;
    assert_eq!(run.stop().await.unsettled, 0);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_stops_no_timeout_and_costs_no_lease() {
    let mut run = Running::new();
    run.start(worker(2).with("stuck", stuck).with("a", takes(50.0)));
    let long = run.enqueue(new_job("a")).await;
    run.until("started", long).await;
    tokio::time::sleep(seconds(9.0)).await;
    let short = NewJob {
        timeout: Some(Timeout::After(seconds(3.0))),
        ..new_job("stuck")
    };
    let id = run.enqueue(short).await;
    run.until("started", id).await;
    run.store.hang("renew");
    run.until("timed_out", id).await;
    assert_eq!(run.elapsed(), seconds(12.0));
    // It hung once; the next renewal comes before the lease expires.
    tokio::time::sleep(seconds(1.0)).await;
    run.store.heal();
    run.until("succeeded", long).await;
    assert_eq!(run.outcomes(long).await, [(0.0, Outcome::Succeeded)]);
}

/// Panics at every event and after every store call.
#[derive(Debug)]
struct PanickingRecorder;

impl Recorder for PanickingRecorder {
    fn event(&self, _: &Event) {
        panic!("event");
    }

    fn store_op(&self, _: &'static str, _: Duration) {
        panic!("store_op");
    }

    fn counts(&self, _: &BTreeMap<QueueName, Counts>, _: Timestamp) {
        panic!("counts");
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_loses_measurements_and_no_job() {
    let mut run = Running::new();
    run.record(Arc::new(PanickingRecorder));
    run.start(worker(10).succeeds("a"));
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(run.enqueue(new_job("a")).await);
    }
    for id in ids {
        run.until("succeeded", id).await;
        assert_eq!(run.outcomes(id).await, [(0.0, Outcome::Succeeded)]);
    }
    let health = run.engine.health();
    assert!(health.iter().all(|one| one.restarts == 0), "{health:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_patience_restarts_a_hanging_loop_sooner() {
    let mut run = Running::new();
    run.start(
        worker(1)
            .succeeds("a")
            .set(|config| config.patience = seconds(8.0)),
    );
    run.store.hang("claim");
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(11.0)).await;
    run.store.heal();
    run.until("succeeded", id).await;
    assert!(run.elapsed() <= seconds(20.0), "{:?}", run.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_the_cancel_grace_to_return_after_its_timeout() {
    for grace in [0.5, 40.0] {
        let mut run = Running::new();
        let build = worker(1).with("stuck", stuck).succeeds("b");
        run.start(build.set(|config| config.cancel_grace = seconds(grace)));
        let slow = NewJob {
            timeout: Some(Timeout::After(seconds(10.0))),
            max_attempts: AttemptLimit::from_max_attempts(1).unwrap(),
            ..new_job("stuck")
        };
        let id = run.enqueue(slow).await;
        run.until("started", id).await;
        let behind = run.enqueue(new_job("b")).await;
        run.until("succeeded", behind).await;
        assert_eq!(run.elapsed(), seconds(10.0 + grace));
    }
}
