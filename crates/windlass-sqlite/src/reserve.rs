//! Reserved disk space, so that operators can still purge and pause on a full disk.
//!
//! Even a `delete` needs disk space first: SQLite appends the changed pages to the WAL, and the WAL
//! can only be reused after a checkpoint, which may have to grow the database file. Without
//! reserved space, a full disk could only be repaired by deleting something else.
//!
//! The reserve is a file of 32 MiB next to the store. When the disk is full:
//!
//! 1. The reserve file is removed.
//! 2. A checkpoint writes the WAL back, into the space that this frees. The WAL starts again from
//!    its beginning, in blocks that it already has, so it needs no new space.
//! 3. The database file does not grow until the reserve file fits again. Until then, only free
//!    pages inside it are used (`writer/full_disk.rs` decides what may run).
//!
//! For step 2 to work, a checkpoint must always fit into the reserve. So the writer runs one before
//! the WAL would grow the file by more than [`GROWTH_MAX`].

use std::fs::File;
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::lock::{private_file, sibling};

const MEBIBYTE: u64 = 1024 * 1024;

/// The size of the reserve.
pub(crate) const RESERVE_BYTES: u64 = 32 * MEBIBYTE;

/// A checkpoint is due when it would grow the file by this much. It must fit into the reserve, with
/// some space to spare.
pub(crate) const GROWTH_MAX: u64 = 24 * MEBIBYTE;

/// The reserve is taken again only if this much more is free, so that a nearly full disk does not
/// switch between full and not full at every write.
const MARGIN_BYTES: u64 = 4 * MEBIBYTE;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub(crate) fn next_to(store: &Path) -> Self {
        Reserve {
            path: sibling(store, "-reserve"),
        }
    }

    /// Allocates the reserve. Returns an error if the disk does not have the space and the margin.
    /// If allocation fails for another reason, the store works without a reserve.
    pub(crate) fn take(&self) -> std::io::Result<()> {
        let taken = private_file(&self.path).and_then(|mut file| {
            allocate(&mut file, RESERVE_BYTES + MARGIN_BYTES)?;
            file.set_len(RESERVE_BYTES)
        });
        let Err(error) = taken else {
            return Ok(());
        };
        self.release();
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the reserve of a previous process if the disk is full, so that the store can be
    /// opened.
    pub(crate) fn release_if_full(&self) {
        if self.path.exists() {
            let _ = self.take(); // removes the file if the disk does not have the margin
        }
    }

    /// Frees the reserved space.
    pub(crate) fn release(&self) {
        let _ = std::fs::remove_file(&self.path); // the file may not exist
    }
}

/// Extends a file to this size with allocated blocks; its content stays. Writes zeros on file
/// systems that do not support allocation.
fn allocate(file: &mut File, bytes: u64) -> std::io::Result<()> {
    match fallocate(&*file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, bytes),
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &mut File, bytes: u64) -> std::io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let mut written = file.seek(SeekFrom::End(0))?;
    while written < bytes {
        file.write_all(&ZEROS)?;
        written += ZEROS.len() as u64;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_allocated_and_released() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::next_to(&folder.path().join("jobs.db"));
        reserve.take().unwrap();
        reserve.take().unwrap();
        let file = std::fs::metadata(folder.path().join("jobs.db-reserve")).unwrap();
        assert_eq!(file.len(), RESERVE_BYTES);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file);
        assert!(blocks * 512 >= RESERVE_BYTES, "{blocks} blocks");
        reserve.release();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn zeros_extend_a_file_where_allocation_is_not_supported() {
        let mut file = tempfile::tempfile().unwrap();
        write_zeros(&mut file, MEBIBYTE).unwrap();
        write_zeros(&mut file, 2 * MEBIBYTE).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 * MEBIBYTE);
    }
}
