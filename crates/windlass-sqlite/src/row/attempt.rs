//! Ended attempts: rows of the table `attempts`.

use rusqlite::{Connection, Row, params};
use serde_json::Value;
use windlass_core::JobId;
use windlass_store::Attempt;

use super::value::{
    blob, from_json, outcome_from, outcome_number, sql_limit, timestamp, to_json, value,
};
use crate::error::{DriverResult, if_readable};
use crate::names::Names;

pub(crate) fn insert_attempt(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
    attempt: &Attempt,
) -> DriverResult<()> {
    let worker = match &attempt.worker {
        Some(worker) => Some(names.number(connection, worker.as_str())?),
        None => None,
    };
    let mut statement = connection.prepare_cached(include_str!("../../sql/insert_attempt.sql"))?;
    statement.execute(params![
        blob(id),
        attempt.attempt,
        attempt.retry_count,
        outcome_number(attempt.outcome),
        attempt.started_at.as_micros(),
        attempt.finished_at.as_micros(),
        worker,
        attempt.error.as_ref().map(to_json),
        attempt.detail.as_ref().map(Value::to_string),
    ])?;
    Ok(())
}

/// Returns the ended attempts of a job that have a row in `attempts`, newest first.
pub(crate) fn attempts(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
    limit: usize,
) -> DriverResult<Vec<Attempt>> {
    let mut statement = connection.prepare_cached(include_str!("../../sql/select_attempts.sql"))?;
    let mut rows = statement.query(params![blob(id), sql_limit(limit)])?;
    let mut attempts = Vec::new();
    while let Some(row) = rows.next()? {
        attempts.extend(if_readable(attempt(row, names))?);
    }
    Ok(attempts)
}

fn attempt(row: &Row<'_>, names: &mut Names) -> DriverResult<Attempt> {
    Ok(Attempt {
        attempt: row.get(0)?,
        retry_count: row.get(1)?,
        outcome: outcome_from(row.get(2)?)?,
        started_at: timestamp(row.get(3)?)?,
        finished_at: timestamp(row.get(4)?)?,
        worker: match row.get::<_, Option<u32>>(5)? {
            Some(number) => Some(names.worker(number)?),
            None => None,
        },
        error: row
            .get::<_, Option<String>>(6)?
            .map(|text| from_json(&text))
            .transpose()?,
        detail: row
            .get::<_, Option<String>>(7)?
            .map(|text| value(&text))
            .transpose()?,
    })
}
