//! WAL checkpoints: pages of the write-ahead log are copied back into the database file.
//!
//! SQLite can only overwrite the WAL from its start when all of it was copied and no reader still
//! uses it. A passive checkpoint on another connection runs in parallel with the writer, but under
//! load the writer has always appended something new when it ends, so the WAL never restarts and
//! grows without bound. A restart checkpoint between two groups does reset the WAL, but all
//! requests wait while it copies. So the driver does both: a background thread runs two passive
//! checkpoints, the second for what the writer appended during the first, and then the writer runs
//! a restart checkpoint. During the second pass the writer holds back the steps of bulk actions, so
//! that little is left to copy and to sync while everyone waits.

mod wal_check;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult};
use crate::lock::sibling;
use crate::reserve::GROWTH_MAX;
use crate::{schema, spawn};
use wal_check::BYTES_MIN;

pub(crate) use wal_check::check;

const MEBIBYTE: u64 = 1024 * 1024;

/// A checkpoint starts when this many bytes of the WAL are in use.
const CHECKPOINT_AT: u64 = BYTES_MIN;

/// At this size of the WAL, the writer waits for the background checkpoint to end.
const WAIT_AT: u64 = 128 * MEBIBYTE;

/// If a reader prevented a restart, the next attempt follows when the WAL has grown by this much.
const RETRY_AFTER_GROWTH: u64 = 16 * MEBIBYTE;

const FRAME_BYTES: u64 = schema::PAGE_BYTES as u64 + 24;

pub(crate) struct Checkpointer {
    /// Requests a background checkpoint; dropping it ends the thread.
    request: Option<SyncSender<()>>,
    passes: Receiver<DriverResult<()>>,
    thread: Option<JoinHandle<()>>,
    stage: Stage,
    /// The result of a pass that [`Self::wait`] has received.
    ended: Option<DriverResult<()>>,
    checkpoint_at: u64,
    /// From this size of the WAL on, a checkpoint is also due if it would grow the file by more
    /// than [`GROWTH_MAX`].
    growth_at: u64,
}

/// What the background thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The first pass, which copies most of the WAL.
    Copying,
    /// The second pass, which copies what the writer appended during the first.
    CatchingUp,
}

impl Checkpointer {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = schema::open_read_write(path)?;
        let (request, requested) = sync_channel(1);
        let (done, passes) = sync_channel(1);
        let thread = spawn("windlass-checkpoint", move || {
            while requested.recv().is_ok() {
                let pass = checkpoint(&connection, "pragma wal_checkpoint(passive)");
                if done.send(pass.map(|_| ())).is_err() {
                    break; // the writer has stopped
                }
            }
        })?;
        Ok(Checkpointer {
            request: Some(request),
            passes,
            thread: Some(thread),
            stage: Stage::Idle,
            ended: None,
            checkpoint_at: CHECKPOINT_AT,
            growth_at: GROWTH_MAX,
        })
    }

    /// Returns whether the writer should pause for a restart checkpoint now. Starts the passes of
    /// the background thread if the WAL is large, and returns `true` once they have ended.
    pub(crate) fn is_due(&mut self, writer: &Connection, store: &Path) -> DriverResult<bool> {
        let bytes = pending_bytes(writer)?;
        if self.stage == Stage::Idle {
            let due = bytes >= self.checkpoint_at
                || bytes >= self.growth_at && growth_bytes(writer, store)? >= GROWTH_MAX;
            if !due {
                return Ok(false);
            }
            self.start(Stage::Copying);
        }
        let is_late = bytes >= WAIT_AT;
        let pass = match self.ended.take() {
            Some(pass) => pass,
            None => match self.passes.try_recv() {
                Err(TryRecvError::Empty) if !is_late => return Ok(false),
                Err(TryRecvError::Empty) => self.passes.recv().unwrap_or(Ok(())),
                Err(TryRecvError::Disconnected) => Ok(()),
                Ok(pass) => pass,
            },
        };
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        pass?;
        if stage == Stage::Copying && !is_late {
            self.start(Stage::CatchingUp);
            return Ok(false);
        }
        Ok(true)
    }

    fn start(&mut self, stage: Stage) {
        // There is room: no pass is requested before the last one has ended. If the thread has
        // ended, the next receive says so.
        if let Some(request) = &self.request {
            let _ = request.try_send(());
        }
        self.stage = stage;
    }

    /// Returns whether the writer should append as little as possible until the checkpoint ends.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.stage == Stage::CatchingUp
    }

    #[cfg(test)]
    pub(crate) fn begin_to_catch_up(&mut self) {
        self.start(Stage::CatchingUp);
    }

    /// Waits up to `timeout` until the current pass ends.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        if self.ended.is_none() {
            self.ended = match self.passes.recv_timeout(timeout) {
                Ok(pass) => Some(pass),
                Err(RecvTimeoutError::Disconnected) => Some(Ok(())),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
    }

    /// Like [`Self::finish`], but waits for a pass of the background thread first.
    pub(crate) fn finish_last(&mut self, writer: &Connection) -> DriverResult<bool> {
        if self.stage != Stage::Idle {
            self.wait(schema::BUSY_TIME_MAX);
        }
        self.finish(writer)
    }

    /// Copies the rest of the WAL and restarts it. Returns `false` if a reader prevented that; does
    /// not wait for readers.
    pub(crate) fn finish(&mut self, writer: &Connection) -> DriverResult<bool> {
        self.checkpoint_at = pending_bytes(writer)? + RETRY_AFTER_GROWTH;
        self.growth_at = self.checkpoint_at;
        writer.busy_timeout(Duration::ZERO)?;
        let complete = checkpoint(writer, "pragma wal_checkpoint(restart)");
        writer.busy_timeout(schema::BUSY_TIME_MAX)?;
        let complete = complete?;
        if complete {
            self.checkpoint_at = CHECKPOINT_AT;
            self.growth_at = GROWTH_MAX;
        }
        Ok(complete)
    }
}

/// Extends the WAL file to its usual size. If it is shorter at the next start, it was truncated
/// from outside. The file is sparse: it takes no disk space before it is written to.
pub(crate) fn preallocate_wal(store: &Path) -> std::io::Result<()> {
    let wal = OpenOptions::new()
        .write(true)
        .open(sibling(store, "-wal"))?;
    if wal.metadata()?.len() < BYTES_MIN {
        wal.set_len(BYTES_MIN)?;
        wal.sync_all()?;
    }
    Ok(())
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.request = None;
        let _ = self.thread.take().map(JoinHandle::join); // a panic was already printed to stderr
    }
}

/// Runs a checkpoint. Returns whether it was complete.
fn checkpoint(connection: &Connection, pragma: &str) -> DriverResult<bool> {
    let busy: i64 = connection.query_row(pragma, [], |row| row.get(0))?;
    Ok(busy == 0)
}

/// Returns by how many bytes a checkpoint would grow the database file.
pub(crate) fn growth_bytes(connection: &Connection, store: &Path) -> DriverResult<u64> {
    let mut statement = connection.prepare_cached("pragma page_count")?;
    let pages: u32 = statement.query_row([], |row| row.get(0))?;
    // By path, without opening the file: POSIX drops all locks of a process on a file, and so
    // SQLite's too, when the process closes any handle of it.
    let file = std::fs::metadata(store).map_err(|error| DriverError::damaged(error.to_string()))?;
    let bytes = u64::from(pages) * u64::from(schema::PAGE_BYTES);
    Ok(bytes.saturating_sub(file.len()))
}

/// Returns the size of the used part of the WAL; 0 if all of it was copied into the file.
fn pending_bytes(connection: &Connection) -> DriverResult<u64> {
    let mut statement = connection.prepare_cached("pragma wal_checkpoint(noop)")?;
    let (frames, copied): (i64, i64) =
        statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    let frames = if frames > copied { frames } else { 0 };
    Ok(u64::try_from(frames).unwrap_or(0) * FRAME_BYTES)
}
