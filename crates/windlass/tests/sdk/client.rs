//! The client as a program meets it. In virtual time, on every store.

use std::time::Duration;

use crate::support::{every_store, seconds};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::admin::{Consent, Edit, FailureCount, Page, QueueSettings, Revival};
use windlass::retry::{Backoff, Jitter, Preset, RetryPolicy};
use windlass::testing::TestKit;
use windlass::{
    Context, DeadReason, Error, Failure, Filter, Job, ListedState, State, StoreError, Worker,
};
use windlass_core::Timeout;

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

#[derive(Debug, Serialize, Deserialize)]
struct Flaky {
    fails: u32,
}

impl Job for Flaky {
    const KIND: &'static str = "flaky";
}

async fn flaky(job: Flaky, ctx: Context) -> Result<(), std::io::Error> {
    if ctx.failures() < job.fails {
        return Err(std::io::Error::other("not yet"));
    }
    Ok(())
}

fn constant(delay: f64, max_attempts: u32) -> RetryPolicy {
    let backoff = Backoff::Constant {
        delay: seconds(delay),
    };
    let policy = RetryPolicy::new(backoff, Jitter::None).unwrap();
    policy.with_max_attempts(max_attempts).unwrap()
}

every_store! {
    async fn a_result_comes_back(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Add { a: 2, b: 3 }).await.unwrap().id;
        let worker = kit.worker(Worker::new(client, ()).handle(add)).await.unwrap();
        worker.drain().await.unwrap();
        let sum: i64 = client.result(id, Duration::ZERO).await.unwrap();
        assert_eq!(sum, 5);
        let wrong = client.result::<String>(id, Duration::ZERO).await;
        assert!(matches!(wrong, Err(Error::Result(_, _))));
    }

    async fn any_error_is_retried_and_the_timeline_tells(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Flaky { fails: 2 }).retry(constant(5.0, 9)).await.unwrap().id;
        let worker = kit.worker(Worker::new(client, ()).handle(flaky)).await.unwrap();
        worker.drain().await.unwrap();
        let told = kit.timeline(id).await.unwrap().to_string();
        assert_eq!(told, "+0s #1 failed: not yet\n+5s #2 failed: not yet\n+10s #3 succeeded\n");
    }

    async fn every_option_of_an_enqueue_is_kept(kit: TestKit) {
        let client = kit.client();
        let at = kit.now().saturating_add(seconds(9.0));
        let deadline = kit.now().saturating_add(seconds(99.0));
        let receipt = client
            .enqueue(Add { a: 1, b: 1 })
            .queue("sums")
            .priority(7)
            .run_at(at)
            .at_most_once()
            .max_attempts(4)
            .retry(Preset::Patient)
            .timeout(seconds(3.0))
            .deadline(deadline)
            .unique_key("u")
            .unique_for(seconds(50.0))
            .concurrency_key("c", 2)
            .tag("t")
            .meta("m", json!(1))
            .await
            .unwrap();
        let job = client.get(receipt.id).await.unwrap().unwrap();
        assert_eq!((job.queue.as_str(), job.priority, job.run_at), ("sums", 7, at));
        assert_eq!(job.delivery.name(), "at_most_once");
        assert_eq!(job.max_attempts.unwrap().get(), 4);
        assert_eq!(job.retry.unwrap().preset(), Some(Preset::Patient));
        assert_eq!(job.timeout, Timeout::After(seconds(3.0)));
        assert_eq!(job.deadline, Some(deadline));
        assert_eq!(job.unique.unwrap().unique_for, Some(seconds(50.0)));
        assert_eq!(job.concurrency.unwrap().limit, 2);
        assert_eq!(job.tags[0].as_str(), "t");
        assert_eq!(job.meta["m"], json!(1));
        let other = client.enqueue(Add { a: 1, b: 1 }).delay(seconds(4.0)).no_timeout();
        let id = other.expires_in(seconds(5.0)).max_retries(0).await.unwrap().id;
        let job = client.get(id).await.unwrap().unwrap();
        assert_eq!(job.run_at, kit.now().saturating_add(seconds(4.0)));
        assert_eq!(job.deadline, Some(kit.now().saturating_add(seconds(5.0))));
        assert_eq!(job.max_attempts.unwrap().get(), 1);
        assert_eq!(job.timeout, Timeout::None);
    }

    async fn what_breaks_a_rule_is_refused_by_name(kit: TestKit) {
        let client = kit.client();
        let add = || client.enqueue(Add { a: 1, b: 1 });
        for (field, refused) in [
            ("queue", add().queue("no spaces").await),
            ("unique_key", add().unique_key("").await),
            ("unique_key", add().unique_for(seconds(1.0)).await),
            ("concurrency_key", add().concurrency_key("", 1).await),
            ("limit", add().concurrency_key("k", 0).await),
            ("tags", add().tag("").await),
            ("max_retries", add().max_attempts(3).max_retries(5).await),
            ("max_attempts", add().max_attempts(1001).await),
            ("timeout", add().timeout(Duration::ZERO).await),
            ("kind", client.enqueue_json("no spaces", &Value::Null).await),
        ] {
            let Err(Error::Invalid(invalid)) = refused else {
                panic!("{field}: {refused:?}");
            };
            assert_eq!(invalid.field(), field, "{invalid}");
        }
    }

    async fn a_unique_key_makes_one_job(kit: TestKit) {
        let client = kit.client();
        let first = client.enqueue(Add { a: 1, b: 1 }).unique_key("one").await.unwrap();
        let same = client.enqueue(Add { a: 1, b: 1 }).unique_key("one").await.unwrap();
        assert_eq!((same.id, same.duplicate, same.payload_differs), (first.id, true, false));
        let other = client.enqueue(Add { a: 2, b: 1 }).unique_key("one").await.unwrap();
        assert!(other.duplicate && other.payload_differs && !other.replaced);
        let newer = client.enqueue(Add { a: 9, b: 1 }).unique_key("one").replace_duplicate();
        assert!(newer.await.unwrap().replaced);
        assert_eq!(kit.enqueued::<Add>().await.unwrap(), [Add { a: 9, b: 1 }]);
    }

    async fn many_jobs_go_in_at_once_and_keep_their_order(kit: TestKit) {
        let client = kit.client();
        let jobs: Vec<Add> = (0..500).map(|a| Add { a, b: 0 }).collect();
        let receipts = client.enqueue_many(&jobs).await.unwrap();
        assert_eq!(receipts.len(), 500);
        assert_eq!(kit.enqueued::<Add>().await.unwrap(), jobs);
    }

    async fn a_full_queue_refuses(kit: TestKit) {
        let client = kit.client();
        let settings = QueueSettings { max_depth: Some(1), ..QueueSettings::default() };
        client.set_queue("default", &settings).await.unwrap();
        client.enqueue(Add { a: 1, b: 1 }).await.unwrap();
        let refused = client.enqueue(Add { a: 1, b: 1 }).await;
        assert!(matches!(refused, Err(Error::Store(StoreError::QueueFull { .. }))), "{refused:?}");
    }

    async fn a_paused_queue_rests(kit: TestKit) {
        let client = kit.client();
        let settings = QueueSettings { concurrency: Some(3), ..QueueSettings::default() };
        client.set_queue("default", &settings).await.unwrap();
        client.pause_queue("default", "ann", None).await.unwrap();
        let id = client.enqueue(Add { a: 1, b: 1 }).await.unwrap().id;
        let worker = kit.worker(Worker::new(client, ()).handle(add)).await.unwrap();
        assert_eq!(worker.drain().await.unwrap().attempts, 0);
        client.resume_queue("default").await.unwrap();
        worker.drain().await.unwrap();
        assert_eq!(client.state(id).await.unwrap(), Some(State::Succeeded));
        let kept = windlass::admin::engine_of(client).store().queues().await.unwrap();
        assert_eq!(kept.values().next().unwrap().concurrency, Some(3), "pausing keeps the limits");
    }

    async fn the_client_changes_jobs(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Flaky { fails: 9 }).delay(seconds(60.0)).await.unwrap().id;
        client.run_now(id).await.unwrap();
        let worker = Worker::new(client, ()).handle(flaky).no_retry();
        let worker = kit.worker(worker).await.unwrap();
        worker.pass().await.unwrap();
        assert_eq!(client.state(id).await.unwrap(), Some(State::Dead(DeadReason::Exhausted)));
        let refused = client.cancel(id).await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        client.revive(id, &Revival { failures: FailureCount::Reset, ..Revival::default() }).await.unwrap();
        let edit = Edit { priority: Some(3), ..Edit::default() };
        client.edit(id, &edit).await.unwrap();
        assert_eq!(client.get(id).await.unwrap().unwrap().priority, 3);
        assert_eq!(client.cancel(id).await.unwrap(), State::Cancelled);
        let filter = Filter::state(ListedState::Cancelled);
        assert_eq!(client.list(&filter, Page::first(9)).await.unwrap().jobs.len(), 1);
        client.purge(id).await.unwrap();
        assert!(matches!(client.cancel(id).await, Err(Error::NotFound(_))));
        assert!(matches!(client.wait(id, Duration::ZERO).await, Err(Error::NotFound(_))));
    }

    async fn a_lost_at_most_once_job_waits_for_a_person(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Add { a: 1, b: 1 }).at_most_once().await.unwrap().id;
        let worker = kit.worker(Worker::new(client, ()).handle(add)).await.unwrap();
        assert_eq!(worker.crash_before_settle().await.unwrap(), 1);
        worker.drain().await.unwrap();
        assert_eq!(client.state(id).await.unwrap(), Some(State::Dead(DeadReason::Lost)));
        assert!(client.revive(id, &Revival::default()).await.is_err());
        let force = Revival { consent: Consent::MayRunTwice, ..Revival::default() };
        client.revive(id, &force).await.unwrap();
        worker.crash_after_claim().await.unwrap();
        worker.drain().await.unwrap();
        client.resolve(id).await.unwrap();
        assert_eq!(client.state(id).await.unwrap(), Some(State::Succeeded));
    }

    async fn one_job_runs_inline_and_nothing_else(kit: TestKit) {
        let client = kit.client();
        let first = client.enqueue(Add { a: 1, b: 1 }).await.unwrap().id;
        let second = client.enqueue(Add { a: 2, b: 2 }).await.unwrap().id;
        let worker = kit.worker(Worker::new(client, ()).handle(add)).await.unwrap();
        assert!(worker.run_one(second).await.unwrap());
        assert!(!worker.run_one(second).await.unwrap(), "it is over");
        assert_eq!(client.state(first).await.unwrap(), Some(State::Waiting));
        assert_eq!(client.state(second).await.unwrap(), Some(State::Succeeded));
    }
}
