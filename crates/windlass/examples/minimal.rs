//! A job, its handler, and a worker that runs it.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use windlass::{Client, Context, Error, Failure, Job, Worker};

#[derive(serde::Serialize, serde::Deserialize)]
struct SendEmail {
    to: String,
}

impl Job for SendEmail {
    const KIND: &'static str = "email:send";
}

async fn send_email(job: SendEmail, ctx: Context) -> Result<(), Failure> {
    println!("attempt {}: send to {}", ctx.attempt(), job.to);
    Ok(()) // any error is retried by the job's policy
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::open("memory:").await?; // or sqlite:jobs.db, postgres://…
    let to = "ann@example.org".to_owned();
    let id = client.enqueue(SendEmail { to }).await?.id;

    // This worker runs until the job has finished. Yours runs until a signal: `ctrl_c()`.
    let waiting = client.clone();
    let finished = async move { waiting.wait(id, Duration::from_secs(10)).await };
    let worker = Worker::new(&client, ()).handle(send_email);
    worker.run_until(finished).await?;
    Ok(())
}
