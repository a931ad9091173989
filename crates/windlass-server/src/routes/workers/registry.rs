//! Workers that registered or were heard, and signals to them.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use windlass_api::{Cursor, ListPage};
use windlass_core::fields::{Fields, RawFields};
use windlass_core::{Invalid, Kind, QueueName, Timestamp, WorkerName};
use windlass_engine::remote::Signal;
use windlass_store::{Node, PAGE_MAX};

use super::signal_name;
use crate::answer::Answer;
use crate::call::{Call, escaped};
use crate::nodes::{differences, is_alive};
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
    let (remote, now) = (&call.app.remote, call.now);
    remote.roster().register(&name, &about, now).await?;
    remote.signals().put(&name, None).await?;
    let node = Node {
        name: name.to_string(),
        about,
        beat_at: now,
    };
    let view = view(node, None, now);
    let path = call.address(&format!("/workers/{}", escaped(name.as_str())));
    Ok(Answer::json(StatusCode::CREATED, &view)?.location(&path))
}

/// The name of a worker, and what it says about itself.
fn read_worker(parts: RawFields) -> Result<(WorkerName, Value), Invalid> {
    let map = parts.values()?;
    let mut fields = Fields::of(&map);
    let name = fields.parsed("name", WorkerName::new)?;
    let name = name.ok_or_else(|| Invalid::new("name", "is required"))?;
    let queues = read_names(&mut fields, "queues", QUEUES_MAX, |text| {
        QueueName::new(text).map(|_| ())
    })?;
    let kinds = read_names(&mut fields, "kinds", KINDS_MAX, |text| {
        Kind::new(text).map(|_| ())
    })?;
    let slots = fields.integer("slots", 1, 1_000_000)?;
    let version = fields.parsed("version", WorkerName::new)?;
    fields.finish()?;
    let about = json!({
        "type": "rest", "registered": true, "queues": queues, "kinds": kinds, "slots": slots,
        "version": version,
    });
    Ok((name, about))
}

fn read_names(
    fields: &mut Fields<'_>,
    name: &str,
    most: usize,
    check: impl Fn(&str) -> Result<(), Invalid>,
) -> Result<Option<Vec<String>>, Invalid> {
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
        let checked = text.and_then(|text| check(text).map(|()| text.to_owned()));
        checked.map_err(|error| error.within(&format!("{name}[{place}]")))
    };
    let names: Result<Vec<String>, Invalid> = list.iter().enumerate().map(read).collect();
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
    let remote = app.remote.roster().page(&after, limit + 1, now).await?;
    let nodes = nodes.into_iter().filter(|node| node.name > after);
    let named = |node: Node| (node.name.clone(), node);
    let mut all: BTreeMap<String, Node> = remote.into_iter().chain(nodes).map(named).collect();
    let more = all.len() > limit;
    while all.len() > limit {
        all.pop_last();
    }
    let last = all.last_key_value().filter(|_| more);
    let next_cursor = last.map(|(name, _)| Cursor::Name(name.clone()).to_string());
    let link = call.link(next_cursor.as_ref());
    let signals = app.remote.signals().all().await?;
    let data = all.into_values().map(|node| {
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
    known(&call, &name).await?;
    call.app.remote.roster().remove(&name).await?;
    call.app.store().remove_node(name.as_str()).await?;
    call.app.remote.signals().put(&name, None).await?;
    Ok(Answer::empty())
}

async fn known(call: &Call, name: &WorkerName) -> Result<Node, Problem> {
    let app = &call.app;
    if let Some(worker) = app.remote.roster().get(name, call.now).await? {
        return Ok(worker);
    }
    let nodes = app.store().nodes().await?;
    let found = nodes.into_iter().find(|node| node.name == name.as_str());
    found.ok_or_else(|| Problem::not_found("such worker"))
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
    let node = known(&call, &name).await?;
    call.app.remote.signals().put(&name, signal).await?;
    call.audit_plain(action, name.as_str()).await;
    Answer::ok(&view(node, signal, call.now))
}
