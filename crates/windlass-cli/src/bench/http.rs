//! `windlass bench http`: jobs through the REST interface, beside the same requests answered without a store.

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

use super::{HttpBench, progress};
use crate::clock;
use crate::output::Output;

/// What was measured.
#[derive(Debug, Default, Serialize)]
struct Figures {
    clients: u32,
    batch: u32,
    enqueue_batch_per_s: f64,
    without_store_batch_per_s: f64,
    enqueue_one_per_s: f64,
    without_store_one_per_s: f64,
    claim_settle_per_s: f64,
    /// What is left of the bare figure when everything is durable.
    batch_ratio: f64,
    one_ratio: f64,
    memory_growth_bytes_per_job: f64,
}

pub(super) use idle::cpu_seconds;

pub(super) fn run(bench: &HttpBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match bench.idle {
            true => idle::run(bench, folder.path(), output).await,
            false => {
                let figures = measure(bench, folder.path()).await?;
                output.print(&figures, &figures)
            }
        }
    })
}

/// A server that is measured, in this process.
struct Measured {
    url: String,
    stop: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Measured {
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
        Ok(Measured { url, stop, running })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.running.await?
    }
}

async fn measure(bench: &HttpBench, folder: &std::path::Path) -> anyhow::Result<Figures> {
    let server = Measured::start(bench, folder, []).await?;
    let url = server.url.clone();
    let (bare_url, bare_stop) = without_store().await?;
    let mut figures = Figures {
        clients: bench.clients,
        batch: bench.batch,
        ..Figures::default()
    };
    let singles = bench
        .jobs
        .div_ceil(u64::from(bench.batch))
        .max(u64::from(bench.clients) * 20);
    let batch = u64::from(bench.batch);
    let load = |url: &str, what, per_request, jobs| Load {
        url: url.to_owned(),
        clients: bench.clients,
        what,
        per_request,
        jobs,
        job: json!({"kind": "bench", "payload": {"number": 123_456, "text": "a payload of an ordinary size"}}),
    };
    figures.without_store_batch_per_s = load(&bare_url, "bare, batches", batch, bench.jobs)
        .enqueue()
        .await?;
    figures.without_store_one_per_s = load(&bare_url, "bare, one", 1, singles).enqueue().await?;
    figures.enqueue_one_per_s = load(&url, "enqueue, one", 1, singles).enqueue().await?;
    let before = resident_bytes();
    figures.enqueue_batch_per_s = load(&url, "enqueue, batches", batch, bench.jobs)
        .enqueue()
        .await?;
    let waiting = bench.jobs + singles;
    figures.claim_settle_per_s = load(&url, "claim and settle", batch, waiting)
        .claim_and_settle()
        .await?;
    let growth = resident_bytes().saturating_sub(before);
    figures.memory_growth_bytes_per_job = growth as f64 / bench.jobs as f64;
    figures.batch_ratio = figures.enqueue_batch_per_s / figures.without_store_batch_per_s;
    figures.one_ratio = figures.enqueue_one_per_s / figures.without_store_one_per_s;
    bare_stop.cancel();
    server.stop().await?;
    Ok(figures)
}

/// The same requests, read and parsed, and answered with as many bytes: all but the store.
async fn without_store() -> anyhow::Result<(String, CancellationToken)> {
    let answer = |body: Body| async move {
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let jobs = asked
            .get("jobs")
            .and_then(Value::as_array)
            .map_or(1, Vec::len);
        let id = "01990000-0000-7000-8000-000000000000";
        let row = json!({"id": id, "duplicate": false});
        let data = json!({"data": vec![row; jobs]}).to_string();
        ([(CONTENT_TYPE, "application/json")], data)
    };
    let router = Router::new()
        .route("/api/v1/jobs", post(answer))
        .route("/api/v1/jobs/bulk", post(answer));
    let limits = Limits {
        connections_per_address: 10_000,
        ..Limits::default()
    };
    let listener = Listener::bind("127.0.0.1:0".parse()?, None, limits).await?;
    let (url, stop) = (listener.url(), CancellationToken::new());
    tokio::spawn(listener.serve(Site::new(router), stop.clone(), stop.clone()));
    Ok((url, stop))
}

/// So many jobs through so many clients.
struct Load {
    url: String,
    clients: u32,
    what: &'static str,
    per_request: u64,
    jobs: u64,
    job: Value,
}

impl Load {
    /// Jobs enqueued each second.
    async fn enqueue(&self) -> anyhow::Result<f64> {
        let (path, body) = match self.per_request {
            1 => ("/api/v1/jobs", self.job.clone()),
            many => (
                "/api/v1/jobs/bulk",
                json!({"jobs": vec![&self.job; usize::try_from(many)?]}),
            ),
        };
        // Written once, so that the client's work is small beside the server's.
        let body: Arc<RawValue> = to_raw_value(&body)?.into();
        let per_request = self.per_request;
        self.run(move |client, taken| {
            let body = Arc::clone(&body);
            async move {
                while taken.next(per_request) {
                    let _: Value = client.call(Method::Post, path, Some(&*body)).await?;
                }
                Ok(())
            }
        })
        .await
    }

    /// Jobs claimed and settled each second.
    async fn claim_and_settle(&self) -> anyhow::Result<f64> {
        let limit = self.per_request;
        self.run(move |client, taken| async move {
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
                taken.count(u64::try_from(jobs.len())?);
            }
        })
        .await
    }

    async fn run<F, A>(&self, client: F) -> anyhow::Result<f64>
    where
        F: Fn(Client, Arc<Taken>) -> A,
        A: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let taken = Arc::new(Taken {
            jobs: self.jobs,
            taken: AtomicU64::new(0),
        });
        let mut clients = JoinSet::new();
        let connections = usize::try_from(self.clients)?;
        let server = Client::builder(&self.url).idle_connections_max(connections);
        let server = server.build()?;
        let bar = progress(self.what, self.jobs);
        let start = clock::start();
        for _ in 0..self.clients {
            clients.spawn(client(server.clone(), Arc::clone(&taken)));
        }
        loop {
            tokio::select! {
                ended = clients.join_next() => match ended {
                    Some(ended) => ended?.with_context(|| format!("{} failed", self.what))?,
                    None => break,
                },
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
            bar.set_position(taken.taken.load(Ordering::Relaxed).min(self.jobs));
        }
        bar.finish_and_clear();
        let done = taken.taken.load(Ordering::Relaxed);
        Ok(done as f64 / start.elapsed().as_secs_f64())
    }
}

/// How many jobs were taken of all.
struct Taken {
    jobs: u64,
    taken: AtomicU64,
}

impl Taken {
    /// Takes the next ones, unless all are taken.
    fn next(&self, count: u64) -> bool {
        let before = self.taken.fetch_add(count, Ordering::Relaxed);
        if before >= self.jobs {
            self.taken.fetch_sub(count, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn count(&self, count: u64) {
        self.taken.fetch_add(count, Ordering::Relaxed);
    }
}

/// Memory of this process, as Linux tells it; elsewhere nothing.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

impl fmt::Display for Figures {
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
            "memory grew by {:.0} bytes a job",
            self.memory_growth_bytes_per_job
        )
    }
}
