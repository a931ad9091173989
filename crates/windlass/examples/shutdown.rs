//! A deploy: jobs that do not finish in time go back to the queue, and the next process runs them.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::events::{Received, Subscription};
use windlass::{Client, Context, Error, Failure, Job, Worker};

#[derive(Serialize, Deserialize)]
struct Import {
    rows: u32,
}

impl Job for Import {
    const KIND: &'static str = "import";
}

async fn import(job: Import, ctx: Context) -> Result<(), Failure> {
    for row in 0..job.rows {
        tokio::select! {
            () = ctx.sleep(Duration::from_millis(20)) => {}
            reason = ctx.stopped() => {
                println!("attempt {} stops early: {reason:?}", ctx.attempt());
                return Err(format!("stopped at row {row}").into());
            }
        }
    }
    println!("attempt {} imported {} rows", ctx.attempt(), job.rows);
    Ok(())
}

/// Waits until a job starts. A real program waits for `tokio::signal::ctrl_c()` instead.
async fn first_start(mut events: Subscription) {
    while let Some(heard) = events.next().await {
        if matches!(heard, Received::Event(event) if event.name() == "started") {
            return;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::open("memory:").await?;
    let id = client.enqueue(Import { rows: 10_000 }).await?.id;
    let signal = first_start(client.events());
    let worker = Worker::new(&client, ())
        .handle(import)
        .shutdown_grace(Duration::from_millis(100)) // the default is 30 s
        .stop_immediately_on(std::future::pending::<()>()); // for example a second signal
    let stopped = worker.run_until(signal).await?;
    println!("released: {}", stopped.released);

    // In the next process the job is due at once, and no failure was counted.
    let job = client.get(id).await?.ok_or(Error::NotFound(id))?;
    println!("attempt {}, failures {}", job.attempt, job.failures);
    client
        .edit(
            id,
            &windlass::admin::Edit {
                payload: Some(payload(3)?),
                ..Default::default()
            },
        )
        .await?;
    let waiting = client.clone();
    let finished = async move { waiting.wait(id, Duration::from_secs(10)).await };
    Worker::new(&client, ())
        .handle(import)
        .run_until(finished)
        .await?;
    Ok(())
}

fn payload(rows: u32) -> Result<windlass::Payload, windlass::Invalid> {
    windlass::Payload::from_serialize(&Import { rows }, 1024)
}
