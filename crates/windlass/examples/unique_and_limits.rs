//! Unique jobs, a limit of running jobs with the same key, and a limit of waiting jobs in a queue.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::admin::QueueSettings;
use windlass::testing::TestKit;
use windlass::{Context, Error, Failure, Job, Options, Queue, Worker};

#[derive(Serialize, Deserialize)]
struct Sync {
    account: u32,
}

impl Job for Sync {
    const KIND: &'static str = "sync";

    fn defaults() -> Options {
        Options::new().queue("sync").concurrency_key("provider", 2)
    }
}

async fn sync(job: Sync, ctx: Context) -> Result<(), Failure> {
    ctx.sleep(Duration::from_secs(10)).await;
    println!("{} account {}", ctx.now(), job.account);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let kit = TestKit::new();
    let client = kit.client();
    let settings = QueueSettings {
        max_depth: Some(5),
        ..QueueSettings::default()
    };
    client.set_queue("sync", &settings).await?;

    // Three enqueues with the same unique key create one job.
    for _ in 0..3 {
        let receipt = client
            .enqueue(Sync { account: 1 })
            .unique_key("account-1")
            .await?;
        println!("account 1: duplicate {}", receipt.duplicate);
    }
    // At most two jobs with the key `provider` run at once, on all nodes. At most five jobs wait.
    for account in 2..9 {
        match client.enqueue(Sync { account }).await {
            Ok(_) => {}
            Err(Error::Store(full)) => println!("account {account}: {full}"),
            Err(other) => return Err(other),
        }
    }
    // While new jobs wait, retries get at most a fifth of the slots. One slot never runs a retry.
    let queue = Queue::new("sync", 8)
        .retry_fetch_ratio(0.2)
        .fresh_reserve(1);
    let worker = Worker::new(client, ()).queue_with(queue).handle(sync);
    kit.worker(worker).await?.drain().await?;
    Ok(())
}
