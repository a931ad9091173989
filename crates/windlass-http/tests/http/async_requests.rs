//! Async requests: the target responds with 202 and reports the outcome later with a token.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::admin::client_of;
use windlass_core::{DeadReason, FinalState, JobId, Outcome, Payload, State, StateDetails};
use windlass_http::{Completed, Completion, HttpConfig, HttpJobs, complete};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{Change, Store};
use windlass_testkit::Faulty;

use crate::support::{Reply, Target, World, error_of, local, t0, timeline};

fn later(target: &Target) -> Value {
    json!({"url": target.url("/"), "async": true, "complete_within": "10m"})
}

fn done(result: Value) -> Completion {
    Completion::Succeeded(Some(result))
}

fn failed(retryable: bool) -> Completion {
    Completion::Failed {
        error: "no stock".to_owned(),
        retryable,
    }
}

fn token(target: &Target, request: usize) -> String {
    let seen = target.seen();
    let headers = &seen.get(request).expect("so many requests").headers;
    let token = headers.get("windlass-completion-token");
    token.expect("a token").clone()
}

/// A world with a job whose target responded with 202.
async fn accepted(store: Arc<dyn Store>) -> (World, Target, JobId) {
    let target = Target::replying(&[Reply::Status(202)]).await;
    let world = World::of(HttpJobs::new(local()).expect("settings"), store);
    let id = world.enqueue(later(&target)).await;
    world.worker.pass(&world.clock).await.expect("a store");
    (world, target, id)
}

async fn report(world: &World, token: &str, completion: &Completion) -> Completed {
    let client = client_of(Arc::clone(&world.engine));
    let reported = complete(&client, token, completion);
    reported.await.expect("a store")
}

#[tokio::test]
async fn the_target_reports_success_later() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    assert_eq!(world.state(id).await, State::Waiting);
    world.clock.advance(Duration::from_secs(60));
    let token = token(&target, 0);
    assert_eq!(
        report(&world, &token, &done(json!({"sku": 7}))).await,
        Completed::Taken(id)
    );
    world.worker.pass(&world.clock).await.unwrap();
    let (job, history) = (world.job(id).await, world.history(id).await);
    assert_eq!(job.state(), State::Succeeded);
    let StateDetails::Finished(end) = &job.state_details else {
        panic!("{:?}", job.state_details);
    };
    let result = Payload::parse(r#"{"sku":7}"#, 100).unwrap();
    assert_eq!(end.state, FinalState::Succeeded(Some(result)));
    let expected = [(0.0, 0, Outcome::Snoozed), (60.0, 0, Outcome::Succeeded)];
    assert_eq!(timeline(&history), expected);
    assert_eq!(job.failures, 0);
    assert_eq!(target.seen().len(), 1, "it is not sent again");
    let detail = history[1].detail.clone().unwrap();
    assert_eq!(detail["completion"]["result"]["sku"], 7);
}

#[tokio::test]
async fn a_token_is_good_once() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    let token = token(&target, 0);
    assert_eq!(
        report(&world, &token, &done(json!(1))).await,
        Completed::Taken(id)
    );
    assert_eq!(
        report(&world, &token, &done(json!(1))).await,
        Completed::Repeated(id)
    );
    assert_eq!(
        report(&world, &token, &failed(true)).await,
        Completed::TooLate(id)
    );
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
    assert_eq!(
        report(&world, &token, &done(json!(1))).await,
        Completed::Repeated(id)
    );
}

#[tokio::test]
async fn a_request_cannot_be_completed_without_its_token() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    let good = token(&target, 0);
    let mut guessed = good.clone();
    guessed.pop();
    let other_attempt = good.replacen("_1_", "_2_", 1);
    for bad in [
        "",
        "wlc_",
        &guessed,
        &other_attempt,
        &id.to_string(),
        &"x".repeat(100_000),
    ] {
        assert_eq!(
            report(&world, bad, &done(json!(1))).await,
            Completed::Unknown,
            "{bad}"
        );
    }
    assert_eq!(world.state(id).await, State::Waiting);
    let kept = world
        .engine
        .store()
        .documents("completions", world.engine.now())
        .await
        .unwrap();
    let secret = good.rsplit('_').next().unwrap();
    assert!(
        !kept[0].value.to_string().contains(secret),
        "only a hash is kept"
    );
}

#[tokio::test]
async fn a_reported_failure_is_retried_with_a_new_request_and_a_new_token() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    let first = token(&target, 0);
    assert_eq!(
        report(&world, &first, &failed(true)).await,
        Completed::Taken(id)
    );
    world
        .worker
        .run_through(&world.clock, t0().saturating_add(Duration::from_secs(5)))
        .await
        .unwrap();
    let history = world.history(id).await;
    let expected = [
        (0.0, 0, Outcome::Snoozed),
        (0.0, 0, Outcome::Failed),
        (1.0, 1, Outcome::Snoozed),
    ];
    assert_eq!(timeline(&history), expected);
    assert_eq!(error_of(&history[1]), "no stock");
    assert_eq!(target.seen().len(), 2);
    let second = token(&target, 1);
    assert_ne!(first, second);
    assert_eq!(
        report(&world, &first, &done(json!(1))).await,
        Completed::Unknown,
        "the old one is void"
    );
    assert_eq!(
        report(&world, &second, &done(json!(2))).await,
        Completed::Taken(id)
    );
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
}

#[tokio::test]
async fn a_reported_failure_that_is_not_retryable_ends_the_job() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    report(&world, &token(&target, 0), &failed(false)).await;
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(
        world.state(id).await,
        State::Dead(DeadReason::Unrecoverable)
    );
}

#[tokio::test]
async fn a_target_that_never_reports_has_failed_at_its_deadline() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    let end = t0().saturating_add(Duration::from_secs(602));
    world.worker.run_through(&world.clock, end).await.unwrap();
    let history = world.history(id).await;
    let expected = [
        (0.0, 0, Outcome::Snoozed),
        (600.0, 0, Outcome::Failed),
        (601.0, 1, Outcome::Snoozed),
    ];
    assert_eq!(timeline(&history), expected);
    assert!(error_of(&history[1]).contains("did not report the outcome within 10m"));
    assert_eq!(
        report(&world, &token(&target, 0), &done(json!(1))).await,
        Completed::Unknown
    );
}

#[tokio::test]
async fn an_outcome_reported_after_the_deadline_is_too_late() {
    let (world, target, id) = accepted(Arc::new(MemoryStore::new())).await;
    world.clock.advance(Duration::from_secs(600));
    assert_eq!(
        report(&world, &token(&target, 0), &done(json!(1))).await,
        Completed::TooLate(id)
    );
    world
        .engine
        .store()
        .change(&[id], &Change::Cancel, None, world.engine.now())
        .await
        .unwrap();
    assert_eq!(
        report(&world, &token(&target, 0), &done(json!(1))).await,
        Completed::TooLate(id)
    );
}

#[tokio::test]
async fn a_target_may_report_before_it_responds() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let world = World::of(HttpJobs::new(local()).unwrap(), store);
    let engine = Arc::clone(&world.engine);
    let told = Arc::new(tokio::sync::Notify::new());
    let telling = Arc::clone(&told);
    // The target responds only after its report is stored.
    let target = Target::start(move |seen| {
        let token = seen.headers["windlass-completion-token"].clone();
        let (engine, telling) = (Arc::clone(&engine), Arc::clone(&telling));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let early = async {
                let (client, completion) = (client_of(Arc::clone(&engine)), done(json!("early")));
                tokio::select! {
                    taken = complete(&client, &token, &completion) => assert!(matches!(taken.unwrap(), Completed::Taken(_))),
                    // `complete` waits for the attempt to end; the record is written before.
                    () = written(&engine) => {}
                }
                telling.notify_one();
            };
            runtime.block_on(early);
        });
        thread.join().unwrap();
        Reply::Status(202)
    })
    .await;
    let id = world.enqueue(later(&target)).await;
    world.worker.pass(&world.clock).await.unwrap();
    told.notified().await;
    let history = world.history(id).await;
    assert_eq!(
        timeline(&history),
        [(0.0, 0, Outcome::Succeeded)],
        "one attempt is enough"
    );
}

async fn written(engine: &windlass_engine::Engine) {
    loop {
        let kept = engine
            .store()
            .documents("completions", engine.now())
            .await
            .expect("a store");
        if kept.iter().any(|one| {
            one.value
                .get("completion")
                .is_some_and(|reported| !reported.is_null())
        }) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_async_request_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let open = |now| SqliteStore::open(&path, now, 1).unwrap();
    let (world, target, id) = accepted(Arc::new(open(t0()))).await;
    let token = token(&target, 0);
    drop(world); // as a process that ends
    let world = World::of(HttpJobs::new(local()).unwrap(), Arc::new(open(t0())));
    assert_eq!(
        report(&world, &token, &done(json!(1))).await,
        Completed::Taken(id)
    );
    // The attempt that would settle the job crashes first; the next one settles it.
    world
        .worker
        .crash_before_settle(&world.clock)
        .await
        .unwrap();
    drop(world);
    let world = World::of(HttpJobs::new(local()).unwrap(), Arc::new(open(t0())));
    world.worker.drain(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
    assert_eq!(target.seen().len(), 1, "the target is asked once");
}

#[tokio::test]
async fn the_completion_url_is_sent_if_it_is_configured() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let base = "https://jobs.example/api/v1/completions/";
    let world = World::with(HttpConfig {
        completion_url: Some(base.to_owned()),
        ..local()
    });
    let (job, _) = world.deliver(later(&target)).await;
    assert_eq!(job.state(), State::Succeeded, "200 is done at once");
    let seen = &target.seen()[0].headers;
    let expected = format!("{base}{}", seen["windlass-completion-token"]);
    assert_eq!(seen["windlass-completion-url"], expected);
}

#[tokio::test]
async fn the_record_expires_a_month_after_the_deadline_of_the_target() {
    let target = Target::replying(&[Reply::Status(202)]).await;
    let world = World::new();
    let payload = json!({"url": target.url("/"), "async": true, "complete_within": "5d"});
    let id = world.enqueue(payload).await;
    world.worker.pass(&world.clock).await.unwrap();
    let day = Duration::from_secs(24 * 3600);
    let kept = async |days: u32| {
        world.clock.advance(days * day);
        world.worker.tidy().await.unwrap();
        world
            .engine
            .store()
            .documents("completions", world.engine.now())
            .await
            .unwrap()
            .len()
    };
    assert_eq!(kept(4).await, 1, "the target has time yet");
    assert_eq!(
        report(&world, &token(&target, 0), &done(json!(1))).await,
        Completed::Taken(id)
    );
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
    assert_eq!(kept(30).await, 1, "the answer may come again");
    assert_eq!(kept(2).await, 0);
}

#[tokio::test]
async fn a_request_that_succeeded_is_not_resent_if_its_response_was_lost() {
    let target = Target::replying(&[Reply::Reset, Reply::Status(202)]).await;
    let world = World::new();
    let id = world.enqueue(later(&target)).await;
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.history(id).await[0].outcome, Outcome::Failed);
    let token = token(&target, 0);
    assert_eq!(
        report(&world, &token, &done(json!(1))).await,
        Completed::Taken(id)
    );
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
    assert_eq!(target.seen().len(), 1);
}

// The first report was stored, but the job was not made due; the second report makes it due.
#[tokio::test]
async fn a_repeated_report_finishes_an_interrupted_one() {
    let store = Faulty::new(Arc::new(MemoryStore::new()));
    let (world, target, id) = accepted(Arc::clone(&store) as _).await;
    let token = token(&target, 0);
    store.fail("change");
    let client = client_of(Arc::clone(&world.engine));
    let cut = complete(&client, &token, &done(json!(1))).await;
    assert!(cut.is_err());
    store.heal();
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Waiting, "it is not due yet");
    let again = report(&world, &token, &done(json!(1))).await;
    assert_eq!(again, Completed::Repeated(id));
    world.worker.pass(&world.clock).await.unwrap();
    assert_eq!(world.state(id).await, State::Succeeded);
}
