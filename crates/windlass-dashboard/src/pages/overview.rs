//! The overview: what needs someone, the figures, what happened, the queues, the causes.

pub(super) mod charts;
mod empty;
mod needs;

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Router;
use windlass_api::{Activity, FailureGroup, Page, Queue, Replay, Statistics, Worker};
use windlass_core::ActionState;

use crate::depths::Depths;
use crate::draw;
use crate::fields::escaped;
use crate::frame::{Frame, Section};
use crate::marks;
use crate::markup::{self, Markup};
use crate::series::{RANGES, Range, Series, retry_rate, successes};
use crate::show;
use crate::site::{PageResult, Site, page};
use crate::snapshot::Snapshot;
use crate::visit::Visit;

use super::workers::ClockOffset;
use charts::Charts;
pub(super) use needs::RETRY_RATE_MAX;
use needs::{Evidence, Need};

/// The most failure groups on the page.
const GROUPS_MAX: usize = 5;
/// The most queues in the table. The page of queues shows all.
const QUEUES_MAX: usize = 12;
/// The most queues whose high retry rate is examined.
const RETRYING_MAX: usize = 4;

pub(super) fn routes() -> Router<Site> {
    Router::new().route("/", page(show_overview))
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    range: Range,
    needs: Vec<Need>,
    needs_more: Vec<Need>,
    can_pause: bool,
    calm: Option<String>,
    figures: Vec<Figure>,
    charts: Charts,
    queues: Vec<QueueRow>,
    queues_note: String,
    queues_more: usize,
    groups: Vec<GroupRow>,
    replays: Vec<ReplayRow>,
    workers: Vec<WorkerRow>,
    workers_more: usize,
    commands: Vec<String>,
}

/// A number with its label, a note and a sparkline.
pub(super) struct Figure {
    pub(super) label: &'static str,
    pub(super) glyph: Option<(&'static str, &'static str)>,
    pub(super) value: Markup,
    pub(super) unit: String,
    pub(super) note: String,
    pub(super) path: String,
    pub(super) spark: Markup,
}

/// A row of the table of queues.
pub(super) struct QueueRow {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) paused: bool,
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) limit: Option<u64>,
    pub(super) bar: Option<Markup>,
    pub(super) scheduled: u64,
    pub(super) retrying: u64,
    pub(super) dead: u64,
    pub(super) oldest: Option<String>,
    pub(super) out: String,
    pub(super) retry_rate: String,
    pub(super) retries_too_much: bool,
    pub(super) depth: Markup,
}

struct GroupRow {
    error: Markup,
    path: String,
    group: FailureGroup,
    spark: Markup,
}

struct ReplayRow {
    path: String,
    reason: String,
    sentence: String,
    bar: Markup,
}

/// A node or a worker.
struct WorkerRow {
    name: String,
    alive: bool,
    version: String,
    heartbeat: String,
    clock: ClockOffset,
    slots: String,
}

async fn show_overview(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Overview", Section::Overview).await?;
    let snapshot = visit.snapshot().await?;
    if snapshot.is_empty() {
        return empty::page(&visit, frame);
    }
    let range = Range::of(&visit);
    let mut series = Series::read(&visit, range, None).await?;
    let recent = recent(&visit).await?;
    let groups: Page<FailureGroup> = visit
        .get(&format!("/api/v1/failures?limit={GROUPS_MAX}"))
        .await?;
    marks::add(&visit, &mut series, None, &groups.data).await?;
    let replays: Page<Replay> = visit.get("/api/v1/replays?limit=20").await?;
    let retries = retrying_queues(&visit, &recent).await?;
    let mut found = needs::needs(&Evidence {
        queues: &snapshot.queues,
        workers: &snapshot.workers,
        differences: &snapshot.differences,
        groups: &groups.data,
        replays: &replays.data,
        retries: &retries,
        died: died_in_an_hour(&visit, range, &series).await?,
        now: visit.now(),
        zone: visit.zone(),
    });
    let calm = found.is_empty().then(|| calm(&snapshot, &series, range));
    let queues = rows(&snapshot.queues, &recent, &visit.depths().await?);
    let paused = snapshot
        .queues
        .iter()
        .filter(|queue| queue.paused.is_some())
        .count();
    let page = OverviewPage {
        range,
        calm,
        figures: figures(&snapshot, &series, range),
        charts: Charts::new(&series, visit.zone(), range),
        queues_note: queues_note(snapshot.queues.len(), paused),
        queues_more: queues.len().saturating_sub(QUEUES_MAX),
        queues: queues.into_iter().take(QUEUES_MAX).collect(),
        groups: groups.data.into_iter().map(group_row).collect(),
        replays: running_replays(replays.data),
        workers: snapshot.workers.iter().take(8).map(worker_row).collect(),
        workers_more: snapshot.workers.len().saturating_sub(8),
        needs_more: found.split_off(needs::SHOWN_MAX.min(found.len())),
        needs: found,
        can_pause: paused < snapshot.queues.len(),
        commands: vec![
            format!("windlass stats --from {}", range.key),
            "windlass queues list".to_owned(),
            "windlass failures list".to_owned(),
        ],
        frame,
    };
    visit.page(&page)
}

/// What happened in the last five minutes, by queue.
pub(super) async fn recent(visit: &Visit) -> Result<Statistics, crate::failure::Failure> {
    let from = visit.now().saturating_sub(Duration::from_secs(300));
    visit
        .get(&format!(
            "/api/v1/stats?from={}&step=1m",
            escaped(&from.to_string())
        ))
        .await
}

/// How long the recent statistics reach back, in seconds.
pub(super) fn seconds_of(recent: &Statistics) -> f64 {
    // The last step is not over yet; on average half of it is.
    let half_step = recent.step.0.as_secs_f64() / 2.0;
    (recent.to.since(recent.from).as_secs_f64() - half_step).max(1.0)
}

/// The queues whose retry rate is too high now, with the time since when.
async fn retrying_queues(
    visit: &Visit,
    recent: &Statistics,
) -> Result<Vec<(String, Activity, Duration)>, crate::failure::Failure> {
    let high = recent
        .queues
        .iter()
        .filter(|queue| needs::retries_too_much(&queue.activity));
    let mut high: Vec<_> = high.collect();
    high.sort_by_key(|queue| std::cmp::Reverse(queue.activity.retried));
    let mut found = Vec::new();
    for queue in high.into_iter().take(RETRYING_MAX) {
        let hour = Series::read(visit, RANGES[1], Some(queue.queue.as_str())).await?;
        let is_high =
            |bucket: &Activity| retry_rate(bucket).is_some_and(|rate| rate > RETRY_RATE_MAX);
        found.push((
            queue.queue.to_string(),
            queue.activity.clone(),
            hour.lasting(is_high),
        ));
    }
    Ok(found)
}

async fn died_in_an_hour(
    visit: &Visit,
    range: Range,
    series: &Series,
) -> Result<u64, crate::failure::Failure> {
    if range == RANGES[1] {
        return Ok(series.statistics.totals.dead);
    }
    Ok(Series::read(visit, RANGES[1], None)
        .await?
        .statistics
        .totals
        .dead)
}

/// The sentence for the time when nothing needs anyone.
fn calm(snapshot: &Snapshot, series: &Series, range: Range) -> String {
    let totals = &series.statistics.totals;
    let oldest = snapshot
        .queues
        .iter()
        .filter_map(|queue| queue.oldest_ready_ms)
        .max();
    let oldest = match oldest {
        Some(oldest) => format!("oldest ready {}", show::millis(oldest as f64)),
        None => "no job is ready".to_owned(),
    };
    let died = match totals.dead {
        0 => format!("no job died in the last {}", range.words),
        dead => format!("{} died in the last {}", show::count(dead), range.words),
    };
    let queues = match snapshot.queues.len() {
        1 => "1 queue runs".to_owned(),
        count => format!("{count} queues run"),
    };
    let retried = show::percent(retry_rate(totals));
    format!("{queues}, {retried} of the attempts retried, {oldest}, {died}")
}

fn queues_note(all: usize, paused: usize) -> String {
    match paused {
        0 => all.to_string(),
        1 => format!("{all}, one paused"),
        _ => format!("{all}, {paused} paused"),
    }
}

fn figures(snapshot: &Arc<Snapshot>, series: &Series, range: Range) -> Vec<Figure> {
    let last = |words: &str| format!("{words}, last {}", range.words);
    let flow = |count: fn(&Activity) -> u64, colour: &str, words: &str| {
        draw::spark(&series.counts(count), 4.0, colour, &last(words))
    };
    let biggest = |count: fn(&Queue) -> u64| {
        let queue = snapshot
            .queues
            .iter()
            .max_by_key(|queue| count(queue))
            .filter(|queue| count(queue) > 0);
        queue.map_or_else(String::new, |queue| {
            format!("{} in {}", show::count(count(queue)), queue.name)
        })
    };
    let slots: u64 = snapshot
        .workers
        .iter()
        .filter(|worker| worker.alive && !worker.name.starts_with("server-"))
        .filter_map(slots_of)
        .sum();
    let running = snapshot.total(|counts| counts.running);
    let totals = &series.statistics.totals;
    let lately = |count: u64, what: &str| match count {
        0 => format!("none {what} in {}", range.label()),
        _ => format!("{} {what} in {}", show::count(count), range.label()),
    };
    let oldest = snapshot
        .queues
        .iter()
        .filter(|queue| queue.oldest_ready_ms.is_some());
    let oldest = oldest.max_by_key(|queue| queue.oldest_ready_ms);
    let (oldest_value, oldest_unit) = match oldest.and_then(|queue| queue.oldest_ready_ms) {
        Some(millis) => split_unit(&show::millis(millis as f64)),
        None => ("–".to_owned(), String::new()),
    };
    let waits = series.values(|bucket| bucket.wait.p95_ms);
    let waits: Vec<f64> = waits.into_iter().map(|wait| wait.unwrap_or(0.0)).collect();
    let figure = |label, glyph, value: u64, note: String, path: &str, spark| Figure {
        label,
        glyph,
        value: markup::count(value),
        unit: String::new(),
        note,
        path: path.to_owned(),
        spark,
    };
    vec![
        figure(
            "Ready",
            Some(("ready", "ready")),
            snapshot.total(|counts| counts.ready),
            biggest(|queue| queue.counts.ready),
            "/jobs?state=ready",
            draw::spark(
                &series.depths(snapshot.queues.iter().map(active_jobs).sum()),
                4.0,
                "ready",
                &last("Depth, all jobs that wait or run"),
            ),
        ),
        Figure {
            unit: if slots > 0 {
                format!("of {}", show::count(slots))
            } else {
                String::new()
            },
            ..figure(
                "Running",
                Some(("running", "running")),
                running,
                biggest(|queue| queue.counts.running),
                "/jobs?state=running",
                flow(
                    |bucket| bucket.started.fresh + bucket.started.retry,
                    "running",
                    "Attempts started",
                ),
            )
        },
        figure(
            "Scheduled",
            Some(("scheduled", "scheduled")),
            snapshot.total(|counts| counts.scheduled),
            biggest(|queue| queue.counts.scheduled),
            "/jobs?state=scheduled",
            flow(
                |bucket| bucket.snoozed.fresh + bucket.snoozed.retry + bucket.retried,
                "scheduled",
                "Attempts that wait for a later time",
            ),
        ),
        figure(
            "Retrying",
            Some(("retrying", "retrying")),
            snapshot.total(|counts| counts.retrying),
            lately(totals.retried, "failed"),
            "/jobs?retrying=true",
            flow(
                |bucket| bucket.retried,
                "retrying",
                "Attempts that failed and wait for a retry",
            ),
        ),
        figure(
            "Dead",
            Some(("dead", "dead")),
            snapshot.total(|counts| counts.dead),
            lately(totals.dead, "died"),
            "/dead",
            flow(|bucket| bucket.dead, "dead", "Jobs that died"),
        ),
        Figure {
            label: "Oldest ready",
            glyph: None,
            value: Markup::text(&oldest_value),
            unit: oldest_unit,
            note: oldest.map_or_else(String::new, |queue| format!("in {}", queue.name)),
            path: oldest.map_or_else(
                || "/queues".to_owned(),
                |queue| format!("/queues/{}", escaped(queue.name.as_str())),
            ),
            spark: draw::spark(&waits, 100.0, "ready", &last("Wait for a slot, p95")),
        },
    ]
}

/// The jobs of a queue that wait or run.
pub(super) fn active_jobs(queue: &Queue) -> u64 {
    queue.depth + queue.counts.running
}

/// Splits `18 s` into its number and its unit, if it has only one.
fn split_unit(text: &str) -> (String, String) {
    match text.split_once(show::SPACE) {
        Some((number, unit)) if !unit.contains(show::SPACE) => (number.to_owned(), unit.to_owned()),
        _ => (text.to_owned(), String::new()),
    }
}

fn slots_of(worker: &Worker) -> Option<u64> {
    worker.about.get("slots")?.as_u64()
}

/// The rows of queues. Those with most waiting jobs come first; ties are ordered by name.
pub(super) fn rows(queues: &[Queue], recent: &Statistics, depths: &Depths) -> Vec<QueueRow> {
    let seconds = seconds_of(recent);
    let row = |queue: &Queue| {
        let activity = recent.queues.iter().find(|other| other.queue == queue.name);
        let activity = activity.map(|found| &found.activity);
        let limit = queue.settings.concurrency.map(|limit| limit.to::<u64>());
        let running = queue.counts.running;
        let rate = activity.and_then(retry_rate);
        let retries_too_much = activity.is_some_and(needs::retries_too_much);
        QueueRow {
            name: queue.name.to_string(),
            path: format!("/queues/{}", escaped(queue.name.as_str())),
            paused: queue.paused.is_some(),
            ready: queue.counts.ready,
            running,
            limit,
            bar: limit.map(|limit| {
                let title = format!("{running} of {limit} slots busy");
                draw::bar(
                    "mini",
                    running as f64 / limit.max(1) as f64,
                    "running",
                    &title,
                )
            }),
            scheduled: queue.counts.scheduled,
            retrying: queue.counts.retrying,
            dead: queue.counts.dead,
            oldest: queue
                .oldest_ready_ms
                .map(|millis| show::millis(millis as f64)),
            out: show::rate(activity.map_or(0.0, |activity| successes(activity) as f64 / seconds)),
            retry_rate: show::percent(rate),
            retries_too_much,
            depth: depth(queue, depths, retries_too_much),
        }
    };
    let mut rows: Vec<QueueRow> = queues.iter().map(row).collect();
    rows.sort_by(|a, b| {
        let load = |row: &QueueRow| row.ready + row.running + row.retrying;
        load(b).cmp(&load(a)).then_with(|| a.name.cmp(&b.name))
    });
    rows
}

/// The depth of a queue over the last hour.
fn depth(queue: &Queue, depths: &Depths, retries_too_much: bool) -> Markup {
    let colour = if retries_too_much {
        "retrying"
    } else {
        "ready"
    };
    let now = active_jobs(queue);
    let title = format!("Jobs that wait or run, last hour: {} now", show::count(now));
    draw::spark(&depths.of(queue.name.as_str(), now), 4.0, colour, &title)
}

fn group_row(group: FailureGroup) -> GroupRow {
    let hours: Vec<f64> = group.hours.iter().map(|count| *count as f64).collect();
    let error = group.sample.error.as_deref();
    GroupRow {
        error: error.map_or_else(
            || Markup::text("error withheld; needs read-payload"),
            |error| markup::cause(error, 160),
        ),
        path: format!(
            "/dead?queue={}&kind={}&open={}",
            escaped(group.queue.as_str()),
            escaped(group.kind.as_str()),
            escaped(&group.fingerprint.to_string())
        ),
        spark: draw::spark(&hours, 4.0, "dead", "failures by hour, last 24 hours"),
        group,
    }
}

fn running_replays(replays: Vec<Replay>) -> Vec<ReplayRow> {
    let active =
        |replay: &Replay| matches!(replay.state, ActionState::Running | ActionState::Paused);
    let row = |replay: Replay| {
        let done = replay.revived + replay.skipped;
        let all = (done + replay.to_do).max(1);
        ReplayRow {
            path: format!("/actions/replays/{}", replay.id),
            reason: show::clipped(&replay.reason, 80),
            sentence: format!(
                "{} of {} revived · {} recovered · {} failed again",
                show::count(replay.revived),
                show::count(all),
                show::count(replay.recovered),
                show::count(replay.failed_again)
            ),
            bar: draw::bar(
                "bar",
                done as f64 / all as f64,
                "accent",
                &format!("{done} of {all} jobs"),
            ),
        }
    };
    replays.into_iter().filter(active).map(row).collect()
}

fn worker_row(worker: &Worker) -> WorkerRow {
    let text = |name: &str| {
        worker
            .about
            .get(name)
            .and_then(|value| value.as_str())
            .map(str::to_owned)
    };
    let age = show::roughly(Duration::from_millis(worker.heartbeat_age_ms));
    WorkerRow {
        name: show::visible(&worker.name),
        alive: worker.alive,
        version: text("version").unwrap_or_default(),
        heartbeat: if worker.alive {
            age
        } else {
            format!("late, {age}")
        },
        clock: ClockOffset::of(worker),
        slots: slots_of(worker).map_or_else(String::new, |slots| format!("{slots} slots")),
    }
}
