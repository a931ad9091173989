//! Disk space that is held back, so that purging and pausing work on a full disk.
//!
//! The space is a file next to the store. When the disk is full, the file is removed: the log is
//! written back into what it leaves free, and from then on the log lives in the blocks it already
//! has. The store does not grow until the file fits again; meanwhile its own free pages are used.

use std::fs::File;
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::lock::{private_file, sibling};

const MEBIBYTE: u64 = 1024 * 1024;

/// How much is held back.
pub(crate) const RESERVE_BYTES: u64 = 32 * MEBIBYTE;

/// The log may grow the file by this much before it is written back: it must fit into the reserve,
/// with room to spare.
pub(crate) const GROWTH_MAX: u64 = 24 * MEBIBYTE;

/// The reserve is taken back once this much more is free, so that a nearly full disk does not
/// change its mind at each write.
const MARGIN_BYTES: u64 = 4 * MEBIBYTE;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub(crate) fn of(store: &Path) -> Self {
        Reserve {
            path: sibling(store, "-reserve"),
        }
    }

    /// Takes the space from the disk; an error if the disk does not have it, with a margin. Where
    /// space cannot be held back for any other reason, the store goes without.
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

    /// Gives the space of a former process back to a disk that is full, so that the store can be
    /// opened.
    pub(crate) fn release_if_full(&self) {
        if self.path.exists() {
            let _ = self.take(); // which releases it where the disk has no more
        }
    }

    /// Gives the space back to the disk.
    pub(crate) fn release(&self) {
        let _ = std::fs::remove_file(&self.path); // without it, there is nothing to give back
    }
}

/// Makes a file this long, with blocks of its own; what it holds stays. File systems that cannot
/// allocate are written to.
fn allocate(file: &mut File, bytes: u64) -> std::io::Result<()> {
    match fallocate(&*file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(file, bytes),
        Err(error) => Err(error.into()),
    }
}

fn fill(file: &mut File, bytes: u64) -> std::io::Result<()> {
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
    fn the_reserve_is_really_allocated_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(&folder.path().join("jobs.db"));
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
    fn a_file_system_that_cannot_allocate_is_written_to() {
        let mut file = tempfile::tempfile().unwrap();
        fill(&mut file, MEBIBYTE).unwrap();
        fill(&mut file, 2 * MEBIBYTE).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 * MEBIBYTE);
    }
}
