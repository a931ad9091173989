//! Tables for people: plain columns, with colours only on a terminal.

use std::ffi::OsStr;
use std::io::IsTerminal as _;

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Color, Table};
use windlass_core::Timestamp;

/// What a cell means, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Busy,
    Waiting,
    Bad,
    Faint,
}

/// The text of one cell.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// A column of a list.
pub(crate) struct Column<T> {
    pub(crate) title: &'static str,
    /// Whether only `-o wide` shows the column.
    pub(crate) wide: bool,
    pub(crate) value: fn(&T, Timestamp) -> Cell,
}

impl<T> Column<T> {
    pub(crate) fn new(title: &'static str, value: fn(&T, Timestamp) -> Cell) -> Self {
        Column {
            title,
            wide: false,
            value,
        }
    }

    /// A column that only `-o wide` shows.
    pub(crate) fn wide(title: &'static str, value: fn(&T, Timestamp) -> Cell) -> Self {
        Column {
            wide: true,
            ..Column::new(title, value)
        }
    }
}

impl Cell {
    /// Returns a cell. Escapes control characters: users choose the texts of jobs, and a terminal
    /// would act on such characters.
    pub(crate) fn new(text: impl ToString) -> Self {
        let escape = |letter: char| match letter {
            '\n' => vec![letter],
            letter if letter.is_control() => letter.escape_default().collect(),
            letter => vec![letter],
        };
        Cell {
            text: text.to_string().chars().flat_map(escape).collect(),
            tone: Tone::Plain,
        }
    }

    /// Returns a cell with a text, or an empty one.
    pub(crate) fn optional(text: Option<impl ToString>) -> Self {
        text.map_or_else(|| Cell::new("-").tone(Tone::Faint), Cell::new)
    }

    /// Returns the first line of a text, at most `max` characters.
    pub(crate) fn short(text: &str, max: usize) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let is_cut = line.len() < text.trim_end().len() || line.chars().count() > max;
        let mut short: String = line.chars().take(max).collect();
        if is_cut {
            short.push('…');
        }
        Cell::new(short)
    }

    /// Returns the escaped text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Returns the escaped text, in the colour of its tone if stdout shows colours.
    pub(crate) fn painted(self) -> String {
        let colour = match self.tone {
            Tone::Plain => None,
            Tone::Good => Some(32),
            Tone::Busy => Some(36),
            Tone::Waiting => Some(33),
            Tone::Bad => Some(31),
            Tone::Faint => Some(90),
        };
        match colour.filter(|_| shows_colours()) {
            Some(colour) => format!("\u{1b}[{colour}m{}\u{1b}[0m", self.text),
            None => self.text,
        }
    }

    pub(crate) fn tone(self, tone: Tone) -> Self {
        Cell { tone, ..self }
    }

    fn styled(self, colours: bool) -> comfy_table::Cell {
        let cell = comfy_table::Cell::new(self.text);
        match self.tone {
            _ if !colours => cell,
            Tone::Plain => cell,
            Tone::Good => cell.fg(Color::Green),
            Tone::Busy => cell.fg(Color::Cyan),
            Tone::Waiting => cell.fg(Color::Yellow),
            Tone::Bad => cell.fg(Color::Red),
            Tone::Faint => cell.fg(Color::DarkGrey),
        }
    }
}

/// Returns a table with titles.
pub(crate) fn table(titles: &[&str], rows: Vec<Vec<Cell>>) -> String {
    coloured_table(titles, rows, shows_colours())
}

fn coloured_table(titles: &[&str], rows: Vec<Vec<Cell>>, colours: bool) -> String {
    let mut table = empty_table(colours);
    table.set_header(titles.iter().map(|title| {
        let title = comfy_table::Cell::new(title.to_uppercase());
        if colours {
            title.add_attribute(Attribute::Bold)
        } else {
            title
        }
    }));
    for row in rows {
        table.add_row(row.into_iter().map(|cell| cell.styled(colours)));
    }
    printed(table)
}

/// Returns lines of a name and a value.
pub(crate) fn details(rows: Vec<(&str, Cell)>) -> String {
    let colours = shows_colours();
    let mut table = empty_table(colours);
    for (name, cell) in rows {
        let name = Cell::new(name).tone(Tone::Faint);
        table.add_row([name.styled(colours), cell.styled(colours)]);
    }
    printed(table)
}

fn empty_table(colours: bool) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if colours {
        table.enforce_styling();
    }
    table
}

fn printed(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

fn shows_colours() -> bool {
    let no_color = std::env::var_os("NO_COLOR");
    allows_colours(std::io::stdout().is_terminal(), no_color.as_deref())
}

/// Whether stdout shows colours. People set NO_COLOR if they want none.
fn allows_colours(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let cells = |row: [&str; 2]| row.map(Cell::new).to_vec();
        let rows = vec![cells(["a", "long"]), cells(["bcd", "x"])];
        assert_eq!(
            table(&["id", "state"], rows),
            "ID   STATE\na    long\nbcd  x\n"
        );
    }

    #[test]
    fn only_a_terminal_without_no_color_gets_colours() {
        let some = |text| Some(OsStr::new(text));
        assert!(allows_colours(true, None) && allows_colours(true, some("")));
        assert!(!allows_colours(true, some("1")) && !allows_colours(false, None));
        let rows = || vec![vec![Cell::new("dead").tone(Tone::Bad)]];
        assert!(coloured_table(&["state"], rows(), true).contains("\u{1b}["));
        assert_eq!(coloured_table(&["state"], rows(), false), "STATE\ndead\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let cell = Cell::short("\u{1b}[31mred\u{7}\nsecond", 60);
        assert_eq!(cell.text, "\\u{1b}[31mred\\u{7}…");
    }
}
