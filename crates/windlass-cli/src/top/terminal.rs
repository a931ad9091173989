//! The terminal: raw mode and the alternate screen, and back.
//!
//! Invariant: the terminal is as it was before when the command ends, by a key, a signal, an error or
//! a panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use windlass_core::Timestamp;

use super::keys::Look;
use super::view::{Screen, draw};

/// The number of keys that wait for the program. Further ones wait in the terminal.
const KEYS_MAX: usize = 16;
/// How often the thread that reads keys looks whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What came from the terminal or from outside.
#[derive(Debug)]
pub(super) enum Input {
    Key(KeyEvent),
    Resized,
    Stop,
}

/// The terminal while the program uses it.
pub(super) struct Terminal {
    terminal: DefaultTerminal,
    events: mpsc::Receiver<std::io::Result<Event>>,
    signals: [Signal; 3],
    stop: Arc<AtomicBool>,
}

impl Terminal {
    pub(super) fn open() -> std::io::Result<Self> {
        let signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        let stop = Arc::new(AtomicBool::new(false));
        // This also installs a panic hook that restores the terminal.
        let terminal = ratatui::try_init()?;
        let events = read_events(Arc::clone(&stop));
        Ok(Terminal {
            terminal,
            events,
            signals,
            stop,
        })
    }

    pub(super) fn draw(
        &mut self,
        screen: &Screen,
        look: &Look,
        now: Timestamp,
    ) -> std::io::Result<()> {
        let drawn = self.terminal.draw(|frame| draw(frame, screen, look, now));
        drawn.map(|_| ())
    }

    /// Waits for a key, a new size or a signal. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> std::io::Result<Input> {
        let [terminate, interrupt, hangup] = &mut self.signals;
        loop {
            let event = tokio::select! {
                _ = terminate.recv() => return Ok(Input::Stop),
                _ = interrupt.recv() => return Ok(Input::Stop),
                _ = hangup.recv() => return Ok(Input::Stop),
                event = self.events.recv() => event,
            };
            match event.transpose()? {
                None => return Ok(Input::Stop),
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    return Ok(Input::Key(key));
                }
                Some(Event::Resize(..)) => return Ok(Input::Resized),
                Some(_) => {}
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        ratatui::restore();
    }
}

/// Reads events in a thread of their own, because reading blocks.
fn read_events(stop: Arc<AtomicBool>) -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let event = match event::poll(LOOK_EVERY) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let is_last = event.is_err();
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
