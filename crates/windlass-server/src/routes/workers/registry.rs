//! Workers that registered or were heard, and signals to them.

use std::time::Duration;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use windlass_api::ListPage;
use windlass_core::fields::Fields;
use windlass_core::{Invalid, Kind, QueueName, Timestamp, WorkerName};
use windlass_store::Node;

use super::signals::Signal;
use crate::answer::Answer;
use crate::app::App;
use crate::call::{Call, escaped};
use crate::nodes::differences;
use crate::problem::Problem;

/// A sign of life is written down this often.
const HEARD_EVERY: Duration = Duration::from_secs(5);
const QUEUES_MAX: usize = 100;
const KINDS_MAX: usize = 1000;

#[derive(Serialize)]
struct WorkerView {
    name: String,
    about: Value,
    heartbeat_at: Timestamp,
    heartbeat_age_ms: u64,
    signal: Option<Signal>,
}

#[derive(Serialize)]
struct Workers {
    #[serde(flatten)]
    page: ListPage<WorkerView>,
    differences: Vec<String>,
}

/// `POST /api/v1/workers`.
pub(super) async fn register(call: Call) -> Result<Answer, Problem> {
    let map = call.map()?;
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
    let store = call.app.store();
    let signals = &call.app.signals;
    signals
        .put(call.app.engine(), &name, None, call.now)
        .await?;
    store.beat(name.as_str(), &about, call.now).await?;
    let view = WorkerView {
        name: name.to_string(),
        about,
        heartbeat_at: call.now,
        heartbeat_age_ms: 0,
        signal: None,
    };
    let path = call.address(&format!("/workers/{}", escaped(name.as_str())));
    Ok(Answer::json(StatusCode::CREATED, &view)?.location(&path))
}

fn read_names(
    fields: &mut Fields<'_>,
    name: &str,
    most: usize,
    check: impl Fn(&str) -> Result<(), Invalid>,
) -> Result<Option<Vec<String>>, Problem> {
    let Some(list) = fields.list(name)? else {
        return Ok(None);
    };
    if list.is_empty() || list.len() > most {
        return Err(
            Invalid::new(name, format!("must list 1 to {most}, got {}", list.len())).into(),
        );
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

/// Writes down that a worker was heard. What it registered with stays; else `about` says what is known of it.
pub(super) async fn hear(
    app: &App,
    worker: Option<&WorkerName>,
    about: impl FnOnce() -> Value,
) -> Result<(), Problem> {
    let now = app.engine().now();
    let Some(worker) = worker.filter(|worker| app.claims.hear(worker, HEARD_EVERY, now)) else {
        return Ok(());
    };
    let known = app.store().nodes().await?;
    let known = known.into_iter().find(|node| node.name == worker.as_str());
    let kept = known.map(|node| node.about);
    // One that only renews says nothing about what it takes.
    let said = about();
    let kept = kept.filter(|kept| kept.get("registered").is_some() || said.get("queues").is_none());
    app.store()
        .beat(worker.as_str(), &kept.unwrap_or(said), now)
        .await?;
    Ok(())
}

/// `GET /api/v1/workers`.
pub(super) async fn list(call: Call) -> Result<Answer, Problem> {
    let signals = call.app.signals.all(call.app.engine()).await?;
    let nodes = call.app.store().nodes().await?;
    let differences = differences(&nodes, call.now);
    let views = nodes.into_iter().map(|node| {
        let signal = signals.get(&node.name).copied();
        view(node, signal, call.now)
    });
    let page = ListPage::whole(views.collect());
    Answer::ok(&Workers { page, differences })
}

fn view(node: Node, signal: Option<Signal>, now: Timestamp) -> WorkerView {
    WorkerView {
        heartbeat_age_ms: u64::try_from(now.since(node.beat_at).as_millis()).unwrap_or(u64::MAX),
        name: node.name,
        about: node.about,
        heartbeat_at: node.beat_at,
        signal,
    }
}

/// `DELETE /api/v1/workers/{name}`.
pub(super) async fn remove(call: Call) -> Result<Answer, Problem> {
    let name: WorkerName = call.name("name")?;
    known(&call, &name).await?;
    call.app.store().remove_node(name.as_str()).await?;
    let signals = &call.app.signals;
    signals
        .put(call.app.engine(), &name, None, call.now)
        .await?;
    Ok(Answer::empty())
}

async fn known(call: &Call, name: &WorkerName) -> Result<Node, Problem> {
    let nodes = call.app.store().nodes().await?;
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
    let signals = &call.app.signals;
    signals
        .put(call.app.engine(), &name, signal, call.now)
        .await?;
    call.audit_plain(action, name.as_str()).await;
    Answer::ok(&view(node, signal, call.now))
}
