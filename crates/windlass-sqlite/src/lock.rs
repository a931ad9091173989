//! One process owns the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use windlass_store::StoreError;

use crate::checkpoint;
use crate::error::cannot_open;

/// Held as long as the store is open; the operating system frees it when the process dies.
#[derive(Debug)]
pub(crate) struct FileLock {
    path: PathBuf,
    file: File,
    /// The note of a former process, until it was seen that its log is there.
    wal_was_in_use: bool,
    /// Whether the lock file was not there before.
    is_new: bool,
}

/// Stands in the lock file while the log may hold what the store does not.
const WAL_IN_USE: &str = "log in use";

impl FileLock {
    /// Takes the lock sibling the file, or tells who has it.
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
                let _ = file.read_to_string(&mut owner); // without it, the owner is just not named
                let owner = owner.lines().next().unwrap_or("").trim();
                return Err(StoreError::InUse {
                    path: path.display().to_string(),
                    owner: if owner.is_empty() { "unknown" } else { owner }.to_owned(),
                });
            }
        }
        let mut before = String::new();
        file.read_to_string(&mut before).map_err(failed)?;
        let mut lock = FileLock {
            path: path.to_owned(),
            file,
            wal_was_in_use: before.contains(WAL_IN_USE),
            is_new,
        };
        let note = if lock.wal_was_in_use { WAL_IN_USE } else { "" };
        lock.write(note).map_err(failed)?;
        Ok(lock)
    }

    /// Leaves nothing next to a file that is not a store.
    pub(crate) fn remove_if_new(&self) {
        if self.is_new {
            let _ = std::fs::remove_file(sibling(&self.path, ".lock")); // an empty file stays
        }
    }

    /// Another file took the place of the store: the log of the former one is not asked for.
    pub(crate) fn ignore_old_wal(&mut self) {
        self.wal_was_in_use = false;
    }

    /// Refuses a store whose log is gone, cut or damaged although it was in use when its process died: what was acknowledged
    /// last was in it.
    pub(crate) fn check_wal(&mut self) -> Result<(), StoreError> {
        let wal_path = sibling(&self.path, "-wal");
        if self.wal_was_in_use && !wal_path.exists() {
            let what = format!(
                "its log {} is missing, and with it what was written last",
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

    /// From now on the log must be there.
    pub(crate) fn mark_wal_in_use(&mut self) -> Result<(), StoreError> {
        let noted = checkpoint::preallocate_wal(&self.path)
            .and_then(|()| self.write(WAL_IN_USE))
            .and_then(|()| self.file.sync_all());
        noted.map_err(|error| StoreError::Unavailable(error.into()))
    }

    fn write(&mut self, note: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        write!(self.file, "{}\n{note}\n", std::process::id())
    }
}

impl Drop for FileLock {
    /// After the store was closed: its log was folded back and removed, and need not be there next time.
    fn drop(&mut self) {
        let locked = sibling(&self.path, ".lock").exists();
        if locked && !self.wal_was_in_use && !sibling(&self.path, "-wal").exists() {
            let _ = self.write(""); // else the next opening asks for the log: safe, and told
        }
    }
}

/// The one path of a store, by whatever name it is called: one file has one lock. It need not be
/// there yet.
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

/// Opens or makes a file that only its owner can read.
pub(crate) fn private_file(path: &Path) -> std::io::Result<File> {
    private(OpenOptions::new().create(true).truncate(false)).open(path)
}

/// Makes a file that only its owner can read, and that was not there.
pub(crate) fn new_private_file(path: &Path) -> std::io::Result<File> {
    private(OpenOptions::new().create_new(true)).open(path)
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.read(true).write(true)
}

/// Makes a file and its name in its folder durable.
pub(crate) fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_folder(path)
}

/// Makes the names in the folder of a file durable.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    match path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// The file sibling a store whose name ends so.
pub(crate) fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_told_who_the_first_is() {
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
