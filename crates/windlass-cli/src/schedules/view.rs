//! The columns and the page of a schedule.

use serde::Serialize;
use windlass_api::{NewJob, Occurrence, Schedule, ScheduleView, UnreadableSchedule};
use windlass_client::Client;
use windlass_core::{JobId, Timestamp};

use super::OneSchedule;
use crate::clock;
use crate::output::{
    Cell, Column, Format, FormatArgs, Listed, Output, Tone, details, list_table, relative,
    with_relative, word,
};

/// How many past occurrences the page shows.
const OCCURRENCES_SHOWN: usize = 5;

impl Listed for ScheduleView {
    const NOUN: &'static str = "schedules";

    fn columns() -> Vec<Column<ScheduleView>> {
        vec![
            Column::new("name", |view, _| Cell::new(view.name())),
            Column::new("rule", |view, _| Cell::optional(of(view, rule))),
            Column::new("time zone", |view, _| {
                Cell::optional(of(view, |schedule| schedule.timezone.clone()))
            }),
            Column::new("state", |view, _| state(view)),
            Column::new("last", |view, now| {
                let last = match view {
                    ScheduleView::Readable(schedule) => schedule.last_at,
                    ScheduleView::Unreadable(schedule) => schedule.last_at,
                };
                Cell::optional(last.map(|at| relative(at, now)))
            }),
            Column::new("next", |view, now| {
                let next = of(view, |schedule| schedule.next_at).flatten();
                Cell::optional(next.map(|at| relative(at, now)))
            }),
            Column::new("kind", |view, _| {
                let kind = of(view, |schedule| kind(&schedule.job));
                Cell::optional(kind.flatten())
            }),
            Column::new("queue", |view, _| {
                Cell::optional(of(view, |schedule| queue(&schedule.job)))
            }),
            Column::wide("overlap", |view, _| {
                Cell::optional(of(view, |schedule| word(&schedule.overlap)))
            }),
            Column::wide("id", |view, _| match view {
                ScheduleView::Readable(schedule) => Cell::new(schedule.id),
                ScheduleView::Unreadable(schedule) => Cell::new(schedule.id),
            }),
        ]
    }

    fn id(&self) -> String {
        self.name().to_owned()
    }
}

impl Listed for Occurrence {
    const NOUN: &'static str = "occurrences";

    fn columns() -> Vec<Column<Occurrence>> {
        vec![
            Column::new("scheduled for", |one, _| Cell::new(one.scheduled_for)),
            Column::new("when", |one, now| {
                Cell::new(relative(one.scheduled_for, now))
            }),
            Column::new("result", |one, _| result(one)),
            Column::new("job", |one, _| Cell::optional(one.job_id)),
            Column::new("state", |one, _| match one.state {
                Some(state) => crate::jobs::state(state),
                None => Cell::optional(None::<&str>),
            }),
        ]
    }

    fn id(&self) -> String {
        self.scheduled_for.to_string()
    }
}

/// The job that `schedules run-now` created.
#[derive(Debug, Serialize)]
pub(super) struct CreatedBySchedule {
    pub(super) job_id: JobId,
}

impl Listed for CreatedBySchedule {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<CreatedBySchedule>> {
        vec![Column::new("id", |created, _| Cell::new(created.job_id))]
    }

    fn id(&self) -> String {
        self.job_id.to_string()
    }
}

/// Returns a value of a schedule that the server can read.
fn of<T>(view: &ScheduleView, value: impl Fn(&Schedule) -> T) -> Option<T> {
    match view {
        ScheduleView::Readable(schedule) => Some(value(schedule)),
        ScheduleView::Unreadable(_) => None,
    }
}

fn rule(schedule: &Schedule) -> String {
    match (&schedule.cron, &schedule.every, &schedule.at) {
        (Some(cron), ..) => cron.clone(),
        (None, Some(every), _) => format!("every {}", word(every)),
        (None, None, Some(at)) => format!("at {at}"),
        (None, None, None) => String::new(),
    }
}

fn kind(job: &NewJob) -> Option<String> {
    let http = job.http.as_ref().map(|_| "http".to_owned());
    job.kind.as_ref().map(ToString::to_string).or(http)
}

fn queue(job: &NewJob) -> String {
    job.queue.clone().unwrap_or_default().to_string()
}

fn state(view: &ScheduleView) -> Cell {
    match view {
        ScheduleView::Unreadable(_) => Cell::new("unreadable").tone(Tone::Bad),
        ScheduleView::Readable(schedule) if schedule.paused => {
            Cell::new("paused").tone(Tone::Waiting)
        }
        ScheduleView::Readable(schedule) if schedule.finished => {
            Cell::new("finished").tone(Tone::Faint)
        }
        ScheduleView::Readable(_) => Cell::new("active").tone(Tone::Good),
    }
}

fn result(one: &Occurrence) -> Cell {
    if one.fired {
        return Cell::new("fired").tone(Tone::Good);
    }
    let reason = one.reason.as_ref().map(word).unwrap_or_default();
    let text = match (one.count, one.last) {
        (Some(Some(1)), _) | (None, None) => format!("skipped: {reason}"),
        (Some(Some(count)), Some(last)) => format!("{count} skipped until {last}: {reason}"),
        (_, Some(last)) => format!("more than 1000 skipped until {last}: {reason}"),
        (_, None) => format!("skipped: {reason}"),
    };
    Cell::new(text).tone(Tone::Waiting)
}

/// Prints a schedule that a command changed.
pub(super) fn print(
    view: &ScheduleView,
    format: &FormatArgs,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(format)?;
    output.print_one(format, view, || page(view, format))
}

/// Prints a schedule with its latest occurrences.
pub(super) async fn show(
    one: &OneSchedule,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&one.format)?;
    let view = client.schedule(&one.name).await?;
    let is_page = matches!(format, Format::Table | Format::Wide);
    let mut occurrences = Vec::new();
    if is_page {
        let mut pages = client.occurrences(&one.name).limit(OCCURRENCES_SHOWN);
        occurrences = pages
            .next_page()
            .await?
            .map_or(Vec::new(), |page| page.data);
    }
    output.print_one(format, &view, || {
        let mut text = page(&view, format);
        if !occurrences.is_empty() {
            text.push('\n');
            text.push_str(&list_table(&occurrences, format == Format::Wide));
        }
        text
    })
}

fn page(view: &ScheduleView, format: Format) -> String {
    let now = clock::now();
    match view {
        ScheduleView::Readable(schedule) => {
            let mut text = details(rows(view, schedule, format, now));
            let payload = schedule.job.payload.as_ref().map(|json| json.0.as_str());
            if let Some(payload) = payload.filter(|payload| *payload != "null") {
                text.push_str(&format!("\npayload\n{}\n", Cell::new(payload).into_text()));
            }
            if schedule.payload_withheld {
                let why = "the API key lacks the scope `read-payload`";
                text.push_str(&format!("\nthe payload is hidden: {why}\n"));
            }
            text
        }
        ScheduleView::Unreadable(schedule) => details(unreadable_rows(view, schedule, now)),
    }
}

fn rows(
    view: &ScheduleView,
    schedule: &Schedule,
    format: Format,
    now: Timestamp,
) -> Vec<(&'static str, Cell)> {
    let time = |at: Timestamp| Cell::new(with_relative(at, now));
    let is_wide = format == Format::Wide;
    let job = NewJob {
        payload: None,
        ..schedule.job.clone()
    };
    let rows = [
        ("name", Some(Cell::new(&schedule.name))),
        ("id", Some(Cell::new(schedule.id))),
        ("state", Some(state(view))),
        ("rule", Some(Cell::new(rule(schedule)))),
        ("time zone", Some(Cell::new(&schedule.timezone))),
        ("next", schedule.next_at.map(time)),
        ("last", schedule.last_at.map(time)),
        ("starts", schedule.starts_at.map(time)),
        ("ends", schedule.ends_at.map(time)),
        (
            "missed",
            schedule.missed.map(|missed| Cell::new(word(&missed))),
        ),
        ("overlap", Some(Cell::new(word(&schedule.overlap)))),
        (
            "catch-up max",
            schedule.catch_up_max.map(|max| Cell::new(max.get())),
        ),
        ("splay", is_wide.then(|| Cell::new(word(&schedule.splay)))),
        (
            "missed after",
            is_wide.then(|| Cell::new(word(&schedule.missed_after))),
        ),
        ("created", Some(time(schedule.created_at))),
        ("job", Some(Cell::new(word(&job)))),
    ];
    let given = rows
        .into_iter()
        .filter_map(|(name, cell)| Some((name, cell?)));
    given.collect()
}

fn unreadable_rows(
    view: &ScheduleView,
    schedule: &UnreadableSchedule,
    now: Timestamp,
) -> Vec<(&'static str, Cell)> {
    vec![
        ("name", Cell::new(&schedule.name)),
        ("id", Cell::new(schedule.id)),
        ("state", state(view)),
        ("error", Cell::new(&schedule.error).tone(Tone::Bad)),
        (
            "created",
            Cell::new(with_relative(schedule.created_at, now)),
        ),
        ("definition", Cell::new(word(&schedule.definition))),
    ]
}
