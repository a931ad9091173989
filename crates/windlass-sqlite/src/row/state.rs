//! The state of a job: its row in `states`.

use rusqlite::{Connection, Row, Statement, params};
use serde_json::Value;
use windlass_core::retry::AttemptLimit;
use windlass_core::{
    DeadReason, FinalState, Fingerprint, Finish, Job, JobId, Lease, Payload, State, StateDetails,
    Timestamp,
};
use windlass_store::stored::{LastAttempt, interventions_json, parse_interventions, result_of};

use super::value::{
    blob, duration, from_json, micros, optional_timestamp, outcome_from, outcome_number, timestamp,
    to_json, value,
};
use crate::error::{DriverError, DriverResult};
use crate::names::Names;

/// Writes the whole state of a job.
pub(crate) fn put_state(
    connection: &Connection,
    names: &mut Names,
    job: &Job,
    last: &LastAttempt,
) -> DriverResult<()> {
    let worker = match &job.worker {
        Some(worker) => Some(names.number(connection, worker.as_str())?),
        None => None,
    };
    let lease = job.lease();
    let policy = match lease.and_then(|lease| lease.policy.as_ref()) {
        Some(policy) => Some(names.policy_number(connection, policy)?),
        None => None,
    };
    let mut statement = connection.prepare_cached(include_str!("../../sql/put_state.sql"))?;
    statement.execute(params![
        blob(job.id),
        state_number(job),
        job.run_at.as_micros(),
        job.attempt,
        job.failures,
        job.snoozes,
        job.losses_in_a_row,
        job.previous_delay.map(micros),
        job.first_started_at.map(Timestamp::as_micros),
        job.started_at.map(Timestamp::as_micros),
        worker,
        job.last_error.as_ref().map(to_json),
        job.failed_at.map(Timestamp::as_micros),
        lease.map(|lease| lease.until.as_micros()),
        policy,
        lease.map(|lease| lease.effective_max.get()),
        lease.is_some_and(|lease| lease.cancel_requested),
        job.finished_at().map(Timestamp::as_micros),
        result_of(job),
        last.outcome.map(outcome_number),
        last.detail.as_ref().map(Value::to_string),
        fingerprint(job),
        waiting_since(job),
        interventions_json(job),
    ])?;
    Ok(())
}

/// Returns the 64 bits of a job's cause.
pub(crate) fn fingerprint(job: &Job) -> Option<i64> {
    job.fingerprint.map(|cause| cause.bits().cast_signed())
}

/// Returns since when a job waits, unless that is since it was enqueued.
fn waiting_since(job: &Job) -> Option<i64> {
    (job.waiting_since != job.created_at).then(|| job.waiting_since.as_micros())
}

/// Writes the state of a job at its first claim: a plain insert, because there is no row yet.
pub(crate) fn insert_first_state(
    insert_first_state: &mut Statement<'_>,
    connection: &Connection,
    names: &mut Names,
    job: &Job,
) -> DriverResult<()> {
    let lease = job
        .lease()
        .ok_or_else(|| DriverError::damaged(format!("job {} is not running", job.id)))?;
    let worker = match &job.worker {
        Some(worker) => Some(names.number(connection, worker.as_str())?),
        None => None,
    };
    let policy = match &lease.policy {
        Some(policy) => Some(names.policy_number(connection, policy)?),
        None => None,
    };
    insert_first_state.execute(params![
        blob(job.id),
        job.run_at.as_micros(),
        job.attempt,
        job.started_at.map(Timestamp::as_micros),
        worker,
        lease.until.as_micros(),
        policy,
        lease.effective_max.get(),
    ])?;
    Ok(())
}

/// Records the claim of a remote worker. Its attempt survives a restart of this process.
pub(crate) fn set_claim(connection: &Connection, id: JobId, claim: u128) -> DriverResult<()> {
    let mut statement = connection.prepare_cached(include_str!("../../sql/set_claim.sql"))?;
    statement.execute(params![blob(id), claim.to_be_bytes()])?;
    Ok(())
}

/// Records that the running attempt of a job must stop.
pub(crate) fn request_cancel(connection: &Connection, job: &Job) -> DriverResult<()> {
    let mut statement = connection.prepare_cached(include_str!("../../sql/request_cancel.sql"))?;
    let interventions = interventions_json(job);
    let changed = statement.execute(params![blob(job.id), job.attempt, interventions])?;
    check_running(changed, job)
}

/// Writes the end of a running attempt: only the columns that it can change, and only if the
/// attempt still runs.
pub(crate) fn end_state(
    connection: &Connection,
    job: &Job,
    last: &LastAttempt,
) -> DriverResult<()> {
    let mut statement = connection.prepare_cached(include_str!("../../sql/end_state.sql"))?;
    let changed = statement.execute(params![
        blob(job.id),
        job.attempt,
        state_number(job),
        job.run_at.as_micros(),
        job.failures,
        job.snoozes,
        job.losses_in_a_row,
        job.previous_delay.map(micros),
        job.last_error.as_ref().map(to_json),
        job.failed_at.map(Timestamp::as_micros),
        job.finished_at().map(Timestamp::as_micros),
        result_of(job),
        last.outcome.map(outcome_number),
        last.detail.as_ref().map(Value::to_string),
        fingerprint(job),
        waiting_since(job),
        interventions_json(job),
    ])?;
    check_running(changed, job)
}

/// Writes a success, which is the most common end and changes the fewest columns. Not for a revived
/// job: its success is also recorded with the revival.
pub(crate) fn succeed_state(
    succeed_state: &mut Statement<'_>,
    job: &Job,
    last: &LastAttempt,
) -> DriverResult<()> {
    let changed = succeed_state.execute(params![
        blob(job.id),
        job.attempt,
        job.finished_at().map(Timestamp::as_micros),
        result_of(job),
        last.detail.as_ref().map(Value::to_string),
    ])?;
    check_running(changed, job)
}

fn check_running(changed: usize, job: &Job) -> DriverResult<()> {
    if changed != 1 {
        return Err(DriverError::damaged(format!(
            "job {} runs in memory but not on disk",
            job.id
        )));
    }
    Ok(())
}

/// Sets the fields of a job from its row in `states`.
pub(super) fn apply_state(
    row: &Row<'_>,
    names: &mut Names,
    job: &mut Job,
) -> DriverResult<LastAttempt> {
    job.run_at = timestamp(row.get(1)?)?;
    job.attempt = row.get(2)?;
    job.failures = row.get(3)?;
    job.snoozes = row.get(4)?;
    job.losses_in_a_row = row.get(5)?;
    job.previous_delay = row.get::<_, Option<i64>>(6)?.map(duration);
    job.first_started_at = optional_timestamp(row.get(7)?)?;
    job.started_at = optional_timestamp(row.get(8)?)?;
    job.worker = match row.get::<_, Option<u32>>(9)? {
        Some(number) => Some(names.worker(number)?),
        None => None,
    };
    job.last_error = row
        .get::<_, Option<String>>(10)?
        .map(|text| from_json(&text))
        .transpose()?;
    job.failed_at = optional_timestamp(row.get(11)?)?;
    let cause: Option<i64> = row.get(20)?;
    job.fingerprint = cause.map(|bits| Fingerprint::from_bits(bits.cast_unsigned()));
    let waiting_since = optional_timestamp(row.get(21)?)?;
    job.waiting_since = waiting_since.unwrap_or(job.created_at);
    let interventions = row.get_ref(22)?.as_str_or_null();
    let interventions = interventions.map_err(rusqlite::Error::from)?;
    job.interventions = parse_interventions(interventions).map_err(DriverError::damaged)?;
    let finished_at = optional_timestamp(row.get(16)?)?;
    let state: i64 = row.get(0)?;
    job.state_details = match (state, finished_at) {
        (WAITING, None) => StateDetails::Waiting,
        (RUNNING, None) => StateDetails::Running(lease_from(row, names)?),
        (state, Some(finished_at)) => StateDetails::Finished(Finish {
            finished_at,
            state: ended(state, row.get(17)?)?,
        }),
        _ => {
            let what = format!("the state of job {} is not valid", job.id);
            return Err(DriverError::damaged(what));
        }
    };
    Ok(LastAttempt {
        outcome: row
            .get::<_, Option<u8>>(18)?
            .map(outcome_from)
            .transpose()?,
        detail: row
            .get::<_, Option<String>>(19)?
            .map(|text| value(&text))
            .transpose()?,
    })
}

fn lease_from(row: &Row<'_>, names: &Names) -> DriverResult<Lease> {
    let limit = AttemptLimit::from_max_attempts(row.get(14)?);
    let limit = limit.map_err(|error| DriverError::damaged(error.to_string()))?;
    Ok(Lease {
        until: timestamp(row.get(12)?)?,
        policy: row
            .get::<_, Option<i64>>(13)?
            .map(|number| names.policy(number))
            .transpose()?,
        effective_max: limit.unwrap_or(AttemptLimit::ONE),
        cancel_requested: row.get(15)?,
    })
}

// The numbers of states in the tables. A dead job has `DEAD_FROM` plus the position of its reason.
pub(crate) const WAITING: i64 = 0;
pub(crate) const RUNNING: i64 = 1;
pub(crate) const SUCCEEDED: i64 = 2;
pub(crate) const CANCELLED: i64 = 3;
pub(crate) const DEAD_FROM: i64 = 10;

/// Returns the number of a job's state in the tables.
pub(crate) fn state_number(job: &Job) -> i64 {
    match job.state() {
        State::Waiting => WAITING,
        State::Running => RUNNING,
        State::Succeeded => SUCCEEDED,
        State::Cancelled => CANCELLED,
        State::Dead(reason) => dead_number(reason),
    }
}

/// Returns the number of the state of a job that died for this reason.
pub(crate) fn dead_number(reason: DeadReason) -> i64 {
    let position = DeadReason::ALL.iter().position(|known| *known == reason);
    DEAD_FROM
        + position
            .and_then(|position| i64::try_from(position).ok())
            .unwrap_or(0)
}

fn ended(state: i64, result: Option<String>) -> DriverResult<FinalState> {
    let dead = DeadReason::ALL
        .into_iter()
        .find(|reason| dead_number(*reason) == state);
    match (state, dead) {
        (SUCCEEDED, _) => {
            let result = result
                .as_deref()
                .map(|text| Payload::parse(text, usize::MAX));
            let result = result
                .transpose()
                .map_err(|error| DriverError::damaged(error.to_string()))?;
            Ok(FinalState::Succeeded(result))
        }
        (CANCELLED, _) => Ok(FinalState::Cancelled),
        (_, Some(reason)) => Ok(FinalState::Dead(reason)),
        _ => Err(DriverError::damaged(format!(
            "{state} is not a known state"
        ))),
    }
}
