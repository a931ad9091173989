//! What the writer does on a full disk: it refuses what needs room, and still does what frees some.

use windlass_store::StoreError;

use super::Writer;
use crate::checkpoint;
use crate::error::{DriverError, DriverResult};
use crate::group::RequestClass;
use crate::reserve::RESERVE_BYTES;
use crate::row;

/// On a full disk, what frees space may grow the file by this many pages: a delete may have to
/// split a page first.
const SLACK_PAGES: u64 = 256;

/// On a full disk, everything runs while the file has this many free pages inside.
const FREE_PAGES_MIN: u64 = 512;

/// SQLite's own bound.
const PAGES_MAX: u64 = 0xffff_fffe;

/// The log is written back on a full disk only if this much of the reserve is left after it.
const RESERVE_LEFT_MIN: u64 = 4 * 1024 * 1024;

/// A disk that was full at the last look.
#[derive(Debug)]
pub(super) struct FullDisk {
    cause: String,
    /// How large the file was then: it does not grow meanwhile.
    pages: u64,
    /// Whether the whole log is in the file, so that it begins again in blocks that it has.
    checkpointed: bool,
}

impl Writer<'_> {
    /// Whether everything may run. A disk that was full is looked at again.
    pub(crate) fn has_space(&mut self) -> bool {
        if self.full.is_some() {
            self.try_to_leave_full();
        }
        self.full.is_none()
    }

    /// Refuses what needs room that is not there.
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

    /// Runs a group while the store is being opened: on a full disk, with what the reserve gives
    /// back.
    pub(crate) fn group_while_opening<T>(
        &mut self,
        work: impl Fn(&mut Self) -> DriverResult<T>,
    ) -> Result<T, StoreError> {
        match self.group(&work) {
            Err(StoreError::StorageFull(_)) => self.group(&work),
            done => done,
        }
    }

    /// Holds the reserve from now on; without room for it, the disk is full.
    pub(crate) fn take_reserve(&mut self) {
        if let Err(error) = self.reserve.take() {
            self.enter_full(error.to_string());
        }
    }

    /// The disk is full: the reserve is given up, and the log written back into it.
    pub(super) fn enter_full(&mut self, cause: String) {
        self.reserve.release();
        let pages = self.count("pragma page_count").unwrap_or(0);
        let before = self.full.take();
        self.full = Some(FullDisk {
            cause,
            pages: before.map_or(pages, |before| before.pages),
            checkpointed: false,
        });
        self.checkpoint_into_reserve();
        self.try_to_leave_full();
    }

    /// After each group on a full disk: the log stays in the blocks that it has.
    pub(super) fn checkpoint_into_reserve(&mut self) {
        let growth = checkpoint::growth_bytes(self.connection, &self.path).unwrap_or(u64::MAX);
        if growth > RESERVE_BYTES - RESERVE_LEFT_MIN {
            return; // half of it would use up the reserve for nothing
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
