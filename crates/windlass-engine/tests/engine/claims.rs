//! Which claim gets a job and when, and what happens when answers get lost. On every store.

use std::sync::Arc;

use windlass_core::{Delivery, JobId, NewJob, Outcome, Report, State, WorkerName};
use windlass_engine::Received;
use windlass_store::Store;
use windlass_testkit::Faulty;
use windlass_testkit::world::{World, constant, failed, new_job, seconds, t0, worker};

async fn a_job_without_a_time_is_due_at_once_and_times_are_kept_to_the_microsecond(world: World) {
    world
        .clock
        .advance(std::time::Duration::from_nanos(1_234_567_891));
    let now = world.engine.now();
    let id = world.enqueue(new_job("a")).await;
    let (worker, _) = worker(1).succeeds("a").build(&world);
    let stored = world.job(id).await;
    assert_eq!((stored.run_at, stored.created_at), (now, now));
    assert_eq!(now.since(t0()).as_nanos(), 1_234_567_000);
    worker.pass(&world.clock).await.unwrap();
    let row = world.history(id).await.remove(0);
    assert_eq!((row.started_at, row.finished_at), (now, now));
}

async fn only_one_of_a_hundred_claims_gets_the_job(world: World) {
    let id = world.enqueue(new_job("a")).await;
    let workers = (0..100).map(|number| {
        let name = WorkerName::new(&format!("w{number}")).unwrap();
        let build = worker(1).succeeds("a").set(|config| config.name = name);
        build.build(&world).0
    });
    let workers: Vec<_> = workers.collect();
    let claims = workers.iter().map(|worker| worker.crash_after_claim());
    let claimed = futures_util::future::join_all(claims).await;
    let got: usize = claimed.into_iter().map(Result::unwrap).sum();
    assert_eq!(got, 1, "and no error");
    let job = world.job(id).await;
    assert_eq!((job.state(), job.attempt), (State::Running, 1));
}

async fn a_running_finished_or_unknown_job_cannot_be_claimed(world: World) {
    let build = || worker(1).policy(constant(1, 9)).succeeds("a");
    let (worker, calls) = build().build(&world);
    let over = world.enqueue(new_job("a")).await;
    worker.pass(&world.clock).await.unwrap();
    let runs = world.enqueue(new_job("a")).await;
    worker.crash_after_claim().await.unwrap();
    for id in [over, runs] {
        let before = (world.job(id).await, world.history(id).await);
        assert!(!worker.run_one(&world.clock, id).await.unwrap());
        assert_eq!((world.job(id).await, world.history(id).await), before);
    }
    let unknown = JobId::from_u128(1);
    assert!(!worker.run_one(&world.clock, unknown).await.unwrap());
    assert_eq!(calls.lock().unwrap().len(), 1);
}

/// The same store with injected faults.
fn behind_faults(world: World) -> (World, Arc<Faulty>) {
    let faulty = Faulty::new(Arc::clone(&world.store));
    let shared = Arc::clone(&faulty) as Arc<dyn Store>;
    (World::on(shared, world.folder), faulty)
}

async fn a_settle_whose_answer_is_lost_counts_once_and_emits_its_events_once(world: World) {
    let (world, faulty) = behind_faults(world);
    let build = worker(2).policy(constant(60, 9)).fails("fails");
    let (worker, _) = build.succeeds("works").build(&world);
    let works = world.enqueue(new_job("works")).await;
    let fails = world.enqueue(new_job("fails")).await;
    let mut events = world.engine.subscribe();
    faulty.lose_answers("settle");
    assert!(worker.pass(&world.clock).await.is_err());
    for _ in 0..3 {
        assert!(worker.pass(&world.clock).await.is_err());
    }
    faulty.heal();
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.timeline(works).await, [(0.0, Outcome::Succeeded)]);
    assert_eq!(world.timeline(fails).await, [(0.0, Outcome::Failed)]);
    let again = world.job(fails).await;
    assert_eq!((again.state(), again.failures), (State::Waiting, 1));
    assert_eq!(again.run_at, t0().saturating_add(seconds(60.0)));
    let mut told: Vec<_> = std::iter::from_fn(|| events.try_next())
        .map(|heard| match heard {
            Received::Event(event) => (event.job().unwrap() == works, event.name()),
            Received::Missed(_) => panic!("too many events for the test"),
        })
        .filter(|(_, name)| !matches!(*name, "claimed" | "started"))
        .collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [(false, "failed"), (false, "retried"), (true, "succeeded")]
    );
}

async fn a_claim_whose_answer_is_lost_starts_each_job_once(world: World) {
    let (world, faulty) = behind_faults(world);
    let (worker, calls) = worker(3).succeeds("a").build(&world);
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("a")
    };
    let ids = [world.enqueue(once).await, world.enqueue(new_job("a")).await];
    faulty.lose_answers("claim");
    assert!(worker.pass(&world.clock).await.is_err());
    assert_eq!(world.state(ids[0]).await, State::Running);
    faulty.heal();
    worker.pass(&world.clock).await.unwrap();
    for id in ids {
        assert_eq!(world.timeline(id).await, [(0.0, Outcome::Succeeded)]);
    }
    assert_eq!(calls.lock().unwrap().len(), 2);
}

async fn results_and_errors_may_contain_any_character(world: World) {
    let odd = "nul \0, quote \" and \u{feff}";
    let build = worker(1).policy(constant(1, 2)).on("a", move |attempt| {
        attempt.log(odd);
        match attempt.job().attempt {
            1 => failed(odd),
            _ => Report::Succeeded(None),
        }
    });
    let (worker, _) = build.build(&world);
    let id = world.enqueue(new_job("a")).await;
    worker.drain(&world.clock).await.unwrap();
    let rows = world.history(id).await;
    let outcomes: Vec<_> = rows.iter().map(|row| row.outcome).collect();
    assert_eq!(outcomes, [Outcome::Failed, Outcome::Succeeded]);
}

windlass_testkit::on_every_store! {
    a_job_without_a_time_is_due_at_once_and_times_are_kept_to_the_microsecond;
    only_one_of_a_hundred_claims_gets_the_job;
    a_running_finished_or_unknown_job_cannot_be_claimed;
    a_settle_whose_answer_is_lost_counts_once_and_emits_its_events_once;
    a_claim_whose_answer_is_lost_starts_each_job_once;
    results_and_errors_may_contain_any_character;
}
