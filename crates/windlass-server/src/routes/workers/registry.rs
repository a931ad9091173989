//! The list of workers, and signals to them.

use windlass_api::{
    BoundedInt, NewWorker, PageCursor, PageParams, Worker, WorkerPage, WorkerPosition,
};
use windlass_core::{Timestamp, WorkerName};
use windlass_engine::remote::{Signal, Signalled};
use windlass_engine::{WorkerDescription, WorkerState, is_alive};
use windlass_store::Node;

use super::{signal_word, state_word};
use crate::call::{Call, escaped};
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;
use crate::standalone::nodes::differences;

/// The number of workers on a page if the request gives no limit.
const PAGE_DEFAULT: usize = 50;

pub(super) async fn register(
    call: Call,
    JsonBody((name, worker)): JsonBody<NewWorker>,
) -> Result<Reply<Worker>, Problem> {
    let about = WorkerDescription {
        patterns: Vec::new(),
        queues: worker.queues.map(|queues| queues.0),
        kinds: worker.kinds.map(|kinds| kinds.0),
        slots: worker.slots.map(BoundedInt::to),
        version: worker.version.map(|version| version.to_string()),
    };
    let node = call.app.remote.register(&name, &about).await?;
    let path = call.address(&format!("/workers/{}", escaped(name.as_str())));
    Ok(Reply::created(view(node, None, call.now)).location(path))
}

pub(super) async fn list(
    call: Call,
    Params(page): Params<PageParams<WorkerPosition>>,
) -> Result<Reply<WorkerPage>, Problem> {
    let limit = page.limit_or(PAGE_DEFAULT);
    let after = page.after().map_or_else(String::new, |after| after.0);
    let (app, now) = (&call.app, call.now);
    let nodes = app.client.nodes().await?;
    let differences = differences(&nodes, now);
    let mut all = app.remote.workers(nodes, &after, limit + 1, now).await?;
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more);
    let next_cursor = last.map(|node| PageCursor(WorkerPosition(node.name.clone())).to_string());
    let link = call.link(next_cursor.as_ref());
    let signals = app.remote.signals().all().await?;
    let data = all.into_iter().map(|node| {
        let signal = signals.get(&node.name).copied();
        view(node, signal, now)
    });
    let page = WorkerPage {
        data: data.collect(),
        next_cursor,
        differences,
    };
    Ok(Reply::ok(page).next(link))
}

fn view(node: Node, signal: Option<Signal>, now: Timestamp) -> Worker {
    Worker {
        state: WorkerState::of(&node, signal).map(state_word),
        alive: is_alive(&node, now),
        heartbeat_age_ms: u64::try_from(now.since(node.beat_at).as_millis()).unwrap_or(u64::MAX),
        name: node.name,
        about: node.about,
        heartbeat_at: node.beat_at,
        signal: signal.map(signal_word),
    }
}

pub(super) async fn remove(call: Call) -> Result<Reply<()>, Problem> {
    let name: WorkerName = call.name("name")?;
    let forgotten = call.app.remote.forget_worker(&name).await?;
    forgotten.ok_or_else(no_worker)?;
    Ok(Reply::empty())
}

fn no_worker() -> Problem {
    Problem::not_found("such worker")
}

pub(super) async fn pause_claims(call: Call) -> Result<Reply<Worker>, Problem> {
    signal(call, "worker.pause_claims", Some(Signal::PauseClaims)).await
}

pub(super) async fn stop(call: Call) -> Result<Reply<Worker>, Problem> {
    signal(call, "worker.stop", Some(Signal::Stop)).await
}

pub(super) async fn resume(call: Call) -> Result<Reply<Worker>, Problem> {
    signal(call, "worker.resume", None).await
}

async fn signal(
    call: Call,
    action: &str,
    signal: Option<Signal>,
) -> Result<Reply<Worker>, Problem> {
    let name: WorkerName = call.name("name")?;
    let node = match call.app.remote.signal(&name, signal).await? {
        Signalled::Sent(node) => node,
        Signalled::ObeysNone => {
            let detail =
                "this node obeys no signals: it is a server, or a worker of an older version";
            return Err(Problem::conflict("obeys_no_signals", detail)
                .hint("send a signal of the operating system to its process instead"));
        }
        Signalled::Unknown => return Err(no_worker()),
    };
    call.audit_plain(action, name.as_str()).await;
    Ok(Reply::ok(view(node, signal, call.now)))
}
