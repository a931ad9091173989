//! `windlass bench http`: jobs through the REST API, compared with the same requests without a store.

mod idle;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes as Body;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use windlass_client::{Client, Method};
use windlass_listen::{Limits, Listener, Site};
use windlass_server::standalone::Server;
use windlass_server::standalone::config::{Config, Sources};

use super::{HttpBench, progress, resident_bytes};
use crate::clock;
use crate::output::Output;

/// The measurements.
#[derive(Debug, Default, Serialize)]
struct HttpResults {
    clients: u32,
    batch: u32,
    enqueue_batch_per_s: f64,
    without_store_batch_per_s: f64,
    enqueue_one_per_s: f64,
    without_store_one_per_s: f64,
    claim_settle_per_s: f64,
    /// The rate with a store divided by the rate without.
    batch_ratio: f64,
    one_ratio: f64,
    memory_growth_bytes_per_job: f64,
}

pub(super) fn run(bench: &HttpBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if bench.idle {
            return idle::run(bench, folder.path(), output).await;
        }
        let results = measure(bench, folder.path()).await?;
        output.print(&results, &results)
    })
}

/// A server in this process.
struct BenchServer {
    url: String,
    stop: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
}

impl BenchServer {
    async fn start(
        bench: &HttpBench,
        folder: &std::path::Path,
        settings: impl IntoIterator<Item = (&'static str, String)>,
    ) -> anyhow::Result<Self> {
        let data = folder.join("data").display().to_string();
        let mut flags = vec![("bind", "127.0.0.1:0".to_owned()), ("data", data)];
        flags.extend(bench.store.clone().map(|store| ("store", store)));
        flags.push(("http.connections_per_address", "10000".to_owned()));
        flags.extend(settings);
        let config = Config::load(&Sources {
            flags,
            ..Sources::default()
        })?;
        let server = Server::start(config).await?;
        let (url, stop) = (server.url(), CancellationToken::new());
        let until = stop.clone();
        let running = tokio::spawn(async move { Ok(server.run(until.clone(), until).await?) });
        Ok(BenchServer { url, stop, running })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.running.await?
    }
}

async fn measure(bench: &HttpBench, folder: &std::path::Path) -> anyhow::Result<HttpResults> {
    let server = BenchServer::start(bench, folder, []).await?;
    let url = server.url.clone();
    let (bare_url, bare_stop) = without_store().await?;
    let mut results = HttpResults {
        clients: bench.clients,
        batch: bench.batch,
        ..HttpResults::default()
    };
    let singles = bench
        .jobs
        .div_ceil(u64::from(bench.batch))
        .max(u64::from(bench.clients) * 20);
    let batch = u64::from(bench.batch);
    let load = |url: &str, label, per_request, jobs| RestLoad {
        url: url.to_owned(),
        clients: bench.clients,
        label,
        per_request,
        jobs,
        job: json!({"kind": "bench", "payload": {"number": 123_456, "text": "a payload of an ordinary size"}}),
    };
    results.without_store_batch_per_s = load(&bare_url, "bare, batches", batch, bench.jobs)
        .enqueue()
        .await?;
    results.without_store_one_per_s = load(&bare_url, "bare, one", 1, singles).enqueue().await?;
    results.enqueue_one_per_s = load(&url, "enqueue, one", 1, singles).enqueue().await?;
    let before = resident_bytes();
    results.enqueue_batch_per_s = load(&url, "enqueue, batches", batch, bench.jobs)
        .enqueue()
        .await?;
    let waiting = bench.jobs + singles;
    results.claim_settle_per_s = load(&url, "claim and settle", batch, waiting)
        .claim_and_settle()
        .await?;
    let growth = resident_bytes().saturating_sub(before);
    results.memory_growth_bytes_per_job = growth as f64 / bench.jobs as f64;
    results.batch_ratio = results.enqueue_batch_per_s / results.without_store_batch_per_s;
    results.one_ratio = results.enqueue_one_per_s / results.without_store_one_per_s;
    bare_stop.cancel();
    server.stop().await?;
    Ok(results)
}

/// Starts a server that reads and parses the same requests and sends responses of the same size, but
/// has no store.
async fn without_store() -> anyhow::Result<(String, CancellationToken)> {
    let respond = |body: Body| async move {
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let jobs = request
            .get("jobs")
            .and_then(Value::as_array)
            .map_or(1, Vec::len);
        let id = "01990000-0000-7000-8000-000000000000";
        let row = json!({"id": id, "duplicate": false});
        let data = json!({"data": vec![row; jobs]}).to_string();
        ([(CONTENT_TYPE, "application/json")], data)
    };
    let router = Router::new()
        .route("/api/v1/jobs", post(respond))
        .route("/api/v1/jobs/bulk", post(respond));
    let limits = Limits {
        connections_per_address: 10_000,
        ..Limits::default()
    };
    let listener = Listener::bind("127.0.0.1:0".parse()?, None, limits).await?;
    let (url, stop) = (listener.url(), CancellationToken::new());
    tokio::spawn(listener.serve(Site::new(router), stop.clone(), stop.clone()));
    Ok((url, stop))
}

/// Jobs that concurrent clients send to a server.
struct RestLoad {
    url: String,
    clients: u32,
    label: &'static str,
    per_request: u64,
    jobs: u64,
    job: Value,
}

impl RestLoad {
    /// Enqueues the jobs; returns jobs per second.
    async fn enqueue(&self) -> anyhow::Result<f64> {
        let (path, body) = match self.per_request {
            1 => ("/api/v1/jobs", self.job.clone()),
            many => (
                "/api/v1/jobs/bulk",
                json!({"jobs": vec![&self.job; usize::try_from(many)?]}),
            ),
        };
        // Serialized once, so that the client does little work compared with the server.
        let body: Arc<RawValue> = to_raw_value(&body)?.into();
        let per_request = self.per_request;
        self.run(move |client, counter| {
            let body = Arc::clone(&body);
            async move {
                while counter.take(per_request) {
                    let _: Value = client.call(Method::Post, path, Some(&*body)).await?;
                }
                Ok(())
            }
        })
        .await
    }

    /// Claims and settles jobs until none is left; returns jobs per second.
    async fn claim_and_settle(&self) -> anyhow::Result<f64> {
        let limit = self.per_request;
        self.run(move |client, counter| async move {
            loop {
                let claim = json!({"queues": ["default"], "limit": limit, "slots": limit, "worker": "bench", "lease": "5m"});
                let claimed: Value = client.call(Method::Post, "/api/v1/claim", Some(&claim)).await?;
                let jobs = claimed.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
                if jobs.is_empty() {
                    return Ok(());
                }
                let outcome = |job: &Value| json!({"id": job.get("id"), "attempt": job.get("attempt"), "outcome": "succeeded"});
                let outcomes: Vec<Value> = jobs.iter().map(outcome).collect();
                let settle = json!({"worker": "bench", "outcomes": outcomes});
                let _: Value = client.call(Method::Post, "/api/v1/settle", Some(&settle)).await?;
                counter.add(u64::try_from(jobs.len())?);
            }
        })
        .await
    }

    async fn run<F, A>(&self, client: F) -> anyhow::Result<f64>
    where
        F: Fn(Client, Arc<JobCounter>) -> A,
        A: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let counter = Arc::new(JobCounter {
            total: self.jobs,
            taken: AtomicU64::new(0),
        });
        let mut clients = JoinSet::new();
        let connections = usize::try_from(self.clients)?;
        let server = Client::builder(&self.url).idle_connections_max(connections);
        let server = server.build()?;
        let bar = progress(self.label, self.jobs);
        let start = clock::start();
        for _ in 0..self.clients {
            clients.spawn(client(server.clone(), Arc::clone(&counter)));
        }
        loop {
            tokio::select! {
                ended = clients.join_next() => match ended {
                    Some(ended) => ended?.with_context(|| format!("{} failed", self.label))?,
                    None => break,
                },
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
            bar.set_position(counter.taken.load(Ordering::Relaxed).min(self.jobs));
        }
        bar.finish_and_clear();
        let done = counter.taken.load(Ordering::Relaxed);
        Ok(done as f64 / start.elapsed().as_secs_f64())
    }
}

/// Divides the jobs among the clients.
struct JobCounter {
    total: u64,
    taken: AtomicU64,
}

impl JobCounter {
    /// Takes the next `count` jobs; returns whether any were left.
    fn take(&self, count: u64) -> bool {
        let before = self.taken.fetch_add(count, Ordering::Relaxed);
        if before >= self.total {
            self.taken.fetch_sub(count, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn add(&self, count: u64) {
        self.taken.fetch_add(count, Ordering::Relaxed);
    }
}

impl fmt::Display for HttpResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} clients, batches of {}; client and server share this machine",
            self.clients, self.batch
        )?;
        writeln!(f, "                         durable/s  no store/s  share")?;
        let (batch, one) = (self.enqueue_batch_per_s, self.enqueue_one_per_s);
        writeln!(
            f,
            "enqueue in batches     {batch:>11.0} {:>11.0} {:>6.2}",
            self.without_store_batch_per_s, self.batch_ratio
        )?;
        writeln!(
            f,
            "enqueue one at a time  {one:>11.0} {:>11.0} {:>6.2}",
            self.without_store_one_per_s, self.one_ratio
        )?;
        writeln!(
            f,
            "claim and settle       {:>11.0}",
            self.claim_settle_per_s
        )?;
        writeln!(
            f,
            "memory grew by {:.0} bytes per job",
            self.memory_growth_bytes_per_job
        )
    }
}
