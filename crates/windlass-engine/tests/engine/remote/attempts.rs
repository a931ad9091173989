//! Reports of remote workers about their attempts, and attempts without reports.

use std::sync::Arc;

use serde_json::json;
use windlass_core::{
    AttemptError, Failure, NewJob, Outcome, Payload, Report, State, Timeout, WorkerReport,
};
use windlass_engine::remote::{
    Lost, REMOTE_PROGRESS_BYTES_MAX, Remote, RemoteClaim, RemoteConfig, RemoteError, RemoteOutcome,
    RemoteRenewed, RemoteSettled,
};
use windlass_engine::{PROGRESS, RunningAttempt, Sweeper, SweeperConfig, WorkerDescription};
use windlass_store::{AttemptId, Change, Document};

use crate::remote::scene::{Scene, claim, ids, named, of};
use windlass_testkit::running::Sleeping;
use windlass_testkit::world::{self, World, new_job, seconds, worker};

fn failed() -> WorkerReport {
    WorkerReport::Failed(Failure::retryable(AttemptError::new("x")))
}

async fn an_outcome_is_settled_once_and_only_for_its_worker(world: World) {
    let mut scene = Scene::new(world);
    let id = scene.job("q").await;
    let got = scene.claim(claim("w", &["q"])).await;
    let attempt = of(&got[0]);
    let unknown = AttemptId {
        attempt: 2,
        ..attempt
    };
    for (by, of, reason) in [
        ("liar", attempt, Lost::OtherWorker),
        ("w", unknown, Lost::Unknown),
    ] {
        let lost = scene.settle(by, of, failed()).await;
        assert_eq!(lost, RemoteSettled::LeaseLost(reason));
    }
    let RemoteSettled::Done(settlement) = scene.settle("w", attempt, failed()).await else {
        panic!("it holds the lease");
    };
    assert_eq!(
        (settlement.outcome, settlement.failures),
        (Outcome::Failed, 1)
    );
    let again = scene.settle("w", attempt, failed()).await;
    let run_at = scene.world.job(id).await.run_at;
    let state = State::Waiting;
    assert_eq!(again, RemoteSettled::Repeated { state, run_at });
    let other = scene
        .settle("w", attempt, WorkerReport::Succeeded(None))
        .await;
    assert_eq!(other, RemoteSettled::LeaseLost(Lost::Over));
    let told = [
        "enqueued",
        "claimed",
        "started",
        "failed",
        "failure_group_created",
        "retried",
    ];
    assert_eq!(scene.names(id), told, "each once");
}

async fn a_remote_attempt_leaves_the_history_and_the_events_of_a_local_one(world: World) {
    let mut scene = Scene::new(world);
    let handler = |attempt: Arc<RunningAttempt>| -> Sleeping {
        Box::pin(async move {
            attempt.log("half");
            attempt.progress(json!({"done": 1})).await.unwrap();
            Report::Failed(Failure::retryable(AttemptError::new("x")))
        })
    };
    let (local, _) = worker(1)
        .policy(world::constant(1, 9))
        .with("a", handler)
        .build(&scene.world);
    let here = scene.world.enqueue(new_job("a")).await;
    local.pass(&scene.world.clock).await.unwrap();
    let here_events = scene.names(here);
    let elsewhere = scene.job("q").await;
    let got = scene.claim(claim("w", &["q"])).await;
    let attempt = of(&got[0]);
    let progress = json!({"done": 1}).into();
    let worker = named("w");
    let reported = scene.remote.progress(&worker, attempt, &progress);
    reported.await.unwrap();
    let outcome = RemoteOutcome {
        attempt_id: attempt,
        reported: failed(),
        log: vec!["half".to_owned()],
    };
    scene.remote.settle(&named("w"), &[outcome]).await.unwrap();
    assert_eq!(scene.names(elsewhere), here_events);
    let rows = (
        scene.world.history(here).await.remove(0),
        scene.world.history(elsewhere).await.remove(0),
    );
    assert_eq!(rows.1.detail, rows.0.detail);
    assert_eq!(rows.1.outcome, rows.0.outcome);
    assert_eq!(rows.1.error, rows.0.error);
    assert_eq!(
        progress_of(&scene, attempt).await,
        None,
        "it goes with the attempt"
    );
}

async fn progress_of(scene: &Scene, of: AttemptId) -> Option<Document> {
    let (store, now) = (scene.world.engine.store(), scene.world.engine.now());
    let document = store.document(PROGRESS, &of.job.to_string(), now).await;
    document.unwrap()
}

async fn progress_is_kept_for_the_running_attempt_and_within_bounds(world: World) {
    let scene = Scene::new(world);
    scene.job("q").await;
    let got = scene.claim(claim("w", &["q"])).await;
    let attempt = of(&got[0]);
    let (remote, value) = (&scene.remote, json!(1).into());
    remote.progress(&named("w"), attempt, &value).await.unwrap();
    let refused = remote.progress(&named("w"), attempt, &value).await;
    assert!(matches!(refused, Err(RemoteError::ProgressTooOften)));
    scene.world.clock.advance(seconds(0.1));
    let large = json!("x".repeat(REMOTE_PROGRESS_BYTES_MAX)).into();
    let refused = remote.progress(&named("w"), attempt, &large).await;
    assert!(matches!(refused, Err(RemoteError::ProgressTooLarge { .. })));
    let refused = remote.progress(&named("liar"), attempt, &value).await;
    assert!(matches!(
        refused,
        Err(RemoteError::LeaseLost(Lost::OtherWorker))
    ));
    remote
        .progress(&named("w"), attempt, &json!(2).into())
        .await
        .unwrap();
    let kept = progress_of(&scene, attempt).await.unwrap().value;
    assert_eq!(kept, json!({"attempt": 1, "progress": 2}));
    scene.settle("w", attempt, failed()).await;
    scene.world.clock.advance(seconds(1.0));
    let refused = remote.progress(&named("w"), attempt, &value).await;
    assert!(matches!(refused, Err(RemoteError::LeaseLost(Lost::Over))));
}

async fn the_end_of_an_attempt_leaves_the_progress_of_the_next_alone(world: World) {
    let (scene, slow) = Scene::slow(world);
    scene.job("q").await;
    let first = of(&scene.claim(claim("w", &["q"])).await[0]);
    let remote = &scene.remote;
    remote
        .progress(&named("w"), first, &json!(1).into())
        .await
        .unwrap();
    let held = slow.hold("settle");
    let released = RemoteOutcome {
        attempt_id: first,
        reported: WorkerReport::Released { started: true },
        log: Vec::new(),
    };
    let settling = Arc::clone(remote);
    let settling = async move { settling.settle(&named("w"), &[released]).await };
    let settling = tokio::spawn(settling);
    held.done.notified().await;
    // Before the first worker gets its answer, the job runs again through another process.
    let got = scene.claim(claim("next", &["q"])).await;
    let other = Remote::new(&scene.world.engine, RemoteConfig::default());
    let (next, second) = (named("next"), of(&got[0]));
    other
        .progress(&next, second, &json!(2).into())
        .await
        .unwrap();
    held.answer.notify_one();
    settling.await.unwrap().unwrap();
    let kept = progress_of(&scene, second).await.unwrap().value;
    assert_eq!(kept, json!({"attempt": 2, "progress": 2}));
}

async fn a_renewal_extends_a_lease_and_reports_a_cancelled_job(world: World) {
    let scene = Scene::new(world);
    let id = scene.job("q").await;
    let got = scene.claim(claim("w", &["q"])).await;
    let attempt = of(&got[0]);
    scene.world.clock.advance(seconds(20.0));
    let renew = async |by: &str| {
        let renewed = scene.remote.renew(&named(by), &[attempt], None).await;
        renewed.unwrap().leases.remove(0)
    };
    let until = scene.world.engine.now().saturating_add(seconds(30.0));
    let cancel_requested = false;
    let renewed = RemoteRenewed::Until {
        until,
        cancel_requested,
    };
    assert_eq!(renew("w").await, renewed);
    let lost = RemoteRenewed::LeaseLost(Lost::OtherWorker);
    assert_eq!(renew("liar").await, lost);
    scene
        .world
        .engine
        .change(&[id], &Change::Cancel)
        .await
        .unwrap();
    let cancelled = RemoteRenewed::Until {
        until,
        cancel_requested: true,
    };
    assert_eq!(renew("w").await, cancelled);
    scene.settle("w", attempt, WorkerReport::Cancelled).await;
    assert_eq!(scene.world.state(id).await, State::Cancelled);
    assert_eq!(renew("w").await, RemoteRenewed::LeaseLost(Lost::Over));
}

async fn an_attempt_ends_with_its_timeout_no_matter_what_its_worker_reports(world: World) {
    let mut scene = Scene::new(world);
    let short = || NewJob {
        queue: "q".parse().unwrap(),
        timeout: Some(Timeout::After(seconds(10.0))),
        ..new_job("a")
    };
    let (renewed, late) = (
        scene.world.enqueue(short()).await,
        scene.world.enqueue(short()).await,
    );
    let both = RemoteClaim {
        limit: 2,
        ..claim("w", &["q"])
    };
    let got = scene.claim(both).await;
    for job in &got {
        let most = scene.world.engine.now().saturating_add(seconds(11.0));
        assert_eq!(
            job.lease().unwrap().until,
            most,
            "no longer than it may run"
        );
    }
    scene.world.clock.advance(seconds(10.5));
    let attempts = got.iter().map(of).collect::<Vec<_>>();
    let of_renewed = attempts.iter().find(|of| of.job == renewed).unwrap();
    let renewal = scene.remote.renew(&named("w"), &[*of_renewed], None).await;
    assert_eq!(renewal.unwrap().leases, [RemoteRenewed::TimedOut]);
    scene.world.clock.advance(seconds(1.0));
    let of_late = attempts.iter().find(|of| of.job == late).unwrap();
    let result = Payload::parse("1", 10).unwrap();
    let done = WorkerReport::Succeeded(Some(result));
    let RemoteSettled::Done(settlement) = scene.settle("w", *of_late, done).await else {
        panic!("the lease was not swept yet");
    };
    assert_eq!(settlement.outcome, Outcome::TimedOut);
    for id in [renewed, late] {
        let outcomes = scene.world.timeline(id).await;
        assert_eq!(outcomes, [(0.0, Outcome::TimedOut)]);
    }
    assert!(scene.names(late).contains(&"timed_out"));
}

async fn the_jobs_of_a_worker_that_disappears_go_to_another(world: World) {
    let mut scene = Scene::new(world);
    let id = scene.job("q").await;
    let got = scene.claim(claim("gone", &["q"])).await;
    let attempt = of(&got[0]);
    let sweeper = Sweeper::new(
        Arc::clone(&scene.world.engine),
        SweeperConfig::new("server".to_owned()),
    );
    for _ in 0..7 {
        sweeper.pass(scene.world.engine.now()).await.unwrap();
        scene.world.clock.advance(seconds(5.0));
    }
    assert_eq!(scene.attempt(id).await, (1, false));
    let told = [
        "enqueued",
        "claimed",
        "started",
        "lost",
        "failure_group_created",
        "retried",
    ];
    assert_eq!(scene.names(id), told);
    let got = scene.claim(claim("next", &["q"])).await;
    assert_eq!((ids(&got), got[0].attempt), (vec![id], 2));
    let late = scene
        .settle("gone", attempt, WorkerReport::Succeeded(None))
        .await;
    assert_eq!(late, RemoteSettled::LeaseLost(Lost::Over));
    let renewal = scene.remote.renew(&named("gone"), &[attempt], None).await;
    let lost = RemoteRenewed::LeaseLost(Lost::Over);
    assert_eq!(renewal.unwrap().leases, [lost]);
    assert_eq!(scene.attempt(id).await, (2, true));
}

async fn local_and_remote_workers_are_listed_in_the_same_format(world: World) {
    let scene = Scene::new(world);
    let (local, _) = worker(3).succeeds("a").build(&scene.world);
    local.pass(&scene.world.clock).await.unwrap();
    let queue = windlass_core::QueueName::default();
    let about = WorkerDescription {
        queues: Some(vec![queue.clone()]),
        slots: Some(4),
        ..WorkerDescription::default()
    };
    let name = "registered".parse().unwrap();
    scene.remote.register(&name, &about).await.unwrap();
    scene.claim(claim("claims", &["default"])).await;
    let nodes = scene.world.engine.store().nodes().await.unwrap();
    let now = scene.world.engine.now();
    let all = scene.remote.workers(nodes.clone(), "", 10, now).await;
    let kind = world::kind("a");
    let seen: Vec<_> = all
        .unwrap()
        .into_iter()
        .map(|node| {
            let takes = WorkerDescription::takes(&node.about, &queue, &kind, &[].into());
            (node.name, node.about["slots"].clone(), takes)
        })
        .collect();
    let expected = [
        ("claims".to_owned(), json!(null), true),
        ("registered".to_owned(), json!(4), true),
        ("w1".to_owned(), json!(3), true),
    ];
    assert_eq!(seen, expected);
    let page = scene.remote.workers(nodes, "claims", 1, now).await;
    assert_eq!(page.unwrap()[0].name, "registered");
    let forgotten = scene.remote.forget_worker(&name).await.unwrap();
    assert!(forgotten.is_some());
    assert!(scene.remote.worker(&name).await.unwrap().is_none());
    assert!(scene.remote.forget_worker(&name).await.unwrap().is_none());
}

windlass_testkit::on_every_store! {
    an_outcome_is_settled_once_and_only_for_its_worker;
    a_remote_attempt_leaves_the_history_and_the_events_of_a_local_one;
    progress_is_kept_for_the_running_attempt_and_within_bounds;
    the_end_of_an_attempt_leaves_the_progress_of_the_next_alone;
    a_renewal_extends_a_lease_and_reports_a_cancelled_job;
    an_attempt_ends_with_its_timeout_no_matter_what_its_worker_reports;
    the_jobs_of_a_worker_that_disappears_go_to_another;
    local_and_remote_workers_are_listed_in_the_same_format;
}
