//! Writes jobs to rows and reads them back.

mod attempt;
mod state;
mod value;

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, Statement, params};
use windlass_core::{Job, JobId, fixed_hash};
use windlass_store::stored::{EnqueuedRow, LastAttempt, optional_fields_json};

pub(crate) use attempt::{attempts, insert_attempt};
pub(crate) use state::{
    CANCELLED, DEAD_FROM, RUNNING, SUCCEEDED, WAITING, dead_number, end_state, fingerprint,
    insert_first_state, put_state, request_cancel, set_claim, state_number, succeed_state,
};
pub(crate) use value::{blob, id_from, id_of, signed, sql_limit, timestamp, unsigned, value};

use crate::error::{DriverError, DriverResult, if_readable};
use crate::names::Names;
use state::apply_state;

/// Returns a checksum that detects flipped bits in a payload. Not cryptographic.
fn checksum(payload: &str) -> i64 {
    let (words, rest) = payload.as_bytes().as_chunks::<8>();
    let step = |sum: u64, word: u64| {
        (sum ^ word)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let sum = words.fold(payload.len() as u64, step);
    step(sum, fixed_hash(rest)).cast_signed()
}

/// Stores a new job. Returns `false` if the id is already taken.
pub(crate) fn insert_job(
    insert_job: &mut Statement<'_>,
    job: &Job,
    queue: u32,
    kind: u32,
) -> DriverResult<bool> {
    let payload = job.payload.as_str();
    let changed = insert_job.execute(params![
        blob(job.id),
        queue,
        kind,
        job.priority,
        job.run_at.as_micros(),
        job.created_at.as_micros(),
        checksum(payload),
        payload,
        optional_fields_json(job),
    ])?;
    Ok(changed == 1)
}

/// Writes the columns that an edit, a patch or a revival can change.
pub(crate) fn update_job(
    connection: &Connection,
    names: &mut Names,
    job: &Job,
) -> DriverResult<()> {
    let queue = names.number(connection, job.queue.as_str())?;
    let payload = job.payload.as_str();
    let mut statement = connection.prepare_cached(include_str!("../sql/update_job.sql"))?;
    let run_at = job.run_at.as_micros();
    statement.execute(params![
        blob(job.id),
        queue,
        job.priority,
        run_at,
        checksum(payload),
        payload,
        optional_fields_json(job),
    ])?;
    Ok(())
}

/// Reads a job and the outcome of its last attempt.
pub(crate) fn find(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
) -> DriverResult<Option<(Job, LastAttempt)>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_job.sql"))?;
    let Some(mut job) = query_one(&mut statement, id, |row| job_from(row, names, id))? else {
        return Ok(None);
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/select_state.sql"))?;
    let last = query_one(&mut statement, id, |row| apply_state(row, names, &mut job))?;
    Ok(Some((job, last.unwrap_or_default())))
}

/// Reads a job that has no row in `states`.
pub(crate) fn find_fresh(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
) -> DriverResult<Option<Job>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_job.sql"))?;
    query_one(&mut statement, id, |row| job_from(row, names, id))
}

/// Reads never-claimed jobs with one range scan instead of one look-up each. `ids` must be sorted;
/// the result is sorted too.
///
/// Jobs that were enqueued together are neighbours in the table, so the scan usually meets little
/// else. It gives up after a few rows per job; the caller reads the missing jobs one by one.
pub(crate) fn scan_fresh(
    connection: &Connection,
    names: &mut Names,
    ids: &[JobId],
) -> DriverResult<Vec<Job>> {
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else {
        return Ok(Vec::new());
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/scan_jobs.sql"))?;
    let mut rows = statement.query(params![blob(*first), blob(*last)])?;
    let mut jobs = Vec::with_capacity(ids.len());
    let mut remaining = ids.iter().peekable();
    // If many other rows are in between, single look-ups are cheaper than a long scan.
    let mut steps = ids.len() * 3;
    while let Some(row) = rows.next()? {
        let id = id_of(row, 8)?;
        while remaining.next_if(|next| **next < id).is_some() {}
        if remaining.next_if_eq(&&id).is_some() {
            // An unreadable job is left out; the caller reads it alone and handles the error.
            jobs.extend(if_readable(job_from(row, names, id))?);
        }
        steps -= 1;
        if steps == 0 {
            break;
        }
    }
    Ok(jobs)
}

fn query_one<T>(
    statement: &mut CachedStatement<'_>,
    id: JobId,
    mut read: impl FnMut(&Row<'_>) -> DriverResult<T>,
) -> DriverResult<Option<T>> {
    let row = statement
        .query_row([blob(id)], |row| Ok(read(row)))
        .optional()?;
    row.transpose().map_err(|error| error.of_job(id))
}

fn job_from(row: &Row<'_>, names: &mut Names, id: JobId) -> DriverResult<Job> {
    let payload = row.get_ref(6)?.as_str().map_err(rusqlite::Error::from)?;
    if checksum(payload) != row.get::<_, i64>(5)? {
        return Err(DriverError::damaged(format!(
            "the checksum of the payload of job {id} does not match"
        )));
    }
    let asked = EnqueuedRow {
        id,
        kind: names.kind(row.get(1)?)?,
        queue: names.queue(row.get(0)?)?,
        priority: row.get(2)?,
        run_at: timestamp(row.get(3)?)?,
        created_at: timestamp(row.get(4)?)?,
        payload,
        extra: row
            .get_ref(7)?
            .as_str_or_null()
            .map_err(rusqlite::Error::from)?,
    };
    asked.into_job().map_err(DriverError::damaged)
}
