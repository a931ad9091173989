//! Workers and nodes: what each runs, its heartbeat, its version, and signals to it.

use std::collections::BTreeMap;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::http::Method;
use serde_json::{Value, json};
use windlass_api::{Job, JobPage, Worker, WorkerPage, WorkerSignal};

use super::overview::Figure;
use crate::draw;
use crate::fields::escaped;
use crate::frame::{Frame, Look, Section};
use crate::markup::{self, Markup};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::{Submit, Visit};

/// The most running jobs that the page assigns to workers.
const RUNNING_MAX: usize = 500;
/// A clock that is further from the store's than this is marked. Job times do not depend on it, but
/// the times in the logs of that machine do.
const CLOCK_OFFSET_MAX_MS: u64 = 1000;
/// The most workers on the page.
const WORKERS_MAX: usize = 200;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/workers", page(list))
        .route(
            "/workers/{name}/pause-claims",
            action(|submit| signal(submit, "pause-claims", "Asked {} to claim no jobs.")),
        )
        .route(
            "/workers/{name}/stop",
            action(|submit| signal(submit, "stop", "Asked {} to finish its jobs and exit.")),
        )
        .route(
            "/workers/{name}/resume",
            action(|submit| signal(submit, "resume", "Took back the signal to {}.")),
        )
}

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    frame: Frame,
    figures: Vec<Figure>,
    differences: Vec<String>,
    rows: Vec<WorkerRow>,
    more: bool,
    commands: Vec<String>,
}

struct WorkerRow {
    name: String,
    path: String,
    look: Look,
    version: String,
    takes: String,
    slots: Option<u64>,
    running: u64,
    bar: Option<Markup>,
    heartbeat: String,
    clock: ClockOffset,
    /// Up to three jobs that it runs: id, end of the id, kind.
    jobs: Vec<(String, String, String)>,
    jobs_more: usize,
    can_signal: bool,
    signal: Option<&'static str>,
}

/// How far the clock of a node is from the store's.
pub(super) struct ClockOffset {
    /// `+3 ms`, or a dash if the node does not report it.
    pub(super) text: String,
    /// Whether someone should correct the clock of that machine.
    pub(super) is_far: bool,
}

impl ClockOffset {
    pub(super) fn of(worker: &Worker) -> Self {
        let offset = worker.about.get("clock_offset_ms").and_then(Value::as_i64);
        let Some(offset) = offset else {
            return ClockOffset {
                text: "–".to_owned(),
                is_far: false,
            };
        };
        let sign = match offset {
            0 => "",
            1.. => "+",
            _ => "−",
        };
        let amount = show::millis(offset.unsigned_abs() as f64);
        ClockOffset {
            text: format!("{sign}{amount}"),
            is_far: offset.unsigned_abs() > CLOCK_OFFSET_MAX_MS,
        }
    }
}

async fn list(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Workers", Section::Workers).await?;
    let all: WorkerPage = visit
        .get(&format!("/api/v1/workers?limit={WORKERS_MAX}"))
        .await?;
    let running: JobPage = visit
        .get(&format!("/api/v1/jobs?state=running&limit={RUNNING_MAX}"))
        .await?;
    let mut by_worker: BTreeMap<String, Vec<&Job>> = BTreeMap::new();
    for job in &running.data {
        if let Some(worker) = &job.worker {
            by_worker.entry(worker.to_string()).or_default().push(job);
        }
    }
    let rows: Vec<_> = all
        .data
        .iter()
        .map(|worker| row(worker, by_worker.get(&worker.name)))
        .collect();
    let page = WorkersPage {
        figures: figures(
            &all.data,
            visit.snapshot().await?.total(|counts| counts.running),
        ),
        differences: all.differences,
        more: all.next_cursor.is_some(),
        rows,
        commands: vec![
            "windlass workers list".to_owned(),
            "windlass workers pause-claims NAME".to_owned(),
            "windlass workers stop NAME".to_owned(),
        ],
        frame,
    };
    visit.page(&page)
}

fn figures(workers: &[Worker], running: u64) -> Vec<Figure> {
    let is_server =
        |worker: &&Worker| worker.about.get("role").and_then(Value::as_str) == Some("server");
    let alive = workers.iter().filter(|worker| worker.alive);
    let slots: u64 = alive
        .clone()
        .filter_map(|worker| worker.about.get("slots")?.as_u64())
        .sum();
    let late = workers.len() - alive.clone().count();
    let figure = |label, value: u64, unit: String, note: String, path: &str| Figure {
        label,
        glyph: None,
        value: markup::count(value),
        unit,
        note,
        path: path.to_owned(),
        spark: Markup::default(),
    };
    let servers = alive.clone().filter(is_server).count() as u64;
    let workers = alive.count() as u64 - servers;
    vec![
        figure(
            "Servers",
            servers,
            String::new(),
            "alive".to_owned(),
            "/workers",
        ),
        figure(
            "Workers",
            workers,
            String::new(),
            "alive".to_owned(),
            "/workers",
        ),
        figure(
            "Running",
            running,
            if slots > 0 {
                format!("of {slots}")
            } else {
                String::new()
            },
            "slots busy".to_owned(),
            "/jobs?state=running",
        ),
        figure(
            "Late",
            late as u64,
            String::new(),
            "no heartbeat".to_owned(),
            "/workers",
        ),
    ]
}

fn row(worker: &Worker, jobs: Option<&Vec<&Job>>) -> WorkerRow {
    let about = &worker.about;
    let text = |name: &str| about.get(name).and_then(Value::as_str).map(show::visible);
    let list = |name: &str| {
        let values = about.get(name).and_then(Value::as_array)?;
        let words: Vec<_> = values.iter().filter_map(Value::as_str).take(6).collect();
        let more = if values.len() > 6 {
            format!(" and {} more", values.len() - 6)
        } else {
            String::new()
        };
        (!words.is_empty()).then(|| format!("{}{more}", show::visible(&words.join(", "))))
    };
    let is_server = about.get("role").and_then(Value::as_str) == Some("server");
    let look = match (worker.alive, worker.signal) {
        (false, _) => Look::new("late", "warn", "retrying"),
        (true, Some(WorkerSignal::PauseClaims)) => {
            Look::new("claims nothing", "paused", "retrying")
        }
        (true, Some(WorkerSignal::Stop)) => Look::new("stopping", "paused", "retrying"),
        (true, None) => Look::new("alive", "succeeded", "succeeded"),
    };
    let queues = list("queues").or_else(|| list("patterns"));
    let takes = match (queues, list("kinds")) {
        _ if is_server => "schedules, expired leases, retention".to_owned(),
        (Some(queues), Some(kinds)) => format!("{queues} · {kinds}"),
        (Some(queues), None) => queues,
        (None, Some(kinds)) => format!("all queues · {kinds}"),
        (None, None) => "all queues".to_owned(),
    };
    let running = jobs.map_or(0, |jobs| jobs.len() as u64);
    let slots = about.get("slots").and_then(Value::as_u64);
    let shown = jobs.into_iter().flatten().take(3).map(|job| {
        let kind = show::visible(job.kind.as_str());
        (job.id.to_string(), show::id_end(job.id), kind)
    });
    let age = show::duration(Duration::from_millis(worker.heartbeat_age_ms));
    WorkerRow {
        name: show::visible(&worker.name),
        path: format!("/workers/{}", escaped(&worker.name)),
        look,
        version: text("version").unwrap_or_default(),
        takes,
        slots,
        running,
        bar: slots.map(|slots| {
            let title = format!("{running} of {slots} slots busy");
            draw::bar(
                "mini",
                running as f64 / slots.max(1) as f64,
                "running",
                &title,
            )
        }),
        heartbeat: if worker.alive {
            age
        } else {
            format!("late, {age}")
        },
        clock: ClockOffset::of(worker),
        jobs: shown.collect(),
        jobs_more: running.saturating_sub(3) as usize,
        can_signal: !is_server,
        signal: worker.signal.map(|signal| match signal {
            WorkerSignal::PauseClaims => "pause_claims",
            WorkerSignal::Stop => "stop",
        }),
    }
}

async fn signal(submit: Submit, verb: &'static str, message: &'static str) -> PageResult {
    let name = submit.visit.param("name").to_owned();
    let path = format!("/api/v1/workers/{}/{verb}", escaped(&name));
    let _: Worker = submit.visit.send(Method::POST, &path, &json!({})).await?;
    let message = message.replace("{}", &name);
    if verb == "resume" {
        return Ok(submit.visit.done("/workers", &message));
    }
    let undo = format!("/workers/{}/resume", escaped(&name));
    Ok(submit.visit.undoable("/workers", &undo, &message))
}
