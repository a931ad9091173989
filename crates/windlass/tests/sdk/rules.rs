//! What code decides about its jobs: retrying, results, keys. In virtual time, on every store.

use crate::support::{every_store, seconds};
use serde::{Deserialize, Serialize};
use windlass::admin::RESULT_BYTES_MAX;
use windlass::retry::{FailedAttempt, Preset, RetryDecision};
use windlass::testing::TestKit;
use windlass::{Client, Context, DeadReason, Failure, Job, Schedule, State, Worker};

/// Fails with its text until it has failed so often.
#[derive(Debug, Serialize, Deserialize)]
struct Fails {
    text: String,
    times: u32,
}

impl Job for Fails {
    const KIND: &'static str = "fails";
}

async fn fails(job: Fails, ctx: Context) -> Result<(), Failure> {
    match ctx.failures() < job.times {
        true => Err(job.text.into()),
        false => Ok(()),
    }
}

fn failing(text: &str, times: u32) -> Fails {
    let text = text.to_owned();
    Fails { text, times }
}

#[derive(Serialize, Deserialize)]
struct Leaves {
    bytes: usize,
}

impl Job for Leaves {
    const KIND: &'static str = "leaves";
}

async fn leaves(job: Leaves, _: Context) -> Result<String, Failure> {
    Ok("x".repeat(job.bytes))
}

#[derive(Serialize, Deserialize)]
struct Invoice {
    customer: u32,
    amount: u32,
}

impl Job for Invoice {
    const KIND: &'static str = "invoice";

    fn unique_key(&self) -> Option<String> {
        Some(format!("customer {}", self.customer))
    }
}

fn rule(failed: &FailedAttempt<'_>) -> RetryDecision {
    match failed.error.message() {
        "locked" => RetryDecision::After(seconds(0.05) * failed.failures),
        "no such account" => RetryDecision::Never,
        _ => RetryDecision::ByPolicy,
    }
}

every_store! {
    async fn code_decides_about_a_failed_attempt(kit: TestKit) {
        let client = kit.client();
        let start = kit.now();
        let locked = client.enqueue(failing("locked", 2)).await.unwrap().id;
        let hopeless = client.enqueue(failing("no such account", 2)).await.unwrap().id;
        let other = client.enqueue(failing("other", 1)).await.unwrap().id;
        let always = client.enqueue(failing("locked", 99)).max_attempts(3).await.unwrap().id;
        let worker = Worker::new(client, ()).handle(fails).retry(Preset::Patient).no_attempt_cap().retry_rule(rule);
        kit.worker(worker).await.unwrap().drain().await.unwrap();
        let starts = async |id| {
            let mut rows = client.attempts(id, 10).await.unwrap();
            rows.reverse();
            rows.iter().map(|row| row.started_at.since(start).as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(starts(locked).await, [0, 50, 150]);
        assert_eq!(client.state(hopeless).await.unwrap(), Some(State::Dead(DeadReason::Unrecoverable)));
        assert_eq!(starts(other).await, [0, 1000], "by the policy");
        assert_eq!(client.state(always).await.unwrap(), Some(State::Dead(DeadReason::Exhausted)), "the limit holds");
    }

    async fn a_job_succeeded_although_its_result_is_too_large_to_keep(kit: TestKit) {
        let client = kit.client();
        let large = client.enqueue(Leaves { bytes: RESULT_BYTES_MAX }).await.unwrap().id;
        let fits = client.enqueue(Leaves { bytes: RESULT_BYTES_MAX - 2 }).await.unwrap().id;
        let worker = Worker::new(client, ()).handle(leaves);
        kit.worker(worker).await.unwrap().drain().await.unwrap();
        assert_eq!(client.state(large).await.unwrap(), Some(State::Succeeded));
        let row = &client.attempts(large, 1).await.unwrap()[0];
        let line = row.detail.as_ref().unwrap()["log"][0]["line"].as_str().unwrap().to_owned();
        assert!(line.starts_with("the result is not stored"), "{line}");
        let kept: String = client.result(fits, seconds(0.0)).await.unwrap();
        assert_eq!(kept.len(), RESULT_BYTES_MAX - 2);
    }

    async fn the_reason_of_a_handler_that_calls_its_job_off_is_kept(kit: TestKit) {
        let client = kit.client();
        async fn recalls(_: Fails, _: Context) -> Result<(), Failure> {
            Err(Failure::cancel("the order was recalled"))
        }
        let id = client.enqueue(failing("", 0)).await.unwrap().id;
        let worker = Worker::new(client, ()).handle(recalls);
        kit.worker(worker).await.unwrap().drain().await.unwrap();
        assert_eq!(client.state(id).await.unwrap(), Some(State::Cancelled));
        let row = &client.attempts(id, 1).await.unwrap()[0];
        assert_eq!(row.detail.as_ref().unwrap()["log"][0]["line"], "cancelled: the order was recalled");
    }

    async fn a_type_makes_its_unique_key_from_the_job(kit: TestKit) {
        let client = kit.client();
        let invoice = |customer, amount| Invoice { customer, amount };
        let receipts = client.enqueue_many(&[invoice(1, 5), invoice(2, 5), invoice(1, 9)]).await.unwrap();
        let duplicates: Vec<bool> = receipts.iter().map(|receipt| receipt.duplicate).collect();
        assert_eq!(duplicates, [false, false, true]);
        assert!(receipts[2].payload_differs);
        let other = client.enqueue(invoice(1, 7)).unique_key("another").await.unwrap();
        assert!(!other.duplicate, "an enqueue may say another one");
        client.put_schedule(&Schedule::every("monthly", seconds(60.0), invoice(1, 3))).await.unwrap();
        let held = client.run_schedule_now("monthly").await;
        assert!(held.is_err(), "{held:?}");
    }
}

#[tokio::test]
async fn a_file_is_one_store_however_its_path_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let one = Client::open(&format!("sqlite:{}", path.display()))
        .await
        .unwrap();
    let around = format!("sqlite://{}/./jobs.db", folder.path().display());
    let other = Client::open(&around).await.unwrap();
    let id = one.enqueue(failing("", 0)).await.unwrap().id;
    assert!(other.get(id).await.unwrap().is_some());
}
