//! Log lines on their way out: they never hold up what they tell of.
//!
//! Lines wait in a bounded queue for a thread that writes them. Where they come faster than they can be written, or nobody reads
//! them, lines are left out and counted. So are lines that are too long: half a line of JSON is of no use.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::standalone::config::LogFormat;

/// So many lines may wait to be written, and so many bytes of them.
const LINES_MAX: usize = 10_000;
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A longer line is left out.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// At the end of the process, lines that wait have so long to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Where log lines go. Clones go to the same place.
#[derive(Debug, Clone)]
pub struct LogLines {
    lines: SyncSender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Lines that were left out.
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
    /// Tells when all lines before it are written.
    Flush(SyncSender<()>),
}

impl LogLines {
    /// Lines are written to `target`, by a thread that ends when the last clone is gone.
    pub fn to(target: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        LogLines::bounded(target, format, LINES_MAX)
    }

    fn bounded(
        target: impl Write + Send + 'static,
        format: LogFormat,
        most: usize,
    ) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(most);
        let counts: Arc<Counts> = Arc::default();
        let counted = Arc::clone(&counts);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_all(target, format, &waiting, &counted))?;
        Ok(LogLines { lines, counts })
    }

    /// How many lines were left out.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until what was logged so far is written, but not for long: nobody may be reading.
    pub fn flush(&self) {
        let (tell, told) = sync_channel(1);
        if self.lines.try_send(Entry::Flush(tell)).is_ok() {
            match told.recv_timeout(LAST_LINES) {
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

/// Writes until nobody can log any more. A line that cannot be written counts as left out.
fn write_all(
    mut target: impl Write,
    format: LogFormat,
    waiting: &Receiver<Entry>,
    counts: &Counts,
) {
    let mut told = 0;
    while let Ok(entry) = waiting.recv() {
        let written = match entry {
            Entry::Line(line) => {
                let written = target.write_all(&line);
                counts
                    .waiting_bytes
                    .fetch_sub(line.len(), Ordering::Relaxed);
                written
            }
            Entry::Flush(tell) => {
                let flushed = target.flush();
                let _ = tell.try_send(()); // whoever asked may have gone
                flushed
            }
        };
        if written.is_err() {
            counts.drop_one();
            continue;
        }
        let missing = counts.dropped.load(Ordering::Relaxed);
        if missing > told && target.write_all(note(missing, format).as_bytes()).is_ok() {
            told = missing;
        }
    }
}

/// The line that tells readers of the log what is not in it.
fn note(missing: u64, format: LogFormat) -> String {
    let message = "log lines were left out because nobody took them, or they were too long";
    match format {
        LogFormat::Text => format!("WARN {message}: {missing} so far\n"),
        LogFormat::Json => {
            let line = json!({"level": "WARN", "message": message, "so_far": missing});
            format!("{line}\n")
        }
    }
}

/// One line in the making; it is sent when it is complete.
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

    /// Takes a line only when it is let, and tells what it took.
    struct Gate {
        let_through: Receiver<()>,
        taken: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let open = self.let_through.recv();
            open.map_err(|_| io::Error::other("nobody reads"))?;
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
    fn lines_that_nobody_takes_are_left_out_and_counted_and_the_count_is_told() {
        let (open, let_through) = channel();
        let (taken, told) = channel();
        let gate = Gate { let_through, taken };
        let lines = LogLines::bounded(gate, LogFormat::Json, 2).unwrap();
        for number in 0..100 {
            log(&lines, &format!("line {number}"));
        }
        // Two wait, and the thread may hold one that it could not write yet.
        let dropped = lines.dropped();
        assert!((97..=98).contains(&dropped), "{dropped}");
        for _ in 0..20 {
            open.send(()).unwrap();
        }
        assert_eq!(told.recv().unwrap(), "line 0\n");
        let note = told.recv().unwrap();
        let note: serde_json::Value = serde_json::from_str(&note).unwrap();
        assert_eq!(note["so_far"], dropped);
        assert_eq!(told.recv().unwrap(), "line 1\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_logging_goes_on() {
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
    fn what_was_logged_is_written_in_order_and_a_line_that_is_too_long_is_left_out_whole() {
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
    fn the_bytes_that_wait_are_bounded_and_room_comes_back() {
        let (open, let_through) = channel();
        let (taken, told) = channel();
        let gate = Gate { let_through, taken };
        let lines = LogLines::to(gate, LogFormat::Text).unwrap();
        let long = "x".repeat(LINE_BYTES_MAX - 1);
        let fit = WAITING_BYTES_MAX / LINE_BYTES_MAX;
        for _ in 0..fit + 3 {
            log(&lines, &long);
        }
        assert_eq!(lines.dropped(), 3);
        drop(told);
        for _ in 0..fit + 1 {
            open.send(()).unwrap();
        }
        lines.flush();
        log(&lines, &long);
        assert_eq!(lines.dropped(), 3);
    }
}
