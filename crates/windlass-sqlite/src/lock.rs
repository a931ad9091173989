//! The lock file: one process at a time owns the store.
//!
//! The lock file also records that the WAL is in use. If a process is killed, its latest
//! acknowledged writes may be only in the WAL. At the next start a missing WAL would look like a
//! clean shutdown to SQLite, and those writes would be lost without an error. With the record, the
//! driver knows that the WAL must be there, and checks it.
//!
//! `owner_note.rs` adds how to reach the owner.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_store::StoreError;

use crate::checkpoint;
use crate::error::cannot_open;
use crate::owner_note::OwnerNote;

/// The lock of a store. The operating system releases it when the process ends.
#[derive(Debug)]
pub(crate) struct FileLock {
    path: PathBuf,
    file: Arc<File>,
    /// Whether the previous process was killed, until its WAL was checked.
    wal_was_in_use: bool,
    /// Whether a process began to create the store and has not finished.
    is_unfinished: bool,
    /// Whether this process created the lock file.
    is_new: bool,
}

/// The line in the lock file while the WAL may hold writes that the database file does not have.
const WAL_IN_USE: &str = "log in use";

/// The line in the lock file while the store is being created.
const UNFINISHED: &str = "being created";

impl FileLock {
    /// Takes the lock.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::InUse`] with the id of the owner if another process has it.
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        let lock_path = sibling(path, ".lock");
        let failed = |error: std::io::Error| cannot_open(&lock_path, &error);
        let (mut file, is_new) = match new_private_file(&lock_path) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (private_file(&lock_path).map_err(failed)?, false)
            }
            Err(error) => return Err(failed(error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner); // if it fails, the owner is "unknown"
                let owner = owner.lines().next().unwrap_or("").trim();
                return Err(StoreError::InUse {
                    path: path.display().to_string(),
                    owner: if owner.is_empty() { "unknown" } else { owner }.to_owned(),
                });
            }
        }
        let mut content = String::new();
        file.read_to_string(&mut content).map_err(failed)?;
        let mut lock = FileLock {
            path: path.to_owned(),
            file: Arc::new(file),
            wal_was_in_use: content.contains(WAL_IN_USE),
            is_unfinished: content.contains(UNFINISHED),
            is_new,
        };
        let note = match (lock.wal_was_in_use, lock.is_unfinished) {
            (true, _) => WAL_IN_USE,
            (false, true) => UNFINISHED,
            (false, false) => "",
        };
        lock.write(note).map_err(failed)?;
        Ok(lock)
    }

    /// Records that the store is being created, before anything is written to it.
    pub(crate) fn mark_unfinished(&mut self) -> std::io::Result<()> {
        self.is_unfinished = true;
        self.write(UNFINISHED)?;
        self.file.sync_all()?;
        sync_folder(&self.path)
    }

    /// Whether the machine may have lost its power while the store was created. Then the file is
    /// not a database yet, and SQLite empties it with the rollback journal that is next to it.
    pub(crate) fn can_create_again(&self) -> bool {
        self.is_unfinished && sibling(&self.path, "-journal").exists()
    }

    /// Removes the lock file if this process created it, so that nothing is left next to a file
    /// that is not a store.
    pub(crate) fn remove_if_new(&self) {
        if self.is_new {
            let _ = std::fs::remove_file(sibling(&self.path, ".lock")); // a stale lock file is harmless
        }
    }

    /// Forgets what was recorded about the store, because a restore replaced it.
    pub(crate) fn forget_record(&mut self) {
        self.wal_was_in_use = false;
        self.is_unfinished = false;
    }

    /// Refuses a store whose process was killed and whose WAL is missing, truncated or damaged: the
    /// latest acknowledged writes were in it.
    pub(crate) fn check_wal(&mut self) -> Result<(), StoreError> {
        let wal_path = sibling(&self.path, "-wal");
        if self.wal_was_in_use && !wal_path.exists() {
            let what = format!(
                "its write-ahead log {} is missing; the latest writes are lost",
                wal_path.display()
            );
            return Err(StoreError::Damaged { what, cause: None });
        }
        if self.wal_was_in_use {
            checkpoint::check(&wal_path)?;
        }
        self.wal_was_in_use = false;
        Ok(())
    }

    /// Records that the WAL is in use: from now on it must exist at the next start. SQLite syncs its
    /// name too, but ignores it if that fails.
    pub(crate) fn mark_wal_in_use(&mut self) -> Result<(), StoreError> {
        let noted = checkpoint::preallocate_wal(&self.path)
            .and_then(|()| sync_folder(&self.path))
            .and_then(|()| self.write(WAL_IN_USE))
            .and_then(|()| self.file.sync_all());
        noted.map_err(|error| StoreError::Unavailable(error.into()))?;
        self.is_unfinished = false;
        Ok(())
    }

    /// Records that the database file has everything that the WAL has. This must be durable before
    /// SQLite removes the WAL: after a power loss, the WAL may be gone and an older record be back.
    pub(crate) fn mark_wal_copied(&mut self) -> std::io::Result<()> {
        self.write("")?;
        self.file.sync_all()
    }

    /// The note of the owner, which follows the record about the WAL.
    pub(crate) fn owner_note(&self) -> Result<OwnerNote, StoreError> {
        let note = OwnerNote::new(&self.file, &self.path);
        note.map_err(|error| StoreError::Unavailable(error.into()))
    }

    fn write(&mut self, note: &str) -> std::io::Result<()> {
        let mut file = &*self.file;
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{}\n{note}\n", std::process::id())
    }
}

impl Drop for FileLock {
    /// Removes the record after a clean shutdown, in which SQLite checkpointed and deleted the WAL.
    fn drop(&mut self) {
        let locked = sibling(&self.path, ".lock").exists();
        if locked && !self.wal_was_in_use && !sibling(&self.path, "-wal").exists() {
            let note = if self.is_unfinished { UNFINISHED } else { "" };
            let _ = self.write(note); // if it fails, the next start refuses to open: safe, and visible
        }
    }
}

/// Returns the canonical path of a store, so that all names of a file lead to the same lock. The
/// file need not exist.
pub(crate) fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        found => return found,
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    Ok(folder.canonicalize()?.join(name))
}

/// Opens or creates a file that only its owner can read.
pub(crate) fn private_file(path: &Path) -> std::io::Result<File> {
    private(OpenOptions::new().create(true).truncate(false)).open(path)
}

/// Creates a file that only its owner can read. Fails if it exists.
pub(crate) fn new_private_file(path: &Path) -> std::io::Result<File> {
    private(OpenOptions::new().create_new(true)).open(path)
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.read(true).write(true)
}

/// Syncs a file and its folder, so that content and name are durable.
pub(crate) fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_folder(path)
}

/// Syncs the folder of a file, so that the names in it are durable.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    match path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// Returns the path of the store with this ending appended.
pub(crate) fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_gets_an_error_that_names_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let first = FileLock::take(&path).unwrap();
        let refused = FileLock::take(&path).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        drop(first);
        FileLock::take(&path).unwrap();
    }
}
