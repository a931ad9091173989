//! Claims that wait: what wakes them, what ends them, and what happens to their jobs when no one
//! takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass_core::{NewJob, Start, WorkerReport};
use windlass_engine::remote::{ClaimError, RemoteClaim, Signal, Signalled};

use crate::remote::scene::{Answer, Key, Scene, claim, ids, of};
use windlass_testkit::world::{World, new_job, seconds};

fn waits(by: &str) -> RemoteClaim {
    RemoteClaim {
        wait: seconds(60.0),
        ..claim(by, &["q"])
    }
}

/// Waits for the answer of a claim, for a limited real time.
async fn answer(claim: tokio::task::JoinHandle<Answer>) -> Answer {
    let answered = tokio::time::timeout(Duration::from_secs(60), claim).await;
    answered.expect("it is answered").unwrap()
}

async fn a_claim_that_waits_is_woken_by_a_job(world: World) {
    let scene = Scene::new(world);
    let waiting = scene.wait(waits("w"), Key::good()).await;
    let id = scene.job("q").await;
    scene.world.clock.advance(seconds(0.3)); // a line pauses after an unsuccessful probe
    let got = answer(waiting).await.unwrap().jobs;
    assert_eq!(ids(&got), [id]);
    assert_eq!(scene.remote.waiting(), 0);
}

async fn a_claim_that_waits_finds_a_job_when_it_becomes_due(world: World) {
    let scene = Scene::new(world);
    let waiting = scene.wait(waits("w"), Key::good()).await;
    let later = NewJob {
        queue: "q".parse().unwrap(),
        start: Start::After(seconds(20.0)),
        ..new_job("a")
    };
    let id = scene.world.enqueue(later).await;
    scene.world.clock.advance(seconds(20.0));
    let got = answer(waiting).await.unwrap().jobs;
    assert_eq!(ids(&got), [id]);
}

async fn a_repeated_claim_whose_jobs_have_ended_neither_waits_nor_holds_others_up(world: World) {
    let scene = Scene::new(world);
    let named = || RemoteClaim {
        claim_id: Some("c".to_owned()),
        ..waits("a")
    };
    scene.job("q").await;
    let first = scene.claim(named()).await;
    scene
        .settle("a", of(&first[0]), WorkerReport::Succeeded(None))
        .await;
    let other = scene.wait(waits("b"), Key::good()).await;
    let repeated = scene.start(named(), Key::good());
    assert_eq!(answer(repeated).await.unwrap().jobs, [], "at once");
    let id = scene.job("q").await;
    scene.world.clock.advance(seconds(0.3)); // a line pauses after an unsuccessful probe
    assert_eq!(ids(&answer(other).await.unwrap().jobs), [id]);
}

async fn a_wait_ends_with_its_time_or_with_the_process(world: World) {
    let scene = Scene::new(world);
    let waiting = scene.wait(waits("w"), Key::good()).await;
    scene.world.clock.advance(seconds(60.0));
    assert_eq!(answer(waiting).await.unwrap().jobs, []);
    let waiting = scene.wait(waits("w"), Key::good()).await;
    scene.stop.cancel();
    assert_eq!(answer(waiting).await.unwrap().jobs, []);
}

async fn a_key_that_is_revoked_while_it_waits_gets_nothing(world: World) {
    let scene = Scene::new(world);
    // The key is valid before and after the first probe.
    let key = Key::good_for(2);
    let checks = Arc::clone(&key.checks);
    let waiting = scene.start(waits("w"), key);
    scene.until(|| checks.load(Ordering::SeqCst) == 0).await;
    let id = scene.job("q").await;
    scene.world.clock.advance(seconds(0.3));
    let refused = answer(waiting).await;
    assert!(matches!(refused, Err(ClaimError::Refused("revoked"))));
    assert_eq!(scene.attempt(id).await, (0, false), "it was not claimed");
}

async fn a_claim_without_a_permit_gets_what_there_is_and_does_not_wait(world: World) {
    let scene = Scene::new(world);
    let key = || Key {
        permits: AtomicUsize::new(0),
        ..Key::good()
    };
    let refused = scene.ask(waits("w"), key()).await;
    assert!(matches!(refused, Err(ClaimError::Refused("no permit"))));
    assert_eq!(scene.remote.waiting(), 0);
    let id = scene.job("q").await;
    let got = scene.ask(waits("w"), key()).await.unwrap().jobs;
    assert_eq!(ids(&got), [id]);
    let one = Key::good();
    one.permits.store(1, Ordering::SeqCst);
    let waiting = scene.wait(waits("w"), one).await;
    let id = scene.job("q").await;
    scene.world.clock.advance(seconds(0.3));
    assert_eq!(ids(&answer(waiting).await.unwrap().jobs), [id]);
}

async fn jobs_of_a_disconnected_client_are_given_back_unless_the_claim_can_be_repeated(
    world: World,
) {
    let (scene, slow) = Scene::slow(world);
    let id = scene.job("q").await;
    let held = slow.hold("claim");
    let claiming = scene.start(claim("w", &["q"]), Key::good());
    held.done.notified().await;
    assert_eq!(scene.attempt(id).await, (1, true));
    let given_back = slow.hold("settle");
    claiming.abort();
    assert!(claiming.await.is_err());
    held.answer.notify_one();
    given_back.done.notified().await;
    given_back.answer.notify_one();
    assert_eq!(scene.attempt(id).await, (1, false));
    let with_id = RemoteClaim {
        claim_id: Some("c".to_owned()),
        ..claim("w", &["q"])
    };
    let got = scene.claim(with_id.clone()).await;
    assert_eq!(ids(&got), [id]);
    let held = slow.hold("claim");
    let claiming = scene.start(with_id.clone(), Key::good());
    held.done.notified().await;
    claiming.abort();
    assert!(claiming.await.is_err());
    held.answer.notify_one();
    assert_eq!(ids(&scene.claim(with_id).await), [id]);
    assert_eq!(scene.attempt(id).await, (2, true));
}

async fn a_worker_with_paused_claims_waits_until_it_is_resumed_and_a_stopped_one_returns(
    world: World,
) {
    let scene = Scene::new(world);
    let name = "w".parse().unwrap();
    let waiting = scene.wait(waits("w"), Key::good()).await;
    let signalled = scene.remote.signal(&name, Some(Signal::PauseClaims)).await;
    let signalled = signalled.unwrap();
    let known = matches!(signalled, Signalled::Sent(_));
    assert!(known, "a worker that waits is known");
    scene.until(|| scene.remote.waiting() == 0).await;
    let id = scene.job("q").await;
    let quick = scene.ask(claim("w", &["q"]), Key::good()).await.unwrap();
    assert_eq!(
        (quick.jobs, quick.signal),
        (Vec::new(), Some(Signal::PauseClaims))
    );
    scene.remote.signal(&name, None).await.unwrap();
    let got = answer(waiting).await.unwrap();
    assert_eq!((ids(&got.jobs), got.signal), (vec![id], None));
    let waiting = scene.wait(waits("w"), Key::good()).await;
    scene
        .remote
        .signal(&name, Some(Signal::Stop))
        .await
        .unwrap();
    let got = answer(waiting).await.unwrap();
    assert_eq!((got.jobs, got.signal), (Vec::new(), Some(Signal::Stop)));
    let unknown = "unknown".parse().unwrap();
    let signalled = scene.remote.signal(&unknown, Some(Signal::Stop)).await;
    assert!(matches!(signalled.unwrap(), Signalled::Unknown));
}

async fn a_signal_that_another_process_sends_arrives(world: World) {
    let scene = Scene::new(world);
    let other = windlass_engine::remote::Remote::new(&scene.world.engine, Default::default());
    let waiting = scene.wait(waits("w"), Key::good()).await;
    let name = "w".parse().unwrap();
    other.signal(&name, Some(Signal::Stop)).await.unwrap();
    // One of the waiting claims reads the signals every 2 s.
    let answered = async {
        while !waiting.is_finished() {
            scene.world.clock.advance(seconds(0.001));
            tokio::task::yield_now().await;
        }
        waiting.await.unwrap().unwrap()
    };
    let answered = tokio::time::timeout(Duration::from_secs(60), answered).await;
    assert_eq!(answered.unwrap().signal, Some(Signal::Stop));
}

windlass_testkit::on_every_store! {
    a_claim_that_waits_is_woken_by_a_job;
    a_claim_that_waits_finds_a_job_when_it_becomes_due;
    a_repeated_claim_whose_jobs_have_ended_neither_waits_nor_holds_others_up;
    a_wait_ends_with_its_time_or_with_the_process;
    a_key_that_is_revoked_while_it_waits_gets_nothing;
    a_claim_without_a_permit_gets_what_there_is_and_does_not_wait;
    jobs_of_a_disconnected_client_are_given_back_unless_the_claim_can_be_repeated;
    a_worker_with_paused_claims_waits_until_it_is_resumed_and_a_stopped_one_returns;
    a_signal_that_another_process_sends_arrives;
}
