//! Jobs and workers, on a real server.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass_client::api::{
    BulkMode, BulkResult, DurationText, Edit, Job, JobFilter, JobLog, JobState, Json, LogParams,
    NewJob, Retry, Revival, Scope,
};
use windlass_client::core::retry::Preset;
use windlass_client::core::{JobId, Kind, Outcome, Payload, QueueName, WorkerName};
use windlass_client::{Attempt, Client, Error, Failure, Handled, Worker};

use crate::support::{Script, Server, Step, new_key};

#[expect(dead_code, reason = "the test is its own `main`")]
#[path = "../../examples/remote_worker.rs"]
mod remote_worker;

/// The longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

fn new_job(kind: &str, payload: &serde_json::Value) -> NewJob {
    NewJob {
        payload: Some(Json(Payload::from_stored(&payload.to_string()))),
        retry: Some(Retry::Preset(Preset::Immediate)),
        ..NewJob::new(Kind::new(kind).expect("it works"))
    }
}

async fn enqueue(client: &Client, kind: &str) -> JobId {
    client
        .create_job(&new_job(kind, &json!({})))
        .await
        .expect("it works")
        .id
}

async fn finished(client: &Client, id: JobId) -> Job {
    client.wait_for_job(id, PATIENCE).await.expect("it works")
}

/// A worker in the background.
struct BackgroundWorker {
    stop: CancellationToken,
    ended: JoinHandle<Result<(), Error>>,
}

impl BackgroundWorker {
    fn start<H, F>(worker: Worker, handler: H) -> Self
    where
        H: Fn(Attempt) -> F + Send + Sync + 'static,
        F: Future<Output = Handled> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let ended = tokio::spawn(worker.run(handler, stop.clone()));
        BackgroundWorker { stop, ended }
    }

    async fn end(self) -> Result<(), Error> {
        self.stop.cancel();
        self.ended().await
    }

    async fn ended(self) -> Result<(), Error> {
        let ended = tokio::time::timeout(PATIENCE, self.ended).await;
        ended.expect("the worker ends").expect("it does not panic")
    }
}

fn worker(client: &Client) -> Worker {
    let worker = Worker::new(client.clone(), "w").expect("it works");
    worker.lease(Duration::from_secs(1))
}

#[tokio::test]
async fn the_example_runs_jobs_until_it_is_stopped() {
    let server = Server::start().await;
    let client = server.client();
    let stop = CancellationToken::new();
    let greet = |payload| new_job("greet", &payload);
    let (good, bad) = (greet(json!({"name": "Ada"})), greet(json!({"nome": 1})));
    let good = client.create_job(&good).await.unwrap().id;
    let bad = client.create_job(&bad).await.unwrap().id;
    let working = async {
        let done = finished(&client, good).await;
        let result: serde_json::Value = done.result.unwrap().0.decode().unwrap();
        assert_eq!(result, json!({"greeting": "hello, Ada"}));
        let dead = finished(&client, bad).await;
        assert_eq!((dead.state, dead.failures), (JobState::Dead, 1));
        assert!(dead.last_error.unwrap().contains("name"));
        stop.cancel();
    };
    let (ran, ()) = tokio::join!(remote_worker::run(client.clone(), stop.clone()), working);
    ran.unwrap();
    assert!(
        client.workers().all().await.unwrap().is_empty(),
        "it signed off"
    );
}

#[tokio::test]
async fn attempts_are_settled_with_the_outcome_of_their_handler() {
    let server = Server::start().await;
    let client = server.client();
    let started = BackgroundWorker::start(worker(&client).slots(3), |attempt| async move {
        match (attempt.job.kind.as_str(), attempt.job.attempt) {
            ("panics", _) => panic!("as it says"),
            ("flaky", 1) => Err(Failure::new("not yet")),
            ("hopeless", _) => Err(Failure::from(std::fmt::Error).unrecoverable()),
            _ => Ok(json!(attempt.job.attempt)),
        }
    });
    for (kind, state, attempt, error) in [
        ("plain", JobState::Succeeded, 1, None),
        ("flaky", JobState::Succeeded, 2, Some("not yet")),
        ("hopeless", JobState::Dead, 1, Some("an error occurred")),
        ("panics", JobState::Dead, 3, Some("panicked")),
    ] {
        let job = finished(&client, enqueue(&client, kind).await).await;
        assert_eq!((job.state, job.attempt), (state, attempt), "{kind}");
        if let Some(error) = error {
            assert!(job.last_error.unwrap().contains(error), "{kind}");
        }
    }
    started.end().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_job_is_stopped_and_its_progress_is_visible() {
    let server = Server::start().await;
    let client = server.client();
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let started = BackgroundWorker::start(worker(&client), move |attempt: Attempt| {
        let begins = Arc::clone(&begins);
        async move {
            attempt.progress(&json!({"percent": 50})).await?;
            begins.notify_one();
            attempt.stop.cancelled().await;
            Err(Failure::new("stopped"))
        }
    });
    let id = enqueue(&client, "long").await;
    begun.notified().await;
    let running = client.job(id).await.unwrap();
    assert_eq!(running.progress, Some(json!({"percent": 50})));
    assert!(client.cancel_job(id).await.unwrap().cancel_requested);
    assert_eq!(finished(&client, id).await.state, JobState::Cancelled);
    started.end().await.unwrap();
}

#[tokio::test]
async fn log_lines_arrive_while_the_handler_runs_and_the_last_ones_with_the_outcome() {
    let server = Server::start().await;
    let client = server.client();
    let goes_on = Arc::new(Notify::new());
    let waits = Arc::clone(&goes_on);
    let started = BackgroundWorker::start(worker(&client), move |attempt: Attempt| {
        let waits = Arc::clone(&waits);
        async move {
            attempt.log("first\nsecond");
            waits.notified().await;
            attempt.log("last\0");
            Ok(json!(null))
        }
    });
    let id = enqueue(&client, "chatty").await;
    let mut params = LogParams {
        wait: Some(DurationText(PATIENCE)),
        ..LogParams::default()
    };
    let running = client.job_log(id, &params).await.unwrap();
    let texts = |log: &JobLog| -> Vec<String> {
        let lines = log.data.iter();
        lines.map(|line| line.line.clone()).collect()
    };
    assert_eq!(texts(&running), ["first", "second"]);
    assert_eq!((running.state, running.outcome), (JobState::Running, None));
    goes_on.notify_one();
    params.after = Some(running.next_after);
    finished(&client, id).await;
    let ended = client.job_log(id, &params).await.unwrap();
    assert_eq!(texts(&ended), ["last\u{fffd}"]);
    assert_eq!(ended.outcome, Some(Outcome::Succeeded));
    started.end().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_renewed_and_shutdown_waits_for_the_running_job() {
    let server = Server::start().await;
    let client = server.client();
    let (begun, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, waits) = (Arc::clone(&begun), Arc::clone(&goes_on));
    let started = BackgroundWorker::start(worker(&client), move |_| {
        let (begins, waits) = (Arc::clone(&begins), Arc::clone(&waits));
        async move {
            begins.notify_one();
            waits.notified().await;
            Ok(json!(null))
        }
    });
    let id = enqueue(&client, "long").await;
    begun.notified().await;
    let first = client.job(id).await.unwrap().lease_until.unwrap();
    started.stop.cancel();
    let renewed = async {
        while client.job(id).await.unwrap().lease_until.unwrap() <= first {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed)
        .await
        .expect("it is renewed");
    goes_on.notify_one();
    started.ended().await.unwrap();
    assert_eq!(client.job(id).await.unwrap().state, JobState::Succeeded);
}

#[tokio::test]
async fn a_job_that_runs_longer_than_the_grace_is_released() {
    let server = Server::start().await;
    let client = server.client();
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let started = BackgroundWorker::start(worker(&client).grace(Duration::ZERO), move |_| {
        begins.notify_one();
        std::future::pending()
    });
    let id = enqueue(&client, "endless").await;
    begun.notified().await;
    started.end().await.unwrap();
    let job = client.job(id).await.unwrap();
    assert_eq!((job.state, job.failures), (JobState::Ready, 0));
}

#[tokio::test]
async fn an_operator_pauses_resumes_and_stops_a_worker() {
    let server = Server::start().await;
    let client = server.client();
    let (name, queue) = (WorkerName::new("w").unwrap(), QueueName::new("q").unwrap());
    let short = Duration::from_millis(100);
    let quick = worker(&client).queue(queue.clone()).wait(short);
    let started = BackgroundWorker::start(quick, |_| async { Ok(json!(1)) });
    let job = |kind: &str| NewJob {
        queue: Some(queue.clone()),
        ..new_job(kind, &json!({}))
    };
    let first = client.create_job(&job("a")).await.unwrap().id;
    assert_eq!(finished(&client, first).await.state, JobState::Succeeded);
    client.pause_worker_claims(&name).await.unwrap();
    client.resume_worker(&name).await.unwrap();
    let second = client.create_job(&job("b")).await.unwrap().id;
    assert_eq!(finished(&client, second).await.state, JobState::Succeeded);
    client.stop_worker(&name).await.unwrap();
    started.ended().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_the_server_refuses_returns_the_reason() {
    let server = Server::start().await;
    let admin = server.admin_key().await;
    let admin = server.builder().key(&admin.key).build().unwrap();
    let weak = admin.create_key(&new_key(Scope::Read)).await.unwrap();
    let weak = server.builder().key(&weak.key).build().unwrap();
    let refused = BackgroundWorker::start(worker(&weak), |_| async { Ok(json!(1)) });
    assert_eq!(
        refused.ended().await.unwrap_err().code(),
        Some("scope_missing")
    );
}

#[tokio::test]
async fn jobs_are_created_in_bulk_listed_and_deleted() {
    let server = Server::start().await;
    let client = server.client();
    let mut jobs = vec![new_job("a", &json!(1)), new_job("b", &json!(2))];
    let created = client
        .create_jobs(&jobs, BulkMode::AllOrNone)
        .await
        .unwrap();
    assert_eq!(created.created, 2);
    let of_b = JobFilter {
        kind: Some(Kind::new("b").unwrap()),
        ..JobFilter::default()
    };
    let listed = client.jobs(&of_b).limit(1).all().await.unwrap();
    let [job] = &listed[..] else {
        panic!("one job: {listed:?}");
    };
    assert_eq!(job.payload, Some(Json(Payload::from_stored("2"))));
    jobs[0].timeout_ms = None;
    jobs[0].limit = windlass_client::api::BoundedInt::new(3); // invalid without a concurrency key
    let refused = client
        .create_jobs(&jobs, BulkMode::AllOrNone)
        .await
        .unwrap_err();
    assert_eq!(
        refused.problem().unwrap().errors[0].pointer,
        "/jobs/0/limit"
    );
    let partly = client.create_jobs(&jobs, BulkMode::Each).await.unwrap();
    assert!(matches!(partly.data[0], BulkResult::Refused { .. }));
    assert_eq!((partly.created, partly.refused), (1, 1));
    let id = job.id;
    assert!(client.why(id).await.is_ok());
    assert_eq!(
        client.cancel_job(id).await.unwrap().state,
        JobState::Cancelled
    );
    assert_eq!(
        client
            .revive_job(id, &Revival::default())
            .await
            .unwrap()
            .state,
        JobState::Ready
    );
    assert_eq!(client.run_job_now(id).await.unwrap().state, JobState::Ready);
    let edit = Edit {
        priority: Some(7),
        ..Edit::default()
    };
    assert_eq!(client.edit_job(id, &edit).await.unwrap().priority, 7);
    assert_eq!(client.run_jobs_now(&[id]).await.unwrap().changed, 1);
    assert!(client.job_history(id).await.unwrap().is_empty());
    assert!(client.dead_letters(&of_b).all().await.unwrap().is_empty());
    client.cancel_job(id).await.unwrap();
    client.delete_job(id).await.unwrap();
    assert_eq!(client.job(id).await.unwrap_err().code(), Some("not_found"));
}

#[tokio::test]
async fn only_an_idempotency_key_makes_a_creation_repeatable() {
    let receipt = "201 Created\n\n{\"id\":\"018f4e2a-0000-7000-8000-000000000001\",\
                   \"duplicate\":false,\"payload_differs\":null,\"replaced\":false}";
    let job = new_job("a", &json!(1));
    let script = Script::start(&[Step::Close, Step::Answer(receipt)]).await;
    let client = Client::new(&script.url).unwrap();
    let broken = client.create_job(&job).await.unwrap_err();
    assert!(matches!(broken, Error::Broken { .. }), "{broken:?}");
    let script = Script::start(&[Step::Close, Step::Answer(receipt)]).await;
    let client = Client::new(&script.url)
        .unwrap()
        .idempotency_key("order-17");
    client.create_job(&job).await.unwrap();
    let requests = script.requests();
    assert_eq!(requests.len(), 2);
    assert!(
        requests
            .iter()
            .all(|one| one.contains("idempotency-key: order-17\r\n"))
    );
    let server = Server::start().await;
    let once = server.client().idempotency_key("order-18");
    let first = once.create_job(&job).await.unwrap();
    assert_eq!(once.create_job(&job).await.unwrap().id, first.id);
}

#[tokio::test(start_paused = true)]
async fn a_claim_adds_its_wait_to_the_timeout() {
    let script = Script::start(&[Step::Hang]).await;
    let client = Client::builder(&script.url).timeout(Duration::from_secs(5));
    let claim = windlass_client::api::Claim {
        wait: Some(windlass_client::api::DurationText(Duration::from_secs(20))),
        ..Default::default()
    };
    let error = client.build().unwrap().claim(&claim).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { after, .. } if after.as_secs() == 25));
}

/// Returns the claim ids of all claims that a script has received.
fn claim_ids(script: &Script) -> Vec<String> {
    let claims = script.requests().into_iter();
    let claims = claims.filter(|request| request.starts_with("POST /api/v1/claim "));
    let id = |claim: String| {
        let body: serde_json::Value = serde_json::from_str(claim.split_once("\r\n\r\n")?.1).ok()?;
        body.get("claim_id")?.as_str().map(str::to_owned)
    };
    claims.map(|claim| id(claim).expect("a claim id")).collect()
}

#[tokio::test]
async fn a_worker_repeats_a_claim_without_a_response_with_the_same_id() {
    let registered = "201 Created\n\n{\"name\":\"w\",\"about\":{},\"alive\":true,\"heartbeat_at\":\"2026-01-01T00:00:00Z\",\"heartbeat_age_ms\":0,\"signal\":null}";
    let empty = "200 OK\n\n{\"data\":[],\"signal\":null}";
    let mut steps = vec![Step::Answer(registered)];
    // The first heartbeat takes up to 3 of these. The client sends a claim 3 times before it fails.
    steps.extend(vec![Step::Close; 7]);
    steps.push(Step::Answer(empty));
    let script = Script::start(&steps).await;
    let worker = Worker::new(Client::new(&script.url).unwrap(), "w").unwrap();
    let worker = worker.lease(Duration::from_secs(3600));
    let started = BackgroundWorker::start(worker, |_| async { Ok(json!(null)) });
    let ids = loop {
        let ids = claim_ids(&script);
        if ids.iter().any(|id| *id != ids[0]) {
            break ids;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    started.ended.abort();
    let repeated = ids.iter().take_while(|id| **id == ids[0]).count();
    assert!(repeated > 3, "the failed claim is repeated: {ids:?}");
}
