//! Columns of the lists, and which of them fit.

use std::cmp::Ordering;

use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use windlass_api::Queue;

use super::snapshot::{Rates, Snapshot};

/// A column of the queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum QueueColumn {
    #[default]
    Name,
    Ready,
    Scheduled,
    Retrying,
    Running,
    Dead,
    Enqueued,
    Succeeded,
    Failed,
    Wait,
}

impl QueueColumn {
    pub(super) const ALL: [QueueColumn; 10] = [
        QueueColumn::Name,
        QueueColumn::Ready,
        QueueColumn::Scheduled,
        QueueColumn::Retrying,
        QueueColumn::Running,
        QueueColumn::Dead,
        QueueColumn::Enqueued,
        QueueColumn::Succeeded,
        QueueColumn::Failed,
        QueueColumn::Wait,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            QueueColumn::Name => "QUEUE",
            QueueColumn::Ready => "READY",
            QueueColumn::Scheduled => "SCHED",
            QueueColumn::Retrying => "RETRY",
            QueueColumn::Running => "RUN",
            QueueColumn::Dead => "DEAD",
            QueueColumn::Enqueued => "NEW/MIN",
            QueueColumn::Succeeded => "OK/MIN",
            QueueColumn::Failed => "FAIL/MIN",
            QueueColumn::Wait => "WAIT95",
        }
    }

    fn width(self) -> u16 {
        match self {
            QueueColumn::Name => 16,
            QueueColumn::Running | QueueColumn::Dead => 5,
            QueueColumn::Ready | QueueColumn::Scheduled | QueueColumn::Retrying => 6,
            QueueColumn::Enqueued | QueueColumn::Succeeded | QueueColumn::Wait => 7,
            QueueColumn::Failed => 8,
        }
    }
}

/// A queue with its rates.
pub(super) struct QueueRow<'a> {
    pub(super) queue: &'a Queue,
    rates: Option<Rates>,
}

/// Returns the queues in the order of a column: names from A to Z, numbers from the largest.
pub(super) fn sorted(snapshot: &Snapshot, by: QueueColumn) -> Vec<QueueRow<'_>> {
    let rows = snapshot.queues.iter().map(|queue| QueueRow {
        queue,
        rates: snapshot.activity(&queue.name),
    });
    let mut rows: Vec<QueueRow<'_>> = rows.collect();
    rows.sort_by(|a, b| {
        let order = match by {
            QueueColumn::Name => Ordering::Equal,
            by => b.value(by).total_cmp(&a.value(by)),
        };
        order.then_with(|| a.queue.name.cmp(&b.queue.name))
    });
    rows
}

impl QueueRow<'_> {
    #[expect(clippy::cast_precision_loss, reason = "only for sorting")]
    fn value(&self, column: QueueColumn) -> f64 {
        match column {
            QueueColumn::Name => 0.0,
            QueueColumn::Wait => self
                .rates
                .and_then(|rates| rates.wait_p95_ms)
                .unwrap_or(-1.0),
            column => self.number(column).map_or(-1.0, |number| number as f64),
        }
    }

    fn number(&self, column: QueueColumn) -> Option<u64> {
        let counts = &self.queue.counts;
        match column {
            QueueColumn::Name | QueueColumn::Wait => None,
            QueueColumn::Ready => Some(counts.ready),
            QueueColumn::Scheduled => Some(counts.scheduled),
            QueueColumn::Retrying => Some(counts.retrying),
            QueueColumn::Running => Some(counts.running),
            QueueColumn::Dead => Some(counts.dead),
            QueueColumn::Enqueued => self.rates.map(|rates| rates.enqueued),
            QueueColumn::Succeeded => self.rates.map(|rates| rates.succeeded),
            QueueColumn::Failed => self.rates.map(|rates| rates.failed),
        }
    }

    fn cell(&self, column: QueueColumn) -> Cell<'static> {
        let number = self.number(column);
        match column {
            QueueColumn::Name if self.queue.paused.is_some() => {
                Cell::from(format!("{} (paused)", self.queue.name)).yellow()
            }
            QueueColumn::Name => Cell::from(self.queue.name.to_string()),
            QueueColumn::Wait => {
                let wait = self.rates.and_then(|rates| rates.wait_p95_ms);
                right(wait.map_or_else(|| "-".to_owned(), millis))
            }
            QueueColumn::Dead | QueueColumn::Failed if number.is_some_and(|number| number > 0) => {
                right(shortened(number)).red()
            }
            QueueColumn::Running if number.is_some_and(|number| number > 0) => {
                right(shortened(number)).cyan()
            }
            _ => right(shortened(number)),
        }
    }
}

/// Returns the table of the queues with the columns that fit.
pub(super) fn queue_table(rows: &[QueueRow<'_>], sort: QueueColumn, width: u16) -> Table<'static> {
    let columns = fitting(width, &QueueColumn::ALL, QueueColumn::width);
    let title = |column: &QueueColumn| {
        let title = match column {
            QueueColumn::Name => Cell::from(column.title()),
            column => right(column.title().to_owned()),
        };
        match *column == sort {
            true => title.style(Style::new().add_modifier(Modifier::REVERSED)),
            false => title,
        }
    };
    let header = Row::new(columns.iter().map(title)).bold();
    let cells = rows
        .iter()
        .map(|row| Row::new(columns.iter().map(|column| row.cell(*column))));
    let widths = columns.iter().map(|column| match column {
        QueueColumn::Name => Constraint::Fill(1),
        column => Constraint::Length(column.width()),
    });
    Table::new(cells, widths).header(header)
}

/// Returns the first columns that fit into a width, with a space between them.
pub(super) fn fitting<T: Copy>(width: u16, all: &[T], of: impl Fn(T) -> u16) -> Vec<T> {
    let mut left = width;
    let fits = all.iter().enumerate().take_while(|(index, column)| {
        let needed = of(**column) + u16::from(*index > 0);
        let is_first = *index == 0;
        let fits = needed <= left || is_first;
        left = left.saturating_sub(needed);
        fits
    });
    fits.map(|(_, column)| *column).collect()
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

/// Returns a number in at most 5 characters: `99999`, `1234k`, `12M`.
pub(super) fn shortened(number: Option<u64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(number @ 0..=99_999) => number.to_string(),
        Some(number @ 100_000..=9_999_999) => format!("{}k", number / 1000),
        Some(number @ 10_000_000..=9_999_999_999) => format!("{}M", number / 1_000_000),
        Some(number) => format!("{}G", number / 1_000_000_000),
    }
}

/// Returns a time in milliseconds in at most 6 characters.
fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 1000.0 => format!("{ms:.0}ms"),
        ms if ms < 100_000.0 => format!("{:.1}s", ms / 1000.0),
        ms if ms < 6_000_000.0 => format!("{:.0}m", ms / 60_000.0),
        ms => format!("{:.0}h", ms / 3_600_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_stay_short() {
        for (number, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (9_999_999, "9999k"),
            (10_000_000, "10M"),
            (20_000_000_000, "20G"),
        ] {
            assert_eq!(shortened(Some(number)), text);
        }
        for (ms, text) in [
            (0.4, "0ms"),
            (1500.0, "1.5s"),
            (120_000.0, "2m"),
            (7_200_000.0, "2h"),
        ] {
            assert_eq!(millis(ms), text);
        }
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out_from_the_right() {
        let widths = [10, 5, 5];
        let fit = |width| fitting(width, &widths, |width| width).len();
        assert_eq!((fit(22), fit(21), fit(16), fit(3), fit(0)), (3, 2, 2, 1, 1));
    }
}
