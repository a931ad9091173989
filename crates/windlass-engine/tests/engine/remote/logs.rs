//! Log lines of remote workers: while an attempt runs, after it, and after its worker has died.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::{AttemptError, AttemptLog, Failure, Outcome, WorkerReport};
use windlass_engine::remote::{
    Lost, Remote, RemoteConfig, RemoteError, RemoteOutcome, RemoteProgress, ReportedLines,
};
use windlass_engine::{Janitor, JanitorConfig, Sweeper, SweeperConfig};
use windlass_store::{AttemptId, Change};

use crate::remote::scene::{Scene, claim, named, of};
use windlass_testkit::world::{World, seconds};

fn lines(lines: &[&str], first: Option<u64>) -> RemoteProgress {
    RemoteProgress {
        progress: None,
        lines: ReportedLines {
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            first,
        },
    }
}

fn outcome(attempt_id: AttemptId, log: &[&str]) -> RemoteOutcome {
    RemoteOutcome {
        attempt_id,
        reported: WorkerReport::Failed(Failure::retryable(AttemptError::new("x"))),
        log: log.iter().map(|line| (*line).to_owned()).collect(),
    }
}

/// What anyone reads of the log of an attempt.
async fn read(scene: &Scene, attempt_id: AttemptId) -> AttemptLog {
    let history = scene.world.history(attempt_id.job).await;
    let mut history = history.iter();
    let entry = history.find(|entry| entry.attempt == attempt_id.attempt);
    let log = scene.world.engine.attempt_log(attempt_id, entry).await;
    log.unwrap()
}

fn texts(log: &AttemptLog) -> Vec<String> {
    log.after(0).map(|(_, line)| line.line.clone()).collect()
}

async fn documents(scene: &Scene) -> usize {
    let (store, now) = (scene.world.engine.store(), scene.world.engine.now());
    let names = store.document_names("attempt-logs", "", 1000, now).await;
    names.unwrap().len()
}

async fn lines_are_read_while_the_attempt_runs_and_kept_with_it(world: World) {
    let scene = Scene::new(world);
    scene.job("q").await;
    let attempt = of(&scene.claim(claim("w", &["q"])).await[0]);
    let (remote, worker) = (&scene.remote, named("w"));
    let report = lines(&["a", "b"], Some(1));
    remote.progress(&worker, attempt, &report).await.unwrap();
    assert_eq!(texts(&read(&scene, attempt).await), ["a", "b"]);
    let refused = remote.progress(&worker, attempt, &report).await;
    assert!(matches!(refused, Err(RemoteError::ProgressTooOften)));
    scene.world.clock.advance(seconds(0.1));
    let liar = remote.progress(&named("liar"), attempt, &report).await;
    let other = Lost::OtherWorker;
    assert!(matches!(liar, Err(RemoteError::LeaseLost(lost)) if lost == other));
    let again = lines(&["b", "c"], Some(2));
    remote.progress(&worker, attempt, &again).await.unwrap();
    let repeated = texts(&read(&scene, attempt).await);
    assert_eq!(repeated, ["a", "b", "c"], "a repeated line counts once");
    let settled = remote.settle(&worker, &[outcome(attempt, &["d"])]).await;
    settled.unwrap();
    assert_eq!(texts(&read(&scene, attempt).await), ["a", "b", "c", "d"]);
    assert_eq!(documents(&scene).await, 0, "the history has the lines");
    scene.world.clock.advance(seconds(1.0));
    let late = remote
        .progress(&worker, attempt, &lines(&["late"], None))
        .await;
    assert!(matches!(late, Err(RemoteError::LeaseLost(Lost::Over))));
    assert_eq!(documents(&scene).await, 0);
}

async fn lines_and_outcome_may_come_through_different_nodes(world: World) {
    let scene = Scene::new(world);
    scene.job("q").await;
    let attempt = of(&scene.claim(claim("w", &["q"])).await[0]);
    let other = Remote::new(&scene.world.engine, RemoteConfig::default());
    let (first, second) = (lines(&["a"], None), lines(&["b"], None));
    let worker = named("w");
    other.progress(&worker, attempt, &first).await.unwrap();
    let third = Remote::new(&scene.world.engine, RemoteConfig::default());
    third.progress(&worker, attempt, &second).await.unwrap();
    let ended = [outcome(attempt, &["c"])];
    scene.remote.settle(&worker, &ended).await.unwrap();
    assert_eq!(texts(&read(&scene, attempt).await), ["a", "b", "c"]);
}

async fn a_lost_attempt_keeps_its_log_until_its_job_is_removed(world: World) {
    let scene = Scene::new(world);
    let id = scene.job("q").await;
    let attempt = of(&scene.claim(claim("gone", &["q"])).await[0]);
    let report = lines(&["last words"], None);
    let gone = named("gone");
    let reported = scene.remote.progress(&gone, attempt, &report);
    reported.await.unwrap();
    let engine = &scene.world.engine;
    let sweeper = Sweeper::new(Arc::clone(engine), SweeperConfig::new("server".to_owned()));
    for _ in 0..7 {
        sweeper.pass(engine.now()).await.unwrap();
        scene.world.clock.advance(seconds(5.0));
    }
    assert_eq!(scene.world.history(id).await[0].outcome, Outcome::Lost);
    let janitor = Janitor::new(Arc::clone(engine), JanitorConfig::default());
    scene
        .world
        .clock
        .advance(Duration::from_secs(30 * 24 * 3600));
    janitor.pass(engine.now()).await.unwrap();
    assert_eq!(texts(&read(&scene, attempt).await), ["last words"]);
    engine.change(&[id], &Change::Cancel).await.unwrap();
    engine.change(&[id], &Change::Purge).await.unwrap();
    janitor.pass(engine.now()).await.unwrap();
    assert_eq!(documents(&scene).await, 0);
}

windlass_testkit::on_every_store! {
    lines_are_read_while_the_attempt_runs_and_kept_with_it;
    lines_and_outcome_may_come_through_different_nodes;
    a_lost_attempt_keeps_its_log_until_its_job_is_removed;
}
