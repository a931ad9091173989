//! Errors of this driver, and how they become a [`StoreError`].

use std::io::ErrorKind;
use std::path::Path;

use rusqlite::{Error, ErrorCode, ffi};
use windlass_core::JobId;
use windlass_store::StoreError;

/// Why a verb failed.
#[derive(Debug)]
pub(crate) enum DriverError {
    /// SQLite returned an error, or a value of a row does not have the expected type.
    Sql(Error),
    /// Stored data is not what this version writes.
    Damaged(String),
    /// The stored data of one job is not what this version writes.
    DamagedJob(JobId, String),
}

pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// Turns an unreadable row into `None`. A newer version may have written the row, and it must not
/// fail a read of its neighbours.
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

    /// Adds the id of the job that was being read.
    pub(crate) fn of_job(self, id: JobId) -> Self {
        match self {
            DriverError::Damaged(what) => DriverError::DamagedJob(id, what),
            DriverError::Sql(error) if error.sqlite_error_code().is_none() => {
                DriverError::DamagedJob(id, format!("a value of job {id} cannot be read: {error}"))
            }
            other => other,
        }
    }

    /// Returns why stored data cannot be read, if that is what failed.
    pub(crate) fn unreadable(&self) -> Option<String> {
        match self {
            DriverError::Damaged(what) | DriverError::DamagedJob(_, what) => Some(what.clone()),
            DriverError::Sql(error) if error.sqlite_error_code().is_none() => {
                Some(error.to_string())
            }
            DriverError::Sql(_) => None,
        }
    }

    /// Whether a sync failed. After that, no one knows what is on disk, and the store must stop.
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

    /// Converts the error to one of the `Store` contract.
    pub(crate) fn into_store_error(self) -> StoreError {
        let error = match self {
            DriverError::Damaged(what) => return StoreError::Damaged { what, cause: None },
            DriverError::DamagedJob(job, reason) => return StoreError::Unreadable { job, reason },
            DriverError::Sql(error) => error,
        };
        // Not an error of SQLite itself: a column does not have the type that we write.
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

/// Returns why the file of a store cannot be opened, and the next step.
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

/// Turns an error of SQLite at opening into one that names the path and the next step.
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
    fn an_open_error_names_the_path_and_the_next_step() {
        let message = |kind: ErrorKind| {
            cannot_open(Path::new("/srv/jobs/windlass.db"), &kind.into()).to_string()
        };
        assert_eq!(
            message(ErrorKind::PermissionDenied),
            "/srv/jobs/windlass.db cannot be opened: permission denied; \
             let this process read and write the file and its folder"
        );
        assert_eq!(
            message(ErrorKind::NotFound),
            "/srv/jobs/windlass.db cannot be opened: the folder /srv/jobs does not exist; \
             create the folder, or correct the path"
        );
    }
}
