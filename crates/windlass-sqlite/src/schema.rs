//! Opening a file: settings, and migrations forward.

use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;
use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult};
use crate::identity::APPLICATION_ID;

/// The migrations in order; never edited once released.
const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [include_str!("../migrations/0001_jobs.sql")];

/// The newest schema that this build knows, kept in the file as `user_version`.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Older ones may corrupt a write-ahead log.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// The size of a page: with the usual 4096 bytes, a lifecycle costs a tenth more.
pub const PAGE_BYTES: u32 = 8192;

const PAGE_CACHE_KIB: i64 = 32 * 1024;
pub(crate) const BUSY_TIME_MAX: Duration = Duration::from_secs(5);

/// Opens the connection that writes, and brings the schema up to date.
pub(crate) fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        let what = format!(
            "SQLite {} is too old: 3.51.3 or newer is needed",
            rusqlite::version()
        );
        return Err(StoreError::Unavailable(what.into()));
    }
    let connection = open_aside(path)?;
    migrate(&connection)?;
    Ok(connection)
}

/// Opens another connection that may write, to a file that is up to date.
pub(crate) fn open_aside(path: &Path) -> Result<Connection, StoreError> {
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
    // The writer itself decides when the log is folded back: between two groups.
    connection.query_row("pragma wal_autocheckpoint = 0", [], |_| Ok(()))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Writes into an empty file whose it is. This comes before the log is used: the header itself must
/// say it, also after a crash.
fn mark_new_file(connection: &Connection) -> DriverResult<()> {
    let pages: u32 = connection.query_row("pragma page_count", [], |row| row.get(0))?;
    if pages == 0 {
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    Ok(())
}

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
                    needed: 1
                }
            ),
            "{refused:?}"
        );
    }
}
