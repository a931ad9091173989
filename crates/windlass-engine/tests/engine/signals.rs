//! Signals of operators to the workers of Rust programs.

use std::sync::Arc;

use windlass_core::{JobId, NewJob, State, WorkerName};
use windlass_engine::remote::{Remote, RemoteConfig, Signal, Signalled};
use windlass_engine::{Engine, Ids, WorkerState};
use windlass_store::Store;
use windlass_testkit::on_every_store;
use windlass_testkit::running::{Running, takes};
use windlass_testkit::world::{World, new_job, seconds, worker};

on_every_store! {
    a_paused_worker_claims_nothing_until_it_is_resumed;
    a_worker_that_was_stopped_claims_nothing_more;
    a_signal_to_an_earlier_worker_of_the_same_name_is_ignored;
    a_node_that_reports_no_state_obeys_no_signals;
}

fn name(name: &str) -> WorkerName {
    name.parse().unwrap()
}

async fn send(engine: &Arc<Engine>, signal: Option<Signal>) {
    let remote = Remote::new(engine, RemoteConfig::default());
    let sent = remote.signal(&name("w1"), signal).await.unwrap();
    assert!(matches!(sent, Signalled::Sent(_)), "{sent:?}");
}

/// The state of the worker as its heartbeat reports it.
async fn reported(engine: &Engine) -> Option<WorkerState> {
    let nodes = engine.store().nodes().await.unwrap();
    let node = nodes.iter().find(|node| node.name == "w1")?;
    WorkerState::of(node, None)
}

async fn a_paused_worker_claims_nothing_until_it_is_resumed(world: World) {
    let (worker, _) = worker(2).succeeds("a").build(&world);
    worker.pass(&world.clock).await.unwrap();
    assert_eq!(reported(&world.engine).await, Some(WorkerState::Running));
    send(&world.engine, Some(Signal::PauseClaims)).await;
    let id = world.enqueue(new_job("a")).await;
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Waiting);
    assert_eq!(
        reported(&world.engine).await,
        Some(WorkerState::ClaimsPaused)
    );
    send(&world.engine, None).await;
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
    assert_eq!(reported(&world.engine).await, Some(WorkerState::Running));
}

async fn a_worker_that_was_stopped_claims_nothing_more(world: World) {
    let (worker, _) = worker(2).succeeds("a").build(&world);
    worker.pass(&world.clock).await.unwrap();
    send(&world.engine, Some(Signal::Stop)).await;
    let id = world.enqueue(new_job("a")).await;
    worker.pass(&world.clock).await.unwrap();
    send(&world.engine, None).await;
    worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Waiting);
    assert_eq!(worker.state(), WorkerState::Stopping);
    assert_eq!(reported(&world.engine).await, Some(WorkerState::Stopping));
}

async fn a_signal_to_an_earlier_worker_of_the_same_name_is_ignored(world: World) {
    let (earlier, _) = worker(2).succeeds("a").build(&world);
    earlier.pass(&world.clock).await.unwrap();
    send(&world.engine, Some(Signal::Stop)).await;
    world.clock.advance(seconds(1.0));
    let (later, _) = worker(2).succeeds("a").build(&world);
    let id = world.enqueue(new_job("a")).await;
    later.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
    let remote = Remote::new(&world.engine, RemoteConfig::default());
    assert!(remote.signals().all().await.unwrap().is_empty());
}

async fn a_node_that_reports_no_state_obeys_no_signals(world: World) {
    let (now, about) = (world.engine.now(), serde_json::json!({"role": "server"}));
    world.store.beat("server-1", &about, now).await.unwrap();
    let remote = Remote::new(&world.engine, RemoteConfig::default());
    let stop = Some(Signal::Stop);
    let sent = remote.signal(&name("server-1"), stop).await.unwrap();
    assert!(matches!(sent, Signalled::ObeysNone), "{sent:?}");
    let sent = remote.signal(&name("nobody"), stop).await.unwrap();
    assert!(matches!(sent, Signalled::Unknown), "{sent:?}");
    assert!(remote.signals().all().await.unwrap().is_empty());
}

/// Returns the engine of another process on the same store.
fn another_process(running: &Running) -> Arc<Engine> {
    let store = Arc::clone(&running.store) as Arc<dyn Store>;
    let clock = Arc::clone(running.engine.clock());
    Arc::new(Engine::new(store, clock, Ids::seeded(4)))
}

/// Starts a worker with one running job, which takes 20 s.
async fn with_running_job() -> (Running, JobId) {
    let mut running = Running::new();
    running.start(worker(2).with("slow", takes(20.0)).succeeds("a"));
    let id = running.enqueue(new_job("slow")).await;
    running.until("started", id).await;
    (running, id)
}

async fn state(running: &Running, id: JobId) -> State {
    windlass_testkit::world::job(&running.engine, id)
        .await
        .state()
}

#[tokio::test(start_paused = true)]
async fn a_stop_from_another_process_ends_the_run_after_the_running_jobs() {
    let (mut running, slow) = with_running_job().await;
    send(&another_process(&running), Some(Signal::Stop)).await;
    let sent_at = running.elapsed();
    while reported(&running.engine).await != Some(WorkerState::Stopping) {
        tokio::time::sleep(seconds(0.1)).await;
    }
    let took = running.elapsed() - sent_at;
    assert!(
        took < seconds(10.0),
        "within a heartbeat interval: {took:?}"
    );
    let late = running.enqueue(new_job("a")).await;
    let stopped = running.workers.remove(0).await.unwrap().unwrap();
    assert_eq!(stopped.released, 0);
    assert_eq!(state(&running, slow).await, State::Succeeded);
    assert_eq!(state(&running, late).await, State::Waiting);
    assert_eq!(reported(&running.engine).await, None, "the node is removed");
    let remote = Remote::new(&running.engine, RemoteConfig::default());
    let signals = remote.signals().all().await.unwrap();
    assert!(signals.is_empty(), "the signal is removed with the worker");
}

#[tokio::test(start_paused = true)]
async fn a_paused_worker_finishes_its_running_jobs_and_takes_the_others_when_resumed() {
    let (mut running, slow) = with_running_job().await;
    let other = another_process(&running);
    send(&other, Some(Signal::PauseClaims)).await;
    while reported(&running.engine).await != Some(WorkerState::ClaimsPaused) {
        tokio::time::sleep(seconds(0.1)).await;
    }
    let waiting = running.enqueue(NewJob::new("a".parse().unwrap())).await;
    running.until("succeeded", slow).await;
    tokio::time::sleep(seconds(60.0)).await;
    assert_eq!(state(&running, waiting).await, State::Waiting);
    send(&other, None).await;
    running.until("succeeded", waiting).await;
    running.stop().await;
}
