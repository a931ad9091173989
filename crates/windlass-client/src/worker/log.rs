//! The log of a running attempt: collects lines and sends them to the server in batches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use windlass_api::{List, Text};
use windlass_core::{LOG_BYTES_MAX, LOG_LINE_CHARS_MAX, LOG_LINES_MAX};

/// How long the worker collects lines before it sends them.
pub(super) const SEND_EVERY: Duration = Duration::from_secs(1);

/// The lines of an attempt that the server does not have yet. Beyond the limits of the server, the
/// oldest are dropped, and a line says how many.
#[derive(Debug, Clone, Default)]
pub(super) struct LogBuffer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    unsent: Mutex<Unsent>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Unsent {
    lines: VecDeque<String>,
    bytes: usize,
    dropped: usize,
    /// How many lines the server has.
    sent: usize,
}

/// Lines to send, and the number of the first one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogBatch {
    pub(super) first: usize,
    pub(super) lines: Vec<String>,
}

impl LogBatch {
    /// The lines as a request has them; `None` without lines.
    pub(super) fn to_list(&self) -> Option<List<Text<0, { usize::MAX }>, 0, 1000>> {
        let lines = self.lines.iter().cloned().map(Text::new);
        let lines: Vec<_> = lines.filter_map(Result::ok).collect();
        (!lines.is_empty()).then_some(List(lines))
    }
}

impl LogBuffer {
    /// Adds each line of a text.
    pub(super) fn push(&self, text: &str) {
        let mut unsent = self.unsent();
        let mut lines = text.lines();
        unsent.push(lines.next().unwrap_or_default());
        lines.for_each(|line| unsent.push(line));
        drop(unsent);
        self.0.arrived.notify_one();
    }

    /// Waits until there are lines, and then so that more can follow.
    pub(super) async fn collect(&self) {
        while self.unsent().lines.is_empty() {
            self.0.arrived.notified().await;
        }
        tokio::time::sleep(SEND_EVERY).await;
    }

    /// Returns the unsent lines. They stay in the buffer until [`sent`](Self::sent).
    pub(super) fn batch(&self) -> LogBatch {
        let mut unsent = self.unsent();
        if unsent.dropped > 0 {
            let note = format!("({} lines were dropped)", unsent.dropped);
            unsent.dropped = 0;
            unsent.bytes += note.len();
            unsent.lines.push_front(note);
        }
        LogBatch {
            first: unsent.sent + 1,
            lines: unsent.lines.iter().cloned().collect(),
        }
    }

    /// Removes the lines of a batch that the server has accepted.
    pub(super) fn sent(&self, batch: &LogBatch) {
        let mut unsent = self.unsent();
        unsent.sent = batch.first - 1 + batch.lines.len();
        // Lines may have been dropped since the batch was made: remove only lines of the batch.
        for line in &batch.lines {
            if unsent.lines.front() == Some(line) {
                unsent.lines.pop_front();
                unsent.bytes = unsent.bytes.saturating_sub(line.len());
            }
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        // A panic elsewhere leaves at worst a line too many.
        let unsent = self.0.unsent.lock();
        unsent.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unsent {
    fn push(&mut self, line: &str) {
        let line: String = line.chars().take(LOG_LINE_CHARS_MAX).collect();
        let line = line.replace('\0', "\u{fffd}"); // the server refuses NUL
        self.bytes += line.len();
        self.lines.push_back(line);
        // One line less than the server takes, so that the note about dropped lines fits.
        while self.lines.len() >= LOG_LINES_MAX || self.bytes > LOG_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else {
                return;
            };
            self.bytes = self.bytes.saturating_sub(oldest.len());
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_until_they_are_sent_and_keep_their_numbers() {
        let log = LogBuffer::default();
        log.push("a\nb");
        let first = log.batch();
        assert_eq!((first.first, first.lines.join(" ")), (1, "a b".to_owned()));
        log.push("c");
        log.sent(&first);
        let second = log.batch();
        assert_eq!((second.first, second.lines.join(" ")), (3, "c".to_owned()));
        assert_eq!(log.batch(), second, "a failed send changes nothing");
        log.sent(&second);
        assert_eq!(log.batch().lines, [""; 0]);
    }

    #[test]
    fn too_many_lines_are_dropped_and_counted() {
        let log = LogBuffer::default();
        for number in 1..=LOG_LINES_MAX + 2 {
            log.push(&number.to_string());
        }
        let batch = log.batch();
        assert_eq!(batch.lines.len(), LOG_LINES_MAX);
        assert_eq!(batch.lines[0], "(3 lines were dropped)");
        assert_eq!(batch.lines[1], "4");
        let large = LogBuffer::default();
        for _ in 0..200 {
            large.push(&"x".repeat(LOG_LINE_CHARS_MAX + 1));
        }
        let bytes: usize = large.batch().lines.iter().map(String::len).sum();
        assert!(bytes <= LOG_BYTES_MAX + 100);
    }
}
