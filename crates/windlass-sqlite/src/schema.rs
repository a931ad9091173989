//! Opens connections with our settings, and migrates the schema.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;
use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult};
use crate::identity::APPLICATION_ID;

/// The migrations in order; never edited once released.
const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [
    include_str!("../migrations/0001_jobs.sql"),
    include_str!("../migrations/0002_failure_groups.sql"),
];

/// The newest schema version that this build knows. The file stores its version as `user_version`.
pub(crate) const SCHEMA_VERSION: u32 = 2;

/// Older versions of SQLite may corrupt the WAL.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// The size of a database page. With SQLite's default of 4096 bytes, a job costs about a tenth more
/// CPU.
pub const PAGE_BYTES: u32 = 8192;

const PAGE_CACHE_KIB: i64 = 32 * 1024;
pub(crate) const BUSY_TIME_MAX: Duration = Duration::from_secs(5);

/// Opens the connection of the writer, and migrates the schema.
pub(crate) fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        let what = format!(
            "SQLite {} is too old; link version 3.51.3 or newer",
            rusqlite::version()
        );
        return Err(StoreError::Unavailable(what.into()));
    }
    let connection = open_read_write(path)?;
    migrate(&connection)?;
    Ok(connection)
}

/// Opens a connection that can write, without migrating the schema.
pub(crate) fn open_read_write(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).map_err(DriverError::from);
    let configured = opened.and_then(|connection| configure(&connection).map(|()| connection));
    configured.map_err(DriverError::into_store_error)
}

/// Opens a connection that only reads.
pub(crate) fn open_reader(path: &Path) -> DriverResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn configure(connection: &Connection) -> DriverResult<()> {
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    mark_new_file(connection)?;
    connection.query_row("pragma journal_mode = wal", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -PAGE_CACHE_KIB)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    // No automatic checkpoints: `checkpoint.rs` runs them between two groups.
    connection.query_row("pragma wal_autocheckpoint = 0", [], |_| Ok(()))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Keeps the WAL when the last connection closes. The lock file still says that the WAL is in use,
/// so the next start needs it.
pub(crate) fn keep_wal(connection: &Connection) {
    let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    debug_assert!(set.is_ok(), "{set:?}"); // it only sets a flag
}

/// Writes our `application_id` into an empty file. This happens before WAL mode is switched on, so
/// that the id is in the file header even if the process crashes right after.
fn mark_new_file(connection: &Connection) -> DriverResult<()> {
    let pages: u32 = connection.query_row("pragma page_count", [], |row| row.get(0))?;
    if pages == 0 {
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    Ok(())
}

/// Runs the missing migrations, each in its own transaction.
fn migrate(connection: &Connection) -> Result<(), StoreError> {
    let version = |connection: &Connection| {
        connection.query_row("pragma user_version", [], |row| row.get::<_, u32>(0))
    };
    let found = version(connection)
        .map_err(DriverError::from)
        .map_err(DriverError::into_store_error)?;
    if found > SCHEMA_VERSION {
        return Err(StoreError::WrongSchema {
            found,
            needed: SCHEMA_VERSION,
        });
    }
    for (number, migration) in (1u32..)
        .zip(MIGRATIONS)
        .filter(|(number, _)| *number > found)
    {
        let script =
            format!("begin immediate;\n{migration}\npragma user_version = {number};\ncommit;");
        let done = connection.execute_batch(&script).map_err(DriverError::from);
        done.map_err(DriverError::into_store_error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_sqlite_is_new_enough() {
        assert!(
            rusqlite::version_number() >= SQLITE_VERSION_MIN,
            "{}",
            rusqlite::version()
        );
    }

    #[test]
    fn a_newer_schema_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        drop(open_writer(&path).unwrap());
        let newer = Connection::open(&path).unwrap();
        newer.pragma_update(None, "user_version", 99).unwrap();
        drop(newer);
        let refused = open_writer(&path).unwrap_err();
        assert!(
            matches!(
                refused,
                StoreError::WrongSchema {
                    found: 99,
                    needed: SCHEMA_VERSION
                }
            ),
            "{refused:?}"
        );
    }
}
