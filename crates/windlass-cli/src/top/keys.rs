//! What the keys change: the sorting, the panel, the position and the pause.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::table::QueueColumn;

/// The list below the queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Panel {
    #[default]
    Failures,
    Workers,
    Replays,
}

impl Panel {
    pub(super) const ALL: [Panel; 3] = [Panel::Failures, Panel::Workers, Panel::Replays];

    pub(super) fn name(self) -> &'static str {
        match self {
            Panel::Failures => "failures",
            Panel::Workers => "workers",
            Panel::Replays => "replays",
        }
    }
}

/// How the data is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) panel: Panel,
    pub(super) sort: QueueColumn,
    /// How many queues are above the screen.
    pub(super) scrolled: usize,
    pub(super) paused: bool,
}

/// Whether the program continues after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Quit,
}

impl Look {
    pub(super) fn press(&mut self, key: KeyEvent) -> Flow {
        let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_ctrl => return Flow::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Flow::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Tab => self.panel = neighbour(&Panel::ALL, self.panel, 1),
            KeyCode::BackTab => self.panel = neighbour(&Panel::ALL, self.panel, -1),
            KeyCode::Right => self.sort = neighbour(&QueueColumn::ALL, self.sort, 1),
            KeyCode::Left => self.sort = neighbour(&QueueColumn::ALL, self.sort, -1),
            KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        Flow::Continue
    }
}

/// Returns the element that many steps further, around the end.
fn neighbour<T: Copy + PartialEq>(all: &[T], current: T, steps: isize) -> T {
    let index = all.iter().position(|one| *one == current).unwrap_or(0);
    let index = index.cast_signed() + steps;
    let length = all.len().cast_signed();
    let next = index.rem_euclid(length.max(1)).cast_unsigned();
    all.get(next).copied().unwrap_or(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(look: &mut Look, codes: &[KeyCode]) -> Flow {
        let mut flow = Flow::Continue;
        for code in codes {
            flow = look.press(KeyEvent::new(*code, KeyModifiers::NONE));
        }
        flow
    }

    #[test]
    fn keys_change_the_look_and_q_quits() {
        let mut look = Look::default();
        press(
            &mut look,
            &[KeyCode::Tab, KeyCode::Right, KeyCode::Char('p')],
        );
        assert_eq!((look.panel, look.paused), (Panel::Workers, true));
        assert_eq!(look.sort, QueueColumn::Ready);
        press(
            &mut look,
            &[KeyCode::BackTab, KeyCode::BackTab, KeyCode::Left],
        );
        assert_eq!((look.panel, look.sort), (Panel::Replays, QueueColumn::Name));
        press(&mut look, &[KeyCode::Left]);
        assert_eq!(look.sort, QueueColumn::Wait, "around the end");
        press(
            &mut look,
            &[
                KeyCode::Down,
                KeyCode::Down,
                KeyCode::Up,
                KeyCode::Up,
                KeyCode::Up,
            ],
        );
        assert_eq!(look.scrolled, 0);
        assert_eq!(press(&mut look, &[KeyCode::Char('x')]), Flow::Continue);
        assert_eq!(press(&mut look, &[KeyCode::Char('q')]), Flow::Quit);
        assert_eq!(press(&mut look, &[KeyCode::Esc]), Flow::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(look.press(interrupt), Flow::Quit);
    }
}
