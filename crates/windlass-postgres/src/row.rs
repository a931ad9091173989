//! Reads jobs from rows.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::{
    AttemptError, DeadReason, FinalState, Fingerprint, Finish, Job, JobId, Lease, Outcome, Payload,
    State, StateDetails, Timestamp,
};
use windlass_store::stored::{EnqueuedRow, LastAttempt, parse_interventions};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, unsigned};
use crate::settings::SettingsById;

/// The columns that all tables of jobs have.
macro_rules! job_columns {
    () => {
        "id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, losses_in_a_row, \
         previous_delay, first_started_at, started_at, worker, last_error, failed_at, fingerprint, interventions, \
         waiting_since"
    };
}

/// The columns of an active job.
pub(crate) const ACTIVE_COLUMNS: &str =
    concat!(job_columns!(), ", lease_until, settings, cancel_requested");
/// The columns of a finished job.
pub(crate) const FINISHED_COLUMNS: &str = concat!(
    job_columns!(),
    ", state, reason, finished_at, result, outcome, detail"
);

pub(crate) fn uuid(id: JobId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}

pub(crate) fn uuids(ids: impl IntoIterator<Item = JobId>) -> Vec<Uuid> {
    ids.into_iter().map(uuid).collect()
}

pub(crate) fn id(row: &Row, column: usize) -> DriverResult<JobId> {
    let id: Uuid = row.try_get(column)?;
    Ok(JobId::from_u128(id.as_u128()))
}

pub(crate) fn time(row: &Row, column: usize) -> DriverResult<Timestamp> {
    let Time(at) = row.try_get(column)?;
    Ok(at)
}

pub(crate) fn optional_time(row: &Row, column: usize) -> DriverResult<Option<Timestamp>> {
    let at: Option<Time> = row.try_get(column)?;
    Ok(at.map(|Time(at)| at))
}

/// The bit of a fingerprint that is stored flipped, so that the signed order of the database is the
/// order of causes.
const FLIPPED: u64 = 1 << 63;

/// Converts a fingerprint to its stored form.
pub(crate) fn cause(fingerprint: Fingerprint) -> i64 {
    (fingerprint.bits() ^ FLIPPED).cast_signed()
}

/// Converts a fingerprint from its stored form.
pub(crate) fn fingerprint(stored: i64) -> Fingerprint {
    Fingerprint::from_bits(stored.cast_unsigned() ^ FLIPPED)
}

/// Reads a version or a cursor.
pub(crate) fn number(row: &Row, column: usize) -> DriverResult<u64> {
    let number: i64 = row.try_get(column)?;
    Ok(unsigned(number))
}

pub(crate) fn count(row: &Row, column: usize) -> DriverResult<u32> {
    let number: i32 = row.try_get(column)?;
    u32::try_from(number)
        .map_err(|_| DriverError::damaged(format!("{number} is not a valid count")))
}

/// Reads a name. It was checked when it was written, but a newer version may allow other names.
pub(crate) fn name<T: std::str::FromStr<Err = windlass_core::Invalid>>(
    row: &Row,
    column: usize,
) -> DriverResult<T> {
    let text: &str = row.try_get(column)?;
    text.parse()
        .map_err(|error| DriverError::damaged(format!("a name: {error}")))
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the number of the retry settings of an active job.
pub(crate) fn settings_of(row: &Row) -> Option<i32> {
    row.try_get(22).ok().flatten()
}

/// Reads an active job.
pub(crate) fn active(row: &Row, settings: &SettingsById) -> DriverResult<Job> {
    let mut job = job(row)?;
    if i32::try_from(job.attempt) == Ok(i32::MAX) {
        return Err(DriverError::damaged(
            "the attempt counter is at its maximum",
        ));
    }
    let Some(until) = optional_time(row, 21)? else {
        return Ok(job);
    };
    let number: Option<i32> = row.try_get(22)?;
    // A failover may have lost the settings; then the defaults apply.
    let settings = number.and_then(|number| settings.get(&number)).cloned();
    let settings = settings.transpose().map_err(DriverError::damaged)?;
    let lease = Lease {
        cancel_requested: row.try_get(23)?,
        ..settings.unwrap_or_default().lease_for(&job, until)
    };
    job.state_details = StateDetails::Running(lease);
    Ok(job)
}

/// Reads a finished job, and how its last attempt ended.
pub(crate) fn finished(row: &Row) -> DriverResult<(Job, LastAttempt)> {
    let mut job = job(row)?;
    let (state, reason): (&str, Option<&str>) = (row.try_get(21)?, row.try_get(22)?);
    let result: Option<&str> = row.try_get(24)?;
    let how = match (state, reason) {
        ("succeeded", None) => {
            let result = result.map(|text| json("the result", text)).transpose()?;
            FinalState::Succeeded(result.map(Payload::from_stored))
        }
        ("cancelled", None) => FinalState::Cancelled,
        ("dead", Some(reason)) => {
            let reason = reason.parse::<DeadReason>();
            FinalState::Dead(reason.map_err(|error| DriverError::damaged(error.to_string()))?)
        }
        _ => {
            return Err(DriverError::damaged(format!(
                "the state of job {} is not valid",
                job.id
            )));
        }
    };
    let finished_at = time(row, 23)?;
    job.state_details = StateDetails::Finished(Finish {
        finished_at,
        state: how,
    });
    let outcome: Option<&str> = row.try_get(25)?;
    let detail: Option<&str> = row.try_get(26)?;
    let last = LastAttempt {
        outcome: outcome.map(self::outcome).transpose()?,
        detail: detail.map(value).transpose()?,
    };
    Ok((job, last))
}

fn job(row: &Row) -> DriverResult<Job> {
    let rank: i32 = row.try_get(3)?;
    let asked = EnqueuedRow {
        id: id(row, 0)?,
        queue: name(row, 1)?,
        kind: name(row, 2)?,
        priority: priority(rank)?,
        run_at: time(row, 4)?,
        created_at: time(row, 5)?,
        payload: json("the payload", row.try_get(6)?)?,
        extra: row.try_get(7)?,
    };
    let mut job = asked.into_job().map_err(DriverError::damaged)?;
    job.attempt = count(row, 8)?;
    job.failures = count(row, 9)?;
    job.snoozes = count(row, 10)?;
    job.losses_in_a_row = count(row, 11)?;
    let delay: Option<i64> = row.try_get(12)?;
    job.previous_delay = delay.map(|micros| Duration::from_micros(unsigned(micros)));
    job.first_started_at = optional_time(row, 13)?;
    job.started_at = optional_time(row, 14)?;
    let worker: Option<&str> = row.try_get(15)?;
    let worker = worker.map(str::parse).transpose();
    job.worker = worker.map_err(|error| DriverError::damaged(format!("a worker: {error}")))?;
    let error: Option<&str> = row.try_get(16)?;
    job.last_error = error.map(self::error).transpose()?;
    job.failed_at = optional_time(row, 17)?;
    let fingerprint: Option<i64> = row.try_get(18)?;
    job.fingerprint = fingerprint.map(self::fingerprint);
    job.interventions = parse_interventions(row.try_get(19)?).map_err(DriverError::damaged)?;
    job.waiting_since = optional_time(row, 20)?.unwrap_or(job.created_at);
    Ok(job)
}

fn priority(rank: i32) -> DriverResult<i16> {
    let priority = rank.checked_neg().map(i16::try_from);
    let priority = priority.and_then(Result::ok);
    priority.ok_or_else(|| DriverError::damaged(format!("rank {rank} is not a valid priority")))
}

/// Checks that a text is JSON. The column accepts any text, and without this check the error would
/// appear only when the job is shown or claimed.
fn json<'a>(what: &str, text: &'a str) -> DriverResult<&'a str> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(IgnoredAny) => Ok(text),
        Err(error) => Err(DriverError::damaged(format!("{what} is not JSON: {error}"))),
    }
}

pub(crate) fn value(text: &str) -> DriverResult<Value> {
    serde_json::from_str(text)
        .map_err(|error| DriverError::damaged(format!("a JSON value: {error}")))
}

pub(crate) fn error(text: &str) -> DriverResult<AttemptError> {
    serde_json::from_str(text)
        .map_err(|error| DriverError::damaged(format!("the error of an attempt: {error}")))
}

pub(crate) fn error_text(error: &AttemptError) -> String {
    serde_json::to_string(error).expect("an attempt error serializes to JSON")
}

pub(crate) fn outcome(name: &str) -> DriverResult<Outcome> {
    let found = Outcome::ALL
        .into_iter()
        .find(|outcome| outcome.name() == name);
    found.ok_or_else(|| DriverError::damaged(format!("{name} is not a known outcome")))
}

/// Returns the state of a job and the reason of its death as the tables have them.
pub(crate) fn state_words(state: State) -> (&'static str, Option<&'static str>) {
    match state {
        State::Waiting => ("waiting", None),
        State::Running => ("running", None),
        State::Succeeded => ("succeeded", None),
        State::Cancelled => ("cancelled", None),
        State::Dead(reason) => ("dead", Some(reason.name())),
    }
}
