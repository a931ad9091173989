//! Conversions between Rust values and SQLite columns.

use std::time::Duration;

use rusqlite::Row;
use serde_json::Value;
use windlass_core::{AttemptError, JobId, Outcome, Timestamp};

use crate::error::{DriverError, DriverResult};

pub(crate) fn blob(id: JobId) -> [u8; 16] {
    id.as_u128().to_be_bytes()
}

pub(crate) fn id_from(bytes: [u8; 16]) -> JobId {
    JobId::from_u128(u128::from_be_bytes(bytes))
}

pub(crate) fn id_of(row: &Row<'_>, column: usize) -> DriverResult<JobId> {
    Ok(id_from(row.get(column)?))
}

/// Reads a count or version, which SQLite stores as a signed number.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    Ok(u64::try_from(number).unwrap_or(0))
}

/// Converts a count or version for SQLite.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts the limit of a query for SQLite.
pub(crate) fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(crate) fn timestamp(micros: i64) -> DriverResult<Timestamp> {
    Timestamp::from_micros(micros)
        .ok_or_else(|| DriverError::damaged(format!("{micros} is not a valid timestamp")))
}

pub(super) fn optional_timestamp(micros: Option<i64>) -> DriverResult<Option<Timestamp>> {
    micros.map(timestamp).transpose()
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn to_json(error: &AttemptError) -> String {
    serde_json::to_string(error).expect("an attempt error serializes to JSON")
}

pub(super) fn outcome_number(outcome: Outcome) -> u8 {
    let position = Outcome::ALL.iter().position(|known| *known == outcome);
    position
        .and_then(|position| u8::try_from(position).ok())
        .unwrap_or(0)
}

pub(super) fn outcome_from(number: u8) -> DriverResult<Outcome> {
    let outcome = Outcome::ALL.get(usize::from(number)).copied();
    outcome.ok_or_else(|| DriverError::damaged(format!("{number} is not a known outcome")))
}

pub(super) fn from_json(text: &str) -> DriverResult<AttemptError> {
    serde_json::from_str(text)
        .map_err(|error| DriverError::damaged(format!("the error of an attempt: {error}")))
}

pub(crate) fn value(text: &str) -> DriverResult<Value> {
    serde_json::from_str(text)
        .map_err(|error| DriverError::damaged(format!("a JSON value: {error}")))
}
