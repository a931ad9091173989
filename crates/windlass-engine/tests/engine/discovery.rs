//! Workers that discover their queues: in virtual time on every store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use windlass_core::fairness::Rate;
use windlass_core::{JobId, NewJob, QueueName, QueuePattern, Report, Start, State};
use windlass_engine::{DiscoverConfig, QueueConfig, RunningAttempt};
use windlass_store::{Enqueue, Pause, QueueLimits};
use windlass_testkit::world::{Build, World, new_job, seconds, t0, worker};

/// A worker on all queues that match.
fn discovers(pattern: &str, slots: u32) -> Build {
    let pattern = QueuePattern::new(pattern).unwrap();
    worker(1).set(|config| {
        config.queues.clear();
        config.discovered = vec![DiscoverConfig::new(pattern, slots)];
    })
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn in_queue(name: &str, kind: &str) -> NewJob {
    NewJob {
        queue: queue(name),
        ..new_job(kind)
    }
}

/// Which queues attempts were started in, in order.
type Started = Arc<Mutex<Vec<String>>>;

/// Lets the handler of kind `a` note its queue.
fn noting(build: Build) -> (Build, Started) {
    let started = Started::default();
    let noted = Arc::clone(&started);
    let build = build.on("a", move |attempt: &RunningAttempt| {
        let queue = attempt.job().queue.to_string();
        noted.lock().unwrap().push(queue);
        Report::Succeeded(None)
    });
    (build, started)
}

async fn enqueue_all(world: &World, queues: impl Iterator<Item = String>) -> Vec<JobId> {
    let now = world.engine.now();
    let job = |name: String| {
        let id = world.engine.ids().job(now);
        in_queue(&name, "a").into_job(id, now).unwrap()
    };
    let jobs: Vec<_> = queues.map(job).collect();
    for part in jobs.chunks(1000) {
        let step = Enqueue::all(part.to_vec());
        world.store.enqueue(step, now).await.unwrap();
    }
    jobs.iter().map(|job| job.id).collect()
}

async fn limit(world: &World, name: &str, limits: QueueLimits) {
    let queue = queue(name);
    let put = world.store.put_queue(&queue, &limits, None);
    put.await.unwrap();
}

windlass_testkit::on_every_store! {
    queues_are_found_when_they_get_jobs;
    a_pattern_serves_the_queues_that_match_it_and_no_others;
    a_large_queue_takes_one_slot_in_a_turn;
    a_paused_queue_is_passed_over_until_it_is_resumed;
    a_queue_that_its_limits_hold_back_does_not_hide_the_others;
    a_queue_takes_no_more_slots_than_each_may;
    a_retry_in_a_discovered_queue_is_found_when_it_is_due;
    one_worker_serves_queues_that_it_names_and_queues_that_it_discovers;
}

async fn queues_are_found_when_they_get_jobs(world: World) {
    let (build, started) = noting(discovers("*", 2));
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    let first = world.enqueue(in_queue("one", "a")).await;
    let other = world.enqueue(in_queue("one", "nobody")).await;
    worker.drain(&world.clock).await.unwrap();
    let later = NewJob {
        start: Start::After(seconds(90.0)),
        ..in_queue("two", "a")
    };
    let later = world.enqueue(later).await;
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(*started.lock().unwrap(), ["one", "two"]);
    assert_eq!(world.state(first).await, State::Succeeded);
    assert_eq!(world.state(other).await, State::Waiting);
    assert_eq!(world.timeline(later).await[0].0, 90.0);
}

async fn a_pattern_serves_the_queues_that_match_it_and_no_others(world: World) {
    let names = ["tenant-a", "tenant-b", "tenants", "my-tenant-a"];
    enqueue_all(&world, names.map(str::to_owned).into_iter()).await;
    let (build, started) = noting(discovers("tenant-*", 1));
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(*started.lock().unwrap(), ["tenant-a", "tenant-b"]);
}

async fn a_large_queue_takes_one_slot_in_a_turn(world: World) {
    let large = std::iter::repeat_n("large".to_owned(), 500);
    let small = (0..99).map(|number| format!("small-{number:02}"));
    enqueue_all(&world, large.chain(small)).await;
    let (build, started) = noting(discovers("*", 7));
    let (worker, _) = build.build(&world);
    worker.pass(&world.clock).await.unwrap();
    let started = started.lock().unwrap();
    let last = started.iter().rposition(|queue| queue != "large").unwrap();
    let before = &started[..last];
    let of_large = before.iter().filter(|queue| *queue == "large").count();
    assert!(
        of_large <= 2,
        "{of_large} jobs of the large queue came before"
    );
    assert_eq!(started.len(), 599, "all of them run in the end");
}

async fn a_paused_queue_is_passed_over_until_it_is_resumed(world: World) {
    let jobs = enqueue_all(&world, ["a", "b"].map(str::to_owned).into_iter()).await;
    let by = "ann".to_owned();
    let paused = QueueLimits {
        paused: Some(Pause {
            by,
            at: t0(),
            reason: None,
        }),
        ..QueueLimits::default()
    };
    limit(&world, "a", paused).await;
    let (build, started) = noting(discovers("*", 2));
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(*started.lock().unwrap(), ["b"]);
    assert_eq!(world.state(jobs[0]).await, State::Waiting);
    limit(&world, "a", QueueLimits::default()).await;
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(*started.lock().unwrap(), ["b", "a"]);
}

async fn a_queue_that_its_limits_hold_back_does_not_hide_the_others(world: World) {
    // More queues are held back than one look names, and those behind them still get their turn.
    let held = (0..150).flat_map(|number| std::iter::repeat_n(format!("held-{number:03}"), 2));
    enqueue_all(&world, held.chain(["later".to_owned()])).await;
    let rate = Rate {
        count: 1,
        period: seconds(10.0),
    };
    for number in 0..150 {
        let limits = QueueLimits {
            rate: Some(rate),
            ..QueueLimits::default()
        };
        limit(&world, &format!("held-{number:03}"), limits).await;
    }
    let (build, started) = noting(discovers("*", 3));
    let (worker, _) = build.build(&world);
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(started.lock().unwrap().len(), 151, "one of each");
    enqueue_all(&world, ["z".to_owned()].into_iter()).await;
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(started.lock().unwrap().last().unwrap(), "z");
    worker.drain(&world.clock).await.unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for queue in started.lock().unwrap().iter() {
        *counts.entry(queue.clone()).or_default() += 1;
    }
    assert_eq!((counts.len(), counts["held-149"], counts["z"]), (152, 2, 1));
}

async fn a_queue_takes_no_more_slots_than_each_may(world: World) {
    let jobs = std::iter::repeat_n("a".to_owned(), 5);
    enqueue_all(&world, jobs.chain(["b".to_owned()])).await;
    let build = discovers("*", 4).set(|config| config.discovered[0].per_queue = Some(2));
    let (build, _) = noting(build);
    let (worker, _) = build.build(&world);
    assert_eq!(worker.crash_after_claim().await.unwrap(), 3);
    let counts = world.store.counts(world.engine.now()).await.unwrap();
    let running = |name| counts[&queue(name)].running;
    assert_eq!((running("a"), running("b")), (2, 1));
}

async fn a_retry_in_a_discovered_queue_is_found_when_it_is_due(world: World) {
    let build = discovers("*", 1).on("a", |attempt| match attempt.job().attempt {
        1 => windlass_testkit::world::failed("boom"),
        _ => Report::Succeeded(None),
    });
    let build = build.policy(windlass_testkit::world::constant(30, 3));
    let (worker, _) = build.build(&world);
    let id = world.enqueue(in_queue("one", "a")).await;
    worker.drain(&world.clock).await.unwrap();
    let started: Vec<f64> = world.timeline(id).await.iter().map(|row| row.0).collect();
    assert_eq!(started, [0.0, 30.0]);
    let one = world.enqueue(in_queue("one", "a")).await;
    assert!(worker.run_one(&world.clock, one).await.unwrap());
}

async fn one_worker_serves_queues_that_it_names_and_queues_that_it_discovers(world: World) {
    let names = ["mail", "mail", "tenant-1", "tenant-2", "other"];
    enqueue_all(&world, names.map(str::to_owned).into_iter()).await;
    let build = discovers("tenant-*", 1).set(|config| {
        config.queues = vec![QueueConfig::new(queue("mail"), 1)];
        config.concurrency = Some(1);
    });
    let (build, started) = noting(build);
    let (worker, _) = build.build(&world);
    worker.drain(&world.clock).await.unwrap();
    let started = started.lock().unwrap();
    assert_eq!(*started, ["mail", "tenant-1", "tenant-2", "mail"]);
}
