//! A job as rows, and rows as a job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::retry::{AttemptLimit, RetryPolicy};
use windlass_core::{
    AttemptError, Concurrency, DeadReason, Delivery, End, Ended, HTTP_TIMEOUT_DEFAULT, Job, JobId,
    Key, Lease, Occurrence, OnDuplicate, Outcome, Payload, ScheduleId, Standing, TIMEOUT_DEFAULT,
    Tag, Timeout, Timestamp, Unique, fixed_hash,
};
use windlass_store::Attempt;

use crate::fault::{Fault, Step};
use crate::names::Names;

pub(crate) fn blob(id: JobId) -> [u8; 16] {
    id.as_u128().to_be_bytes()
}

pub(crate) fn id_of(row: &Row<'_>, column: usize) -> Step<JobId> {
    let bytes: [u8; 16] = row.get(column)?;
    Ok(JobId::from_u128(u128::from_be_bytes(bytes)))
}

/// A count or version, which SQLite keeps as a signed number.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    Ok(u64::try_from(number).unwrap_or(0))
}

/// The same on its way in.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn timestamp(micros: i64) -> Step<Timestamp> {
    Timestamp::from_micros(micros).ok_or_else(|| Fault::damaged(format!("{micros} is no instant")))
}

fn optional_timestamp(micros: Option<i64>) -> Step<Option<Timestamp>> {
    micros.map(timestamp).transpose()
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

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

/// What a job has that most have not, as JSON: a job at its defaults has no such text.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Extra {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_most_once: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryPolicy>,
    /// 0 is none; absent is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique: Option<(Key, Option<i64>, bool)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<(Key, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<Tag>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<(ScheduleId, i64)>,
}

impl Extra {
    fn of(job: &Job) -> Self {
        let timeout = match job.timeout {
            Timeout::After(timeout) if timeout == default_timeout(job) => None,
            Timeout::After(timeout) => Some(micros(timeout)),
            Timeout::None => Some(0),
        };
        let unique = job.unique.as_ref().map(|unique| {
            let replace = unique.on_duplicate == OnDuplicate::Replace;
            (unique.key.clone(), unique.unique_for.map(micros), replace)
        });
        Extra {
            at_most_once: job.delivery == Delivery::AtMostOnce,
            max_attempts: job.max_attempts.map(AttemptLimit::get),
            retry: job.retry.as_deref().cloned(),
            timeout,
            deadline: job.deadline.map(Timestamp::as_micros),
            unique,
            concurrency: job
                .concurrency
                .as_ref()
                .map(|of| (of.key.clone(), of.limit)),
            tags: job.tags.clone(),
            meta: job.meta.clone(),
            occurrence: job
                .occurrence
                .map(|of| (of.schedule_id, of.scheduled_for.as_micros())),
        }
    }

    pub(crate) fn parse(text: Option<&str>) -> Step<Self> {
        let Some(text) = text else {
            return Ok(Extra::default());
        };
        serde_json::from_str(text)
            .map_err(|error| Fault::damaged(format!("a job's options: {error}")))
    }

    /// The text of a job's options; nothing for a job at its defaults, which most are.
    fn text_of(job: &Job) -> Option<String> {
        let plain = job.delivery == Delivery::AtLeastOnce
            && job.max_attempts.is_none()
            && job.retry.is_none()
            && job.deadline.is_none()
            && job.unique.is_none()
            && job.concurrency.is_none()
            && job.occurrence.is_none()
            && job.tags.is_empty()
            && job.meta.is_empty()
            && job.timeout == Timeout::After(default_timeout(job));
        if plain { None } else { Extra::of(job).text() }
    }

    fn text(&self) -> Option<String> {
        let text = (*self != Extra::default()).then(|| serde_json::to_string(self));
        text.map(|text| text.expect("options are plain JSON"))
    }
}

fn default_timeout(job: &Job) -> Duration {
    if job.kind.is_http() {
        HTTP_TIMEOUT_DEFAULT
    } else {
        TIMEOUT_DEFAULT
    }
}

/// Stores a new job; answers whether its id was free.
pub(crate) fn insert_job(connection: &Connection, job: &Job, queue: u32, kind: u32) -> Step<bool> {
    let payload = job.payload.as_str();
    let mut statement = connection.prepare_cached(include_str!("../sql/insert_job.sql"))?;
    let changed = statement.execute(params![
        blob(job.id),
        queue,
        kind,
        job.priority,
        job.run_at.as_micros(),
        job.created_at.as_micros(),
        checksum(payload),
        payload,
        Extra::text_of(job),
    ])?;
    Ok(changed == 1)
}

/// Writes what an edit or a revival may have changed.
pub(crate) fn update_job(connection: &Connection, names: &mut Names, job: &Job) -> Step<()> {
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
        Extra::text_of(job),
    ])?;
    Ok(())
}

/// The end of a job's last attempt, kept with the job.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastAttempt {
    pub(crate) outcome: Option<Outcome>,
    pub(crate) detail: Option<Value>,
}

/// Writes where a job stands.
pub(crate) fn put_state(
    connection: &Connection,
    names: &mut Names,
    job: &Job,
    last: &LastAttempt,
) -> Step<()> {
    let worker = match &job.worker {
        Some(worker) => Some(names.number(connection, worker.as_str())?),
        None => None,
    };
    let lease = job.lease();
    let policy = match lease.and_then(|lease| lease.policy.as_ref()) {
        Some(policy) => Some(names.policy_number(connection, policy)?),
        None => None,
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/put_state.sql"))?;
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
    ])?;
    Ok(())
}

/// Writes the first claim of a job.
pub(crate) fn start_state(connection: &Connection, names: &mut Names, job: &Job) -> Step<()> {
    let lease = job
        .lease()
        .ok_or_else(|| Fault::damaged(format!("job {} does not run", job.id)))?;
    let worker = match &job.worker {
        Some(worker) => Some(names.number(connection, worker.as_str())?),
        None => None,
    };
    let policy = match &lease.policy {
        Some(policy) => Some(names.policy_number(connection, policy)?),
        None => None,
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/start_state.sql"))?;
    statement.execute(params![
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

/// Writes the end of the running attempt of a job: only what an end changes, and only if it still runs.
pub(crate) fn end_state(connection: &Connection, job: &Job, last: &LastAttempt) -> Step<()> {
    if last.outcome == Some(Outcome::Succeeded) {
        return succeed_state(connection, job, last);
    }
    let mut statement = connection.prepare_cached(include_str!("../sql/end_state.sql"))?;
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
    ])?;
    check_ended(changed, job)
}

/// The end that most attempts have, which changes least.
fn succeed_state(connection: &Connection, job: &Job, last: &LastAttempt) -> Step<()> {
    let mut statement = connection.prepare_cached(include_str!("../sql/succeed_state.sql"))?;
    let changed = statement.execute(params![
        blob(job.id),
        job.attempt,
        job.finished_at().map(Timestamp::as_micros),
        result_of(job),
        last.detail.as_ref().map(Value::to_string),
    ])?;
    check_ended(changed, job)
}

fn check_ended(changed: usize, job: &Job) -> Step<()> {
    if changed != 1 {
        return Err(Fault::damaged(format!(
            "job {} does not run on disk",
            job.id
        )));
    }
    Ok(())
}

fn result_of(job: &Job) -> Option<&str> {
    match &job.standing {
        Standing::Finished(End {
            how: Ended::Succeeded(result),
            ..
        }) => result.as_ref().map(Payload::as_str),
        _ => None,
    }
}

fn to_json(error: &AttemptError) -> String {
    serde_json::to_string(error).expect("an error is plain text")
}

/// The job with that id, and the end of its last attempt.
pub(crate) fn find(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
) -> Step<Option<(Job, LastAttempt)>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_job.sql"))?;
    let found = one(&mut statement, id, |row| job_from(row, names, id))?;
    let Some(mut job) = found else {
        return Ok(None);
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/select_state.sql"))?;
    let last = one(&mut statement, id, |row| stand(row, names, &mut job))?;
    Ok(Some((job, last.unwrap_or_default())))
}

/// The job with that id that was never claimed: there is nothing but what was asked for.
pub(crate) fn find_fresh(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
) -> Step<Option<Job>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_job.sql"))?;
    one(&mut statement, id, |row| job_from(row, names, id))
}

/// Jobs that were never claimed and lie close together, read in one walk; those that were not met are left out.
pub(crate) fn walk_fresh(
    connection: &Connection,
    names: &mut Names,
    ids: &BTreeSet<JobId>,
) -> Step<Vec<Job>> {
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else {
        return Ok(Vec::new());
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/walk_jobs.sql"))?;
    let mut rows = statement.query(params![blob(*first), blob(*last)])?;
    let mut found = Vec::with_capacity(ids.len());
    // Where others lie between, single look-ups are cheaper than a long walk.
    let mut steps = ids.len() * 3;
    while let Some(row) = rows.next()? {
        let id = id_of(row, 8)?;
        if ids.contains(&id) {
            found.push(job_from(row, names, id).map_err(|fault| fault.of_job(id))?);
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
    mut read: impl FnMut(&Row<'_>) -> Step<T>,
) -> Step<Option<T>> {
    let row = statement
        .query_row([blob(id)], |row| Ok(read(row)))
        .optional()?;
    row.transpose().map_err(|fault| fault.of_job(id))
}

fn job_from(row: &Row<'_>, names: &mut Names, id: JobId) -> Step<Job> {
    let payload = row.get_ref(6)?.as_str().map_err(rusqlite::Error::from)?;
    if checksum(payload) != row.get::<_, i64>(5)? {
        return Err(Fault::damaged(format!("the payload of job {id}")));
    }
    let payload = Payload::from_stored(payload);
    let extra = Extra::parse(
        row.get_ref(7)?
            .as_str_or_null()
            .map_err(rusqlite::Error::from)?,
    )?;
    let limit = extra
        .max_attempts
        .map(|limit| AttemptLimit::from_max_attempts(limit.into()));
    let limit = limit
        .transpose()
        .map_err(|error| Fault::damaged(error.to_string()))?;
    let mut job = Job {
        id,
        kind: names.kind(row.get(1)?)?,
        payload,
        queue: names.queue(row.get(0)?)?,
        priority: row.get(2)?,
        run_at: timestamp(row.get(3)?)?,
        delivery: if extra.at_most_once {
            Delivery::AtMostOnce
        } else {
            Delivery::AtLeastOnce
        },
        max_attempts: limit.flatten(),
        retry: extra.retry.map(Arc::new),
        timeout: Timeout::None,
        deadline: optional_timestamp(extra.deadline)?,
        unique: extra.unique.map(|(key, hold, replace)| Unique {
            key,
            unique_for: hold.map(duration),
            on_duplicate: if replace {
                OnDuplicate::Replace
            } else {
                OnDuplicate::Keep
            },
        }),
        concurrency: extra
            .concurrency
            .map(|(key, limit)| Concurrency { key, limit }),
        tags: extra.tags,
        meta: extra.meta,
        occurrence: match extra.occurrence {
            Some((schedule_id, at)) => Some(Occurrence {
                schedule_id,
                scheduled_for: timestamp(at)?,
            }),
            None => None,
        },
        created_at: timestamp(row.get(4)?)?,
        attempt: 0,
        failures: 0,
        snoozes: 0,
        losses_in_a_row: 0,
        previous_delay: None,
        first_started_at: None,
        started_at: None,
        worker: None,
        last_error: None,
        failed_at: None,
        standing: Standing::Waiting,
    };
    job.timeout = match extra.timeout {
        None => Timeout::After(default_timeout(&job)),
        Some(0) => Timeout::None,
        Some(timeout) => Timeout::After(duration(timeout)),
    };
    Ok(job)
}

/// Puts what `states` says onto a job.
fn stand(row: &Row<'_>, names: &mut Names, job: &mut Job) -> Step<LastAttempt> {
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
    let finished_at = optional_timestamp(row.get(16)?)?;
    let state: i64 = row.get(0)?;
    job.standing = match (state, finished_at) {
        (0, None) => Standing::Waiting,
        (1, None) => Standing::Running(lease_from(row, names)?),
        (state, Some(finished_at)) => Standing::Finished(End {
            finished_at,
            how: ended(state, row.get(17)?)?,
        }),
        _ => return Err(Fault::damaged(format!("the state of job {}", job.id))),
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

fn lease_from(row: &Row<'_>, names: &Names) -> Step<Lease> {
    let limit = AttemptLimit::from_max_attempts(row.get(14)?);
    let limit = limit.map_err(|error| Fault::damaged(error.to_string()))?;
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

const DEAD_FROM: usize = 10;

/// The number of a job's state in the tables.
pub(crate) fn state_number(job: &Job) -> i64 {
    match &job.standing {
        Standing::Waiting => 0,
        Standing::Running(_) => 1,
        Standing::Finished(end) => match &end.how {
            Ended::Succeeded(_) => 2,
            Ended::Cancelled => 3,
            Ended::Dead(reason) => {
                let place = DeadReason::ALL.iter().position(|known| known == reason);
                i64::try_from(DEAD_FROM + place.unwrap_or(0)).unwrap_or(0)
            }
        },
    }
}

fn ended(state: i64, result: Option<String>) -> Step<Ended> {
    let dead = usize::try_from(state)
        .ok()
        .and_then(|state| state.checked_sub(DEAD_FROM));
    match (state, dead.and_then(|place| DeadReason::ALL.get(place))) {
        (2, _) => {
            let result = result
                .as_deref()
                .map(|text| Payload::parse(text, usize::MAX));
            let result = result
                .transpose()
                .map_err(|error| Fault::damaged(error.to_string()))?;
            Ok(Ended::Succeeded(result))
        }
        (3, _) => Ok(Ended::Cancelled),
        (_, Some(reason)) => Ok(Ended::Dead(*reason)),
        _ => Err(Fault::damaged(format!("{state} is no state"))),
    }
}

fn outcome_number(outcome: Outcome) -> u8 {
    let place = Outcome::ALL.iter().position(|known| *known == outcome);
    place
        .and_then(|place| u8::try_from(place).ok())
        .unwrap_or(0)
}

fn outcome_from(number: u8) -> Step<Outcome> {
    let outcome = Outcome::ALL.get(usize::from(number)).copied();
    outcome.ok_or_else(|| Fault::damaged(format!("{number} is no outcome")))
}

fn from_json(text: &str) -> Step<AttemptError> {
    serde_json::from_str(text).map_err(|error| Fault::damaged(format!("an error's text: {error}")))
}

pub(crate) fn value(text: &str) -> Step<Value> {
    serde_json::from_str(text).map_err(|error| Fault::damaged(format!("a value: {error}")))
}

/// The last attempt of a job that has ended by it, as a row of history.
pub(crate) fn last_attempt(job: &Job, last: &LastAttempt) -> Option<Attempt> {
    let outcome = last.outcome?;
    let failed = outcome.counts_as_failure();
    Some(Attempt {
        attempt: job.attempt,
        retry_count: job.failures - u32::from(failed && job.failures > 0),
        outcome,
        started_at: job.started_at.unwrap_or(job.created_at),
        finished_at: job.finished_at()?,
        worker: job.worker.clone(),
        error: job.last_error.clone().filter(|_| failed),
        detail: last.detail.clone(),
    })
}

pub(crate) fn insert_attempt(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
    attempt: &Attempt,
) -> Step<()> {
    let worker = match &attempt.worker {
        Some(worker) => Some(names.number(connection, worker.as_str())?),
        None => None,
    };
    let mut statement = connection.prepare_cached(include_str!("../sql/insert_attempt.sql"))?;
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

/// The ended attempts of a job that are rows of their own, newest first.
pub(crate) fn attempts(
    connection: &Connection,
    names: &mut Names,
    id: JobId,
    limit: usize,
) -> Step<Vec<Attempt>> {
    let mut statement = connection.prepare_cached(include_str!("../sql/select_attempts.sql"))?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![blob(id), limit])?;
    let mut attempts = Vec::new();
    while let Some(row) = rows.next()? {
        attempts.push(Attempt {
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
        });
    }
    Ok(attempts)
}
