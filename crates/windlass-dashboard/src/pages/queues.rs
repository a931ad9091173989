//! Queues: the list, one queue with its lanes, limits and guards, and what operators do to it.

mod all;
mod change;
mod lanes;
mod sentence;

use askama::Template;
use axum::Router;
use windlass_api::{FailureGroup, JobPage, Page, Queue};

use super::overview::charts::{Charts, Times, times_table};
use super::overview::{Figure, QueueRow, active_jobs, recent, rows, seconds_of};
use crate::draw;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::frame::{Frame, Section};
use crate::marks;
use crate::markup::{self, Markup};
use crate::series::{Range, Series};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::Visit;

pub(super) use change::created_path;
use lanes::{Gauge, Lanes};

/// The most running jobs that are drawn one by one.
const LANES_MAX: usize = 200;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/queues", page(list))
        // Not below `/queues`, where every name is that of a queue.
        .route(
            "/all-queues/pause",
            page(all::pause_form).merge(action(all::pause)),
        )
        .route(
            "/all-queues/resume",
            page(all::resume_form).merge(action(all::resume)),
        )
        .route("/all-queues/{span}/resume", action(all::undo_pause))
        .route("/queues/{queue}", page(show_queue))
        .route("/queues/{queue}/pause", action(change::pause))
        .route("/queues/{queue}/resume", action(change::resume))
        .route(
            "/queues/{queue}/settings",
            page(change::settings_form).merge(action(change::settings)),
        )
        .route(
            "/queues/{queue}/purge",
            page(change::purge_form).merge(action(change::purge)),
        )
}

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesPage {
    frame: Frame,
    queues: Vec<QueueRow>,
    note: String,
    paused: usize,
    claiming: usize,
    commands: Vec<String>,
}

async fn list(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Queues", Section::Queues).await?;
    let snapshot = visit.snapshot().await?;
    let paused = snapshot
        .queues
        .iter()
        .filter(|queue| queue.paused.is_some())
        .count();
    let all = snapshot.queues.len();
    let note = match paused {
        0 => format!("{all}, all claiming"),
        _ => format!("{all}, {paused} paused"),
    };
    let (recent, depths) = (recent(&visit).await?, visit.depths().await?);
    let queues = rows(&snapshot.queues, &recent, &depths);
    visit.page(&QueuesPage {
        frame,
        queues,
        note,
        paused,
        claiming: all - paused,
        commands: vec!["windlass queues list".to_owned()],
    })
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    range: Range,
    queue: Queue,
    path: String,
    lead: Vec<String>,
    figures: Vec<Figure>,
    lanes: Option<Lanes>,
    share: Markup,
    share_now: String,
    share_set: String,
    charts: Charts,
    times: [(&'static str, Times); 2],
    times_table: Markup,
    limits: Vec<Gauge>,
    guards: Vec<Gauge>,
    policy: String,
    /// The query of the policy lab for it.
    lab_query: Option<String>,
    commands: Vec<String>,
}

/// Reads one queue.
async fn read(visit: &Visit) -> Result<Queue, Failure> {
    visit
        .get(&format!("/api/v1/queues/{}", escaped(visit.param("queue"))))
        .await
}

async fn show_queue(visit: Visit) -> PageResult {
    let mut queue = read(&visit).await?;
    let name = queue.name.to_string();
    let frame = Frame::new(&visit, name.clone(), Section::Queues).await?;
    let range = Range::of(&visit);
    let mut series = Series::read(&visit, range, Some(&name)).await?;
    let groups: Page<FailureGroup> = visit
        .get(&format!(
            "/api/v1/failures?queue={}&limit=3",
            escaped(&name)
        ))
        .await?;
    marks::add(&visit, &mut series, Some(&name), &groups.data).await?;
    let recent = recent(&visit).await?;
    let seconds = seconds_of(&recent);
    let recent = recent
        .queues
        .into_iter()
        .find(|other| other.queue == queue.name);
    let recent = recent.map(|found| found.activity);
    let running: JobPage = visit
        .get(&format!(
            "/api/v1/jobs?state=running&queue={}&limit={LANES_MAX}",
            escaped(&name)
        ))
        .await?;
    // Both were read at slightly different times; the page shows one number.
    if running.data.len() < LANES_MAX {
        queue.counts.running = running.data.len() as u64;
    }
    let lanes = Lanes::new(&queue, &running.data);
    let page = QueuePage {
        lead: sentence::lead(&queue, recent.as_ref(), &lanes),
        figures: figures(&queue, &series, range),
        share: lanes::share_chart(&series, visit.zone(), &queue, range),
        share_now: show::percent(recent.as_ref().and_then(lanes::retry_share)),
        share_set: lanes::ratio_in_words(&queue),
        times: Times::wait_and_run(&series, visit.zone()),
        times_table: times_table(&series, visit.zone(), "Retries", lanes::retry_share),
        charts: Charts::new(&series, visit.zone(), range),
        limits: lanes::limits(&queue, recent.as_ref(), seconds),
        guards: lanes::guards(&queue, recent.as_ref(), &lanes),
        policy: change::policy_in_words(&queue),
        lab_query: queue.settings.retry.as_ref().map(super::job::lab_query),
        path: format!("/queues/{}", escaped(&name)),
        commands: vec![
            format!("windlass queues show {name}"),
            format!("windlass stats --queue {name} --from {}", range.key),
            format!("windlass queues pause {name} --reason 'why'"),
            format!("windlass queues set {name} --concurrency 40 --max-inflight-retries 8"),
            format!("windlass queues purge {name} --state dead"),
        ],
        lanes: lanes.is_drawn().then_some(lanes),
        range,
        queue,
        frame,
    };
    visit.page(&page)
}

fn figures(queue: &Queue, series: &Series, range: Range) -> Vec<Figure> {
    let counts = &queue.counts;
    let totals = &series.statistics.totals;
    let name = escaped(queue.name.as_str());
    let oldest = queue
        .oldest_ready_ms
        .map(|millis| format!("oldest {}", show::millis(millis as f64)));
    let limit = queue.settings.concurrency.map(|limit| limit.to::<u64>());
    let figure = |label,
                  glyph: (&'static str, &'static str),
                  value: u64,
                  note: String,
                  path: String,
                  flow: Vec<f64>,
                  what: &str| Figure {
        label,
        glyph: Some(glyph),
        value: markup::count(value),
        unit: String::new(),
        note,
        path,
        spark: draw::spark(
            &flow,
            4.0,
            glyph.1,
            &format!("{what}, last {}", range.words),
        ),
    };
    let lately =
        |count: u64, what: &str| format!("{} {what} in {}", show::count(count), range.label());
    vec![
        figure(
            "Ready",
            ("ready", "ready"),
            counts.ready,
            oldest.unwrap_or_default(),
            format!("/jobs?state=ready&queue={name}"),
            series.depths(active_jobs(queue)),
            "Depth, all jobs that wait or run",
        ),
        figure(
            "Retrying",
            ("retrying", "retrying"),
            counts.retrying,
            lately(totals.retried, "failed"),
            format!("/jobs?retrying=true&queue={name}"),
            series.counts(|bucket| bucket.retried),
            "Attempts that failed and wait for a retry",
        ),
        Figure {
            unit: limit
                .map(|limit| format!("of {}", show::count(limit)))
                .unwrap_or_default(),
            ..figure(
                "Running",
                ("running", "running"),
                counts.running,
                lately(totals.started.fresh + totals.started.retry, "started"),
                format!("/jobs?state=running&queue={name}"),
                series.counts(|bucket| bucket.started.fresh + bucket.started.retry),
                "Attempts started",
            )
        },
        figure(
            "Scheduled",
            ("scheduled", "scheduled"),
            counts.scheduled,
            String::new(),
            format!("/jobs?state=scheduled&queue={name}"),
            series.counts(|bucket| bucket.snoozed.fresh + bucket.snoozed.retry + bucket.retried),
            "Attempts that wait for a later time",
        ),
        figure(
            "Succeeded",
            ("succeeded", "succeeded"),
            counts.succeeded,
            lately(crate::series::successes(totals), "succeeded"),
            format!("/jobs?state=succeeded&queue={name}"),
            series.counts(crate::series::successes),
            "Attempts that succeeded",
        ),
        figure(
            "Dead",
            ("dead", "dead"),
            counts.dead,
            lately(totals.dead, "died"),
            format!("/dead?queue={name}"),
            series.counts(|bucket| bucket.dead),
            "Jobs that died",
        ),
    ]
}
