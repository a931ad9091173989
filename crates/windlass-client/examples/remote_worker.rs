//! A worker that claims jobs over REST: `cargo run --example remote_worker -- http://127.0.0.1:8080`.
//!
//! It runs jobs of the kind `greet` in the queue `default`. At Ctrl-C it finishes the jobs that it has
//! and exits.

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_client::core::Kind;
use windlass_client::{Attempt, Client, Failure, Worker};

#[derive(Deserialize)]
struct Greet {
    name: String,
}

async fn greet(attempt: Attempt) -> Result<Value, Failure> {
    let greet: Greet = attempt.payload()?; // a payload with another shape is not retried
    Ok(json!({"greeting": format!("hello, {}", greet.name)}))
}

/// Runs the worker until `stop`.
pub(crate) async fn run(
    client: Client,
    stop: CancellationToken,
) -> Result<(), Box<dyn std::error::Error>> {
    let worker = Worker::new(client, "greeter")?;
    let worker = worker.kind(Kind::new("greet")?).slots(4);
    Ok(worker.run(greet, stop).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let mut client = Client::builder(url.as_deref().unwrap_or("http://127.0.0.1:8080"));
    if let Ok(key) = std::env::var("WINDLASS_KEY") {
        client = client.key(key);
    }
    let stop = CancellationToken::new();
    let ending = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            ending.cancel();
        }
    });
    run(client.build()?, stop).await
}
