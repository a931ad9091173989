//! Limits and transitions of jobs, end to end on every store, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::Guards;
use windlass_core::retry::{AttemptLimit, Backoff, Cap, Jitter, Preset, RetryPolicy};
use windlass_core::{
    AttemptError, Consent, DeadReason, Delivery, Failure, FailureCount, NewJob, Outcome, Report,
    Revival, Start, State, Timestamp,
};
use windlass_store::{AttemptId, AttemptReport, Change, Changed, Renewed, Settled};
use windlass_testkit::world::{Build, World, constant, failed, new_job, seconds, t0, worker};

fn limited(name: &str, max_attempts: i64) -> NewJob {
    NewJob {
        max_attempts: AttemptLimit::from_max_attempts(max_attempts).unwrap(),
        ..new_job(name)
    }
}

/// Drains a job that always fails, and answers how often it failed.
async fn failures(world: &World, build: Build, job: NewJob) -> u32 {
    let id = world.enqueue(job).await;
    let (worker, calls) = build.fails("a").build(world);
    worker.drain(&world.clock).await.unwrap();
    let job = world.job(id).await;
    assert!(matches!(job.state(), State::Dead(_)), "{:?}", job.state());
    assert_eq!(calls.lock().unwrap().len(), job.failures as usize);
    job.failures
}

fn standard(max_attempts: u32) -> RetryPolicy {
    let policy = Preset::Standard.policy();
    policy.with_max_attempts(max_attempts).unwrap()
}

async fn the_jobs_own_limit_ends_it(world: World) {
    let id = world.enqueue(limited("a", 5)).await;
    let (worker, calls) = worker(10).fails("a").build(&world);
    for failures in 1..=4 {
        worker.pass(&world.clock).await.unwrap();
        let job = world.job(id).await;
        assert_eq!((job.state(), job.failures), (State::Waiting, failures));
        world.clock.advance_to(job.run_at);
    }
    worker.pass(&world.clock).await.unwrap();
    let job = world.job(id).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    assert_eq!((job.failures, calls.lock().unwrap().len()), (5, 5));
}

async fn which_limit_holds(world: World) {
    assert_eq!(failures(&world, worker(1), new_job("a")).await, 25); // the default policy
    let build = worker(1).policy(standard(10));
    assert_eq!(failures(&world, build, limited("a", 20)).await, 10); // the worker allows less
    let build = worker(1).policy(standard(0));
    assert_eq!(failures(&world, build, limited("a", 5)).await, 5); // the policy has no limit
    let build = worker(1).policy(standard(0));
    assert_eq!(failures(&world, build, new_job("a")).await, 1); // no limit at all is one attempt
    let build = worker(1).no_policy();
    assert_eq!(failures(&world, build, limited("a", 5)).await, 1); // a worker without a policy
    assert_eq!(failures(&world, worker(1), limited("a", 100)).await, 25); // capped by the default policy
    let own = |max| NewJob {
        retry: Some(Arc::new(standard(max))),
        ..new_job("a")
    };
    let cap = AttemptLimit::from_max_attempts(10).unwrap().unwrap();
    let build = worker(1).set(|config| config.retry.cap = Cap::AtMost(cap));
    assert_eq!(failures(&world, build, own(500)).await, 10); // capped by the worker
    let build = worker(1).no_policy();
    assert_eq!(failures(&world, build, own(5)).await, 1); // a worker without a policy runs it once
    let once = NewJob {
        max_attempts: Some(AttemptLimit::from_max_retries(0).unwrap()),
        ..new_job("a")
    };
    assert_eq!(failures(&world, worker(1), once).await, 1); // the first failure is the last
}

async fn what_no_retry_can_help_is_dead_at_once(world: World) {
    let id = world.enqueue(limited("a", 5)).await;
    let hopeless = Failure::unrecoverable(AttemptError::new("no such user"));
    let build = worker(1).on("a", move |_| Report::Failed(hopeless.clone()));
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    let job = world.job(id).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Unrecoverable));
    assert_eq!(job.failures, 1);
    assert_eq!(job.last_error.unwrap().message(), "no such user");
}

async fn retries_run_exactly_when_the_policy_says(world: World) {
    let backoff = Backoff::Exponential {
        base: seconds(5.0),
        multiplier: 2.0,
        max: seconds(60.0),
    };
    let policy = RetryPolicy::new(backoff, Jitter::None).unwrap();
    let id = world.enqueue(new_job("a")).await;
    let build = worker(1).policy(policy.with_max_attempts(3).unwrap());
    let (worker, _) = build.fails("a").build(&world);
    worker.drain(&world.clock).await.unwrap();
    let expected = [0.0, 5.0, 15.0].map(|at| (at, Outcome::Failed));
    assert_eq!(world.timeline(id).await, expected);
    let job = world.job(id).await;
    assert_eq!(job.finished_at(), Some(t0().saturating_add(seconds(15.0))));
}

async fn after_a_failure_all_of_it_is_written(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let (worker, calls) = worker(1).policy(constant(5, 3)).fails("a").build(&world);
    worker.pass(&world.clock).await.unwrap();
    let job = world.job(id).await;
    let due = t0().saturating_add(seconds(5.0));
    assert_eq!(job.last_error.as_ref().unwrap().message(), "boom");
    assert_eq!((job.failed_at, job.lease()), (Some(t0()), None));
    assert_eq!(job.run_at, due);
    world
        .clock
        .advance_to(due.saturating_sub(Duration::from_micros(1)));
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 1);
    world.clock.advance_to(due);
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 2);
}

async fn the_delay_is_of_the_worker_that_claimed(world: World) {
    let id = world.enqueue(limited("a", 3)).await;
    let (slow, _) = worker(1).policy(constant(100, 25)).fails("a").build(&world);
    let (quick, _) = worker(1).policy(constant(1, 25)).fails("a").build(&world);
    assert_eq!(slow.crash_after_claim().await.unwrap(), 1);
    world.clock.advance(seconds(30.0));
    quick.pass(&world.clock).await.unwrap(); // sweeps the lease of the slow worker
    let job = world.job(id).await;
    assert_eq!(job.failures, 1);
    assert_eq!(job.run_at, t0().saturating_add(seconds(130.0)));
    quick.drain(&world.clock).await.unwrap();
    let expected = [
        (0.0, Outcome::Lost),
        (130.0, Outcome::Failed),
        (131.0, Outcome::Failed),
    ];
    assert_eq!(world.timeline(id).await, expected);
    assert_eq!(world.state(id).await, State::Dead(DeadReason::Exhausted));
}

async fn history_counts_the_failures_before(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let (worker, _) = worker(1)
        .policy(Preset::FullJitter.policy())
        .fails("a")
        .build(&world);
    worker.drain(&world.clock).await.unwrap();
    let history = world.history(id).await;
    let counts: Vec<u32> = history.iter().map(|row| row.retry_count).collect();
    assert_eq!(counts, [0, 1, 2, 3]);
    let job = world.job(id).await;
    assert_eq!((job.due_at(), job.failures), (None, 4));
    assert!(matches!(job.state(), State::Dead(_)));
}

async fn a_panic_is_a_failure_and_the_worker_continues(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let build = worker(1).on("a", |attempt| {
        assert!(attempt.job().attempt > 1, "the first one breaks");
        Report::Succeeded(None)
    });
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    let history = world.history(id).await;
    let told = history[0].error.as_ref().unwrap().message().to_owned();
    assert!(told.contains("panicked: the first one breaks"), "{told}");
    assert_eq!(history[1].outcome, Outcome::Succeeded);
    assert_eq!(world.state(id).await, State::Succeeded);
}

async fn a_dead_job_waits_for_a_person(world: World) {
    let id = world.enqueue(limited("a", 2)).await;
    let (worker, calls) = worker(1).fails("a").build(&world);
    worker.drain(&world.clock).await.unwrap();
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 2, "never claimed again");
    let keep = Revival {
        failures: FailureCount::Keep,
        ..Revival::default()
    };
    let store = world.engine.store();
    let now = world.engine.now();
    let revived = store
        .change(&[id], &Change::Revive(keep.clone()), None, now)
        .await
        .unwrap();
    assert_eq!(revived, [Changed::Now(State::Waiting)]);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 3, "dead at once");
    let now = world.engine.now();
    store
        .change(&[id], &Change::Revive(Revival::default()), None, now)
        .await
        .unwrap();
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(
        calls.lock().unwrap().len(),
        5,
        "reset: all its attempts again"
    );
}

async fn with_the_guard_off_priority_alone_decides(world: World) {
    let off = Guards {
        retry_fetch_ratio: None,
        fresh_reserve: Some(0),
        ..Guards::default()
    };
    let build = worker(1).policy(constant(0, 3)).guards(off);
    let (worker, calls) = build.fails("high").succeeds("low").build(&world);
    let high = NewJob {
        priority: 9,
        ..new_job("high")
    };
    world.enqueue(high).await;
    for _ in 0..3 {
        world.enqueue(new_job("low")).await;
    }
    worker.pass(&world.clock).await.unwrap();
    let order: Vec<_> = calls
        .lock()
        .unwrap()
        .iter()
        .map(|call| call.0.to_string())
        .collect();
    assert_eq!(order, ["high", "high", "high", "low", "low", "low"]);
}

async fn the_attempt_number_fences_old_attempts(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let (patient, _) = worker(1)
        .policy(Preset::Patient.policy())
        .fails("a")
        .build(&world);
    patient.crash_after_claim().await.unwrap();
    let of = AttemptId {
        job: id,
        attempt: 1,
    };
    let store = world.engine.store();
    world.clock.advance(seconds(30.0));
    let now = world.engine.now();
    patient.pass(&world.clock).await.unwrap();
    let job = world.job(id).await;
    assert_eq!((job.failures, job.state()), (1, State::Waiting));
    assert_eq!(
        job.run_at,
        now.saturating_add(seconds(1.0)),
        "detection + 1 s"
    );
    assert_eq!(world.timeline(id).await, [(0.0, Outcome::Lost)]);
    for report in [Report::Succeeded(None), failed("late")] {
        let report = AttemptReport {
            attempt_id: of,
            report,
            random: 0,
            detail: None,
        };
        let answer = store.settle(vec![report], now).await.unwrap();
        assert_eq!(answer, [Settled::LeaseLost]);
    }
    let renewed = store.renew(&[of], seconds(30.0), now).await.unwrap();
    assert_eq!(renewed, [Renewed::LeaseLost]);
    assert_eq!(world.job(id).await, job, "nothing changed");
}

async fn snoozes_are_bounded(world: World) {
    let id = world.enqueue(limited("a", 1)).await;
    let build = worker(1).on("a", |attempt| Report::Snoozed {
        until: attempt.engine().now().saturating_add(seconds(1.0)),
    });
    let (worker, calls) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 1001);
    let job = world.job(id).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    assert_eq!((job.failures, job.snoozes), (1, 1000));
}

async fn a_lost_at_most_once_job_is_never_started_again(world: World) {
    let job = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("a")
    };
    let id = world.enqueue(job).await;
    let (worker, calls) = worker(1).succeeds("a").build(&world);
    worker.crash_after_claim().await.unwrap();
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Dead(DeadReason::Lost));
    assert_eq!(calls.lock().unwrap().len(), 0);
    let store = world.engine.store();
    let plain = Revival::default();
    let now = world.engine.now();
    let answer = store
        .change(&[id], &Change::Revive(plain.clone()), None, now)
        .await
        .unwrap();
    assert!(
        matches!(answer[..], [Changed::Conflict(_)]),
        "only with force"
    );
    let force = Revival {
        consent: Consent::MayRunTwice,
        ..plain
    };
    store
        .change(&[id], &Change::Revive(force.clone()), None, now)
        .await
        .unwrap();
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
}

async fn a_job_that_kills_its_worker_every_time_is_poison(world: World) {
    let id = world.enqueue(limited("a", 3)).await;
    let healthy = world.enqueue(new_job("b")).await;
    let (worker, _) = worker(2).succeeds("a").succeeds("b").build(&world);
    for _ in 0..3 {
        let run_at = world.job(id).await.run_at;
        world.clock.advance_to(run_at);
        worker.crash_after_claim().await.unwrap();
        world.clock.advance(seconds(30.0));
        worker.tidy().await.unwrap();
        let now = world.engine.now();
        world.engine.store().sweep(100, now, 0).await.unwrap();
    }
    assert_eq!(world.state(id).await, State::Dead(DeadReason::Poison));
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(
        world.state(healthy).await,
        State::Succeeded,
        "others proceed"
    );
}

async fn a_job_whose_outcome_was_not_settled_runs_again(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let (worker, calls) = worker(1).succeeds("a").build(&world);
    assert_eq!(worker.crash_before_settle(&world.clock).await.unwrap(), 1);
    worker.drain(&world.clock).await.unwrap();
    let calls = calls.lock().unwrap().clone();
    let attempts: Vec<_> = calls
        .iter()
        .map(|(_, job, attempt)| (*job, *attempt))
        .collect();
    assert_eq!(attempts, [(id, 1), (id, 2)]);
    let history = world.history(id).await;
    assert_eq!(history[0].outcome, Outcome::Lost);
    assert_eq!(history[0].worker.as_ref().unwrap().as_str(), "w1");
    assert_eq!(history[1].outcome, Outcome::Succeeded);
}

async fn a_job_that_is_due_later_starts_at_its_time(world: World) {
    let job = NewJob {
        start: Start::After(seconds(7.5)),
        ..new_job("a")
    };
    let id = world.enqueue(job).await;
    let (worker, _) = worker(1).succeeds("a").build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.timeline(id).await, [(7.5, Outcome::Succeeded)]);
    let end: Timestamp = t0().saturating_add(seconds(7.5));
    assert_eq!(
        world.engine.now(),
        end,
        "no time passes beyond what is needed"
    );
}

async fn a_job_whose_deadline_has_passed_is_dead(world: World) {
    let job = NewJob {
        deadline: Some(windlass_core::Deadline::After(seconds(2.0))),
        ..new_job("a")
    };
    let id = world.enqueue(job).await;
    let (worker, calls) = worker(1).succeeds("a").build(&world);
    world.clock.advance(seconds(2.1));
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Dead(DeadReason::Expired));
    assert!(calls.lock().unwrap().is_empty());
}

windlass_testkit::on_every_store! {
    the_jobs_own_limit_ends_it;
    which_limit_holds;
    what_no_retry_can_help_is_dead_at_once;
    retries_run_exactly_when_the_policy_says;
    after_a_failure_all_of_it_is_written;
    the_delay_is_of_the_worker_that_claimed;
    history_counts_the_failures_before;
    a_panic_is_a_failure_and_the_worker_continues;
    a_dead_job_waits_for_a_person;
    with_the_guard_off_priority_alone_decides;
    the_attempt_number_fences_old_attempts;
    snoozes_are_bounded;
    a_lost_at_most_once_job_is_never_started_again;
    a_job_that_kills_its_worker_every_time_is_poison;
    a_job_whose_outcome_was_not_settled_runs_again;
    a_job_that_is_due_later_starts_at_its_time;
    a_job_whose_deadline_has_passed_is_dead;
}
