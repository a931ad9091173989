//! A job as rows, and rows as a job.

mod attempt;
mod state;
mod value;

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, Statement, params};
use windlass_core::{Job, JobId, fixed_hash};
use windlass_store::stored::{Asked, LastAttempt, extra_of};

pub(crate) use attempt::{attempts, insert_attempt};
pub(crate) use state::{
    CANCELLED, DEAD_FROM, RUNNING, SUCCEEDED, WAITING, dead_number, end_state, insert_first_state,
    put_state, request_cancel, set_claim, state_number, succeed_state,
};
pub(crate) use value::{blob, id_of, signed, timestamp, unsigned, value};

use crate::error::{DriverError, DriverResult, if_readable};
use crate::names::Names;
use state::apply_state;

/// A number that a flipped bit changes: eight bytes at a time, then the rest, well mixed.
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

/// Stores a new job; answers whether its id was free.
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
        extra_of(job),
    ])?;
    Ok(changed == 1)
}

/// Writes what an edit or a revival may have changed.
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
        extra_of(job),
    ])?;
    Ok(())
}

/// The job with that id, and the end of its last attempt.
pub(crate) fn find(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
) -> DriverResult<Option<(Job, LastAttempt)>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_job.sql"))?;
    let found = one(&mut statement, id, |row| job_from(row, names, id))?;
    let Some(mut job) = found else {
        return Ok(None);
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/select_state.sql"))?;
    let last = one(&mut statement, id, |row| apply_state(row, names, &mut job))?;
    Ok(Some((job, last.unwrap_or_default())))
}

/// The job with that id that was never claimed: there is nothing but what was asked for.
pub(crate) fn find_fresh(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
) -> DriverResult<Option<Job>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_job.sql"))?;
    one(&mut statement, id, |row| job_from(row, names, id))
}

/// Jobs that were never claimed and lie close together, read in one walk; those that were not met are left out. The ids are
/// sorted, and so is what is found.
pub(crate) fn walk_fresh(
    connection: &Connection,
    names: &mut Names,
    ids: &[JobId],
) -> DriverResult<Vec<Job>> {
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else {
        return Ok(Vec::new());
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/walk_jobs.sql"))?;
    let mut rows = statement.query(params![blob(*first), blob(*last)])?;
    let mut found = Vec::with_capacity(ids.len());
    let mut wanted = ids.iter().peekable();
    // Where others lie between, single look-ups are cheaper than a long walk.
    let mut steps = ids.len() * 3;
    while let Some(row) = rows.next()? {
        let id = id_of(row, 8)?;
        while wanted.next_if(|wanted| **wanted < id).is_some() {}
        if wanted.next_if_eq(&&id).is_some() {
            // One that cannot be read is left out, and told of by whoever looks for it alone.
            found.extend(if_readable(job_from(row, names, id))?);
        }
        steps -= 1;
        if steps == 0 {
            break;
        }
    }
    Ok(found)
}

fn one<T>(
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
        return Err(DriverError::damaged(format!("the payload of job {id}")));
    }
    let asked = Asked {
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
