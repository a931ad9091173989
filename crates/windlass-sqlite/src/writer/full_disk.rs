//! The writer on a full disk: refuses what needs space, and still runs what frees it.
//!
//! While the disk is full, requests run one by one instead of in groups, because each needs its own
//! limit on the size of the file (`pragma max_page_count`):
//!
//! - Reads from memory always run.
//! - Requests of class `Relief` (purges, pausing a queue, the audit log) may grow the file a
//!   little.
//! - All others run only if the file has enough free pages inside and the WAL starts from its
//!   beginning, so that nothing on disk has to grow. Otherwise they get `StorageFull`.
//!
//! Before each group the writer tries to allocate the reserve again. When that succeeds, the disk
//! has space, and the store resumes. `reserve.rs` explains why the reserve exists.

use windlass_store::StoreError;

use super::Writer;
use crate::checkpoint;
use crate::error::{DriverError, DriverResult};
use crate::group::RequestClass;
use crate::reserve::RESERVE_BYTES;
use crate::row;

/// On a full disk, a request that frees space may grow the file by this many pages: a delete may
/// have to split a page first.
const SLACK_PAGES: u64 = 256;

/// On a full disk, all requests run while the file has at least this many free pages inside.
const FREE_PAGES_MIN: u64 = 512;

/// SQLite's own limit.
const PAGES_MAX: u64 = 0xffff_fffe;

/// On a full disk, a checkpoint runs only if it leaves this much of the reserve free.
const RESERVE_LEFT_MIN: u64 = 4 * 1024 * 1024;

/// The state of the writer while the disk is full.
#[derive(Debug)]
pub(super) struct FullDisk {
    cause: String,
    /// The size of the file when the disk became full. It must not grow until there is space.
    pages: u64,
    /// Whether the last checkpoint was complete, so that the WAL starts again in blocks it has.
    checkpointed: bool,
}

impl Writer<'_> {
    /// Returns whether all requests may run. Checks a full disk for space again.
    pub(crate) fn has_space(&mut self) -> bool {
        if self.full.is_some() {
            self.try_to_leave_full();
        }
        self.full.is_none()
    }

    /// Refuses a request that the full disk has no space for. Sets the page limit for the others.
    pub(crate) fn admit(&mut self, class: RequestClass) -> Result<(), StoreError> {
        let Some(full) = &self.full else {
            return Ok(());
        };
        let pages = match class {
            RequestClass::Read => return Ok(()),
            RequestClass::Relief => full.pages + SLACK_PAGES,
            _ if full.checkpointed
                && self.count("pragma freelist_count") >= Some(FREE_PAGES_MIN) =>
            {
                full.pages
            }
            _ => return Err(StoreError::StorageFull(full.cause.clone().into())),
        };
        self.limit_pages(pages)
            .map_err(DriverError::into_store_error)
    }

    /// Runs a group while the store is being opened. If the disk is full, the first try releases
    /// the reserve, and the second one uses the space.
    pub(crate) fn group_while_opening<T>(
        &mut self,
        work: impl Fn(&mut Self) -> DriverResult<T>,
    ) -> Result<T, StoreError> {
        match self.group(&work) {
            Err(StoreError::StorageFull(_)) => self.group(&work),
            done => done,
        }
    }

    /// Allocates the reserve. If there is no space for it, the disk counts as full.
    pub(crate) fn take_reserve(&mut self) {
        if let Err(error) = self.reserve.take() {
            self.enter_full(error.to_string());
        }
    }

    /// Enters the full-disk state: releases the reserve and checkpoints the WAL into its space.
    pub(super) fn enter_full(&mut self, cause: String) {
        self.reserve.release();
        let pages = self.count("pragma page_count").unwrap_or(0);
        let previous = self.full.take();
        self.full = Some(FullDisk {
            cause,
            pages: previous.map_or(pages, |previous| previous.pages),
            checkpointed: false,
        });
        self.checkpoint_into_reserve();
        self.try_to_leave_full();
    }

    /// Runs a checkpoint after each group on a full disk, so that the WAL stays in the blocks it
    /// has.
    pub(super) fn checkpoint_into_reserve(&mut self) {
        let growth = checkpoint::growth_bytes(self.connection, &self.path).unwrap_or(u64::MAX);
        if growth > RESERVE_BYTES - RESERVE_LEFT_MIN {
            return; // an incomplete checkpoint would use up the reserve and gain nothing
        }
        let checkpointed = self.checkpointer.finish(self.connection);
        if let Err(error) = &checkpointed {
            self.stop_after_failed_sync(error);
        }
        if let Some(full) = &mut self.full {
            full.checkpointed = matches!(checkpointed, Ok(true));
        }
    }

    fn try_to_leave_full(&mut self) {
        if self.reserve.take().is_ok() && self.limit_pages(PAGES_MAX).is_ok() {
            self.full = None;
        }
    }

    fn limit_pages(&self, pages: u64) -> DriverResult<()> {
        let limit = format!("pragma max_page_count = {pages}");
        Ok(self.connection.query_row(&limit, [], |_| Ok(()))?)
    }

    fn count(&self, pragma: &str) -> Option<u64> {
        let counted = self
            .connection
            .query_row(pragma, [], |row| row::unsigned(row, 0));
        counted.ok()
    }
}
