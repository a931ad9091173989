//! Writes log lines on a separate thread, so that logging never blocks the server.
//!
//! Lines wait in a bounded queue for the thread that writes them. If the queue is full because the
//! reader is too slow, the server drops lines and counts them. It also drops lines that are too
//! long, because half a line of JSON is useless.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::standalone::config::LogFormat;

/// The most lines, and the most bytes, that can wait to be written.
const LINES_MAX: usize = 10_000;
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Longer lines are dropped.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// How long a flush waits for lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A writer of log lines. Clones write to the same target.
#[derive(Debug, Clone)]
pub struct LogLines {
    lines: SyncSender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Dropped lines.
    dropped: AtomicU64,
    /// Bytes that wait to be written.
    waiting_bytes: AtomicUsize,
}

impl Counts {
    fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Asks the thread to confirm that it has written all earlier lines.
    Flush(SyncSender<()>),
}

impl LogLines {
    /// Writes lines to `target` on a thread, which ends when the last clone is dropped.
    pub fn to(target: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        LogLines::bounded(target, format, LINES_MAX)
    }

    fn bounded(
        target: impl Write + Send + 'static,
        format: LogFormat,
        lines_max: usize,
    ) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(lines_max);
        let counts: Arc<Counts> = Arc::default();
        let counted = Arc::clone(&counts);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_all(target, format, &waiting, &counted))?;
        Ok(LogLines { lines, counts })
    }

    /// Returns the number of dropped lines.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until the lines logged so far are written, at most 1 s: the target may be blocked.
    pub fn flush(&self) {
        let (confirm, confirmed) = sync_channel(1);
        if self.lines.try_send(Entry::Flush(confirm)).is_ok() {
            match confirmed.recv_timeout(FLUSH_TIMEOUT) {
                Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn send(&self, line: Vec<u8>) {
        let (bytes, waiting) = (line.len(), &self.counts.waiting_bytes);
        let before = waiting.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= WAITING_BYTES_MAX;
        if !fits || self.lines.try_send(Entry::Line(line)).is_err() {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.drop_one();
        }
    }
}

/// Writes lines until all senders are dropped. A line that cannot be written counts as dropped.
fn write_all(
    mut target: impl Write,
    format: LogFormat,
    waiting: &Receiver<Entry>,
    counts: &Counts,
) {
    let mut reported = 0;
    while let Ok(entry) = waiting.recv() {
        let written = match entry {
            Entry::Line(line) => {
                let written = target.write_all(&line);
                counts
                    .waiting_bytes
                    .fetch_sub(line.len(), Ordering::Relaxed);
                written
            }
            Entry::Flush(confirm) => {
                let flushed = target.flush();
                let _ = confirm.try_send(()); // the caller may have timed out
                flushed
            }
        };
        if written.is_err() {
            counts.drop_one();
            continue;
        }
        let dropped = counts.dropped.load(Ordering::Relaxed);
        if dropped > reported
            && target
                .write_all(dropped_line(dropped, format).as_bytes())
                .is_ok()
        {
            reported = dropped;
        }
    }
}

/// Returns the line that reports dropped lines in the log.
fn dropped_line(dropped: u64, format: LogFormat) -> String {
    let message = "dropped log lines: the reader was too slow, or lines were too long";
    match format {
        LogFormat::Text => format!("WARN {message}: {dropped} so far\n"),
        LogFormat::Json => {
            let line = json!({"level": "WARN", "message": message, "so_far": dropped});
            format!("{line}\n")
        }
    }
}

/// A line that is being formatted. Dropping it sends the line to the writer.
#[derive(Debug)]
pub struct LogLine<'a> {
    lines: &'a LogLines,
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_too_long |= self.bytes.len() + bytes.len() > LINE_BYTES_MAX;
        if !self.is_too_long {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        if self.is_too_long {
            self.lines.counts.drop_one();
            return;
        }
        let mut line = std::mem::take(&mut self.bytes);
        if line.is_empty() {
            return;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        self.lines.send(line);
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine {
            lines: self,
            bytes: Vec::new(),
            is_too_long: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A target that accepts a write only after a signal, and reports what it wrote.
    struct Gate {
        let_through: Receiver<()>,
        taken: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let open = self.let_through.recv();
            open.map_err(|_| io::Error::other("no reader"))?;
            let text = String::from_utf8_lossy(bytes).into_owned();
            let _ = self.taken.send(text);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(lines: &LogLines, text: &str) {
        let mut line = lines.make_writer();
        line.write_all(text.as_bytes()).expect("a line never fails");
    }

    #[test]
    fn lines_that_no_one_reads_are_dropped_and_the_log_reports_their_number() {
        let (open, let_through) = channel();
        let (taken, written) = channel();
        let gate = Gate { let_through, taken };
        let lines = LogLines::bounded(gate, LogFormat::Json, 2).unwrap();
        for number in 0..100 {
            log(&lines, &format!("line {number}"));
        }
        // Two lines wait, and the thread may hold another that it cannot write yet.
        let dropped = lines.dropped();
        assert!((97..=98).contains(&dropped), "{dropped}");
        for _ in 0..20 {
            open.send(()).unwrap();
        }
        assert_eq!(written.recv().unwrap(), "line 0\n");
        let report = written.recv().unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["so_far"], dropped);
        assert_eq!(written.recv().unwrap(), "line 1\n");
    }

    #[test]
    fn failed_writes_are_counted_and_logging_continues() {
        let (open, let_through) = channel::<()>();
        drop(open);
        let taken = channel().0;
        let lines = LogLines::bounded(Gate { let_through, taken }, LogFormat::Text, 10).unwrap();
        log(&lines, "one");
        log(&lines, "two");
        lines.flush();
        assert_eq!(lines.dropped(), 2);
    }

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order_and_a_line_that_is_too_long_is_dropped_whole() {
        let memory = Memory::default();
        let lines = LogLines::to(memory.clone(), LogFormat::Json).unwrap();
        log(&lines, "\"first\"\n");
        let quoted = |length: usize| format!("\"{}\"", "x".repeat(length - 2));
        log(&lines, &quoted(LINE_BYTES_MAX));
        log(&lines, &quoted(LINE_BYTES_MAX + 1));
        log(&lines, "\"last\"\n");
        lines.flush();
        let all = memory.0.lock().unwrap().clone();
        let all = String::from_utf8(all).unwrap();
        let whole = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        assert!(all.lines().all(whole), "every line is whole");
        let texts = all.lines().filter(|line| line.starts_with('"'));
        let lengths: Vec<_> = texts.map(str::len).collect();
        assert_eq!(lengths, [7, LINE_BYTES_MAX, 6]);
        assert_eq!(lines.dropped(), 1);
    }

    #[test]
    fn waiting_bytes_are_bounded_and_freed_when_written() {
        let (open, let_through) = channel();
        let (taken, written) = channel();
        let gate = Gate { let_through, taken };
        let lines = LogLines::to(gate, LogFormat::Text).unwrap();
        let long = "x".repeat(LINE_BYTES_MAX - 1);
        let fit = WAITING_BYTES_MAX / LINE_BYTES_MAX;
        for _ in 0..fit + 3 {
            log(&lines, &long);
        }
        assert_eq!(lines.dropped(), 3);
        drop(written);
        for _ in 0..fit + 1 {
            open.send(()).unwrap();
        }
        lines.flush();
        log(&lines, &long);
        assert_eq!(lines.dropped(), 3);
    }
}
