//! The jobs and leases that a claim gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::sync::Notify;
use windlass_core::fairness::{ClaimQueue, QueueOrder};
use windlass_core::{AttemptError, Failure, Job, Kind, Outcome, WorkerReport};
use windlass_engine::QUEUE_SETTINGS;
use windlass_engine::remote::{
    Admission, ClaimError, Remote, RemoteClaim, RemoteConfig, RemoteError,
};
use windlass_store::Expected;

use crate::remote::scene::{Key, Scene, claim, ids, named, of};
use windlass_testkit::world::{World, kind, new_job, seconds};

async fn a_claim_with_an_id_is_repeated_for_its_worker_only(world: World) {
    let scene = Scene::new(world);
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(scene.job("q").await);
        scene.world.clock.advance(seconds(0.001));
    }
    let twice = |by: &str| RemoteClaim {
        limit: 2,
        claim_id: Some("c".to_owned()),
        ..claim(by, &["q"])
    };
    let first = scene.claim(twice("w")).await;
    assert_eq!(ids(&first), jobs[..2]);
    let again = scene.claim(twice("w")).await;
    assert_eq!(ids(&again), jobs[..2], "the same, and no other");
    assert_eq!(scene.attempt(jobs[0]).await, (1, true));
    assert_eq!(ids(&scene.claim(twice("other")).await), jobs[2..]);
    let done = WorkerReport::Succeeded(None);
    scene.settle("w", of(&first[0]), done).await;
    let rest = scene.claim(twice("w")).await;
    assert_eq!(ids(&rest), jobs[1..2], "what still runs");
}

async fn queues_take_turns_by_weight_or_in_order(world: World) {
    let scene = Scene::new(world);
    for _ in 0..8 {
        scene.job("a").await;
        scene.job("b").await;
    }
    let weighted = || {
        let mut one = claim("w", &["a", "b"]);
        let queues = one.queues.iter_mut().flatten();
        queues.zip([3, 1]).for_each(|(queue, weight)| {
            *queue = ClaimQueue {
                weight,
                ..queue.clone()
            };
        });
        one
    };
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(scene.claim(weighted()).await);
    }
    let from = |jobs: &[Job], queue: &str| {
        let from = jobs.iter().filter(|job| job.queue.as_str() == queue);
        from.count()
    };
    assert_eq!(
        (from(&got, "a"), from(&got, "b")),
        (3, 1),
        "over four claims"
    );
    let strict = RemoteClaim {
        order: QueueOrder::Strict,
        limit: 9,
        ..claim("w", &["b", "a"])
    };
    let got = scene.claim(strict).await;
    assert_eq!((from(&got, "b"), from(&got, "a")), (7, 2));
    let rest = RemoteClaim {
        limit: 100,
        ..claim("w", &["b", "a"])
    };
    assert_eq!(
        from(&scene.claim(rest).await, "a"),
        3,
        "what one leaves, the other gets"
    );
}

async fn a_lane_of_retries_limits_how_many_a_remote_worker_holds(world: World) {
    let scene = Scene::new(world);
    let store = scene.world.engine.store();
    let set = json!({"retry_lane": 2, "retry_fetch_ratio": 1.0});
    let put = store.put_document(
        QUEUE_SETTINGS,
        "q",
        &set,
        Expected::Absent,
        None,
        scene.world.engine.now(),
    );
    put.await.unwrap();
    for _ in 0..4 {
        scene.job("q").await;
    }
    let all = RemoteClaim {
        limit: 10,
        slots: Some(10),
        ..claim("w", &["q"])
    };
    for job in scene.claim(all.clone()).await {
        let failed = WorkerReport::Failed(Failure::retryable(AttemptError::new("x")));
        scene.settle("w", of(&job), failed).await;
    }
    scene.world.clock.advance(seconds(1.0));
    scene.job("q").await;
    let got = scene.claim(all.clone()).await;
    let retries = got.iter().filter(|job| job.failures > 0).count();
    assert_eq!((retries, got.len()), (2, 3), "and the fresh one");
    let busy = RemoteClaim {
        retries_running: 2,
        ..all
    };
    assert_eq!(scene.claim(busy).await.len(), 0, "it holds two already");
}

async fn a_lease_that_is_worn_is_renewed_before_it_is_handed_out(world: World) {
    let (scene, slow) = Scene::slow(world);
    let id = scene.job("q").await;
    slow.takes("claim", seconds(11.0));
    let got = scene.claim(claim("w", &["q"])).await;
    let until = scene.world.engine.now().saturating_add(seconds(30.0));
    assert_eq!(got[0].lease().unwrap().until, until);
    let stored = scene.world.job(id).await;
    assert_eq!(stored.lease().unwrap().until, until);
}

async fn a_worn_lease_that_cannot_be_renewed_is_given_back(world: World) {
    let (mut scene, slow) = Scene::slow(world);
    let id = scene.job("q").await;
    slow.takes("claim", seconds(11.0));
    slow.fails("renew");
    assert_eq!(scene.claim(claim("w", &["q"])).await.len(), 0);
    assert_eq!(scene.attempt(id).await, (1, false), "it waits again");
    let told = ["enqueued", "claimed", "started", "released"];
    assert_eq!(scene.names(id), told);
}

async fn a_key_that_is_revoked_while_the_store_claims_gives_the_jobs_back(world: World) {
    let mut scene = Scene::new(world);
    let id = scene.job("q").await;
    let refused = scene.ask(claim("w", &["q"]), Key::good_for(1)).await;
    assert!(matches!(refused, Err(ClaimError::Refused("revoked"))));
    assert_eq!(scene.attempt(id).await, (1, false));
    let outcomes = scene.world.timeline(id).await;
    assert_eq!(outcomes, [(0.0, Outcome::Released)]);
    assert_eq!(
        scene.names(id),
        ["enqueued", "claimed", "started", "released"]
    );
    // An earlier request with the same claim id may have handed out the jobs.
    let with_id = RemoteClaim {
        claim_id: Some("c".to_owned()),
        ..claim("w", &["q"])
    };
    let got = scene.claim(with_id.clone()).await;
    assert_eq!(ids(&got), [id]);
    scene.world.clock.advance(seconds(1.0));
    let refused = scene.ask(with_id, Key::good_for(0)).await;
    assert!(matches!(refused, Err(ClaimError::Refused("revoked"))));
    assert_eq!(scene.attempt(id).await, (2, true), "it is still held");
}

/// A key whose second check waits for the test.
#[derive(Debug, Clone, Default)]
struct Gate {
    checks: Arc<AtomicUsize>,
    reached: Arc<Notify>,
    open: Arc<Notify>,
}

impl Admission for Gate {
    type Refusal = &'static str;
    type Permit = ();

    async fn check(&self) -> Result<(), &'static str> {
        if self.checks.fetch_add(1, Ordering::SeqCst) == 1 {
            self.reached.notify_one();
            self.open.notified().await;
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

async fn a_late_claim_gives_nothing_back_that_its_repetition_got_from_another_server(world: World) {
    let (scene, slow) = Scene::slow(world);
    let with_id = RemoteClaim {
        claim_id: Some("c".to_owned()),
        ..claim("w", &["q"])
    };
    let other = Arc::new(Remote::new(&scene.world.engine, RemoteConfig::default()));
    let (gate, late, stop) = (Gate::default(), with_id.clone(), scene.stop.clone());
    let key = gate.clone();
    let late = tokio::spawn(async move { other.claim(late, key, &stop).await });
    gate.reached.notified().await;
    let id = scene.job("q").await;
    assert_eq!(ids(&scene.claim(with_id).await), [id]);
    scene.world.clock.advance(seconds(20.0));
    slow.fails("renew");
    gate.open.notify_one();
    let late = late.await.unwrap().unwrap();
    assert_eq!(late.jobs, [], "its lease is worn and cannot be renewed");
    assert_eq!(scene.attempt(id).await, (1, true), "the worker runs it");
}

async fn a_claim_gets_only_the_jobs_kinds_and_queues_that_it_names(world: World) {
    let scene = Scene::new(world);
    let http = scene
        .world
        .enqueue(windlass_core::NewJob {
            queue: "q".parse().unwrap(),
            ..windlass_core::NewJob::new(Kind::new("http").unwrap())
        })
        .await;
    let id = scene.job("q").await;
    let other = scene.job("other").await;
    let all = RemoteClaim {
        limit: 10,
        ..claim("w", &["q"])
    };
    assert_eq!(
        ids(&scene.claim(all).await),
        [id],
        "a reserved kind must be named"
    );
    let meant = RemoteClaim {
        kinds: Some([Kind::new("http").unwrap()].into()),
        ..claim("w", &["q"])
    };
    assert_eq!(ids(&scene.claim(meant).await), [http]);
    let by_id = RemoteClaim {
        jobs: Some([other].into()),
        ..RemoteClaim::new(named("w"))
    };
    assert_eq!(
        ids(&scene.claim(by_id).await),
        [other],
        "in the queue of the job"
    );
    let default = scene.world.enqueue(new_job("a")).await;
    let unnamed = RemoteClaim {
        kinds: Some([kind("a")].into()),
        ..RemoteClaim::new(named("w"))
    };
    assert_eq!(ids(&scene.claim(unnamed).await), [default]);
    for lease in [seconds(0.0), seconds(3601.0)] {
        let long = RemoteClaim {
            lease: Some(lease),
            ..claim("w", &["q"])
        };
        let refused = scene.ask(long, Key::good()).await.unwrap_err();
        let ClaimError::Remote(RemoteError::Invalid(invalid)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(invalid.field(), "lease");
    }
}

windlass_testkit::on_every_store! {
    a_claim_with_an_id_is_repeated_for_its_worker_only;
    a_late_claim_gives_nothing_back_that_its_repetition_got_from_another_server;
    queues_take_turns_by_weight_or_in_order;
    a_lane_of_retries_limits_how_many_a_remote_worker_holds;
    a_lease_that_is_worn_is_renewed_before_it_is_handed_out;
    a_worn_lease_that_cannot_be_renewed_is_given_back;
    a_key_that_is_revoked_while_the_store_claims_gives_the_jobs_back;
    a_claim_gets_only_the_jobs_kinds_and_queues_that_it_names;
}
