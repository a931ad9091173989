//! The columns and the page of a replay.

use windlass_api::Replay;

use crate::action::{Action as _, state, waiting};
use crate::bulk::view::{failures, skipped, skipped_count};
use crate::clock;
use crate::output::{Cell, Column, Format, Listed, Tone, details, relative, with_relative, word};

/// The most characters of a reason in a table.
const REASON_CHARS_MAX: usize = 60;

impl Listed for Replay {
    const NOUN: &'static str = "replays";

    fn columns() -> Vec<Column<Replay>> {
        vec![
            Column::new("id", |replay, _| Cell::new(replay.id)),
            Column::new("state", |replay, _| state(replay.state)),
            Column::new("phase", |replay, _| Cell::new(replay.phase)),
            Column::new("matched", |replay, _| Cell::new(replay.matched)),
            Column::new("to do", |replay, _| Cell::new(replay.to_do)),
            Column::new("pending", |replay, _| Cell::new(replay.pending)),
            Column::new("recovered", |replay, _| Cell::new(replay.recovered)),
            Column::new("failed again", |replay, _| {
                failed_again(replay.failed_again)
            }),
            Column::wide("gone", |replay, _| Cell::new(replay.gone)),
            Column::wide("skipped", |replay, _| skipped_count(replay.skipped)),
            Column::new("created", |replay, now| {
                Cell::new(relative(replay.created_at, now))
            }),
            Column::wide("by", |replay, _| Cell::new(&replay.created_by)),
            Column::wide("filter", |replay, _| Cell::new(word(&replay.filter))),
            Column::new("reason", |replay, _| {
                Cell::short(&replay.reason, REASON_CHARS_MAX)
            }),
        ]
    }

    fn id(&self) -> String {
        self.id.to_string()
    }
}

fn failed_again(count: u64) -> Cell {
    let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
    Cell::new(count).tone(tone)
}

/// Returns the page of a replay. `-o wide` adds its rules.
pub(super) fn page(replay: &Replay, format: Format) -> String {
    let now = clock::now();
    let time = |at| Cell::new(with_relative(at, now));
    let queue = replay.waiting_queue.as_ref();
    let waits = replay.waiting_for.map(|what| waiting(what, queue));
    let stopped = replay
        .stopped_because()
        .map(|why| format!("stopped: {why}"));
    let is_wide = format == Format::Wide;
    let rows = [
        ("id", Some(Cell::new(replay.id))),
        ("state", Some(state(replay.state))),
        ("phase", Some(Cell::new(replay.phase))),
        ("now", stopped.or(waits).map(Cell::new)),
        ("matched", Some(Cell::new(replay.matched))),
        ("to do", Some(Cell::new(replay.to_do))),
        ("revived", Some(Cell::new(replay.revived))),
        ("  pending", Some(Cell::new(replay.pending))),
        ("  recovered", Some(Cell::new(replay.recovered))),
        ("  failed again", Some(failed_again(replay.failed_again))),
        ("  gone", Some(Cell::new(replay.gone))),
        ("skipped", Some(skipped(replay.skipped, &replay.skipped_by))),
        ("filter", Some(Cell::new(word(&replay.filter)))),
        ("canary", is_wide.then(|| Cell::new(word(&replay.canary)))),
        ("rate", Some(Cell::new(format!("{}/s", replay.rate)))),
        (
            "max pending",
            is_wide.then(|| Cell::new(replay.max_pending)),
        ),
        ("stop", is_wide.then(|| Cell::new(word(&replay.stop)))),
        (
            "failures",
            is_wide.then(|| Cell::new(word(&replay.failures))),
        ),
        ("force", is_wide.then(|| Cell::new(replay.force))),
        (
            "payload patch",
            replay
                .payload_patch
                .as_ref()
                .map(|patch| Cell::new(patch.0.as_str())),
        ),
        ("reason", Some(Cell::new(&replay.reason))),
        ("created", Some(time(replay.created_at))),
        ("created by", Some(Cell::new(&replay.created_by))),
        ("ended", replay.ended_at.map(time)),
    ];
    let given = rows
        .into_iter()
        .filter_map(|(name, cell)| Some((name, cell?)));
    details(given.collect()) + &failures(&replay.item_failures, format)
}
