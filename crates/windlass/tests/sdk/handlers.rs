//! Handlers and workers as a program meets them: errors that say their class, old payloads, contexts, hooks, signals.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::admin::Page;
use windlass::events::StopReason;
use windlass::retry::{Backoff, Class, Classify, Jitter, RetryPolicy};
use windlass::testing::TestKit;
use windlass::{
    Client, Context, DeadReason, Error, Failure, Filter, Job, ListedState, Options, Outcome, Queue,
    Schedule, State, Worker,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

impl Job for Add {
    const KIND: &'static str = "add";
}

async fn add(job: Add, _: Context) -> Result<i64, Failure> {
    Ok(job.a + job.b)
}

#[derive(Serialize, Deserialize)]
struct Slow;

impl Job for Slow {
    const KIND: &'static str = "slow";
}

fn every_ten_seconds() -> RetryPolicy {
    let backoff = Backoff::Constant {
        delay: Duration::from_secs(10),
    };
    let policy = RetryPolicy::new(backoff, Jitter::None).unwrap();
    policy.with_max_attempts(3).unwrap()
}

#[derive(Debug, thiserror::Error)]
enum Bank {
    #[error("no such account")]
    NoAccount,
    #[error("slow down")]
    Busy,
}

impl Classify for Bank {
    fn class(&self) -> Class {
        match self {
            Bank::NoAccount => Class::Unrecoverable,
            Bank::Busy => Class::RetryAfter(Duration::from_secs(100)),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Pay {
    account: Option<String>,
}

impl Job for Pay {
    const KIND: &'static str = "pay";

    fn defaults() -> Options {
        Options::new()
            .queue("money")
            .priority(2)
            .retry(every_ten_seconds())
            .tag("bank")
    }
}

async fn pay(job: Pay, _: Context) -> Result<(), Bank> {
    Err(if job.account.is_some() {
        Bank::Busy
    } else {
        Bank::NoAccount
    })
}

async fn pay_by_anyhow(job: Pay, ctx: Context) -> anyhow::Result<()> {
    use anyhow::Context as _;
    pay(job, ctx).await.context("paying")
}

#[tokio::test]
async fn an_error_enum_says_its_class_once() {
    for anyhow in [false, true] {
        let kit = TestKit::new();
        let client = kit.client();
        let hopeless = client.enqueue(Pay { account: None }).await.unwrap().id;
        let busy = client
            .enqueue(Pay {
                account: Some("a".into()),
            })
            .await
            .unwrap()
            .id;
        let worker = Worker::new(client, ()).queue("money", 4).classify::<Bank>();
        let worker = if anyhow {
            worker.handle(pay_by_anyhow)
        } else {
            worker.handle(pay)
        };
        let worker = kit.worker(worker).await.unwrap();
        worker.drain().await.unwrap();
        assert_eq!(
            client.state(hopeless).await.unwrap(),
            Some(State::Dead(DeadReason::Unrecoverable))
        );
        let job = client.get(busy).await.unwrap().unwrap();
        assert_eq!(
            job.state(),
            State::Dead(DeadReason::Exhausted),
            "retry-after keeps the limit"
        );
        let told = kit.timeline(busy).await.unwrap();
        let starts: Vec<_> = told
            .attempts()
            .iter()
            .map(|row| row.started_at.since(job.created_at).as_secs())
            .collect();
        assert_eq!(
            starts,
            [0, 100, 200],
            "the kind's policy gives the limit, the handler the longer wait"
        );
        assert_eq!((job.priority, job.tags[0].as_str()), (2, "bank"));
    }
}

#[derive(Serialize, Deserialize)]
struct Greet {
    first: String,
    last: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
    const ALIASES: &'static [&'static str] = &["hello"];
    const VERSION: u32 = 2;

    fn upcast(
        version: u32,
        payload: Value,
    ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        assert_eq!(version, 1);
        let name = payload["name"].as_str().ok_or("no name")?;
        let (first, last) = name.split_once(' ').ok_or("half a name")?;
        Ok(json!({"first": first, "last": last}))
    }
}

async fn greet(job: Greet, _: Context) -> Result<String, Failure> {
    Ok(format!("{}, {}", job.last, job.first))
}

#[tokio::test]
async fn old_payloads_and_old_kinds_are_understood() {
    let kit = TestKit::new();
    let client = kit.client();
    let new = client
        .enqueue(Greet {
            first: "Ann".into(),
            last: "Lee".into(),
        })
        .await
        .unwrap()
        .id;
    let old = client
        .enqueue_json("hello", &json!({"name": "Bob Ray"}))
        .await
        .unwrap()
        .id;
    let bad = client
        .enqueue_json("greet", &json!({"name": "Bob"}))
        .max_attempts(1)
        .await
        .unwrap()
        .id;
    let newer = client
        .enqueue_json("greet", &json!({}))
        .meta("payload_version", json!(3))
        .max_attempts(1);
    let newer = newer.await.unwrap().id;
    let worker = kit
        .worker(Worker::new(client, ()).handle(greet))
        .await
        .unwrap();
    worker.drain().await.unwrap();
    let told: String = client.result(new, Duration::ZERO).await.unwrap();
    assert_eq!(told, "Lee, Ann");
    let told: String = client.result(old, Duration::ZERO).await.unwrap();
    assert_eq!(told, "Ray, Bob");
    for (id, why) in [
        (bad, "cannot be decoded: half a name"),
        (newer, "has version 3, this worker supports 2"),
    ] {
        let job = client.get(id).await.unwrap().unwrap();
        let told = job.last_error.unwrap().to_string();
        assert!(told.contains(why), "{told}");
    }
}

#[derive(Serialize, Deserialize)]
struct Parent;

impl Job for Parent {
    const KIND: &'static str = "parent";
}

struct Shared {
    seen: Mutex<Vec<String>>,
}

async fn parent(_: Parent, ctx: Context<Shared>) -> Result<(), Error> {
    ctx.log("began");
    ctx.progress(json!({"done": 0.5})).await?;
    let half = ctx.client().progress(ctx.id()).await?;
    ctx.state.seen.lock().unwrap().push(format!("{half:?}"));
    ctx.enqueue(Add { a: 1, b: 2 }).await?;
    let own = Duration::from_secs(5);
    ctx.enqueue(Add { a: 3, b: 4 }).expires_in(own).await?;
    let product = ctx.blocking(|| 6 * 7).await;
    ctx.state.seen.lock().unwrap().push(product.to_string());
    assert_eq!(ctx.idempotency_key(), ctx.id().to_string());
    assert_eq!(ctx.time_left(), Some(Duration::from_secs(3600)));
    ctx.sleep(Duration::from_secs(60)).await;
    assert_eq!(ctx.time_left(), Some(Duration::from_secs(3540)));
    Ok(())
}

#[tokio::test]
async fn a_handler_logs_tells_its_progress_and_has_children() {
    let kit = TestKit::new();
    let client = kit.client();
    let trace = json!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let deadline = client.now().saturating_add(Duration::from_secs(7200));
    let id = client
        .enqueue(Parent)
        .meta("traceparent", trace.clone())
        .deadline(deadline)
        .await
        .unwrap()
        .id;
    let hooked: Arc<Mutex<Vec<String>>> = Arc::default();
    let (before, after) = (Arc::clone(&hooked), Arc::clone(&hooked));
    let shared = Shared {
        seen: Mutex::default(),
    };
    let worker = Worker::new(client, shared)
        .handle(parent)
        .before(move |attempt| {
            before
                .lock()
                .unwrap()
                .push(format!("before {}", attempt.job().kind))
        })
        .after(move |_, report| after.lock().unwrap().push(format!("after {report:?}")));
    let worker = kit.worker(worker).await.unwrap();
    assert!(worker.run_one(id).await.unwrap());
    assert_eq!(
        *hooked.lock().unwrap(),
        ["before parent", "after Succeeded(None)"]
    );
    let rows = client.attempts(id, 1).await.unwrap();
    assert_eq!(rows[0].outcome, Outcome::Succeeded);
    let detail = rows[0].detail.as_ref().unwrap();
    assert_eq!(detail["log"][0]["line"], "began");
    assert_eq!(detail["progress"], json!({"done": 0.5}));
    assert_eq!(client.progress(id).await.unwrap(), None, "it is over");
    let children = [Add { a: 1, b: 2 }, Add { a: 3, b: 4 }];
    assert_eq!(kit.enqueued::<Add>().await.unwrap(), children);
    let filter = Filter::state(ListedState::Ready);
    let listed = client.list(&filter, Page::first(9)).await.unwrap().jobs;
    let of = |payload: &str| {
        let mut jobs = listed.iter();
        jobs.find(|job| job.payload.as_str().contains(payload))
            .unwrap()
    };
    let (child, hasty) = (of(r#""a":1"#), of(r#""a":3"#));
    assert_eq!(child.deadline, Some(deadline), "that of its parent");
    assert!(hasty.deadline < Some(deadline), "its own");
    assert_eq!(child.meta["traceparent"], trace);
    assert_eq!(child.meta["parent"], json!(id.to_string()));
}

async fn until_told(_: Slow, ctx: Context) -> Result<(), Failure> {
    let reason = ctx.stopped().await;
    assert_eq!(ctx.should_stop(), Some(reason));
    assert_eq!(reason, StopReason::Cancelled);
    Err("stopped".into())
}

#[tokio::test(start_paused = true)]
async fn a_running_job_is_called_off_and_a_worker_stops_by_its_signal() {
    let client = Client::open("memory:").await.unwrap();
    let id = client.enqueue(Slow).await.unwrap().id;
    let mut events = client.events();
    let canceller = client.clone();
    let signal = async move {
        while let Some(heard) = events.next().await {
            let windlass::events::Received::Event(event) = heard else {
                continue;
            };
            match event.name() {
                "started" => {
                    assert_eq!(canceller.cancel(id).await.unwrap(), State::Running);
                }
                "cancelled" => return,
                _ => {}
            }
        }
    };
    let stopped = Worker::new(&client, ())
        .handle(until_told)
        .run_until(signal)
        .await
        .unwrap();
    assert_eq!((stopped.released, stopped.unsettled), (0, 0));
    assert_eq!(client.state(id).await.unwrap(), Some(State::Cancelled));
}

#[tokio::test]
async fn a_worker_names_all_its_problems_at_once() {
    let kit = TestKit::new();
    let worker = Worker::new(kit.client(), ())
        .name("")
        .handle(add)
        .handle(add)
        .attempt_cap(0)
        .queue_with(Queue::new("q", 4).retry_fetch_ratio(2.0))
        .schedules(
            "s",
            [Schedule::cron("never", "0 0 30 2 *", Add { a: 1, b: 1 })],
        );
    let Err(Error::Worker(problems)) = kit.worker(worker).await else {
        panic!("it must not start");
    };
    let fields: Vec<_> = problems.iter().map(windlass::Invalid::field).collect();
    for field in ["name", "kind", "attempt_cap", "retry_fetch_ratio", "queues"] {
        assert!(fields.contains(&field), "{field}: {fields:?}");
    }
    assert!(problems.len() >= 6, "{problems:?}");
}

#[tokio::test]
async fn one_store_is_shared_within_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    for url in ["memory:shared", &file] {
        let one = Client::open(url).await.unwrap();
        let other = Client::open(url).await.unwrap();
        let id = one.enqueue(Add { a: 1, b: 1 }).await.unwrap().id;
        assert!(other.get(id).await.unwrap().is_some(), "{url}");
    }
    let id = Client::open(&file)
        .await
        .unwrap()
        .enqueue(Add { a: 1, b: 1 })
        .await
        .unwrap()
        .id;
    let again = Client::open(&file).await.unwrap();
    assert!(
        again.get(id).await.unwrap().is_some(),
        "it was closed and opened again"
    );
    let apart = Client::open("memory:").await.unwrap();
    assert!(apart.get(id).await.unwrap().is_none());
    let Err(Error::Invalid(refused)) = Client::open("mysql://host").await else {
        panic!("there is no such driver");
    };
    assert_eq!(refused.field(), "url");
}

#[tokio::test]
async fn a_worker_can_be_spawned() {
    let client = Client::open("memory:").await.unwrap();
    let worker = Worker::new(&client, ()).handle(add);
    let running = tokio::spawn(worker.run_until(std::future::ready(())));
    assert_eq!(running.await.unwrap().unwrap().unsettled, 0);
}
