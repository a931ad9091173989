//! A worker that runs: its loops, in memory, in paused time. No test sleeps: time jumps to the next timer.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use support::faulty::Faulty;
use support::{Build, constant, enqueue, failed, job, new_job, seconds, t0, worker};
use windlass_core::{
    DeadReason, Delivery, JobId, NewJob, Outcome, QueueName, Report, Start, State, Timeout,
    WorkerName,
};
use windlass_engine::{
    CancellationToken, Engine, Heard, Ids, QueueConfig, RunningAttempt, StopReason, Stopped,
    Subscription, SystemClock,
};
use windlass_memory::MemoryStore;
use windlass_store::{Pause, QueueLimits, Store};

struct Running {
    engine: Arc<Engine>,
    store: Arc<Faulty>,
    events: Subscription,
    stop: CancellationToken,
    stop_now: CancellationToken,
    workers: Vec<tokio::task::JoinHandle<Stopped>>,
}

impl Running {
    fn new() -> Running {
        let store = Faulty::new(Arc::new(MemoryStore::new()));
        let clock = Arc::new(SystemClock::starting_at(t0()));
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Arc::new(Engine::new(shared, clock, Ids::seeded(3)));
        let events = engine.subscribe();
        Running {
            engine,
            store,
            events,
            stop: CancellationToken::new(),
            stop_now: CancellationToken::new(),
            workers: Vec::new(),
        }
    }

    fn start(&mut self, build: Build) {
        let (worker, _) = build.on_engine(&self.engine);
        let (stop, now) = (self.stop.clone(), self.stop_now.clone());
        self.workers
            .push(tokio::spawn(async move { worker.run(stop, now).await }));
    }

    async fn enqueue(&self, job: NewJob) -> JobId {
        enqueue(&self.engine, job).await
    }

    /// Waits for the next event of that name about a job, for an hour of paused time.
    async fn until(&mut self, name: &str, id: JobId) {
        let found = async {
            loop {
                match self.events.next().await {
                    Some(Heard::Event(event))
                        if event.name() == name && event.job() == Some(id) =>
                    {
                        return;
                    }
                    Some(_) => {}
                    None => panic!("no more events"),
                }
            }
        };
        let found = tokio::time::timeout(seconds(3600.0), found).await;
        assert!(found.is_ok(), "{name} did not happen within an hour");
    }

    async fn stop(&mut self) -> Stopped {
        self.stop.cancel();
        let mut last = Stopped::default();
        for worker in self.workers.drain(..) {
            last = worker.await.unwrap();
        }
        last
    }

    async fn outcomes(&self, id: JobId) -> Vec<(f64, Outcome)> {
        let mut rows = self.engine.store().attempts(id, 1000).await.unwrap();
        rows.reverse();
        rows.iter()
            .map(|row| (row.started_at.since(t0()).as_secs_f64(), row.outcome))
            .collect()
    }

    fn elapsed(&self) -> Duration {
        self.engine.now().since(t0())
    }
}

/// A handler that takes so long.
fn takes(time: f64) -> impl Fn(Arc<RunningAttempt>) -> Sleeping + Send + Sync + 'static {
    move |attempt| {
        let clock = Arc::clone(attempt.engine().clock());
        Box::pin(async move {
            let until = clock.now().saturating_add(seconds(time));
            clock.sleep_until(until).await;
            Report::Succeeded(None)
        })
    }
}

type Sleeping = std::pin::Pin<Box<dyn Future<Output = Report> + Send>>;

/// A handler that waits until it is told to stop, and says why.
fn waits(
    told: Arc<std::sync::Mutex<Vec<StopReason>>>,
) -> impl Fn(Arc<RunningAttempt>) -> Sleeping + Send + Sync + 'static {
    move |attempt| {
        let told = Arc::clone(&told);
        Box::pin(async move {
            let reason = attempt.stop().wait().await;
            told.lock().unwrap().push(reason);
            failed("told to stop")
        })
    }
}

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
    let stuck = |_| -> Sleeping { Box::pin(std::future::pending()) };
    run.start(worker(1).with("stuck", stuck).succeeds("b"));
    let job = NewJob {
        timeout: Some(Timeout::After(seconds(10.0))),
        max_attempts: windlass_core::retry::AttemptLimit::from_max_attempts(1).unwrap(),
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

#[tokio::test(start_paused = true)]
async fn tm4_a_lost_lease_cancels_the_handler_and_nothing_it_does_is_told() {
    let mut run = Running::new();
    let told = Arc::default();
    run.start(
        worker(1)
            .policy(constant(60, 5))
            .with("a", waits(Arc::clone(&told))),
    );
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    // As if the worker had been paused: somebody else sweeps its lease.
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
        "CC2: the end of the old attempt changed nothing"
    );
    assert_eq!(before.failures, 1);
}

#[tokio::test(start_paused = true)]
async fn l25_outcomes_are_kept_while_the_store_errs_and_settled_when_it_is_back() {
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
async fn while_the_store_takes_no_outcomes_no_more_jobs_are_claimed() {
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
async fn cr6_a_settle_of_unknown_fate_is_repeated_and_counts_once() {
    let mut run = Running::new();
    run.start(worker(1).policy(constant(5, 9)).fails("a"));
    run.store.forget("settle");
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(1.0)).await;
    run.store.heal();
    tokio::time::sleep(seconds(1.0)).await;
    let once = job(&run.engine, id).await;
    assert_eq!(
        (once.attempt, once.failures),
        (1, 1),
        "CR7: failed and waiting, both or none"
    );
    assert_eq!(run.outcomes(id).await.len(), 1);
    run.until("started", id).await;
    assert_eq!(run.elapsed(), seconds(5.0));
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_unknown_fate_is_asked_again_and_nothing_is_lost() {
    let mut run = Running::new();
    run.start(worker(5).succeeds("a"));
    run.store.forget("claim");
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(3.0)).await;
    assert_eq!(job(&run.engine, id).await.state(), State::Running);
    run.store.heal();
    run.until("succeeded", id).await;
    assert_eq!(run.outcomes(id).await.len(), 1);
    assert_eq!(job(&run.engine, id).await.attempt, 1, "the same lease");
}

#[tokio::test(start_paused = true)]
async fn st19_after_an_outage_of_three_leases_nobody_runs_twice() {
    let mut run = Running::new();
    run.start(worker(100).with("a", takes(200.0)));
    let mut ids = Vec::new();
    for n in 0..100 {
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
    tokio::time::sleep(seconds(5.0)).await;
    run.store.away();
    tokio::time::sleep(seconds(90.0)).await;
    run.store.heal();
    for id in &ids {
        run.until("succeeded", *id).await;
        assert_eq!(run.outcomes(*id).await, [(0.0, Outcome::Succeeded)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_died_is_found_within_lease_and_a_second() {
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
async fn what_nobody_told_is_found_by_the_poll() {
    let mut run = Running::new();
    run.start(
        worker(1)
            .set(|config| config.poll = seconds(100.0))
            .succeeds("a"),
    );
    // As another process would: this one is not told when it is due. Sweeps wake nobody here.
    run.store.fail("sweep");
    let later = NewJob {
        start: Start::After(seconds(3.0)),
        ..new_job("a")
    };
    let now = run.engine.now();
    let made = later.into_job(run.engine.ids().job(now), now).unwrap();
    let id = made.id;
    let step = windlass_store::Enqueue::all(vec![made]);
    run.engine.store().enqueue(step, now).await.unwrap();
    run.until("succeeded", id).await;
    assert!(
        (seconds(80.0)..=seconds(120.0)).contains(&run.elapsed()),
        "{:?}",
        run.elapsed()
    );
}

/// Counts the ends of attempts.
#[derive(Default)]
struct Count(AtomicU32);

impl windlass_engine::Hooks for Count {
    fn before(&self, _: &RunningAttempt) {}

    fn after(&self, _: &RunningAttempt, _: &Report) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Panics;

impl windlass_engine::Hooks for Panics {
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
    let stuck = |_| -> Sleeping { Box::pin(std::future::pending()) };
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
    run.engine.cancel(&[id]).await.unwrap();
    run.until("cancelled", id).await;
    assert_eq!(
        run.elapsed(),
        seconds(10.0),
        "at once from within the process"
    );
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let mut run = Running::new();
    run.start(worker(1).succeeds("a"));
    let paused = QueueLimits {
        paused: Some(Pause {
            by: "ann".to_owned(),
            at: t0(),
        }),
        ..QueueLimits::default()
    };
    let queue = QueueName::default();
    let store = run.engine.store();
    store.put_queue(&queue, &paused).await.unwrap();
    let id = run.enqueue(new_job("a")).await;
    tokio::time::sleep(seconds(10.0)).await;
    assert_eq!(job(&run.engine, id).await.attempt, 0);
    let engine = Arc::clone(&run.engine);
    engine
        .store()
        .put_queue(&queue, &QueueLimits::default())
        .await
        .unwrap();
    run.until("succeeded", id).await;
    assert_eq!(run.elapsed(), seconds(10.0));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_is_reported_and_started_again() {
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
    assert_eq!(health.len(), 6, "every loop is watched");
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
async fn several_queues_share_the_slots_by_weight() {
    let mut run = Running::new();
    let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let (heavy, light) = (Arc::clone(&counts[0]), Arc::clone(&counts[1]));
    let counted = |count: Arc<AtomicUsize>| {
        move |attempt: Arc<RunningAttempt>| -> Sleeping {
            let count = Arc::clone(&count);
            Box::pin(async move {
                let clock = Arc::clone(attempt.engine().clock());
                clock
                    .sleep_until(clock.now().saturating_add(seconds(1.0)))
                    .await;
                count.fetch_add(1, Ordering::SeqCst);
                Report::Succeeded(None)
            })
        }
    };
    let queue = |name: &str, weight| QueueConfig {
        weight,
        ..QueueConfig::new(QueueName::new(name).unwrap(), 4)
    };
    for _ in 0..100 {
        for name in ["heavy", "light"] {
            let job = NewJob {
                queue: QueueName::new(name).unwrap(),
                ..new_job(name)
            };
            run.enqueue(job).await;
        }
    }
    run.start(
        worker(1)
            .with("heavy", counted(heavy))
            .with("light", counted(light))
            .set(|config| {
                config.queues = vec![queue("heavy", 3), queue("light", 1)];
                config.concurrency = Some(4);
            }),
    );
    tokio::time::sleep(seconds(20.5)).await;
    let done = counts.map(|count| count.load(Ordering::SeqCst));
    assert_eq!(done, [60, 20]);
    tokio::time::sleep(seconds(60.0)).await;
    let counts = run.engine.store().counts(run.engine.now()).await.unwrap();
    let succeeded: u64 = counts.values().map(|count| count.succeeded).sum();
    assert_eq!(succeeded, 200, "what one queue leaves, the other gets");
}
