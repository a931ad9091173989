//! How the error of a handler decides what happens next: a retry, a longer delay, or no retry.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::retry::{Class, Classify, Preset};
use windlass::testing::TestKit;
use windlass::{Context, Error, Failure, Job, Worker};

/// Errors of a payment provider. `Classify` decides for each whether the job is retried.
#[derive(Debug, thiserror::Error)]
enum PaymentError {
    #[error("the provider does not answer")]
    Unreachable,
    #[error("too many requests")]
    TooMany,
    #[error("the card was stolen")]
    Stolen,
}

impl Classify for PaymentError {
    fn class(&self) -> Class {
        match self {
            PaymentError::Unreachable => Class::Retry,
            PaymentError::TooMany => Class::RetryAfter(Duration::from_secs(60)),
            PaymentError::Stolen => Class::Unrecoverable,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Charge {
    card: String,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
}

async fn charge(job: Charge, ctx: Context) -> Result<(), PaymentError> {
    match (job.card.as_str(), ctx.attempt()) {
        ("stolen", _) => Err(PaymentError::Stolen),
        (_, 1) => Err(PaymentError::Unreachable),
        (_, 2) => Err(PaymentError::TooMany),
        _ => Ok(()),
    }
}

#[derive(Serialize, Deserialize)]
struct AwaitTransfer;

impl Job for AwaitTransfer {
    const KIND: &'static str = "transfer:await";
}

/// A transfer that has not arrived yet is not a failure: the job snoozes for an hour.
async fn await_transfer(_: AwaitTransfer, ctx: Context) -> Result<(), Failure> {
    if ctx.attempt() < 3 {
        return Err(Failure::snooze(Duration::from_secs(3600)));
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // The test kit has a virtual clock, so the hours of this example pass at once.
    let kit = TestKit::new();
    let client = kit.client();
    let good = client
        .enqueue(Charge {
            card: "good".into(),
        })
        .retry(Preset::Patient)
        .await?
        .id;
    let stolen = client
        .enqueue(Charge {
            card: "stolen".into(),
        })
        .await?
        .id;
    let transfer = client.enqueue(AwaitTransfer).await?.id;
    let worker = Worker::new(client, ())
        .classify::<PaymentError>()
        .handle(charge)
        .handle(await_transfer);
    kit.worker(worker).await?.drain().await?;
    for (title, id) in [
        ("good card", good),
        ("stolen card", stolen),
        ("transfer", transfer),
    ] {
        println!("{title}:\n{}", kit.timeline(id).await?);
    }
    Ok(())
}
