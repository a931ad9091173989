//! Workers that registered or were heard, and signals to them.

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use windlass_api::{Cursor, ListPage};
use windlass_core::fields::{Fields, RawFields};
use windlass_core::{Invalid, Kind, QueueName, Timestamp, WorkerName};
use windlass_engine::remote::Signal;
use windlass_engine::{WorkerAbout, is_alive};
use windlass_store::{Node, PAGE_MAX};

use super::signal_name;
use crate::answer::Answer;
use crate::call::{Call, escaped};
use crate::nodes::differences;
use crate::problem::Problem;

/// Rows of a page that names no limit.
const PAGE_DEFAULT: usize = 50;
const QUEUES_MAX: usize = 100;
const KINDS_MAX: usize = 1000;

#[derive(Serialize)]
struct WorkerView {
    name: String,
    about: Value,
    heartbeat_at: Timestamp,
    heartbeat_age_ms: u64,
    alive: bool,
    signal: Option<&'static str>,
}

#[derive(Serialize)]
struct Workers {
    #[serde(flatten)]
    page: ListPage<WorkerView>,
    differences: Vec<String>,
}

/// `POST /api/v1/workers`.
pub(super) async fn register(call: Call) -> Result<Answer, Problem> {
    let (name, about) = call.read(read_worker)?;
    let node = call.app.remote.register(&name, &about).await?;
    let view = view(node, None, call.now);
    let path = call.address(&format!("/workers/{}", escaped(name.as_str())));
    Ok(Answer::json(StatusCode::CREATED, &view)?.location(&path))
}

/// The name of a worker, and what it says about itself.
fn read_worker(parts: RawFields) -> Result<(WorkerName, WorkerAbout), Invalid> {
    let map = parts.values()?;
    let mut fields = Fields::of(&map);
    let name = fields.parsed("name", WorkerName::new)?;
    let name = name.ok_or_else(|| Invalid::new("name", "is required"))?;
    let queues = read_names(&mut fields, "queues", QUEUES_MAX, QueueName::new)?;
    let kinds = read_names(&mut fields, "kinds", KINDS_MAX, Kind::new)?;
    let slots = fields.integer("slots", 1, 1_000_000)?;
    let version = fields.parsed("version", WorkerName::new)?;
    fields.finish()?;
    let about = WorkerAbout {
        queues,
        kinds,
        slots: slots.and_then(|slots| slots.try_into().ok()),
        version: version.map(|version| version.to_string()),
    };
    Ok((name, about))
}

fn read_names<T>(
    fields: &mut Fields<'_>,
    name: &str,
    most: usize,
    parse: impl Fn(&str) -> Result<T, Invalid>,
) -> Result<Option<Vec<T>>, Invalid> {
    let Some(list) = fields.list(name)? else {
        return Ok(None);
    };
    if list.is_empty() || list.len() > most {
        let rule = format!("must list 1 to {most}, got {}", list.len());
        return Err(Invalid::new(name, rule));
    }
    let read = |(place, value): (usize, &Value)| {
        let text = value
            .as_str()
            .ok_or_else(|| Invalid::new("", "must be text"));
        let parsed = text.and_then(&parse);
        parsed.map_err(|error| error.within(&format!("{name}[{place}]")))
    };
    let names: Result<Vec<T>, Invalid> = list.iter().enumerate().map(read).collect();
    Ok(Some(names?))
}

/// `GET /api/v1/workers`.
pub(super) async fn list(call: Call) -> Result<Answer, Problem> {
    let limit = call.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let after = call.query().parsed("cursor", Cursor::name)?;
    let after = after.unwrap_or_default();
    let (app, now) = (&call.app, call.now);
    let nodes = app.store().nodes().await?;
    let differences = differences(&nodes, now);
    let mut all = app.remote.workers(nodes, &after, limit + 1, now).await?;
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more);
    let next_cursor = last.map(|node| Cursor::Name(node.name.clone()).to_string());
    let link = call.link(next_cursor.as_ref());
    let signals = app.remote.signals().all().await?;
    let data = all.into_iter().map(|node| {
        let signal = signals.get(&node.name).copied();
        view(node, signal, now)
    });
    let data = data.collect();
    let page = ListPage { data, next_cursor };
    Ok(Answer::ok(&Workers { page, differences })?.next(link))
}

fn view(node: Node, signal: Option<Signal>, now: Timestamp) -> WorkerView {
    WorkerView {
        alive: is_alive(&node, now),
        heartbeat_age_ms: u64::try_from(now.since(node.beat_at).as_millis()).unwrap_or(u64::MAX),
        name: node.name,
        about: node.about,
        heartbeat_at: node.beat_at,
        signal: signal_name(signal),
    }
}

/// `DELETE /api/v1/workers/{name}`.
pub(super) async fn remove(call: Call) -> Result<Answer, Problem> {
    let name: WorkerName = call.name("name")?;
    let forgotten = call.app.remote.forget_worker(&name).await?;
    forgotten.ok_or_else(no_worker)?;
    Ok(Answer::empty())
}

fn no_worker() -> Problem {
    Problem::not_found("such worker")
}

/// `POST /api/v1/workers/{name}/quiet`.
pub(super) async fn quiet(call: Call) -> Result<Answer, Problem> {
    signal(call, "worker.quiet", Some(Signal::Quiet)).await
}

/// `POST /api/v1/workers/{name}/stop`.
pub(super) async fn stop(call: Call) -> Result<Answer, Problem> {
    signal(call, "worker.stop", Some(Signal::Stop)).await
}

/// `POST /api/v1/workers/{name}/resume`.
pub(super) async fn resume(call: Call) -> Result<Answer, Problem> {
    signal(call, "worker.resume", None).await
}

async fn signal(call: Call, action: &str, signal: Option<Signal>) -> Result<Answer, Problem> {
    let name: WorkerName = call.name("name")?;
    let node = call.app.remote.signal(&name, signal).await?;
    let node = node.ok_or_else(no_worker)?;
    call.audit_plain(action, name.as_str()).await;
    Answer::ok(&view(node, signal, call.now))
}
