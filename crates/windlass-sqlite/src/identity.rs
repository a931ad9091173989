//! Checks whether a file is a Windlass store, before SQLite opens it.
//!
//! If SQLite opened the database of another program, it would create files next to it, and our
//! migrations would add tables to it. So this module reads the file header itself.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use windlass_store::StoreError;

use crate::error::cannot_open;
use crate::schema::SCHEMA_VERSION;

/// The `application_id` in the SQLite header of our files: "Wndl".
pub(crate) const APPLICATION_ID: u32 = 0x576e_646c;

const HEADER_BYTES: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const USER_VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;

/// What exists at the path of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathContents {
    /// Nothing, or an empty file.
    Nothing,
    Store,
}

/// Refuses a file that is not a store, and a store that a newer version wrote. Changes nothing.
///
/// The caller must hold the lock of the store, or be in a process that does not have the store
/// open: closing the file drops all locks that SQLite holds on it in this process.
pub(crate) fn check(path: &Path) -> Result<PathContents, StoreError> {
    let failed = |error: std::io::Error| cannot_open(path, &error);
    let refused = |found: &str| StoreError::NotAStore {
        path: path.display().to_string(),
        found: found.to_owned(),
    };
    match std::fs::metadata(path) {
        Ok(about) if about.is_dir() => return Err(failed(ErrorKind::IsADirectory.into())),
        Ok(about) if !about.is_file() => return Err(refused("it is not a file")),
        Ok(about) if about.len() == 0 => return Ok(PathContents::Nothing),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(PathContents::Nothing),
        Err(error) => return Err(failed(error)),
    }
    let mut header = [0; HEADER_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match read {
        Ok(()) if header.starts_with(MAGIC) => {}
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(failed(error)),
        _ => return Err(refused("it is not a SQLite database")),
    }
    if number_at(&header, APPLICATION_ID_AT) != APPLICATION_ID {
        return Err(refused("it is the SQLite database of another program"));
    }
    let found = number_at(&header, USER_VERSION_AT);
    if found > SCHEMA_VERSION {
        return Err(StoreError::WrongSchema {
            found,
            needed: SCHEMA_VERSION,
        });
    }
    Ok(PathContents::Store)
}

/// Like [`check`], but also refuses a path without a store.
pub(crate) fn check_store(path: &Path) -> Result<(), StoreError> {
    match check(path)? {
        PathContents::Store => Ok(()),
        PathContents::Nothing => Err(StoreError::NotAStore {
            path: path.display().to_string(),
            found: "the file does not exist or is empty".to_owned(),
        }),
    }
}

fn number_at(header: &[u8; HEADER_BYTES], offset: usize) -> u32 {
    let bytes = header.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
