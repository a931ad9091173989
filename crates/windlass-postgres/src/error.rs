//! What PostgreSQL says, in the words of the contract.

use tokio_postgres::error::{Severity, SqlState};
use windlass_store::StoreError;

/// Classes of SQLSTATE that are about the rows of a statement, and not about the state of the
/// server: cardinality, data exceptions, constraints, triggers, views with a check, program limits,
/// errors that PL/pgSQL raises, damaged data.
const REFUSALS: [&str; 9] = ["09", "21", "22", "23", "27", "44", "54", "P0", "XX"];

/// A step that could not be carried out.
#[derive(Debug)]
pub(crate) enum DriverError {
    /// PostgreSQL refused or failed, or the connection to it did.
    Sql(tokio_postgres::Error),
    /// Another step was quicker: this one may be tried again at once.
    Collision,
    /// What is stored is not what was written.
    Damaged(String),
    /// The contract refuses it.
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

    /// Whether the server took the whole step back because of somebody else's: it may be tried again at once.
    pub(crate) fn is_collision(&self) -> bool {
        const COLLISIONS: [SqlState; 3] = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        matches!(self, DriverError::Collision)
            || self.code().is_some_and(|code| COLLISIONS.contains(code))
    }

    /// Whether another connection may do better: this one is gone, or leads to a server that only reads.
    pub(crate) fn is_connection_error(&self) -> bool {
        const GOING: [SqlState; 5] = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ];
        match self {
            DriverError::Sql(error) => match error.code() {
                Some(code) => GOING.contains(code) || code.code().starts_with("08"),
                None => is_connection_error(error),
            },
            _ => false,
        }
    }

    /// Whether `refuse_ended.sql` failed: an id is that of a job that is over.
    pub(crate) fn is_finished_id(&self) -> bool {
        self.code()
            .is_some_and(|code| *code == SqlState::DIVISION_BY_ZERO)
    }

    /// Whether the server said that it did not do it.
    pub(crate) fn was_not_executed(&self) -> bool {
        self.code()
            .is_some_and(|code| *code == SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// The same in the words of the contract, for a step that did not happen.
    pub(crate) fn into_store_error(self) -> StoreError {
        let error = match self {
            DriverError::Refused(error) => return error,
            DriverError::Damaged(what) => return StoreError::Damaged { what, cause: None },
            DriverError::Collision => {
                return StoreError::Unavailable("others were quicker again and again".into());
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

/// What the server said, if it does not accept a row. Without the detail, which shows the values of
/// the row.
fn refusal(error: &tokio_postgres::Error) -> Option<String> {
    let told = error.as_db_error()?;
    // What is fatal is of the connection, or of a pooler that stands for the server.
    let fatal = matches!(
        told.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    );
    let code = told.code().code();
    let refused = !fatal && REFUSALS.iter().any(|class| code.starts_with(class));
    refused.then(|| format!("SQLSTATE {code}: {}", told.message()))
}

/// Whether an error that the server did not tell is the connection's, and not of a value that cannot be read.
fn is_connection_error(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error);
    error.is_closed() || cause.is_some_and(|cause| cause.is::<std::io::Error>())
}
