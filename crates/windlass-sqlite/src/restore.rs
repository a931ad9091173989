//! Restores a backup to the path of a store.

use std::path::Path;

use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult, cannot_open};
use crate::identity::{self, PathContents};
use crate::lock::{self, FileLock, sibling};
use crate::{back_up, schema};

/// What a restore does if a store already exists at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuses to restore.
    Keep,
    /// Replaces the existing store.
    Replace,
}

/// Endings of files that belong to the replaced store. SQLite would replay its WAL into the
/// restored file.
const STALE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Copies a backup to `to`, completely or not at all.
///
/// # Errors
///
/// Refuses a backup that is damaged or not a store, a target that a process has open, and with
/// [`Existing::Keep`] a target that already exists.
pub fn restore(from: &Path, to: &Path, existing: Existing) -> Result<(), StoreError> {
    identity::check_store(from)?;
    check_whole(from).map_err(DriverError::into_store_error)?;
    let to = lock::resolve(to).map_err(|error| cannot_open(to, &error))?;
    let mut lock = FileLock::take(&to)?;
    let restored = check_target(&to, existing).and_then(|()| replace(from, &to));
    match restored {
        Ok(()) => lock.forget_record(),
        Err(_) => lock.remove_if_new(),
    }
    restored
}

/// Refuses a backup that fails SQLite's integrity check.
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

/// Replaces the target. The old WAL is removed first: if the process is killed before the rename,
/// `lock.rs` refuses the old store because its WAL is missing, instead of opening it without its
/// latest writes.
fn replace(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::Unavailable(error.into());
    let new = sibling(to, "-restore");
    remove(&new).map_err(failed)?; // a killed restore may have left it
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
