//! Whether a queue exists.
//!
//! No one creates a queue before its first job. So a queue exists while it has jobs, finished ones
//! included, while something is set about it, or while a live worker takes jobs from it. `default`
//! always exists. A request about any other queue is most likely a typo: it is refused, unless it
//! says that it means to create one.

use windlass_api::CreateQueue;
use windlass_core::QueueName;
use windlass_core::fields::nearest;
use windlass_engine::{QUEUE_SETTINGS, WorkerAbout, is_alive};
use windlass_store::{Filter, Node, Page, StoreError};

use crate::call::Call;
use crate::problem::Problem;

/// Refuses a queue that does not exist.
pub(super) async fn must_exist(call: &Call, name: &QueueName) -> Result<(), Problem> {
    let near = match find(call, name).await? {
        Found::Exists => return Ok(()),
        Found::Missing { near } => near,
    };
    let detail = "it has no jobs and no settings, and no live worker takes jobs from it";
    let problem = Problem::not_found(format!("queue {name}: {detail}"));
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "GET /api/v1/queues lists the queues".to_owned(),
    };
    Err(problem.hint(&hint))
}

/// Refuses a queue that does not exist, unless the request says `create=true`.
pub(super) async fn must_exist_or_create(
    call: &Call,
    name: &QueueName,
    params: CreateQueue,
) -> Result<(), Problem> {
    if params.create == Some(true) {
        return Ok(());
    }
    let found = must_exist(call, name).await;
    found
        .map_err(|problem| problem.and_hint("add `?create=true` to set it up before its first job"))
}

enum Found {
    Exists,
    Missing { near: Option<String> },
}

/// Looks where it costs little first: only of a queue without settings and workers, whose jobs are
/// not among the newest, the store counts all jobs.
async fn find(call: &Call, name: &QueueName) -> Result<Found, Problem> {
    let (app, store, now) = (&call.app, call.app.store(), call.now);
    let limits = store.queues().await?;
    if *name == QueueName::default() || limits.contains_key(name) {
        return Ok(Found::Exists);
    }
    let has_settings = match store.document(QUEUE_SETTINGS, name.as_str(), now).await {
        Err(StoreError::Damaged { .. }) => true,
        settings => settings?.is_some(),
    };
    let takes = |node: &Node| is_alive(node, now) && WorkerAbout::names_queue(&node.about, name);
    if has_settings
        || store.nodes().await?.iter().any(takes)
        || app.remote.roster().count(takes, now).await? > 0
    {
        return Ok(Found::Exists);
    }
    let filter = Filter {
        queue: Some(name.clone()),
        ..Filter::default()
    };
    let newest = Page {
        after: None,
        limit: 1,
    };
    if !store.list(&filter, newest, now).await?.jobs.is_empty() {
        return Ok(Found::Exists);
    }
    let counts = store.counts(now).await?;
    if counts.contains_key(name) {
        return Ok(Found::Exists);
    }
    let names = counts.keys().chain(limits.keys()).map(QueueName::as_str);
    let near = nearest(name.as_str(), names).map(str::to_owned);
    Ok(Found::Missing { near })
}
