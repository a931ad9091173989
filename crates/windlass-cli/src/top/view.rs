//! The screen of `windlass top`, as a function of its data.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use windlass_api::{FailureGroup, Replay, Worker};
use windlass_core::{ActionState, Timestamp, format_duration};

use super::keys::{Look, Panel};
use super::snapshot::Snapshot;
use super::table::{queue_table, shortened, sorted};
use crate::output::{Cell, relative, word};

/// The fewest rows of a screen with a second list.
const TWO_LISTS_ROWS_MIN: u16 = 12;

/// What is known: the last data, and why there is no newer.
#[derive(Debug)]
pub(super) struct Screen {
    every: Duration,
    snapshot: Option<Snapshot>,
    error: Option<String>,
}

impl Screen {
    pub(super) fn new(every: Duration) -> Self {
        Screen {
            every,
            snapshot: None,
            error: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.snapshot.is_none()
    }

    pub(super) fn update(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
        self.error = None;
    }

    /// Keeps the last data, and shows why there is no newer.
    pub(super) fn fail(&mut self, error: String) {
        self.error = Some(error);
    }
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, look: &Look, now: Timestamp) {
    let has_two = frame.area().height >= TWO_LISTS_ROWS_MIN;
    let second = if has_two { 1 } else { 0 };
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(3),
        Constraint::Length(second),
        Constraint::Fill(2 * second),
        Constraint::Length(1),
    ]);
    let [head, status, queues, tabs, panel, help] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(screen.snapshot.as_ref())), head);
    frame.render_widget(Paragraph::new(status_line(screen, look, now)), status);
    let keys = " q quit   ← → sort   ↑ ↓ scroll   tab switch   p pause";
    frame.render_widget(Paragraph::new(keys).reversed(), help);
    let Some(snapshot) = &screen.snapshot else {
        return;
    };
    let rows = sorted(snapshot, look.sort);
    let shown = usize::from(queues.height.saturating_sub(1));
    let first = look.scrolled.min(rows.len().saturating_sub(shown));
    let rows = rows.get(first..).unwrap_or_default();
    frame.render_widget(queue_table(rows, look.sort, queues.width), queues);
    if rows.is_empty() && queues.height > 1 {
        let below = Rect {
            y: queues.y + 1,
            height: 1,
            ..queues
        };
        frame.render_widget(Paragraph::new("no queues").dim(), below);
    }
    if has_two {
        frame.render_widget(Paragraph::new(tab_line(snapshot, look.panel)), tabs);
        draw_panel(frame, panel, snapshot, look.panel, now);
    }
}

fn summary(snapshot: Option<&Snapshot>) -> Line<'static> {
    let mut line = vec!["windlass".bold()];
    let Some(snapshot) = snapshot else {
        return Line::from(line);
    };
    let total = |count: fn(&windlass_api::QueueCounts) -> u64| {
        let counts = snapshot.queues.iter().map(|queue| count(&queue.counts));
        counts.sum::<u64>()
    };
    let alive = snapshot
        .workers
        .iter()
        .filter(|worker| worker.alive)
        .count();
    let numbers = [
        ("ready", total(|counts| counts.ready)),
        ("running", total(|counts| counts.running)),
        ("retrying", total(|counts| counts.retrying)),
        ("dead", total(|counts| counts.dead)),
        ("succeeded", total(|counts| counts.succeeded)),
        ("workers", u64::try_from(alive).unwrap_or(u64::MAX)),
    ];
    for (name, number) in numbers {
        line.push(format!("  {name} ").dim());
        let number = Span::from(shortened(Some(number)));
        line.push(if name == "dead" && number.content != "0" {
            number.red()
        } else {
            number
        });
    }
    Line::from(line)
}

fn status_line(screen: &Screen, look: &Look, now: Timestamp) -> Line<'static> {
    let read = screen.snapshot.as_ref();
    let age = read.map(|snapshot| relative(snapshot.at, now));
    let every = format_duration(screen.every);
    let text = match (&screen.error, age) {
        // The most important first, because a narrow screen cuts the end.
        (Some(error), Some(age)) => {
            format!("no answer, retrying every {every}; last data {age}: {error}")
        }
        (Some(error), None) => format!("no answer, retrying every {every}: {error}"),
        (None, None) => "reading…".to_owned(),
        (None, Some(age)) if look.paused => format!("paused; data read {age}; p resumes"),
        (None, Some(_)) => {
            let sort = look.sort.title().to_lowercase();
            format!("every {every}, sorted by {sort}")
        }
    };
    let line = Line::from(Cell::new(text.replace('\n', " ")).into_text());
    match (&screen.error, look.paused) {
        (Some(_), _) => line.style(Style::new().red().bold()),
        (None, true) => line.style(Style::new().yellow()),
        (None, false) => line.style(Style::new().dim()),
    }
}

fn tab_line(snapshot: &Snapshot, current: Panel) -> Line<'static> {
    let tabs = Panel::ALL.into_iter().flat_map(|panel| {
        let count = match panel {
            Panel::Failures => snapshot.failures.len(),
            Panel::Workers => snapshot.workers.len(),
            Panel::Replays => snapshot.replays.len(),
        };
        let name = format!(" {} {count} ", panel.name());
        let name = if panel == current {
            name.reversed()
        } else {
            name.dim()
        };
        [name, Span::from(" ")]
    });
    Line::from(tabs.collect::<Vec<_>>())
}

fn draw_panel(
    frame: &mut Frame<'_>,
    area: Rect,
    snapshot: &Snapshot,
    panel: Panel,
    now: Timestamp,
) {
    let (table, is_empty) = match panel {
        Panel::Failures => {
            let groups = &snapshot.failures;
            let rows = groups.iter().map(|group| failure(group, now));
            let queue = widest(groups.iter().map(|group| group.queue.as_str()), 5, 14);
            let kind = widest(groups.iter().map(|group| group.kind.as_str()), 4, 18);
            let titles = ["DEAD", "RETRY", "LAST", "QUEUE", "KIND", "ERROR"];
            let widths = [
                Constraint::Length(5),
                Constraint::Length(5),
                Constraint::Length(8),
                Constraint::Length(queue),
                Constraint::Length(kind),
                Constraint::Fill(1),
            ];
            (list(&titles, &widths, rows), snapshot.failures.is_empty())
        }
        Panel::Workers => {
            let rows = snapshot.workers.iter().map(|one| worker(one, now));
            let titles = ["WORKER", "SLOTS", "HEARTBEAT", "SIGNAL", "QUEUES"];
            let widths = [
                Constraint::Max(28),
                Constraint::Length(5),
                Constraint::Length(9),
                Constraint::Length(12),
                Constraint::Fill(1),
            ];
            (list(&titles, &widths, rows), snapshot.workers.is_empty())
        }
        Panel::Replays => {
            let rows = snapshot.replays.iter().map(replay);
            let titles = ["STATE", "TO DO", "PENDING", "RECOVERED", "FAILED", "REASON"];
            let widths = [
                Constraint::Length(8),
                Constraint::Length(6),
                Constraint::Length(7),
                Constraint::Length(9),
                Constraint::Length(6),
                Constraint::Fill(1),
            ];
            (list(&titles, &widths, rows), snapshot.replays.is_empty())
        }
    };
    if is_empty {
        let text = format!("no {}", panel.name());
        return frame.render_widget(Paragraph::new(text).dim(), area);
    }
    frame.render_widget(table, area);
}

/// Returns the width of a column with these texts, within bounds.
fn widest<'a>(texts: impl Iterator<Item = &'a str>, min: u16, max: u16) -> u16 {
    let widest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    u16::try_from(widest).unwrap_or(max).clamp(min, max)
}

fn list(
    titles: &[&'static str],
    widths: &[Constraint],
    rows: impl Iterator<Item = Row<'static>>,
) -> Table<'static> {
    let header = Row::new(titles.iter().copied()).bold();
    Table::new(rows, widths.iter().copied()).header(header)
}

fn failure(group: &FailureGroup, now: Timestamp) -> Row<'static> {
    let error = match &group.sample.error {
        Some(error) => Cell::short(error, 200).into_text(),
        None if group.sample.error_withheld => "(needs the scope read-payload)".to_owned(),
        None => String::new(),
    };
    let row = Row::new([
        shortened(Some(group.dead)),
        shortened(Some(group.retrying)),
        relative(group.last_seen_at, now),
        group.queue.to_string(),
        group.kind.to_string(),
        error,
    ]);
    match (group.dead, group.retrying) {
        (0, 0) => row.dim(),
        (0, _) => row,
        _ => row.red(),
    }
}

fn worker(worker: &Worker, now: Timestamp) -> Row<'static> {
    let about = |field: &str| worker.about.get(field);
    let queues = about("queues").and_then(|queues| queues.as_array());
    let queues: Vec<String> = queues.into_iter().flatten().map(word).collect();
    let row = Row::new([
        Cell::new(&worker.name).into_text(),
        about("slots").map_or_else(|| "-".to_owned(), word),
        relative(worker.heartbeat_at, now),
        worker.signal.as_ref().map(word).unwrap_or_default(),
        Cell::new(queues.join(" ")).into_text(),
    ]);
    if worker.alive { row } else { row.dim() }
}

fn replay(replay: &Replay) -> Row<'static> {
    let row = Row::new([
        word(&replay.state),
        shortened(Some(replay.to_do)),
        shortened(Some(replay.pending)),
        shortened(Some(replay.recovered)),
        shortened(Some(replay.failed_again)),
        Cell::short(&replay.reason, 200).into_text(),
    ]);
    match replay.state {
        ActionState::Running => row.cyan(),
        ActionState::Stopped => row.red(),
        ActionState::Paused => row.yellow(),
        ActionState::Finished | ActionState::Aborted => row.dim(),
    }
}

#[cfg(test)]
mod tests;
