//! A worker that prints what it does: claimed, succeeded, failed, stopping.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::events::{Event, JobEvent, Received, Subscription};
use windlass::{Client, Context, Error, Failure, Job, Worker};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
}

async fn greet(job: Greet, _: Context) -> Result<String, Failure> {
    if job.name.is_empty() {
        return Err(Failure::unrecoverable("a greeting needs a name"));
    }
    Ok(format!("Hello, {}!", job.name))
}

/// Prints a line for each event, until the last client and worker of the store are dropped.
async fn print(mut events: Subscription) {
    while let Some(heard) = events.next().await {
        match heard {
            Received::Event(event) => print_event(&event),
            Received::Missed(count) => println!("missed events={count}"),
        }
    }
}

fn print_event(event: &Event) {
    let Event::Job { job, what, .. } = event else {
        return;
    };
    let error = match what {
        JobEvent::Failed {
            error: Some(error), ..
        } => format!(" error=\"{error}\""),
        _ => String::new(),
    };
    let (name, id, kind, attempt) = (event.name(), job.id, &job.kind, job.attempt);
    println!("{name} id={id} kind={kind} attempt={attempt}{error}");
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let client = Client::open(&url).await?;
    let printing = tokio::spawn(print(client.events()));
    let greetings = ["Ann", ""].map(|name| Greet { name: name.into() });
    let receipts = client.enqueue_many(&greetings).await?;

    let waiting = client.clone();
    let finished = async move {
        // A real program waits for `tokio::signal::ctrl_c()` instead.
        for receipt in receipts {
            let _ = waiting.wait(receipt.id, Duration::from_secs(10)).await;
        }
        println!("stopping");
    };
    println!("started url={url}");
    let stopped = Worker::new(&client, ())
        .handle(greet)
        .run_until(finished)
        .await?;
    drop(client);
    let _ = printing.await;
    println!("stopped released={}", stopped.released);
    Ok(())
}
