//! One job per key, so many at once per key, and queues with bounds.
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
    client.limit_queue("sync", &settings).await?;

    // Asked three times while it waits, it is one job.
    for _ in 0..3 {
        let asked = client
            .enqueue(Sync { account: 1 })
            .unique_key("account-1")
            .await?;
        println!("account 1: duplicate {}", asked.duplicate);
    }
    // At most two run at once with this key, over all queues and nodes; the queue holds five.
    for account in 2..9 {
        match client.enqueue(Sync { account }).await {
            Ok(_) => {}
            Err(Error::Store(full)) => println!("account {account}: {full}"),
            Err(other) => return Err(other),
        }
    }
    // Retries get at most a fifth of the slots while fresh jobs wait, and never the last one.
    let queue = Queue::new("sync", 8)
        .retry_fetch_ratio(0.2)
        .fresh_reserve(1);
    let worker = Worker::new(client, ()).queue_with(queue).handle(sync);
    kit.worker(worker).await?.drain().await?;
    Ok(())
}
