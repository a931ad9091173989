//! Prints what an action would do.

use std::io::Write as _;

use serde::Serialize;
use windlass_api::{ActionPreview, FieldChange, Job, JobDiff, Page};

use crate::output::{Cell, Column, Format, Listed, Output, Tone, word};

/// The most characters of the changes of a job in a table.
const CHANGES_CHARS_MAX: usize = 120;

/// The fields that a table shows first. The others follow from them.
const FIRST: [&str; 8] = [
    "state", "queue", "priority", "payload", "tags", "retry", "failures", "run_at",
];

/// One of the matching jobs, and what the action would change in it.
#[derive(Debug, Serialize)]
struct PreviewedJob<'a> {
    job: &'a Job,
    diff: &'a JobDiff,
}

impl Listed for PreviewedJob<'_> {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("id", |row, _| Cell::new(row.job.id)),
            Column::new("state", |row, _| Cell::new(word(&row.job.state))),
            Column::new("queue", |row, _| Cell::new(&row.job.queue)),
            Column::new("kind", |row, _| Cell::new(&row.job.kind)),
            Column::new("changes", |row, _| changes(row.diff)),
        ]
    }

    fn id(&self) -> String {
        self.job.id.to_string()
    }
}

fn changes(diff: &JobDiff) -> Cell {
    if let Some(refused) = &diff.refused {
        return Cell::short(&format!("none: {refused}"), CHANGES_CHARS_MAX).tone(Tone::Bad);
    }
    let mut changes: Vec<_> = diff.changes.iter().flatten().collect();
    changes.sort_by_key(|(name, _)| {
        FIRST
            .iter()
            .position(|first| first == name)
            .unwrap_or(usize::MAX)
    });
    let change = |(name, change): (&String, &FieldChange)| {
        format!("{name}: {} → {}", word(&change.from), word(&change.to))
    };
    let texts: Vec<String> = changes.into_iter().map(change).collect();
    Cell::short(&texts.join(", "), CHANGES_CHARS_MAX)
}

/// Prints the number of jobs that match, and the first ones. `verb` is what the action does.
pub(super) fn print(
    preview: &ActionPreview,
    verb: &str,
    output: &Output,
    format: Format,
) -> anyhow::Result<()> {
    if format == Format::Json {
        return output.print_json(preview);
    }
    writeln!(std::io::stderr(), "would {verb} {}", jobs(preview))?;
    let samples = preview.samples.iter().zip(&preview.diff);
    let rows = samples.map(|(job, diff)| PreviewedJob { job, diff });
    output.print_list(format, &Page::single(rows.collect()))
}

/// Returns how many jobs match, as text.
pub(crate) fn jobs(preview: &ActionPreview) -> String {
    match (preview.complete, preview.matched) {
        (true, 1) => "1 job".to_owned(),
        (true, count) => format!("{count} jobs"),
        (false, count) => format!("at least {count} jobs"),
    }
}
