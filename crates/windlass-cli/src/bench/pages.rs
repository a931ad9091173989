//! `windlass bench pages`: the server time of every page of the dashboard, with many jobs.
//!
//! Pages are requested inside the process, so the time is that of the server alone: no network and
//! no browser.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{ACCEPT, HOST};
use serde::Serialize;
use serde_json::Value;
use tower::ServiceExt as _;
use windlass::Client;
use windlass::admin::engine_of;
use windlass_core::{Job, JobId, Kind, NewJob, QueueName, Random};
use windlass_server::access::{Access, WithoutKeys};
use windlass_server::{App, DashboardSettings, with_dashboard};
use windlass_store::{Enqueue, Store};

use super::operators::fill::{self, QUEUES};
use super::run::{Percentiles, open_error, percentiles};
use super::{PagesBench, progress, runtime, store_url};
use crate::clock;
use crate::output::Output;

/// The largest page that is read.
const PAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The measurements.
#[derive(Debug, Serialize)]
struct PagesResults {
    jobs: u64,
    failure_groups: u64,
    fill_s: f64,
    pages: Vec<PageResult>,
}

/// How long a page takes.
#[derive(Debug, Serialize)]
struct PageResult {
    path: String,
    bytes: usize,
    /// The first load of a server that has cached nothing.
    first_ms: f64,
    /// The loads after it.
    ms: Percentiles,
}

pub(super) fn run(bench: &PagesBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = store_url(bench.store.as_deref(), folder.path());
    let results = runtime()?.block_on(measure(bench, &url))?;
    output.print(&results, &results)
}

async fn measure(bench: &PagesBench, url: &str) -> anyhow::Result<PagesResults> {
    let client = Client::open(url).await.map_err(open_error)?;
    let store = engine_of(&client).store();
    anyhow::ensure!(
        store.counts(clock::now()).await?.is_empty(),
        "the store already holds jobs; use an empty one"
    );
    let started = clock::start();
    fill::dead_jobs(store, bench.jobs, bench.groups).await?;
    waiting_jobs(store, bench.jobs / 100).await?;
    let fill_s = started.elapsed().as_secs_f64();
    let paths = paths(&site(&client)).await?;
    let bar = progress("pages", paths.len() as u64);
    let mut pages = Vec::new();
    for path in paths {
        pages.push(page(&client, path, bench.reads).await?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(PagesResults {
        jobs: bench.jobs,
        failure_groups: bench.groups,
        fill_s,
        pages,
    })
}

/// Stores jobs that wait in all queues.
async fn waiting_jobs(store: &dyn Store, jobs: u64) -> anyhow::Result<()> {
    let (now, mut random) = (clock::now(), Random::new(2));
    let mut batch: Vec<Job> = Vec::new();
    for (_, queue) in (0..jobs).zip(QUEUES.iter().cycle()) {
        let new = NewJob {
            queue: QueueName::new(queue)?,
            ..NewJob::new(Kind::new("send")?)
        };
        batch.push(new.into_job(JobId::new(now, random.bits()), now)?);
    }
    store.enqueue(Enqueue::all(batch), now).await?;
    Ok(())
}

/// A server that has cached nothing.
fn site(client: &Client) -> Router {
    let engine = Arc::clone(engine_of(client));
    let app = App::new(client.clone(), Access::by_keys(engine, WithoutKeys::Open));
    with_dashboard(app, DashboardSettings::default())
}

/// The paths of all pages.
async fn paths(site: &Router) -> anyhow::Result<Vec<String>> {
    let read = async |path: &str| -> anyhow::Result<Value> {
        let (body, _) = load(site, path, "application/json").await?;
        Ok(serde_json::from_slice(&body)?)
    };
    let text = |value: &Value, pointer: &str| {
        let found = value.pointer(pointer).and_then(Value::as_str);
        found.map(str::to_owned).context("the store has no jobs")
    };
    let job = text(
        &read("/api/v1/jobs?state=dead&limit=1").await?,
        "/data/0/id",
    )?;
    let group = read("/api/v1/failures?limit=1").await?;
    let (queue, kind) = (
        text(&group, "/data/0/queue")?,
        text(&group, "/data/0/kind")?,
    );
    let fingerprint = text(&group, "/data/0/fingerprint")?;
    let cause = format!("queue={queue}&kind={kind}&fingerprint={fingerprint}");
    let plain = [
        "/",
        "/?range=15m",
        "/?range=24h",
        "/?range=30d",
        "/jobs",
        "/jobs?state=dead",
        "/jobs?state=ready",
        "/queues",
        "/dead",
        "/dead?as=jobs",
        "/actions",
        "/schedules",
        "/new/schedule?rule=0+2+*+*+*",
        "/lab",
        "/workers",
        "/audit",
        "/keys",
        "/settings",
        "/reference",
    ];
    let mut paths: Vec<String> = plain.map(str::to_owned).to_vec();
    paths.extend([
        format!("/jobs?state=dead&queue={queue}&kind={kind}"),
        format!("/jobs?state=dead&error=order+{}", 7),
        format!("/jobs/all?state=dead&queue={queue}"),
        format!("/jobs/{job}"),
        format!("/jobs/{job}/edit"),
        format!("/queues/{queue}"),
        format!("/queues/{queue}/settings"),
        format!("/queues/{queue}/purge"),
        format!("/dead?{cause}"),
        format!("/dead/purge?{cause}"),
        format!("/dead/replay?{cause}"),
        format!("/dead/replay?{cause}&step=review"),
    ]);
    Ok(paths)
}

async fn page(client: &Client, path: String, reads: u32) -> anyhow::Result<PageResult> {
    let site = site(client);
    let (body, first) = load(&site, &path, "text/html").await?;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..reads {
        times.push(load(&site, &path, "text/html").await?.1);
    }
    Ok(PageResult {
        path,
        bytes: body.len(),
        first_ms: first.as_secs_f64() * 1000.0,
        ms: percentiles(&mut times),
    })
}

/// Loads a page and returns its body and how long it took.
async fn load(site: &Router, path: &str, accept: &str) -> anyhow::Result<(Vec<u8>, Duration)> {
    let request = Request::builder().uri(path).header(HOST, "127.0.0.1");
    let request = request.header(ACCEPT, accept).body(Body::empty())?;
    let started = clock::start();
    let response = site.clone().oneshot(request).await?;
    let status = response.status();
    let body = to_bytes(response.into_body(), PAGE_BYTES_MAX).await?;
    let time = started.elapsed();
    anyhow::ensure!(
        status.is_success(),
        "{path} failed with {status}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok((body.into(), time))
}

impl fmt::Display for PagesResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} dead jobs of {} causes, stored in {:.0} s\n",
            self.jobs, self.failure_groups, self.fill_s
        )?;
        writeln!(
            f,
            "{:64} {:>8} {:>9} {:>9} {:>9}",
            "page", "kB", "first ms", "p50 ms", "p99 ms"
        )?;
        for page in &self.pages {
            let (Percentiles { p50, p99 }, first) = (page.ms, page.first_ms);
            let kilobytes = page.bytes as f64 / 1000.0;
            writeln!(
                f,
                "{:64} {kilobytes:>8.1} {first:>9.1} {p50:>9.1} {p99:>9.1}",
                page.path
            )?;
        }
        let slowest = self
            .pages
            .iter()
            .max_by(|a, b| a.ms.p99.total_cmp(&b.ms.p99));
        if let Some(slowest) = slowest {
            writeln!(f, "\nslowest: {}, {:.0} ms", slowest.path, slowest.ms.p99)?;
        }
        Ok(())
    }
}
