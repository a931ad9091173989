//! The list of jobs: filters in the URL, pages by cursor, and actions on many jobs.

mod all;
mod filter;
mod matching;
mod selected;
mod uncancel;

use askama::Template;
use axum::Router;
use windlass_api::{Job, JobPage, JobState};
use windlass_core::Timestamp;

use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Look, Section};
use crate::markup::{self, Markup};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::snapshot::Snapshot;
use crate::visit::Visit;

use filter::{Addition, Chip};
use matching::{Matching, counted};

/// The number of jobs on a page.
const PAGE_ROWS: usize = 50;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/jobs", page(list))
        .route("/jobs/selected", action(selected::confirm))
        .route("/jobs/selected/apply", action(selected::apply))
        .route(
            "/jobs/selected/{waits}/uncancel",
            action(uncancel::uncancel),
        )
        .route("/jobs/all", page(all::form).merge(action(all::preview)))
        .route("/jobs/all/apply", action(all::apply))
        .route("/jobs/export", page(export))
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    count: String,
    tabs: Vec<Tab>,
    chips: Vec<Chip>,
    additions: Vec<Addition>,
    kept: Vec<(String, String)>,
    rows: Vec<Row>,
    /// How the list is ordered, and the link to the other order.
    order: &'static str,
    other_order: Option<(&'static str, String)>,
    newest: Option<String>,
    older: Option<String>,
    /// What was examined, if a condition has no index.
    scanned: Option<String>,
    /// The jobs that match and the link to the actions on all of them. Such an action needs a
    /// condition.
    all: Option<(Matching, String)>,
    export_link: String,
    clear: Option<String>,
    commands: Vec<String>,
}

/// A state as a filter, with its number of jobs.
struct Tab {
    name: &'static str,
    look: Option<Look>,
    count: Option<Markup>,
    link: String,
    current: bool,
}

/// A job as a row.
struct Row {
    id: String,
    /// The end of the id, which distinguishes it.
    short: String,
    look: Look,
    kind: String,
    queue: String,
    error: String,
    failures: u32,
    attempts_max: Option<u32>,
    created_at: Option<Timestamp>,
    /// When the job is due or finished.
    due_at: Option<Timestamp>,
}

/// How a job's state looks. A job that failed before and waits is retrying.
pub(super) fn look_of(job: &Job) -> Look {
    let waits_again = job.failures > 0;
    match job.state {
        JobState::Scheduled if waits_again => Look::new("retrying", "retrying", "retrying"),
        JobState::Scheduled => Look::new("scheduled", "scheduled", "scheduled"),
        JobState::Ready if waits_again => Look::new("retry due", "ready", "retrying"),
        JobState::Ready => Look::new("ready", "ready", "ready"),
        JobState::Running => Look::new("running", "running", "running"),
        JobState::Succeeded => Look::new("succeeded", "succeeded", "succeeded"),
        JobState::Dead => Look::new("dead", "dead", "dead"),
        JobState::Cancelled => Look::new("cancelled", "cancelled", "cancelled"),
    }
}

async fn list(visit: Visit) -> PageResult {
    if let Some(text) = visit.query().get("q") {
        return Ok(visit.redirect(&filter::found(visit.query(), text), None));
    }
    let filters = filter::of(visit.query());
    let mut query = filters.clone();
    for name in ["order", "cursor"] {
        query = query.with(name, visit.query().get(name).unwrap_or_default());
    }
    let query = query.with("limit", &PAGE_ROWS.to_string());
    let jobs: JobPage = visit.get(&format!("/api/v1/jobs{}", query.query())).await?;
    let frame = Frame::new(&visit, "Jobs", Section::Jobs).await?;
    let snapshot = visit.snapshot().await?;
    let link = |fields: &Fields| format!("{}/jobs{}", visit.base(), fields.query());
    let by_finish = visit.query().get("order") == Some("finished_at");
    let finished = matches!(
        filters.get("state"),
        Some("succeeded" | "dead" | "cancelled")
    );
    let other_order = match by_finish {
        true => Some(("newest first", link(&filters))),
        false if finished => Some((
            "last finished first",
            link(&filters.with("order", "finished_at")),
        )),
        false => None,
    };
    let is_first = visit.query().get("cursor").is_none();
    let kept = visit.query().without(&["cursor", "q"]);
    let page = JobsPage {
        count: count(&filters, &snapshot, &jobs),
        tabs: tabs(&filters, &snapshot, visit.base()),
        chips: filter::chips(&filters, visit.base(), visit.zone(), visit.now()),
        additions: filter::additions(&filters, &snapshot),
        kept: kept
            .pairs()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        rows: jobs.data.iter().map(row).collect(),
        order: if by_finish {
            "last finished first"
        } else {
            "newest first"
        },
        other_order,
        newest: (!is_first).then(|| link(&visit.query().without(&["cursor"]))),
        older: jobs
            .next_cursor
            .as_ref()
            .map(|cursor| link(&visit.query().with("cursor", cursor))),
        scanned: scanned(&jobs, &visit),
        all: (filters != Fields::default()).then(|| {
            let matching = Matching::listed(&filters, &snapshot, &jobs, is_first);
            let link = format!("{}/jobs/all{}", visit.base(), filters.query());
            (matching, link)
        }),
        export_link: format!("{}/jobs/export{}", visit.base(), filters.query()),
        clear: (filters != Fields::default()).then(|| format!("{}/jobs", visit.base())),
        commands: vec![
            filter::command("windlass jobs list", &filters),
            filter::command("windlass jobs export --output jobs.ndjson", &filters),
        ],
        frame,
    };
    visit.page(&page)
}

/// Streams all jobs that match as a file.
async fn export(visit: Visit) -> PageResult {
    let filters = filter::of(visit.query());
    super::dead::export::download(visit, "jobs", filters).await
}

/// How many jobs match, where that is known without counting.
fn count(filters: &Fields, snapshot: &Snapshot, jobs: &JobPage) -> String {
    let shown = jobs.data.len();
    if let Some(count) = counted(filters, snapshot) {
        let verb = if filters == &Fields::default() {
            "in all"
        } else {
            "match"
        };
        return format!("{} {verb}", show::count(count));
    }
    match jobs.next_cursor {
        Some(_) => format!("{shown} on this page, more match"),
        None if shown == 1 => "1 matches".to_owned(),
        None => format!("{shown} match"),
    }
}

fn tabs(filters: &Fields, snapshot: &Snapshot, base: &str) -> Vec<Tab> {
    let others = filters.without(&["state", "retrying"]);
    let state = |name: &'static str, value: &'static str| {
        let fields = others.with("state", value);
        Tab {
            name,
            look: Some(Look::new(value, value, value)),
            count: counted(&fields, snapshot).map(markup::count),
            link: format!("{base}/jobs{}", fields.query()),
            current: filters.get("state") == Some(value),
        }
    };
    let retrying = others.with("retrying", "true");
    vec![
        Tab {
            name: "All",
            look: None,
            count: None,
            link: format!("{base}/jobs{}", others.query()),
            current: filters.get("state").is_none() && filters.get("retrying").is_none(),
        },
        state("Ready", "ready"),
        state("Running", "running"),
        state("Scheduled", "scheduled"),
        Tab {
            name: "Retrying",
            look: Some(Look::new("retrying", "retrying", "retrying")),
            count: counted(&retrying, snapshot).map(markup::count),
            link: format!("{base}/jobs{}", retrying.query()),
            current: filters.get("retrying") == Some("true"),
        },
        state("Succeeded", "succeeded"),
        state("Dead", "dead"),
        state("Cancelled", "cancelled"),
    ]
}

fn row(job: &Job) -> Row {
    let error = match &job.last_error {
        Some(error) if !job.error_withheld => show::clipped(error, 200),
        _ if job.error_withheld => "withheld; needs read-payload".to_owned(),
        _ => String::new(),
    };
    Row {
        short: show::id_end(job.id),
        look: look_of(job),
        kind: show::visible(job.kind.as_str()),
        queue: job.queue.to_string(),
        error,
        failures: job.failures,
        attempts_max: job.max_attempts,
        created_at: Some(job.created_at),
        due_at: job.finished_at.or(job.run_at),
        id: job.id.to_string(),
    }
}

fn scanned(jobs: &JobPage, visit: &Visit) -> Option<String> {
    let scanned = jobs.scanned?;
    let until = jobs
        .scanned_until
        .map(|at| format!(", back to {}", visit.zone().short(at, visit.now())));
    Some(format!(
        "Looked at {} jobs{}.",
        show::count(scanned as u64),
        until.unwrap_or_default()
    ))
}

/// The path of a job's page.
pub(super) fn job_path(id: &str) -> String {
    format!("/jobs/{}", escaped(id))
}
