//! Queues: how they are, what is set about them, and how they are stopped and emptied.

mod existence;

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value, json};
use windlass_api::schema::{Field, Schema};
use windlass_api::{Cursor, JobFilter, ListPage, QueueSettings};
use windlass_core::fields::{Fields, RawFields, one_of};
use windlass_core::{Invalid, JobId, QueueName, Timestamp};
use windlass_store::{Change, Counts, PAGE_MAX, QueueLimits};

use self::existence::{must_exist, must_exist_or_create};
use super::Route;
use super::jobs::{PassAnswer, page_params};
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::preconditions::exists;
use crate::problem::Problem;
use crate::queue_settings::{self, Stored};
use crate::search::search;

const TAG: &str = "queues";

/// Rows of a page that names no limit.
const LIST_DEFAULT: usize = 50;
/// One pass removes so many jobs unless it is said.
const PURGE_DEFAULT: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    let queue = || Schema::named("Queue");
    let create = || {
        let about = "Set up a queue that does not exist yet; without it, such a queue is 404.";
        Field::maybe("create", Schema::word(&["true", "false"]).about(about))
    };
    vec![
        Route::new(Method::GET, "/api/v1/queues", Scope::Read, list)
            .says(
                TAG,
                "Lists queues with their depth, rates and oldest ready job.",
            )
            .params(page_params())
            .answers(
                200,
                "A page of them, by name.",
                Schema::page(queue(), vec![]),
            ),
        Route::new(Method::GET, "/api/v1/queues/{queue}", Scope::Read, get)
            .says(TAG, "One queue.")
            .answers(200, "The queue.", queue()),
        Route::new(
            Method::GET,
            "/api/v1/queues/{queue}/settings",
            Scope::Read,
            get_settings,
        )
        .says(TAG, "What is set about a queue.")
        .answers(200, "The settings.", Schema::named("QueueSettings")),
        Route::new(
            Method::PUT,
            "/api/v1/queues/{queue}/settings",
            Scope::Operate,
            put_settings,
        )
        .says(
            TAG,
            "Sets all that is set about a queue; what is not given is not set.",
        )
        .takes("QueueSettings")
        .params([create()])
        .answers(200, "The settings.", Schema::named("QueueSettings")),
        Route::new(
            Method::POST,
            "/api/v1/queues/{queue}/pause",
            Scope::Operate,
            pause,
        )
        .says(
            TAG,
            "Nothing more is claimed from it, by anybody. Running jobs go on.",
        )
        .params([create()])
        .answers(200, "The queue.", queue()),
        Route::new(
            Method::POST,
            "/api/v1/queues/{queue}/resume",
            Scope::Operate,
            resume,
        )
        .says(TAG, "Its jobs are claimed again.")
        .answers(200, "The queue.", queue()),
        Route::new(
            Method::POST,
            "/api/v1/queues/{queue}/purge",
            Scope::Operate,
            purge,
        )
        .says(TAG, "Removes finished jobs of one state, one pass of them.")
        .takes("Purge")
        .answers(200, "How far the pass got.", Schema::named("PassAnswer")),
    ]
}

async fn list(call: Call) -> Result<Answer, Problem> {
    let store = call.app.store();
    let counts = store.counts(call.now).await?;
    let limits = store.queues().await?;
    let kept = queue_settings::kept(store, call.now).await?;
    let names = counts.keys().chain(limits.keys()).chain(kept.keys());
    let names: BTreeSet<&QueueName> = names.collect();
    let limit = call.limit(LIST_DEFAULT, PAGE_MAX)?;
    let after = call.query().parsed("cursor", Cursor::name)?;
    let behind = |name: &&&QueueName| after.as_deref().is_none_or(|after| name.as_str() > after);
    let mut page: Vec<&QueueName> = names
        .iter()
        .filter(behind)
        .take(limit + 1)
        .copied()
        .collect();
    let more = page.len() > limit;
    page.truncate(limit);
    let last = page.last().filter(|_| more);
    let next_cursor = last.map(|name| Cursor::Name(name.to_string()).to_string());
    let view = |name: &&QueueName| {
        let counts = counts.get(*name).copied().unwrap_or_default();
        let limits = limits.get(*name).cloned().unwrap_or_default();
        let stored = queue_settings::together(&limits, kept.get(*name));
        view(&call, name, counts, limits, &stored)
    };
    let data: Vec<Value> = page.iter().map(view).collect();
    let link = call.link(next_cursor.as_ref());
    let page = ListPage { data, next_cursor };
    Ok(Answer::ok(&page)?.next(link))
}

async fn get(call: Call) -> Result<Answer, Problem> {
    let name = call.name("queue")?;
    must_exist(&call, &name).await?;
    answer(&call, &name).await
}

async fn answer(call: &Call, name: &QueueName) -> Result<Answer, Problem> {
    let store = call.app.store();
    let mut counts = store.counts(call.now).await?;
    let counts = counts.remove(name).unwrap_or_default();
    let limits = store.queues().await?.remove(name).unwrap_or_default();
    let stored = queue_settings::stored(store, name, call.now).await?;
    Answer::ok(&view(call, name, counts, limits, &stored))
}

fn view(
    call: &Call,
    name: &QueueName,
    counts: Counts,
    limits: QueueLimits,
    stored: &Stored,
) -> Value {
    let oldest_ms = counts.oldest_ready.map(|at| millis(call.now, at));
    json!({
        "name": name,
        "depth": counts.scheduled + counts.ready,
        "counts": {
            "scheduled": counts.scheduled, "ready": counts.ready, "retrying": counts.retrying,
            "running": counts.running, "succeeded": counts.succeeded, "dead": counts.dead,
            "cancelled": counts.cancelled,
        },
        "last_minute": call.app.rates.of(name, call.now),
        "oldest_ready_at": counts.oldest_ready,
        "oldest_ready_ms": oldest_ms,
        "paused": limits.paused.map(|pause| json!({"by": pause.by, "at": pause.at})),
        "settings": stored.settings.to_json(),
        "settings_unreadable": stored.unreadable,
    })
}

fn millis(now: Timestamp, earlier: Timestamp) -> u64 {
    u64::try_from(now.since(earlier).as_millis()).unwrap_or(u64::MAX)
}

async fn get_settings(call: Call) -> Result<Answer, Problem> {
    let name = call.name("queue")?;
    must_exist(&call, &name).await?;
    let settings = queue_settings::settings_of(call.app.store(), &name, call.now).await?;
    Answer::ok(&settings.to_json())
}

async fn put_settings(call: Call) -> Result<Answer, Problem> {
    let name: QueueName = call.name("queue")?;
    let settings = call.read(|parts| QueueSettings::from_fields(&parts.values()?))?;
    if !call.only_creates() {
        must_exist_or_create(&call, &name).await?;
    }
    let told = settings.to_json();
    let client = &call.app.client;
    if !call.only_creates() {
        queue_settings::set(client, &name, &settings, call.now).await?;
    } else if !queue_settings::create(call.app.store(), &name, &settings, call.now).await? {
        return Err(exists(&format!("what is set about queue {name}")));
    }
    call.app.remote.forget_settings(&name);
    call.app.engine().http_queues().look_again();
    call.audit("queue.settings", name.as_str(), told.clone())
        .await;
    Answer::ok(&told)
}

async fn pause(call: Call) -> Result<Answer, Problem> {
    let name: QueueName = call.name("queue")?;
    must_exist_or_create(&call, &name).await?;
    call.app
        .client
        .pause_queue(name.as_str(), &call.caller.name)
        .await?;
    call.audit_plain("queue.pause", name.as_str()).await;
    answer(&call, &name).await
}

async fn resume(call: Call) -> Result<Answer, Problem> {
    let name: QueueName = call.name("queue")?;
    must_exist(&call, &name).await?;
    call.app.client.resume_queue(name.as_str()).await?;
    call.audit_plain("queue.resume", name.as_str()).await;
    answer(&call, &name).await
}

/// What a purge removes. It must be spelled out: one state, and from when on it stays.
struct Purge {
    state: &'static str,
    finished_before: Option<Timestamp>,
    limit: usize,
    after: Option<JobId>,
}

impl Purge {
    fn read(parts: RawFields) -> Result<Self, Invalid> {
        let map = parts.values()?;
        let mut fields = Fields::of(&map);
        let words = ["succeeded", "dead", "cancelled"].map(|word| (word, word));
        let state = fields.parsed("state", |text| one_of(text, &words))?;
        let required = || Invalid::new("state", "is required: say what is removed");
        let most = i64::try_from(PAGE_MAX).unwrap_or(i64::MAX);
        let limit = fields.integer("limit", 1, most)?;
        let purge = Purge {
            state: state.ok_or_else(required)?,
            finished_before: fields.timestamp("finished_before")?,
            limit: limit
                .and_then(|limit| limit.try_into().ok())
                .unwrap_or(PURGE_DEFAULT),
            after: fields.parsed("cursor", Cursor::job)?,
        };
        fields.finish()?;
        Ok(purge)
    }
}

async fn purge(call: Call) -> Result<Answer, Problem> {
    let name: QueueName = call.name("queue")?;
    let asked = call.read(Purge::read)?;
    must_exist(&call, &name).await?;
    let (state, finished_before) = (asked.state, asked.finished_before);
    let filter = JobFilter {
        state: Some(state),
        queue: Some(name.clone()),
        finished_before,
        ..JobFilter::default()
    };
    let found = search(&call.app, &filter, asked.after, asked.limit, call.now).await?;
    let ids: Vec<JobId> = found.jobs.iter().map(|job| job.id).collect();
    let changed = call
        .app
        .store()
        .change(&ids, &Change::Purge, call.now)
        .await?;
    let answer = PassAnswer::new(&changed, &found);
    let detail =
        json!({"state": state, "finished_before": finished_before, "removed": answer.changed()});
    call.audit("queue.purge", name.as_str(), detail).await;
    Answer::ok(&answer)
}
