//! Queues: read them, change their settings, pause and resume them.

use serde_json::json;
use windlass::Error;
use windlass::admin::QueueInfo;
use windlass_api::{
    CreateQueue, Page, PageParams, PauseQueue, Queue, QueueCounts, QueuePause, QueuePosition,
    QueueSettings, Text,
};
use windlass_core::{QueueName, Timestamp};

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::preconditions::exists;
use crate::problem::Problem;

const TAG: &str = "queues";

/// The number of queues on a page if the request gives no limit.
const LIST_DEFAULT: usize = 50;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/queues", Scope::Read, list)
            .summary(
                TAG,
                "Lists queues with their depth, rates and oldest ready job, ordered by name.",
            )
            .status(200, "A page of queues."),
        Route::get("/api/v1/queues/{queue}", Scope::Read, get)
            .summary(TAG, "Returns a queue.")
            .status(200, "The queue."),
        Route::get("/api/v1/queues/{queue}/settings", Scope::Read, get_settings)
            .summary(TAG, "Returns the settings of a queue.")
            .status(200, "The settings."),
        Route::put(
            "/api/v1/queues/{queue}/settings",
            Scope::Operate,
            put_settings,
        )
        .summary(
            TAG,
            "Replaces all settings of a queue. Settings that are not given are reset to their defaults.",
        )
        .status(200, "The settings."),
        Route::post("/api/v1/queues/{queue}/pause", Scope::Operate, pause)
            .summary(
                TAG,
                "Pauses a queue: workers claim no jobs from it. Running jobs continue.",
            )
            .body_optional()
            .status(200, "The queue."),
        Route::post("/api/v1/queues/{queue}/resume", Scope::Operate, resume)
            .summary(TAG, "Resumes a paused queue.")
            .status(200, "The queue."),
    ]
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<QueuePosition>>,
) -> Result<Reply<Page<Queue>>, Problem> {
    let queues = call.app.client.queues().await?;
    let (limit, after) = (page.limit_or(LIST_DEFAULT), page.after());
    let after = after.map(|after| after.0);
    let is_after = |name: &QueueName| after.as_deref().is_none_or(|after| name.as_str() > after);
    let data = queues.into_iter().filter(|(name, _)| is_after(name));
    let data = data.take(limit + 1);
    let data = data.map(|(name, queue)| view(&call, name, queue)).collect();
    let page = Page::first(data, limit, |queue| QueuePosition(queue.name.to_string()));
    let link = call.link(page.next_cursor.as_ref());
    Ok(Reply::ok(page).next(link))
}

async fn get(call: Call) -> Result<Reply<Queue>, Problem> {
    let name = call.name("queue")?;
    call.app.client.check_queue(&name).await?;
    answer(&call, name).await
}

/// Refuses a queue that does not exist, unless the request has `create=true`.
async fn check_or_create(
    call: &Call,
    name: &QueueName,
    params: CreateQueue,
) -> Result<(), Problem> {
    if params.create == Some(true) {
        return Ok(());
    }
    let hint = "add `?create=true` to create it before its first job";
    let checked = call.app.client.check_queue(name).await;
    checked.map_err(|error| match error {
        Error::QueueNotFound { .. } => Problem::from(error).and_hint(hint),
        error => error.into(),
    })
}

async fn answer(call: &Call, name: QueueName) -> Result<Reply<Queue>, Problem> {
    let queue = call.app.client.queue(&name).await?;
    Ok(Reply::ok(view(call, name, queue)))
}

fn view(call: &Call, name: QueueName, queue: QueueInfo) -> Queue {
    let counts = queue.counts;
    Queue {
        depth: counts.scheduled + counts.ready,
        counts: QueueCounts {
            scheduled: counts.scheduled,
            ready: counts.ready,
            retrying: counts.retrying,
            running: counts.running,
            succeeded: counts.succeeded,
            dead: counts.dead,
            cancelled: counts.cancelled,
        },
        last_minute: call.app.rates.of(&name, call.now),
        oldest_ready_at: counts.oldest_ready,
        oldest_ready_ms: counts.oldest_ready.map(|at| millis(call.now, at)),
        paused: queue.paused.map(|pause| QueuePause {
            by: pause.by,
            at: pause.at,
            reason: pause.reason,
        }),
        settings: QueueSettings::from(&queue.settings),
        settings_unreadable: queue.settings_unreadable,
        name,
    }
}

fn millis(now: Timestamp, earlier: Timestamp) -> u64 {
    u64::try_from(now.since(earlier).as_millis()).unwrap_or(u64::MAX)
}

async fn get_settings(call: Call) -> Result<Reply<QueueSettings>, Problem> {
    let (client, name) = (&call.app.client, call.name("queue")?);
    client.check_queue(&name).await?;
    let queue = client.queue(&name).await?;
    Ok(Reply::ok(QueueSettings::from(&queue.settings)))
}

async fn put_settings(
    call: Call,
    Params(params): Params<CreateQueue>,
    JsonBody(settings): JsonBody<QueueSettings>,
) -> Result<Reply<QueueSettings>, Problem> {
    let name: QueueName = call.name("queue")?;
    let client = &call.app.client;
    if !call.only_creates() {
        check_or_create(&call, &name, params).await?;
        client.set_queue(name.as_str(), &settings).await?;
    } else if !client.create_queue(name.as_str(), &settings).await? {
        return Err(exists(&format!("a settings record of queue {name}")));
    }
    call.app.remote.forget_settings(&name);
    let answer = QueueSettings::from(&settings);
    call.audit("queue.settings", name.as_str(), json!(answer))
        .await;
    Ok(Reply::ok(answer))
}

async fn pause(
    call: Call,
    Params(params): Params<CreateQueue>,
    JsonBody(pause): JsonBody<PauseQueue>,
) -> Result<Reply<Queue>, Problem> {
    let name: QueueName = call.name("queue")?;
    check_or_create(&call, &name, params).await?;
    let reason = pause.reason.as_ref().map(Text::as_str);
    let client = &call.app.client;
    client
        .pause_queue(name.as_str(), &call.caller.name, reason)
        .await?;
    call.audit("queue.pause", name.as_str(), json!(pause)).await;
    answer(&call, name).await
}

async fn resume(call: Call) -> Result<Reply<Queue>, Problem> {
    let name: QueueName = call.name("queue")?;
    call.app.client.check_queue(&name).await?;
    call.app.client.resume_queue(name.as_str()).await?;
    call.audit_plain("queue.resume", name.as_str()).await;
    answer(&call, name).await
}
