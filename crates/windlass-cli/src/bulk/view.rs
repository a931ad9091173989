//! The columns and the page of a bulk action.

use std::collections::BTreeMap;

use windlass_api::{BulkAction, ItemFailure};
use windlass_core::SkipReason;

use crate::action::{state, waiting};
use crate::clock;
use crate::output::{
    Cell, Column, Format, Listed, Tone, details, list_table, relative, with_relative, word,
};

/// The most characters of a reason or an error in a table.
const TEXT_CHARS_MAX: usize = 60;
/// How many jobs that could not be changed the page shows; `-o wide` shows all.
const FAILURES_SHOWN: usize = 10;

impl Listed for BulkAction {
    const NOUN: &'static str = "bulk actions";

    fn columns() -> Vec<Column<BulkAction>> {
        vec![
            Column::new("id", |bulk, _| Cell::new(bulk.id)),
            Column::new("action", |bulk, _| Cell::new(bulk.action)),
            Column::new("state", |bulk, _| state(bulk.state)),
            Column::new("matched", |bulk, _| Cell::new(bulk.matched)),
            Column::new("to do", |bulk, _| Cell::new(bulk.to_do)),
            Column::new("done", |bulk, _| Cell::new(bulk.done)),
            Column::new("skipped", |bulk, _| skipped_count(bulk.skipped)),
            Column::new("created", |bulk, now| {
                Cell::new(relative(bulk.created_at, now))
            }),
            Column::wide("by", |bulk, _| Cell::new(&bulk.created_by)),
            Column::wide("filter", |bulk, _| Cell::new(word(&bulk.filter))),
            Column::new("reason", |bulk, _| {
                Cell::short(&bulk.reason, TEXT_CHARS_MAX)
            }),
        ]
    }

    fn id(&self) -> String {
        self.id.to_string()
    }
}

impl Listed for ItemFailure {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<ItemFailure>> {
        vec![
            Column::new("job", |failure, _| Cell::new(failure.job_id)),
            Column::new("left alone", |failure, _| Cell::new(failure.reason)),
            Column::new("error", |failure, _| match &failure.error {
                Some(error) => Cell::short(error, TEXT_CHARS_MAX).tone(Tone::Bad),
                None => Cell::optional(None::<&str>),
            }),
        ]
    }

    fn id(&self) -> String {
        self.job_id.to_string()
    }
}

pub(crate) fn skipped_count(count: u64) -> Cell {
    let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
    Cell::new(count).tone(tone)
}

/// Returns the number of skipped jobs by reason: `3 (2 changed, 1 gone)`.
pub(crate) fn skipped(count: u64, by: &BTreeMap<SkipReason, u64>) -> Cell {
    let reasons: Vec<String> = by
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let cell = skipped_count(count);
    if reasons.is_empty() {
        return cell;
    }
    Cell::new(format!("{count} ({})", reasons.join(", "))).tone(Tone::Bad)
}

/// Returns the jobs that an action could not change.
pub(crate) fn failures(failures: &[ItemFailure], format: Format) -> String {
    let is_wide = format == Format::Wide;
    let most = if is_wide { usize::MAX } else { FAILURES_SHOWN };
    let shown = failures.get(..most).unwrap_or(failures);
    if shown.is_empty() {
        return String::new();
    }
    format!("\n{}", list_table(shown, is_wide))
}

/// Returns the page of a bulk action.
pub(super) fn page(bulk: &BulkAction, format: Format) -> String {
    let now = clock::now();
    let time = |at| Cell::new(with_relative(at, now));
    let queue = bulk.waiting_queue.as_ref();
    let rows = [
        ("id", Some(Cell::new(bulk.id))),
        ("action", Some(Cell::new(bulk.action))),
        ("state", Some(state(bulk.state))),
        (
            "now",
            bulk.waiting_for.map(|what| Cell::new(waiting(what, queue))),
        ),
        ("matched", Some(Cell::new(bulk.matched))),
        ("to do", Some(Cell::new(bulk.to_do))),
        ("done", Some(Cell::new(bulk.done))),
        ("skipped", Some(skipped(bulk.skipped, &bulk.skipped_by))),
        ("filter", Some(Cell::new(word(&bulk.filter)))),
        ("fields", fields(bulk)),
        ("rate", bulk.rate.map(|rate| Cell::new(format!("{rate}/s")))),
        ("reason", Some(Cell::new(&bulk.reason))),
        ("created", Some(time(bulk.created_at))),
        ("created by", Some(Cell::new(&bulk.created_by))),
        ("ended", bulk.ended_at.map(time)),
    ];
    let given = rows
        .into_iter()
        .filter_map(|(name, cell)| Some((name, cell?)));
    details(given.collect()) + &failures(&bulk.item_failures, format)
}

/// Returns the fields of the action as JSON, if it has any.
fn fields(bulk: &BulkAction) -> Option<Cell> {
    let text = word(&bulk.fields);
    (text != "{}").then(|| Cell::new(text))
}
