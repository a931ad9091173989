//! Errors of this driver, and how they become a [`StoreError`].

use tokio_postgres::error::{Severity, SqlState};
use windlass_store::StoreError;

/// SQLSTATE classes that concern the rows of a statement and not the state of the server:
/// cardinality, data exceptions, constraints, triggers, views with a check, program limits, errors
/// raised by PL/pgSQL, damaged data.
const REFUSALS: [&str; 9] = ["09", "21", "22", "23", "27", "44", "54", "P0", "XX"];

/// Why a verb failed.
#[derive(Debug)]
pub(crate) enum DriverError {
    /// PostgreSQL or the connection returned an error.
    Sql(tokio_postgres::Error),
    /// A concurrent transaction changed what this one had read; retry at once.
    Collision,
    /// Stored data is not what this version writes.
    Damaged(String),
    /// The `Store` contract refuses the request.
    Refused(StoreError),
}

pub(crate) type DriverResult<T> = Result<T, DriverError>;

impl From<tokio_postgres::Error> for DriverError {
    fn from(error: tokio_postgres::Error) -> Self {
        DriverError::Sql(error)
    }
}

impl From<StoreError> for DriverError {
    fn from(error: StoreError) -> Self {
        DriverError::Refused(error)
    }
}

impl DriverError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        DriverError::Damaged(what.into())
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            DriverError::Sql(error) => error.code(),
            _ => None,
        }
    }

    /// Whether a concurrent transaction made this one fail, so that a retry can succeed at once.
    pub(crate) fn is_collision(&self) -> bool {
        const COLLISIONS: [SqlState; 3] = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        matches!(self, DriverError::Collision)
            || self.code().is_some_and(|code| COLLISIONS.contains(code))
    }

    /// Whether another connection may help: this one is broken or has lost its statements, or its
    /// server is shutting down or read-only.
    pub(crate) fn is_connection_error(&self) -> bool {
        const UNUSABLE: [SqlState; 6] = [
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ];
        match self {
            DriverError::Sql(error) => match error.code() {
                Some(code) => UNUSABLE.contains(code) || code.code().starts_with("08"),
                None => is_connection_error(error),
            },
            _ => false,
        }
    }

    /// Whether a check inside a statement failed: `windlass.enqueue_v1` found the id of a
    /// finished job.
    pub(crate) fn is_failed_check(&self) -> bool {
        self.code()
            .is_some_and(|code| *code == SqlState::DIVISION_BY_ZERO)
    }

    /// Whether the server reported that it did not execute the transaction, even if the error came
    /// with the commit.
    pub(crate) fn was_not_executed(&self) -> bool {
        self.code()
            .is_some_and(|code| *code == SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// Converts the error of a transaction that did not happen to one of the `Store` contract.
    pub(crate) fn into_store_error(self) -> StoreError {
        let error = match self {
            DriverError::Refused(error) => return error,
            DriverError::Damaged(what) => return StoreError::Damaged { what, cause: None },
            DriverError::Collision => {
                let cause = "concurrent transactions changed the same rows at every attempt";
                return StoreError::Unavailable(cause.into());
            }
            DriverError::Sql(error) => error,
        };
        if error.code().is_none() && !is_connection_error(&error) {
            return StoreError::Damaged {
                what: "a value that cannot be read".to_owned(),
                cause: Some(error.into()),
            };
        }
        if let Some(reason) = refusal(&error) {
            return StoreError::Refused { reason };
        }
        match error.code() {
            Some(code) if *code == SqlState::DISK_FULL => StoreError::StorageFull(error.into()),
            Some(code)
                if *code == SqlState::UNDEFINED_TABLE || *code == SqlState::INVALID_SCHEMA_NAME =>
            {
                StoreError::WrongSchema {
                    found: 0,
                    needed: crate::migrate::newest(),
                }
            }
            _ => StoreError::Unavailable(error.into()),
        }
    }
}

/// Returns the message of the server if it refused a row. Leaves out the detail, which contains
/// values of the row.
fn refusal(error: &tokio_postgres::Error) -> Option<String> {
    let db_error = error.as_db_error()?;
    // A fatal error concerns the connection, or comes from a pooler in front of the server.
    let fatal = matches!(
        db_error.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    );
    let code = db_error.code().code();
    let refused = !fatal && REFUSALS.iter().any(|class| code.starts_with(class));
    refused.then(|| format!("SQLSTATE {code}: {}", db_error.message()))
}

/// Whether an error that did not come from the server concerns the connection, and not a value that
/// cannot be read.
fn is_connection_error(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error);
    error.is_closed() || cause.is_some_and(|cause| cause.is::<std::io::Error>())
}
