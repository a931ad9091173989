//! The dead jobs one by one.

use askama::Template;
use windlass_api::{Job, JobPage};
use windlass_core::{DeadReason, Timestamp};

use super::super::job;
use super::{FilterBar, PAGE_ROWS, filters_of, flags};
use crate::frame::{Frame, Section};
use crate::show;
use crate::site::PageResult;
use crate::visit::Visit;

/// A dead job as a row.
struct DeadRow {
    id: String,
    title: String,
    queue: String,
    reason: Option<DeadReason>,
    error: String,
    died_at: Option<Timestamp>,
    attempts: u32,
}

#[derive(Template)]
#[template(path = "dead_jobs.html")]
struct JobsTemplate {
    frame: Frame,
    filters: FilterBar,
    dead: String,
    rows: Vec<DeadRow>,
    scanned: Option<String>,
    next: Option<String>,
    commands: Vec<String>,
}

pub(super) async fn page(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Dead letters", Section::Dead).await?;
    let mut query = filters_of(visit.query()).with("limit", &PAGE_ROWS.to_string());
    if let Some(cursor) = visit.query().get("cursor") {
        query = query.with("cursor", cursor);
    }
    let jobs: JobPage = visit
        .get(&format!("/api/v1/dead-letters{}", query.query()))
        .await?;
    let row = |one: Job| DeadRow {
        id: one.id.to_string(),
        title: job::title(&one),
        queue: show::visible(one.queue.as_str()),
        reason: one.dead_reason,
        error: match (&one.last_error, one.error_withheld) {
            (Some(error), _) => show::clipped(error, 160),
            (None, true) => "withheld".to_owned(),
            (None, false) => "–".to_owned(),
        },
        died_at: one.finished_at,
        attempts: one.attempt,
    };
    let page = JobsTemplate {
        filters: FilterBar::new(&visit),
        dead: show::count(visit.snapshot().await?.total(|counts| counts.dead)),
        scanned: jobs.scanned.map(|scanned| show::count(scanned as u64)),
        next: jobs.next_cursor.map(|cursor| {
            format!(
                "{}/dead{}",
                visit.base(),
                visit.query().with("cursor", &cursor).query()
            )
        }),
        commands: vec![
            format!("windlass jobs list --state dead{}", flags(visit.query())),
            format!(
                "windlass jobs export --state dead{} --output dead.ndjson",
                flags(visit.query())
            ),
        ],
        rows: jobs.data.into_iter().map(row).collect(),
        frame,
    };
    visit.page(&page)
}
