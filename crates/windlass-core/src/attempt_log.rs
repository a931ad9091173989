//! The log of an attempt: the lines that its handler writes, with limits.
//!
//! Lines are numbered from 1. Beyond a limit, the oldest lines are dropped and counted, because the
//! last lines of an attempt say how it ended.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Timestamp;

/// The most log lines that are kept of an attempt.
pub const LOG_LINES_MAX: usize = 1000;
/// The most characters of a log line; the rest is cut.
pub const LOG_LINE_CHARS_MAX: usize = 1000;
/// The most bytes of log lines that are kept of an attempt.
pub const LOG_BYTES_MAX: usize = 64 * 1024;

/// What a line costs in addition to its text, so that empty lines are not free.
const LINE_OVERHEAD_BYTES: usize = 40;

/// The name of the lines in JSON.
const LINES: &str = "log";
/// The name of the number of dropped lines in JSON.
const DROPPED: &str = "log_lines_dropped";

/// One line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was written.
    pub at: Timestamp,
    /// The text, without a line break.
    pub line: String,
}

/// The last lines that an attempt wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptLog {
    lines: VecDeque<LogLine>,
    dropped: u64,
    bytes: usize,
}

impl AttemptLog {
    /// Adds a text. Each of its lines becomes a line of the log.
    pub fn push(&mut self, at: Timestamp, text: &str) {
        let mut lines = text.lines();
        self.push_line(at, lines.next().unwrap_or_default());
        for line in lines {
            self.push_line(at, line);
        }
    }

    fn push_line(&mut self, at: Timestamp, line: &str) {
        let line: String = line.chars().take(LOG_LINE_CHARS_MAX).collect();
        self.add(LogLine { at, line });
    }

    fn add(&mut self, line: LogLine) {
        self.bytes += cost(&line);
        self.lines.push_back(line);
        while self.lines.len() > LOG_LINES_MAX || self.bytes > LOG_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= cost(&oldest);
            self.dropped += 1;
        }
    }

    /// Whether the attempt has written no line.
    pub fn is_empty(&self) -> bool {
        self.last_number() == 0
    }

    /// How many of the oldest lines were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The bytes of the kept lines.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the last line: how many lines the attempt has written.
    pub fn last_number(&self) -> u64 {
        let kept = u64::try_from(self.lines.len()).unwrap_or(u64::MAX);
        self.dropped.saturating_add(kept)
    }

    /// Returns the kept lines after the line with this number, with their own numbers.
    pub fn after(&self, number: u64) -> impl Iterator<Item = (u64, &LogLine)> {
        let numbers = self.dropped.saturating_add(1)..;
        numbers
            .zip(&self.lines)
            .skip_while(move |(own, _)| *own <= number)
    }

    /// Continues this log with a part that was stored later.
    ///
    /// The part may also be the whole log: then it contains the last line of this one, written at
    /// the same time, and replaces it.
    #[must_use]
    pub fn continued(mut self, later: AttemptLog) -> AttemptLog {
        let is_whole = match self.lines.back() {
            Some(last) => later.lines.contains(last),
            None => self.dropped == 0,
        };
        if is_whole {
            return later;
        }
        self.dropped = self.dropped.saturating_add(later.dropped);
        later.lines.into_iter().for_each(|line| self.add(line));
        self
    }

    /// The log as fields of the history entry of its attempt.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert(LINES.to_owned(), json!(self.lines));
        fields.insert(DROPPED.to_owned(), self.dropped.into());
        fields
    }

    /// Reads the log from the history entry of its attempt. Leaves out what is not a line.
    pub fn from_json(entry: &Value) -> AttemptLog {
        let mut log = AttemptLog {
            dropped: entry.get(DROPPED).and_then(Value::as_u64).unwrap_or(0),
            ..AttemptLog::default()
        };
        let lines = entry.get(LINES).and_then(Value::as_array);
        for line in lines.into_iter().flatten() {
            if let Ok(line) = LogLine::deserialize(line) {
                log.add(line);
            }
        }
        log
    }
}

fn cost(line: &LogLine) -> usize {
    line.line.len() + LINE_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    fn log(lines: &[&str]) -> AttemptLog {
        let mut log = AttemptLog::default();
        for (number, line) in (0..).zip(lines) {
            log.push(at(number), line);
        }
        log
    }

    fn texts(log: &AttemptLog, after: u64) -> Vec<(u64, &str)> {
        let lines = log.after(after);
        lines.map(|(n, line)| (n, line.line.as_str())).collect()
    }

    #[test]
    fn each_line_of_a_text_has_a_number() {
        let log = log(&["a\nb\r\n", "", "c"]);
        assert_eq!(texts(&log, 0), [(1, "a"), (2, "b"), (3, ""), (4, "c")]);
        assert_eq!(texts(&log, 2), [(3, ""), (4, "c")]);
        assert_eq!(texts(&log, 9), []);
        assert_eq!((log.last_number(), log.dropped()), (4, 0));
    }

    #[test]
    fn beyond_a_limit_the_oldest_lines_are_dropped_and_counted() {
        let mut many = AttemptLog::default();
        for number in 1..=LOG_LINES_MAX + 5 {
            many.push(at(0), &number.to_string());
        }
        assert_eq!((many.dropped(), many.last_number()), (5, 1005));
        assert_eq!(texts(&many, 0).first(), Some(&(6, "6")));

        let long = "é".repeat(LOG_LINE_CHARS_MAX + 1);
        let mut large = AttemptLog::default();
        for _ in 0..100 {
            large.push(at(0), &long);
        }
        assert!(large.bytes() <= LOG_BYTES_MAX && large.dropped() > 60);
        assert_eq!(large.last_number(), 100);
        let (_, line) = large.after(0).next().unwrap();
        assert_eq!(line.line.chars().count(), LOG_LINE_CHARS_MAX);
    }

    #[test]
    fn a_stored_log_reads_back_with_its_numbers() {
        let mut many = AttemptLog::default();
        for number in 1..=LOG_LINES_MAX + 5 {
            many.push(at(0), &number.to_string());
        }
        let stored = Value::Object(many.to_json());
        assert_eq!(AttemptLog::from_json(&stored), many);
        let broken = json!({"log": [5, {"at": "x"}, {"at": at(1), "line": "a"}]});
        assert_eq!(texts(&AttemptLog::from_json(&broken), 0), [(1, "a")]);
        assert!(AttemptLog::from_json(&Value::Null).is_empty());
    }

    #[test]
    fn a_later_part_continues_the_log_and_the_whole_log_replaces_it() {
        let first = log(&["a", "b"]);
        let mut rest = AttemptLog::default();
        rest.push(at(7), "b");
        let joined = first.clone().continued(rest);
        assert_eq!(texts(&joined, 0), [(1, "a"), (2, "b"), (3, "b")]);
        let whole = log(&["a", "b", "c"]);
        assert_eq!(first.clone().continued(whole.clone()), whole);
        assert_eq!(AttemptLog::default().continued(whole.clone()), whole);
        assert_eq!(first.clone().continued(AttemptLog::default()), first);
    }
}
