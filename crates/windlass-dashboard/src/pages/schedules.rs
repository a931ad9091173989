//! Schedules: their rules in words, when they fire next, and what came of the last runs.

mod change;
mod form;

use askama::Template;
use axum::Router;
use windlass_api::{Firing, JobState, Occurrence, Page, Schedule, ScheduleView};
use windlass_core::format_duration;
use windlass_core::schedule::{Expression, Missed, Overlap};

use super::dead::quoted;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::frame::{Frame, Look, Section};
use crate::markup::{self, Markup};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::Visit;

/// How many schedules a page has. Each one needs a read of its last runs.
const PAGE_ROWS: usize = 25;
/// How many of the last runs a row shows.
const STRIP: usize = 14;
/// How many of the next and last runs the panel shows.
const LISTED: usize = 6;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/schedules", page(|visit| show(visit, None)))
        .route(
            "/schedules/{name}",
            page(|visit| {
                let name = visit.param("name").to_owned();
                show(visit, Some(name))
            }),
        )
        .route(
            "/new/schedule",
            page(form::create_form).merge(action(form::create)),
        )
        .route(
            "/schedules/{name}/edit",
            page(form::edit_form).merge(action(form::edit)),
        )
        .route(
            "/schedules/{name}/pause",
            action(|submit| change::command(submit, "pause")),
        )
        .route(
            "/schedules/{name}/resume",
            action(|submit| change::command(submit, "resume")),
        )
        .route("/schedules/{name}/run-now", action(change::run_now))
        .route("/schedules/{name}/backfill", action(change::backfill))
        .route("/schedules/{name}/delete", action(change::delete))
}

/// The path of a schedule in the REST API.
fn api_path(name: &str) -> String {
    format!("/api/v1/schedules/{}", escaped(name))
}

/// The rule of a schedule as it is written, and in words.
pub(super) struct Rule {
    pub(super) text: String,
    /// `None` if the rule needs a long sentence.
    pub(super) words: Option<String>,
}

impl Rule {
    fn new(schedule: &Schedule) -> Self {
        let every = schedule.every.as_ref().map(|every| every.0);
        let expression = Expression::from_fields(schedule.cron.as_deref(), every, schedule.at);
        let Ok(expression) = expression else {
            let text = schedule.cron.clone().unwrap_or_default();
            return Rule {
                words: None,
                text: show::visible(&text),
            };
        };
        let mut words = expression.words();
        if schedule.splay.0 > std::time::Duration::ZERO {
            let splay = format!(", spread over {}", format_duration(schedule.splay.0));
            words = words.map(|words| words + &splay);
        }
        Rule {
            text: expression.to_string(),
            words: words.map(|words| sentence(&words)),
        }
    }
}

/// Text that begins with a capital letter.
pub(super) fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// The local time of an occurrence without its offset: `2026-03-18 02:30:00`.
fn local_text(local: &str) -> String {
    let plain: String = local.chars().take(19).collect();
    let Ok(at) = plain.parse::<jiff::civil::DateTime>() else {
        return plain.replace('T', "\u{a0}");
    };
    let format = match at.second() {
        0 => "%a %-d %b %Y, %H:%M",
        _ => "%a %-d %b %Y, %H:%M:%S",
    };
    at.strftime(format).to_string().replace(' ', "\u{a0}")
}

/// A schedule as a row.
struct Row {
    name: String,
    link: String,
    rule: Option<Rule>,
    schedule: Option<Schedule>,
    /// Why the server cannot read the schedule.
    unreadable: Option<String>,
    strip: Markup,
    runs: usize,
    current: bool,
}

/// The chosen schedule.
struct Panel {
    schedule: Schedule,
    rule: Rule,
    next: Vec<Firing>,
    last: Vec<Run>,
    link: String,
    missed: &'static str,
    missed_after: String,
    overlap: &'static str,
    splay: String,
    retry: String,
    queue: String,
    kind: String,
    payload: Option<String>,
}

/// One of the last runs.
struct Run {
    occurrence: Occurrence,
    look: Look,
    note: String,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct SchedulesTemplate {
    frame: Frame,
    rows: Vec<Row>,
    paused: usize,
    panel: Option<Panel>,
    next: Option<String>,
    commands: Vec<String>,
}

async fn show(visit: Visit, chosen: Option<String>) -> PageResult {
    let title = chosen
        .clone()
        .map_or("Schedules".to_owned(), |name| show::visible(&name));
    let frame = Frame::new(&visit, title, Section::Schedules).await?;
    let cursor = visit
        .query()
        .get("cursor")
        .map(|cursor| format!("&cursor={}", escaped(cursor)));
    let path = format!(
        "/api/v1/schedules?limit={PAGE_ROWS}{}",
        cursor.unwrap_or_default()
    );
    let page: Page<ScheduleView> = visit.get(&path).await?;
    let first = page.data.iter().find_map(|view| match view {
        ScheduleView::Readable(schedule) => Some(schedule.name.as_str().to_owned()),
        ScheduleView::Unreadable(_) => None,
    });
    let chosen_name = chosen.clone().or(first);
    let mut rows = Vec::new();
    for view in page.data {
        rows.push(row(&visit, view, chosen_name.as_deref()).await?);
    }
    let panel = match &chosen_name {
        Some(name) => panel(&visit, name, chosen.is_some()).await?,
        None => None,
    };
    let rule = panel
        .as_ref()
        .map_or("0 2 * * *".to_owned(), |panel| panel.rule.text.clone());
    let zone = panel
        .as_ref()
        .map_or("UTC".to_owned(), |panel| panel.schedule.timezone.clone());
    let name = chosen_name.unwrap_or_default();
    let mut commands = vec![format!(
        "windlass schedules next {} --tz {zone}",
        quoted(&rule)
    )];
    if !name.is_empty() {
        commands.extend(
            ["show", "run-now"].map(|verb| format!("windlass schedules {verb} {}", quoted(&name))),
        );
    }
    let page = SchedulesTemplate {
        paused: rows
            .iter()
            .filter(|row| row.schedule.as_ref().is_some_and(|one| one.paused))
            .count(),
        next: page
            .next_cursor
            .map(|cursor| visit.query().with("cursor", &cursor).query()),
        commands,
        rows,
        panel,
        frame,
    };
    visit.page(&page)
}

async fn row(visit: &Visit, view: ScheduleView, chosen: Option<&str>) -> Result<Row, Failure> {
    let name = view.name().to_owned();
    let link = format!("/schedules/{}", escaped(&name));
    let current = chosen == Some(name.as_str());
    let schedule = match view {
        ScheduleView::Readable(schedule) => *schedule,
        ScheduleView::Unreadable(unreadable) => {
            return Ok(Row {
                name: show::visible(&name),
                link,
                rule: None,
                schedule: None,
                unreadable: Some(show::visible(&unreadable.error)),
                strip: Markup::default(),
                runs: 0,
                current,
            });
        }
    };
    let path = format!("{}/occurrences?limit={STRIP}", api_path(&name));
    let occurrences: Page<Occurrence> = visit.get(&path).await?;
    Ok(Row {
        name: show::visible(&name),
        link,
        rule: Some(Rule::new(&schedule)),
        unreadable: None,
        runs: occurrences.data.len(),
        strip: strip(&occurrences.data),
        current,
        schedule: Some(schedule),
    })
}

async fn panel(visit: &Visit, name: &str, required: bool) -> Result<Option<Panel>, Failure> {
    let schedule: Result<Schedule, Failure> = visit.get(&api_path(name)).await;
    let schedule = match schedule {
        Ok(schedule) => schedule,
        Err(failure) if required => return Err(failure),
        Err(_) => return Ok(None),
    };
    let next: Page<Firing> = visit
        .get(&format!("{}/preview?count={LISTED}", api_path(name)))
        .await?;
    let last: Page<Occurrence> = visit
        .get(&format!("{}/occurrences?limit={LISTED}", api_path(name)))
        .await?;
    let job = serde_json::to_value(&schedule.job).unwrap_or_default();
    let text = |field: &str, default: &str| {
        let value = job.get(field).and_then(|value| value.as_str());
        show::visible(value.unwrap_or(default))
    };
    let kind = if job.get("http").is_some() {
        "http".to_owned()
    } else {
        text("kind", "http")
    };
    Ok(Some(Panel {
        rule: Rule::new(&schedule),
        next: next.data,
        last: last.data.into_iter().take(LISTED).map(run).collect(),
        link: format!("/schedules/{}", escaped(name)),
        missed: missed_words(schedule.missed),
        missed_after: show::duration(schedule.missed_after.0),
        overlap: overlap_words(schedule.overlap),
        splay: match schedule.splay.0 {
            splay if splay.is_zero() => "none".to_owned(),
            splay => show::duration(splay),
        },
        retry: job
            .get("retry")
            .map_or("the default".to_owned(), |retry| match retry.as_str() {
                Some(preset) => preset.to_owned(),
                None => show::clipped(&retry.to_string(), 120),
            }),
        queue: text("queue", "default"),
        kind,
        payload: job
            .get("payload")
            .filter(|payload| !payload.is_null())
            .map(|payload| super::job::pretty(&payload.to_string())),
        schedule,
    }))
}

fn missed_words(missed: Option<Missed>) -> &'static str {
    match missed {
        None => "run the last one (skip for at-most-once jobs)",
        Some(Missed::Skip) => "skip",
        Some(Missed::Once) => "run the last one",
        Some(Missed::All) => "run all of them",
    }
}

fn overlap_words(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Skip => "skip",
        Overlap::Queue => "let one wait",
        Overlap::Allow => "run both",
        Overlap::CancelRunning => "cancel the earlier one",
    }
}

/// How the result of an occurrence looks.
fn occurrence_look(occurrence: &Occurrence) -> Look {
    let failures = occurrence.failures.unwrap_or_default();
    match occurrence.state {
        None if occurrence.fired => Look::new("removed", "cancelled", "cancelled"),
        None => Look::new("skipped", "skipped", "cancelled"),
        Some(JobState::Succeeded) if failures > 0 => {
            Look::new("succeeded after retries", "succeeded", "retrying")
        }
        Some(JobState::Succeeded) => Look::new("succeeded", "succeeded", "succeeded"),
        Some(JobState::Dead) => Look::new("dead", "dead", "dead"),
        Some(JobState::Cancelled) => Look::new("cancelled", "cancelled", "cancelled"),
        Some(JobState::Running) => Look::new("running", "running", "running"),
        Some(JobState::Scheduled | JobState::Ready) if failures > 0 => {
            Look::new("retrying", "retrying", "retrying")
        }
        Some(JobState::Scheduled) => Look::new("scheduled", "scheduled", "scheduled"),
        Some(JobState::Ready) => Look::new("ready", "ready", "ready"),
    }
}

fn run(occurrence: Occurrence) -> Run {
    let look = occurrence_look(&occurrence);
    let failures = occurrence.failures.unwrap_or_default();
    let finished = occurrence.finished_at.flatten();
    let took = finished
        .zip(occurrence.started_at)
        .map(|(end, start)| show::duration(end.since(start)));
    let note = match (took, failures, &occurrence.reason) {
        (_, _, Some(reason)) => {
            let count = occurrence
                .count
                .flatten()
                .map_or("many".to_owned(), |count| count.to_string());
            format!("{count}, {}", reason.name().replace('_', " "))
        }
        (Some(took), 0, None) => took,
        (Some(took), 1, None) => format!("{took}, 1 failure"),
        (Some(took), failures, None) => format!("{took}, {failures} failures"),
        (None, ..) => String::new(),
    };
    Run {
        occurrence,
        look,
        note,
    }
}

/// The last runs as marks, the oldest first: dead is tall, skipped is low.
fn strip(occurrences: &[Occurrence]) -> Markup {
    let mut svg = String::new();
    for occurrence in occurrences.iter().take(STRIP).rev() {
        let look = occurrence_look(occurrence);
        let (y, height) = match look.word {
            "dead" => (0, 16),
            "skipped" | "removed" => (7, 3),
            _ => (3, 10),
        };
        let title = markup::escaped(&format!("{}: {}", occurrence.scheduled_for, look.word));
        let colour = look.colour;
        svg.push_str(&format!(
            r#"<svg role="img"><title>{title}</title><rect class="f-{colour}" x="1" y="{y}" width="8" height="{height}" rx="2"/></svg>"#
        ));
    }
    Markup(format!(r#"<span class="strip">{svg}</span>"#))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn occurrence(value: serde_json::Value) -> Occurrence {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_result_has_its_own_word_and_shape() {
        let at = "2026-01-01T00:00:00Z";
        for (value, word) in [
            (
                json!({"scheduled_for": at, "fired": true, "state": "succeeded", "failures": 0}),
                "succeeded",
            ),
            (
                json!({"scheduled_for": at, "fired": true, "state": "succeeded", "failures": 2}),
                "succeeded after retries",
            ),
            (
                json!({"scheduled_for": at, "fired": true, "state": "dead", "failures": 3}),
                "dead",
            ),
            (
                json!({"scheduled_for": at, "fired": false, "last": at, "count": 3, "reason": "overlap"}),
                "skipped",
            ),
            (json!({"scheduled_for": at, "fired": true}), "removed"),
        ] {
            assert_eq!(occurrence_look(&occurrence(value)).word, word);
        }
        let rows = [
            occurrence(json!({"scheduled_for": at, "fired": true, "state": "dead"})),
            occurrence(json!({"scheduled_for": at, "fired": true, "state": "succeeded"})),
        ];
        let strip = strip(&rows).to_string();
        let (good, bad) = (
            strip.find("f-succeeded").unwrap(),
            strip.find("f-dead").unwrap(),
        );
        assert!(good < bad, "the newest run is the last mark");
        assert!(strip.contains(r#"height="16""#), "dead is tall");
    }

    #[test]
    fn words_begin_with_a_capital_letter() {
        assert_eq!(sentence("every day at 02:30"), "Every day at 02:30");
        assert_eq!(sentence(""), "");
    }
}
