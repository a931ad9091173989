//! The columns and the page of a queue.

use serde_json::Value;
use windlass_api::{Queue, QueueSettings};
use windlass_core::Timestamp;

use crate::clock;
use crate::output::{Cell, Column, Format, Listed, Tone, details, relative, with_relative, word};

impl Listed for Queue {
    const NOUN: &'static str = "queues";

    fn columns() -> Vec<Column<Queue>> {
        vec![
            Column::new("name", |queue, _| Cell::new(&queue.name)),
            Column::new("ready", |queue, _| Cell::new(queue.counts.ready)),
            Column::new("scheduled", |queue, _| Cell::new(queue.counts.scheduled)),
            Column::new("retrying", |queue, _| Cell::new(queue.counts.retrying)),
            Column::new("running", |queue, _| Cell::new(queue.counts.running)),
            Column::new("dead", |queue, _| dead(queue.counts.dead)),
            Column::wide("succeeded", |queue, _| Cell::new(queue.counts.succeeded)),
            Column::wide("cancelled", |queue, _| Cell::new(queue.counts.cancelled)),
            Column::new("oldest ready", |queue, now| {
                Cell::optional(queue.oldest_ready_at.map(|at| relative(at, now)))
            }),
            Column::new("paused", paused),
            Column::wide("settings", |queue, _| {
                let settings: Vec<String> = settings(&queue.settings)
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                Cell::optional((!settings.is_empty()).then(|| settings.join(" ")))
            }),
        ]
    }

    fn id(&self) -> String {
        self.name.to_string()
    }
}

fn dead(count: u64) -> Cell {
    let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
    Cell::new(count).tone(tone)
}

fn paused(queue: &Queue, now: Timestamp) -> Cell {
    let Some(pause) = &queue.paused else {
        return Cell::optional(None::<&str>);
    };
    let since = relative(pause.at, now);
    let text = match &pause.reason {
        Some(reason) => format!("{since} by {}: {reason}", pause.by),
        None => format!("{since} by {}", pause.by),
    };
    Cell::short(&text, 60).tone(Tone::Waiting)
}

/// Returns the settings that are not at their defaults, as the flags of `queues set` take them.
pub(super) fn settings(settings: &QueueSettings) -> impl Iterator<Item = (String, String)> {
    let fields = match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    given.map(|(name, value)| {
        let text = match (value.get("count"), value.get("period")) {
            (Some(count), Some(period)) => format!("{}/{}", word(count), word(period)),
            _ => word(&value),
        };
        (name, text)
    })
}

/// Returns the page of a queue. `-o wide` adds the last minute.
pub(super) fn page(queue: &Queue, format: Format) -> String {
    let (now, counts) = (clock::now(), &queue.counts);
    let mut rows = vec![
        ("name", Cell::new(&queue.name)),
        ("ready", Cell::new(counts.ready)),
        ("scheduled", Cell::new(counts.scheduled)),
        ("retrying", Cell::new(counts.retrying)),
        ("running", Cell::new(counts.running)),
        ("succeeded", Cell::new(counts.succeeded)),
        ("dead", dead(counts.dead)),
        ("cancelled", Cell::new(counts.cancelled)),
    ];
    if let Some(at) = queue.oldest_ready_at {
        rows.push(("oldest ready", Cell::new(with_relative(at, now))));
    }
    if let Some(pause) = &queue.paused {
        rows.push(("paused by", Cell::new(&pause.by).tone(Tone::Waiting)));
        rows.push(("paused at", Cell::new(with_relative(pause.at, now))));
        rows.extend(
            pause
                .reason
                .as_ref()
                .map(|reason| ("reason", Cell::new(reason))),
        );
    }
    if format == Format::Wide {
        let minute = &queue.last_minute;
        let text = format!(
            "{} enqueued, {} succeeded, {} failed, {} retried, {} dead",
            minute.enqueued, minute.succeeded, minute.failed, minute.retried, minute.dead
        );
        rows.push(("last minute", Cell::new(text)));
    }
    if queue.settings_unreadable {
        let text = "unreadable: a newer version may have written them";
        rows.push(("settings", Cell::new(text).tone(Tone::Bad)));
    }
    let mut text = details(rows);
    let settings: Vec<(String, String)> = settings(&queue.settings).collect();
    if !settings.is_empty() {
        let rows = settings.iter();
        let rows = rows.map(|(name, value)| (name.as_str(), Cell::new(value)));
        text.push_str("\nsettings\n");
        text.push_str(&details(rows.collect()));
    }
    text
}
