//! The columns and the page of a hook.

use windlass_api::{Hook, HookDetails, HookReport, JobState};
use windlass_core::{HookEvent, format_duration};

use crate::clock;
use crate::output::{Cell, Column, Listed, Tone, details, relative, with_relative, word};

impl Listed for Hook {
    const NOUN: &'static str = "hooks";

    fn columns() -> Vec<Column<Hook>> {
        vec![
            Column::new("name", |hook, _| Cell::new(&hook.name)),
            Column::new("url", |hook, _| Cell::short(&hook.url, 60)),
            Column::new("events", |hook, _| Cell::new(events(hook))),
            Column::new("queue", |hook, _| Cell::optional(hook.queue.as_ref())),
            Column::new("kind", |hook, _| Cell::optional(hook.kind.as_ref())),
            Column::new("paused", |hook, _| {
                let paused = hook.paused.then_some("paused");
                Cell::optional(paused).tone(Tone::Waiting)
            }),
            Column::wide("sign", |hook, _| Cell::new(hook.sign.join(","))),
            Column::wide("created", |hook, now| {
                Cell::new(relative(hook.created_at, now))
            }),
        ]
    }

    fn id(&self) -> String {
        self.name.to_string()
    }
}

impl Listed for HookDetails {
    const NOUN: &'static str = "hooks";

    fn columns() -> Vec<Column<HookDetails>> {
        vec![Column::new("name", |shown, _| Cell::new(&shown.hook.name))]
    }

    fn id(&self) -> String {
        self.hook.name.to_string()
    }
}

fn events(hook: &Hook) -> String {
    let names: Vec<&str> = hook.events.iter().map(|event| event.name()).collect();
    names.join(",")
}

/// Returns the page of a hook without its reports.
pub(super) fn hook(hook: &Hook) -> String {
    let now = clock::now();
    let mut rows = vec![
        ("name", Cell::new(&hook.name)),
        ("url", Cell::new(&hook.url)),
        ("sign", Cell::new(hook.sign.join(","))),
        ("events", Cell::new(events(hook))),
    ];
    rows.extend(hook.queue.as_ref().map(|queue| ("queue", Cell::new(queue))));
    rows.extend(hook.kind.as_ref().map(|kind| ("kind", Cell::new(kind))));
    if hook.events.contains(&HookEvent::QueueStalled) {
        let after = format_duration(hook.stalled_after.0);
        rows.push(("stalled after", Cell::new(after)));
    }
    if hook.include_error_text {
        rows.push(("error text", Cell::new("included")));
    }
    if hook.paused {
        rows.push(("paused", Cell::new("yes").tone(Tone::Waiting)));
    }
    rows.push(("created", Cell::new(with_relative(hook.created_at, now))));
    details(rows)
}

/// Returns the page of a hook with its last reports.
pub(super) fn page(shown: &HookDetails) -> String {
    let mut text = hook(&shown.hook);
    if shown.reports.is_empty() {
        text.push_str("\nno reports yet\n");
        return text;
    }
    let rows: Vec<(String, Cell)> = shown.reports.iter().map(row).collect();
    let rows = rows.iter().map(|(id, cell)| (id.as_str(), cell.clone()));
    text.push_str("\nreports\n");
    text.push_str(&details(rows.collect()));
    text
}

fn row(report: &HookReport) -> (String, Cell) {
    let at = relative(report.created_at, clock::now());
    let (event, state, attempt) = (&report.event, report.state, report.attempt);
    let state_word = word(&state);
    let mut text = format!("{event}  {at}  {state_word}, attempt {attempt}");
    let error = report
        .error
        .as_ref()
        .filter(|_| state != JobState::Succeeded);
    if let Some(line) = error.and_then(|error| error.lines().next()) {
        text.push_str(&format!(": {line}"));
    }
    let tone = match state {
        JobState::Succeeded => Tone::Good,
        JobState::Dead => Tone::Bad,
        _ => Tone::Waiting,
    };
    (
        report.job_id.to_string(),
        Cell::short(&text, 120).tone(tone),
    )
}
