//! Replays and bulk actions: how far they are, what came of them, and why they stopped.

mod bulk;
mod replay;

use askama::Template;
use axum::Router;
use axum::body::Bytes;
use axum::http::Method;
use windlass_api::{BulkAction, FailureGroup, JobFilter, Page, Replay};
use windlass_core::{ActionId, ActionState, WaitingFor};

pub(super) use self::bulk::BulkView;
pub(super) use self::replay::ReplayView;

use crate::draw;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::frame::{Frame, Look, Section};
use crate::markup::{self, Markup};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::{Submit, Visit};

/// How many replays and bulk actions a page has.
const PAGE_ROWS: usize = 25;
/// The most causes that are named by their error. The others keep their fingerprint.
const CAUSES_MAX: usize = 8;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/actions", page(list))
        .route("/actions/replays/{id}", page(show_replay))
        .route("/actions/bulk/{id}", page(show_bulk))
        .route(
            "/actions/replays/{id}/{command}",
            action(|submit| command(submit, "replays")),
        )
        .route(
            "/actions/bulk/{id}/{command}",
            action(|submit| command(submit, "bulk")),
        )
}

#[derive(Template)]
#[template(path = "actions.html")]
struct ListTemplate {
    frame: Frame,
    replays: Vec<ReplayView>,
    bulk: Vec<BulkView>,
    older_replays: Option<String>,
    older_bulk: Option<String>,
    commands: Vec<String>,
}

async fn list(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Bulk actions and replays", Section::Actions).await?;
    let path = |list: &str, cursor: &str| {
        let cursor = visit
            .query()
            .get(cursor)
            .map(|cursor| format!("&cursor={}", escaped(cursor)));
        format!(
            "/api/v1/{list}?limit={PAGE_ROWS}{}",
            cursor.unwrap_or_default()
        )
    };
    let replays: Page<Replay> = visit.get(&path("replays", "replays")).await?;
    let bulk: Page<BulkAction> = visit.get(&path("bulk-actions", "bulk")).await?;
    let groups = groups(&visit, &replays.data).await?;
    let (now, zone) = (visit.now(), visit.zone());
    let page = ListTemplate {
        older_replays: replays
            .next_cursor
            .map(|cursor| super::dead::with(&visit, "replays", &cursor)),
        older_bulk: bulk
            .next_cursor
            .map(|cursor| super::dead::with(&visit, "bulk", &cursor)),
        replays: replays
            .data
            .into_iter()
            .map(|one| {
                let cause = cause_of(&one, &groups);
                ReplayView::new(one, cause, now, zone)
            })
            .collect(),
        bulk: bulk.data.into_iter().map(BulkView::new).collect(),
        commands: vec![
            "windlass replay list".to_owned(),
            "windlass bulk list".to_owned(),
        ],
        frame,
    };
    visit.page(&page)
}

/// The causes that replays name, at most one page of them.
pub(super) async fn groups(
    visit: &Visit,
    replays: &[Replay],
) -> Result<Vec<FailureGroup>, Failure> {
    let mut fingerprints: Vec<String> = replays
        .iter()
        .filter_map(|replay| replay.filter.fingerprint.as_ref())
        .map(ToString::to_string)
        .collect();
    fingerprints.sort();
    fingerprints.dedup();
    let mut groups = Vec::new();
    for fingerprint in fingerprints.iter().take(CAUSES_MAX) {
        let path = format!(
            "/api/v1/failures?limit=1&fingerprint={}",
            escaped(fingerprint)
        );
        let page: Page<FailureGroup> = visit.get(&path).await?;
        groups.extend(page.data);
    }
    Ok(groups)
}

/// The error of the cause that a replay names, if it is known and may be shown.
pub(super) fn cause_of<'a>(replay: &Replay, groups: &'a [FailureGroup]) -> Option<&'a str> {
    let fingerprint = replay.filter.fingerprint.as_ref()?;
    let group = groups
        .iter()
        .find(|group| group.fingerprint == *fingerprint)?;
    group.sample.error.as_deref()
}

fn action_id(visit: &Visit) -> Result<ActionId, Failure> {
    visit.param("id").parse().map_err(|_| Failure::no_page())
}

#[derive(Template)]
#[template(path = "replay.html")]
struct ReplayTemplate {
    frame: Frame,
    replay: ReplayView,
    commands: Vec<String>,
}

async fn show_replay(visit: Visit) -> PageResult {
    let id = action_id(&visit)?;
    let replay: Replay = visit.get(&format!("/api/v1/replays/{id}")).await?;
    let frame = Frame::new(&visit, "Replay", Section::Actions).await?;
    let verb = match replay.state {
        ActionState::Running => Some("pause"),
        ActionState::Paused => Some("resume"),
        ActionState::Stopped => Some("continue"),
        ActionState::Finished | ActionState::Aborted => None,
    };
    let show = format!("windlass replay show {id}");
    let verb = verb.map(|verb| format!("windlass replay {verb} {id}"));
    let groups = groups(&visit, std::slice::from_ref(&replay)).await?;
    let cause = cause_of(&replay, &groups);
    let page = ReplayTemplate {
        replay: ReplayView::new(replay, cause, visit.now(), visit.zone()),
        commands: std::iter::once(show).chain(verb).collect(),
        frame,
    };
    visit.page(&page)
}

#[derive(Template)]
#[template(path = "bulk.html")]
struct BulkTemplate {
    frame: Frame,
    bulk: BulkView,
    commands: Vec<String>,
}

async fn show_bulk(visit: Visit) -> PageResult {
    let id = action_id(&visit)?;
    let bulk: BulkAction = visit.get(&format!("/api/v1/bulk-actions/{id}")).await?;
    let frame = Frame::new(&visit, "Bulk action", Section::Actions).await?;
    let page = BulkTemplate {
        bulk: BulkView::new(bulk),
        commands: vec![format!("windlass bulk show {id}")],
        frame,
    };
    visit.page(&page)
}

/// Pauses, resumes, continues or aborts an action.
async fn command(submit: Submit, list: &'static str) -> PageResult {
    let id = action_id(&submit.visit)?;
    let name = submit.visit.param("command");
    let done = match name {
        "pause" => "Paused. Jobs that it changed stay as they are.",
        "resume" => "Resumed.",
        "continue" if list == "replays" => "It goes on, with another canary.",
        "abort" => "Aborted. Jobs that it changed stay as they are.",
        _ => return Err(Failure::no_page()),
    };
    let route = if list == "replays" {
        "replays"
    } else {
        "bulk-actions"
    };
    let path = format!("/api/v1/{route}/{id}/{name}");
    submit
        .visit
        .call(Method::POST, &path, Bytes::new(), None)
        .await?;
    let back = submit
        .fields
        .get("from")
        .filter(|from| from.starts_with('/') && !from.starts_with("//"));
    let page = format!("/actions/{list}/{id}");
    let back = back.unwrap_or(&page);
    let inverse = match name {
        "pause" => "resume",
        "resume" => "pause",
        _ => return Ok(submit.visit.done(back, done)),
    };
    Ok(submit
        .visit
        .undoable(back, &format!("{page}/{inverse}"), done))
}

/// How the state of an action looks.
fn state_look(state: ActionState) -> Look {
    match state {
        ActionState::Running => Look::new("running", "running", "running"),
        ActionState::Paused => Look::new("paused", "paused", "retrying"),
        ActionState::Stopped => Look::new("stopped itself", "paused", "retrying"),
        ActionState::Finished => Look::new("finished", "succeeded", "succeeded"),
        ActionState::Aborted => Look::new("aborted", "cancelled", "cancelled"),
    }
}

/// What an action waits for, as a sentence.
fn waiting_words(waiting: Option<WaitingFor>, queue: Option<&str>) -> Option<String> {
    let queue = queue.map(show::visible);
    let queue = queue.as_deref().unwrap_or("its queue");
    Some(match waiting? {
        WaitingFor::Counting => "It is counting the jobs that match.".to_owned(),
        WaitingFor::Canary => "It waits for the outcomes of the canary.".to_owned(),
        WaitingFor::MaxPending => "It waits for outcomes before it revives more jobs.".to_owned(),
        WaitingFor::LastOutcomes => "It waits for the outcomes of the last jobs.".to_owned(),
        WaitingFor::QueuePaused => format!("It waits: queue {queue} is paused."),
        WaitingFor::QueueFull => format!("It waits: queue {queue} is full."),
    })
}

/// A filter as names and values, for people.
fn filter_rows(filter: &JobFilter) -> Vec<(String, String)> {
    let value = serde_json::to_value(filter).unwrap_or_default();
    let fields = value.as_object().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => show::visible(text),
        other => show::visible(&other.to_string()),
    };
    fields
        .iter()
        .map(|(name, value)| (name.replace('_', " "), text(value)))
        .collect()
}

/// A short name for the jobs of a filter.
fn filter_words(filter: &JobFilter) -> String {
    let rows = filter_rows(filter);
    let parts = rows.iter().filter(|(name, _)| name != "state");
    let parts: Vec<String> = parts
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    if parts.is_empty() {
        "all of one state".to_owned()
    } else {
        show::clipped(&parts.join(", "), 80)
    }
}

/// Draws shares of a whole next to each other. Text next to it must say the numbers.
pub(super) fn shares(title: &str, whole: u64, parts: &[(u64, &str)]) -> Markup {
    let title = markup::escaped(title);
    let mut svg = format!(
        r#"<svg class="bar" role="img"><title>{title}</title><rect class="f-line" width="100%" height="100%"/>"#
    );
    let mut begin = 0.0;
    for (count, colour) in parts {
        let width = *count as f64 / whole.max(1) as f64 * 100.0;
        let (x, shown) = (draw::number(begin), draw::number(width.min(100.0 - begin)));
        svg.push_str(&format!(
            r#"<rect class="f-{colour}" x="{x}%" width="{shown}%" height="100%"/>"#
        ));
        begin = (begin + width).min(100.0);
    }
    svg.push_str("</svg>");
    Markup(svg)
}
