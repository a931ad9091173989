//! What SQLite says, in the words of the contract.

use std::io::ErrorKind;
use std::path::Path;

use rusqlite::{Error, ErrorCode, ffi};
use windlass_core::JobId;
use windlass_store::StoreError;

/// A step that could not be carried out.
#[derive(Debug)]
pub(crate) enum DriverError {
    /// SQLite refused or failed.
    Sql(Error),
    /// What is stored is not what was written.
    Damaged(String),
    /// What is stored of one job is not what was written.
    DamagedJob(JobId, String),
}

pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// What was read; none of what is there and cannot be read, because a newer version wrote it.
pub(crate) fn if_readable<T>(read: DriverResult<T>) -> DriverResult<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.unreadable() {
            Some(reason) => {
                tracing::debug!(reason, "skipped an unreadable row");
                Ok(None)
            }
            None => Err(error),
        },
    }
}

impl From<Error> for DriverError {
    fn from(error: Error) -> Self {
        DriverError::Sql(error)
    }
}

impl DriverError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        DriverError::Damaged(what.into())
    }

    /// The same, as it was met while reading one job.
    pub(crate) fn of_job(self, id: JobId) -> Self {
        match self {
            DriverError::Damaged(what) => DriverError::DamagedJob(id, what),
            DriverError::Sql(error) if error.sqlite_error_code().is_none() => {
                DriverError::DamagedJob(id, format!("a value of job {id} cannot be read: {error}"))
            }
            other => other,
        }
    }

    /// Why something that is stored cannot be read, if that is what failed.
    pub(crate) fn unreadable(&self) -> Option<String> {
        match self {
            DriverError::Damaged(what) | DriverError::DamagedJob(_, what) => Some(what.clone()),
            DriverError::Sql(error) if error.sqlite_error_code().is_none() => {
                Some(error.to_string())
            }
            DriverError::Sql(_) => None,
        }
    }

    /// Whether the disk did not take what was to be made durable: nothing may be acknowledged after that.
    pub(crate) fn is_failed_sync(&self) -> bool {
        const SYNCS: [i32; 3] = [
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_IOERR_DIR_FSYNC,
            ffi::SQLITE_IOERR_TRUNCATE,
        ];
        matches!(self, DriverError::Sql(Error::SqliteFailure(failure, _)) if SYNCS.contains(&failure.extended_code))
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        matches!(self, DriverError::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull))
    }

    /// The same in the words of the contract.
    pub(crate) fn into_store_error(self) -> StoreError {
        let error = match self {
            DriverError::Damaged(what) => return StoreError::Damaged { what, cause: None },
            DriverError::DamagedJob(job, reason) => return StoreError::Unreadable { job, reason },
            DriverError::Sql(error) => error,
        };
        // What does not fit its type was not written by us.
        if error.sqlite_error_code().is_none() {
            return StoreError::Damaged {
                what: "a value that cannot be read".to_owned(),
                cause: Some(error.into()),
            };
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::StorageFull(error.into()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged {
                what: "SQLite cannot read the file".to_owned(),
                cause: Some(error.into()),
            },
            Some(
                ErrorCode::ConstraintViolation
                | ErrorCode::TooBig
                | ErrorCode::TypeMismatch
                | ErrorCode::ParameterOutOfRange,
            ) => StoreError::Refused {
                reason: format!("SQLite: {error}"),
            },
            _ => StoreError::Unavailable(error.into()),
        }
    }
}

/// Says why a store at a path cannot be opened.
pub(crate) fn cannot_open(path: &Path, error: &std::io::Error) -> StoreError {
    let (shown, folder) = (path.display(), path.parent().unwrap_or(path).display());
    let (reason, next) = match error.kind() {
        ErrorKind::NotFound => (
            format!("{shown} cannot be opened: the folder {folder} does not exist"),
            "create the folder, or correct the path",
        ),
        ErrorKind::PermissionDenied => (
            format!("{shown} cannot be opened: permission denied"),
            "let this process read and write the file and its folder",
        ),
        ErrorKind::IsADirectory => (
            format!("{shown} cannot be opened: it is a folder"),
            "name a file",
        ),
        _ => (
            format!("{shown} cannot be opened: {error}"),
            "check the path and the disk",
        ),
    };
    StoreError::CannotOpen { reason, next }
}

/// The same of what SQLite said while a store was opened.
pub(crate) fn while_opening(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(cause) => StoreError::CannotOpen {
            reason: format!("{} cannot be opened: {cause}", path.display()),
            next: "let this process read and write the file and its folder, and close other programs that use it",
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_opened_is_told_with_a_next_step() {
        let told = |kind: ErrorKind| {
            cannot_open(Path::new("/srv/jobs/windlass.db"), &kind.into()).to_string()
        };
        assert_eq!(
            told(ErrorKind::PermissionDenied),
            "/srv/jobs/windlass.db cannot be opened: permission denied; \
             let this process read and write the file and its folder"
        );
        assert_eq!(
            told(ErrorKind::NotFound),
            "/srv/jobs/windlass.db cannot be opened: the folder /srv/jobs does not exist; \
             create the folder, or correct the path"
        );
    }
}
