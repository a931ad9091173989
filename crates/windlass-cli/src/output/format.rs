//! The formats of lists and single objects: `-o table|wide|json|ndjson|id`.

use std::io::Write as _;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use windlass_api::Page;
use windlass_core::Invalid;

use super::{Cell, Column, Output, table};
use crate::clock;

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table for people.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON over several lines.
    Json,
    /// One line of JSON for each object.
    Ndjson,
    /// Only the id or name of each object.
    Id,
}

/// The flag that selects the format.
#[derive(Debug, Clone, Args)]
pub(crate) struct FormatArgs {
    /// How to print the result: `table`, `wide` (more columns), `json`, `ndjson` (one line for each
    /// object) or `id` [default: table].
    #[arg(
        short = 'o',
        long = "format",
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    format: Option<Format>,
}

/// An object that commands list.
pub(crate) trait Listed: Serialize + Sized {
    /// What several of them are called.
    const NOUN: &'static str;

    /// The columns of the table.
    fn columns() -> Vec<Column<Self>>;

    /// The id or name, for `-o id`.
    fn id(&self) -> String;
}

impl Output {
    /// Returns the format that the flags select. `--json` is the same as `-o json`.
    pub(crate) fn format(&self, args: &FormatArgs) -> Result<Format, Invalid> {
        match (self.json, args.format) {
            (true, None | Some(Format::Json)) => Ok(Format::Json),
            (true, Some(_)) => {
                let rule = "is the same as `-o json`; use only one of `--json` and `-o`";
                Err(Invalid::new("--json", rule))
            }
            (false, format) => Ok(format.unwrap_or(Format::Table)),
        }
    }

    /// Prints a list. If it has a next page, says how to continue.
    pub(crate) fn print_list<T: Listed>(
        &self,
        format: Format,
        page: &Page<T>,
    ) -> anyhow::Result<()> {
        let rows = &page.data;
        let lines = |line: &dyn Fn(&T) -> anyhow::Result<String>| {
            rows.iter()
                .map(|row| Ok(line(row)? + "\n"))
                .collect::<anyhow::Result<String>>()
        };
        let printed = match format {
            Format::Json => serde_json::to_string_pretty(page)? + "\n",
            Format::Ndjson => lines(&|row| Ok(json_line(row)?))?,
            Format::Id => lines(&|row| Ok(row.id()))?,
            Format::Table | Format::Wide if rows.is_empty() => format!("no {}\n", T::NOUN),
            Format::Table | Format::Wide => list_table(rows, format == Format::Wide),
        };
        std::io::stdout().lock().write_all(printed.as_bytes())?;
        if let Some(cursor) = page.next_cursor.as_ref().filter(|_| format != Format::Json) {
            // On stderr, so that a program that reads stdout sees only rows.
            writeln!(std::io::stderr(), "more {}: --cursor {cursor}", T::NOUN)?;
        }
        Ok(())
    }

    /// Prints one object. `text` is its page for people.
    pub(crate) fn print_one<T: Listed>(
        &self,
        format: Format,
        object: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        let printed = match format {
            Format::Json => serde_json::to_string_pretty(object)? + "\n",
            Format::Ndjson => json_line(object)? + "\n",
            Format::Id => object.id() + "\n",
            Format::Table | Format::Wide => text(),
        };
        Ok(std::io::stdout().lock().write_all(printed.as_bytes())?)
    }
}

/// Returns a table of the columns of a list.
pub(crate) fn list_table<T: Listed>(rows: &[T], wide: bool) -> String {
    let now = clock::now();
    let columns = T::columns();
    let columns: Vec<_> = columns
        .iter()
        .filter(|column| wide || !column.wide)
        .collect();
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    let cells = |row: &T| -> Vec<Cell> {
        let cells = columns.iter().map(|column| (column.value)(row, now));
        cells.collect()
    };
    table(&titles, rows.iter().map(cells).collect())
}

/// Returns an object as one line of JSON.
pub(crate) fn json_line(object: &impl Serialize) -> serde_json::Result<String> {
    // A payload keeps the line breaks that its client sent. In JSON they are only white space: in a
    // string they are escaped.
    Ok(serde_json::to_string(object)?.replace(['\n', '\r'], " "))
}

/// Returns the word that a value has in JSON.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn json_is_one_line_whatever_the_payload_contains() {
        let raw = RawValue::from_string("{\n\"a\": \"x\\ny\",\r\n\"b\": 1e400}".to_owned());
        let line = json_line(&raw.unwrap()).unwrap();
        assert_eq!(line, "{ \"a\": \"x\\ny\",  \"b\": 1e400}");
    }

    #[test]
    fn json_excludes_another_format() {
        let args = |format| FormatArgs { format };
        let (text, json) = (Output::new(false), Output::new(true));
        assert_eq!(text.format(&args(None)), Ok(Format::Table));
        assert_eq!(text.format(&args(Some(Format::Id))), Ok(Format::Id));
        assert_eq!(json.format(&args(None)), Ok(Format::Json));
        assert_eq!(json.format(&args(Some(Format::Json))), Ok(Format::Json));
        let refused = json.format(&args(Some(Format::Id))).unwrap_err();
        assert_eq!(refused.field(), "--json");
    }
}
