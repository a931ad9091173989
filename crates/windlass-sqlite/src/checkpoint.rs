//! The write-ahead log is folded back into the file: most of it aside from the writer, the rest between two groups.
//!
//! A pass aside never lets a busy log begin anew, and one between two groups keeps everybody waiting; so the one goes before
//! the other, which then has little left to do.

mod wal_check;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
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

/// From here on the log is folded back.
const CHECKPOINT_AT: u64 = BYTES_MIN;

/// Here the writer waits for the pass aside.
const WAIT_AT: u64 = 128 * MEBIBYTE;

/// If a reader is in the way, the next try is made when the log has grown by this.
const RETRY_AFTER_GROWTH: u64 = 16 * MEBIBYTE;

const FRAME_BYTES: u64 = schema::PAGE_BYTES as u64 + 24;

pub(crate) struct Checkpointer {
    /// Asks for a pass aside; dropped, it ends the thread.
    request: Option<SyncSender<()>>,
    passes: Receiver<DriverResult<()>>,
    thread: Option<JoinHandle<()>>,
    requested: bool,
    checkpoint_at: u64,
    /// From here on it matters by how much the log grows the file.
    growth_at: u64,
}

impl Checkpointer {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = schema::open_aside(path)?;
        let (request, requested) = sync_channel(1);
        let (done, passes) = sync_channel(1);
        let thread = spawn("windlass-log", move || {
            while requested.recv().is_ok() {
                let pass = checkpoint(&connection, "pragma wal_checkpoint(passive)");
                if done.send(pass.map(|_| ())).is_err() {
                    break; // the writer is gone
                }
            }
        })?;
        Ok(Checkpointer {
            request: Some(request),
            passes,
            thread: Some(thread),
            requested: false,
            checkpoint_at: CHECKPOINT_AT,
            growth_at: GROWTH_MAX,
        })
    }

    /// Whether the writer should pause now for the rest: the log is large, and the pass aside is over.
    pub(crate) fn is_due(&mut self, writer: &Connection, store: &Path) -> DriverResult<bool> {
        let bytes = pending_bytes(writer)?;
        let due = bytes >= self.checkpoint_at
            || bytes >= self.growth_at && growth_bytes(writer, store)? >= GROWTH_MAX;
        if !due && !self.requested {
            return Ok(false);
        }
        if let (false, Some(request)) = (self.requested, &self.request) {
            self.requested = request.try_send(()).is_ok();
        }
        let pass = match self.passes.try_recv() {
            Err(TryRecvError::Empty) if bytes < WAIT_AT => return Ok(false),
            Err(TryRecvError::Empty) => self.passes.recv().unwrap_or(Ok(())),
            Err(TryRecvError::Disconnected) => Ok(()),
            Ok(pass) => pass,
        };
        self.requested = false;
        pass.map(|()| true)
    }

    /// Folds the rest, so that the log begins anew; answers whether nobody was in the way. It waits for nobody.
    pub(crate) fn finish(&mut self, writer: &Connection) -> DriverResult<bool> {
        self.checkpoint_at = pending_bytes(writer)? + RETRY_AFTER_GROWTH;
        self.growth_at = self.checkpoint_at;
        writer.busy_timeout(Duration::ZERO)?;
        let whole = checkpoint(writer, "pragma wal_checkpoint(restart)");
        writer.busy_timeout(schema::BUSY_TIME_MAX)?;
        let whole = whole?;
        if whole {
            self.checkpoint_at = CHECKPOINT_AT;
            self.growth_at = GROWTH_MAX;
        }
        Ok(whole)
    }
}

/// Makes the log of a store as long as it will get: a log that is shorter next time was cut. It takes no space before it is
/// written to.
pub(crate) fn preallocate_wal(store: &Path) -> std::io::Result<()> {
    let log = OpenOptions::new()
        .write(true)
        .open(sibling(store, "-wal"))?;
    if log.metadata()?.len() < BYTES_MIN {
        log.set_len(BYTES_MIN)?;
        log.sync_all()?;
    }
    Ok(())
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.request = None;
        let _ = self.thread.take().map(JoinHandle::join); // a panic was told on stderr already
    }
}

/// Whether the whole log was folded back.
fn checkpoint(connection: &Connection, how: &str) -> DriverResult<bool> {
    let busy: i64 = connection.query_row(how, [], |row| row.get(0))?;
    Ok(busy == 0)
}

/// By how much the file grows when the log is folded back.
pub(crate) fn growth_bytes(connection: &Connection, store: &Path) -> DriverResult<u64> {
    let mut look = connection.prepare_cached("pragma page_count")?;
    let pages: u32 = look.query_row([], |row| row.get(0))?;
    // By its name: to close another handle on the file would drop SQLite's own locks.
    let file = std::fs::metadata(store).map_err(|error| DriverError::damaged(error.to_string()))?;
    let bytes = u64::from(pages) * u64::from(schema::PAGE_BYTES);
    Ok(bytes.saturating_sub(file.len()))
}

/// How large the log is; nothing, if all of it is in the file already.
fn pending_bytes(connection: &Connection) -> DriverResult<u64> {
    let mut look = connection.prepare_cached("pragma wal_checkpoint(noop)")?;
    let (frames, folded): (i64, i64) = look.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    let frames = if frames > folded { frames } else { 0 };
    Ok(u64::try_from(frames).unwrap_or(0) * FRAME_BYTES)
}
