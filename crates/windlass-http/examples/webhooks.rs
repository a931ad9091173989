//! Sends webhooks from a Rust program, without a server. Each tenant has its own queue; one worker
//! serves all of them.
//!
//! `cargo run -p windlass-http --example webhooks -- https://example.com/hook`

use std::io::Write as _;

use serde_json::json;
use windlass::{Client, Error, JobId, Worker};
use windlass_http::{HttpConfig, HttpJob, HttpJobs};

/// Enqueues an event for two tenants.
pub(crate) async fn enqueue(client: &Client, url: &str) -> Result<Vec<JobId>, Error> {
    let mut jobs = Vec::new();
    for tenant in ["tenant-1", "tenant-2"] {
        let event = HttpJob::post(url).body(json!({"event": "created", "tenant": tenant}));
        jobs.push(client.enqueue(event).queue(tenant).await?.id);
    }
    Ok(jobs)
}

/// A worker that sends the webhooks of all tenants, including tenants that are added later.
pub(crate) fn worker(client: &Client, http: &HttpJobs) -> Worker {
    http.serve(Worker::new(client, ()).queues_matching("tenant-*", 50))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let url = url.unwrap_or_else(|| "https://example.com/hook".to_owned());
    let client = Client::open("memory:").await?;
    let http = HttpJobs::new(HttpConfig::default())?;
    let jobs = enqueue(&client, &url).await?;
    let stop = tokio::time::sleep(std::time::Duration::from_secs(5));
    worker(&client, &http).run_until(stop).await?;
    for id in jobs {
        let state = client.get(id).await?.map(|job| job.state());
        writeln!(std::io::stdout(), "{id} {state:?}")?;
    }
    Ok(())
}
