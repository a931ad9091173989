//! Puts a backup where a store is to be.

use std::path::Path;

use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult, cannot_open};
use crate::identity::{self, PathContents};
use crate::lock::{self, FileLock, sibling};
use crate::{back_up, schema};

/// What a restore does with a store that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuses.
    Keep,
    /// Replaces it.
    Replace,
}

/// Files that belong to the store that was there. A log left behind would be played into the
/// restored file.
const STALE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Puts a copy of a backup at `to`, whole or not at all. Refused if the backup is damaged or not a
/// store, if a process has the store at `to` open, and if one is there that is not to be replaced.
pub fn restore(from: &Path, to: &Path, existing: Existing) -> Result<(), StoreError> {
    identity::check_store(from)?;
    check_whole(from).map_err(DriverError::into_store_error)?;
    let to = lock::resolve(to).map_err(|error| cannot_open(to, &error))?;
    let mut lock = FileLock::take(&to)?;
    let restored = check_target(&to, existing).and_then(|()| put(from, &to));
    match restored {
        Ok(()) => lock.ignore_old_wal(),
        Err(_) => lock.remove_if_new(),
    }
    restored
}

/// Refuses a backup that SQLite finds a error with.
fn check_whole(backup: &Path) -> DriverResult<()> {
    let connection = schema::open_reader(backup)?;
    let found: String = connection.query_row("pragma integrity_check(1)", [], |row| row.get(0))?;
    match found.as_str() {
        "ok" => Ok(()),
        found => Err(DriverError::damaged(format!(
            "the backup {}: {found}",
            backup.display()
        ))),
    }
}

fn check_target(to: &Path, existing: Existing) -> Result<(), StoreError> {
    match (identity::check(to)?, existing) {
        (PathContents::Nothing, _) | (PathContents::Store, Existing::Replace) => Ok(()),
        (PathContents::Store, Existing::Keep) => Err(StoreError::Exists {
            path: to.display().to_string(),
        }),
    }
}

/// The log goes first: until the new file is in place, an old store without its log is refused, and
/// never opened half.
fn put(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::Unavailable(error.into());
    let new = sibling(to, "-restore");
    remove(&new).map_err(failed)?; // left by a restore that was killed
    back_up(from, &new)?;
    let placed = STALE
        .iter()
        .try_for_each(|ending| remove(&sibling(to, ending)))
        .and_then(|()| lock::sync_folder(to))
        .and_then(|()| std::fs::rename(&new, to))
        .and_then(|()| lock::sync(to));
    placed.map_err(failed)
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
