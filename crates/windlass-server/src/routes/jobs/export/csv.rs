//! Jobs as rows of a table (RFC 4180), safe to open in a spreadsheet.

use windlass_api::{Job, Json};
use windlass_core::ListedState;

/// The content of a cell.
enum Cell {
    Text(String),
    Number(i64),
    Empty,
}

/// The name of a column, and its cell for a job.
type Column = (&'static str, fn(&Job) -> Cell);

const COLUMNS: [Column; 22] = [
    ("id", |job| text(job.id)),
    ("kind", |job| text(&job.kind)),
    ("queue", |job| text(&job.queue)),
    ("state", |job| text(ListedState::from(job.state).name())),
    ("dead_reason", |job| optional(job.dead_reason)),
    ("fingerprint", |job| optional(job.fingerprint)),
    ("last_error", |job| optional(job.last_error.as_ref())),
    ("priority", |job| Cell::Number(job.priority.into())),
    ("attempt", |job| Cell::Number(job.attempt.into())),
    ("failures", |job| Cell::Number(job.failures.into())),
    ("max_attempts", |job| {
        let most = job.max_attempts;
        most.map_or(Cell::Empty, |most| Cell::Number(most.into()))
    }),
    ("created_at", |job| text(job.created_at)),
    ("run_at", |job| optional(job.run_at)),
    ("started_at", |job| optional(job.started_at)),
    ("failed_at", |job| optional(job.failed_at)),
    ("finished_at", |job| optional(job.finished_at)),
    ("worker", |job| optional(job.worker.as_ref())),
    ("unique_key", |job| optional(job.unique_key.as_ref())),
    ("schedule_id", |job| optional(job.schedule_id)),
    ("tags", |job| {
        let tags: Vec<String> = job.tags.iter().map(ToString::to_string).collect();
        text(tags.join(" "))
    }),
    ("payload", |job| json(job.payload.as_ref())),
    ("result", |job| json(job.result.as_ref())),
];

fn text(value: impl ToString) -> Cell {
    Cell::Text(value.to_string())
}

fn optional(value: Option<impl ToString>) -> Cell {
    value.map_or(Cell::Empty, text)
}

fn json(value: Option<&Json>) -> Cell {
    optional(value.map(|value| value.0.as_str()))
}

/// The first row.
pub(super) fn header() -> String {
    let names = COLUMNS.map(|(name, _)| name);
    names.join(",") + "\r\n"
}

/// Adds the row of a job.
pub(super) fn write_job(job: &Job, row: &mut Vec<u8>) {
    for (position, (_, cell)) in COLUMNS.iter().enumerate() {
        if position > 0 {
            row.push(b',');
        }
        match cell(job) {
            Cell::Text(text) => row.extend_from_slice(escaped(&text).as_bytes()),
            Cell::Number(number) => row.extend_from_slice(number.to_string().as_bytes()),
            Cell::Empty => {}
        }
    }
    row.extend_from_slice(b"\r\n");
}

/// Quotes a cell where needed. A spreadsheet runs a cell as a formula if it begins with one of a few
/// characters; a `'` in front makes it text.
fn escaped(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        for (text, cell) in [
            ("plain text", "plain text"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("a \"b\"", "\"a \"\"b\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("=1+1", "'=1+1"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("=\"a\",1", "\"'=\"\"a\"\",1\""),
            ("a=1", "a=1"),
        ] {
            assert_eq!(escaped(text), cell, "{text:?}");
        }
    }
}
