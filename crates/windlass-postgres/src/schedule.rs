//! Schedules and their occurrences.

mod fire;

use std::cmp::Reverse;
use std::collections::HashMap;

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::schedule::NewSchedule;
use windlass_core::{Job, JobId, ScheduleId, Timestamp};
use windlass_store::{
    Expected, Fire, FiredOccurrence, Schedule, ScheduleRef, ScheduleRow, Schedules,
    UNFINISHED_SCAN_MAX, UnreadableSchedule, Written,
};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, bigint, params, unsigned};
use crate::read;
use crate::row::{self, ACTIVE_COLUMNS};
use crate::session::Session;
use crate::settings::Settings;
use crate::unreadable::skip_unreadable;

pub(crate) use fire::fire;

const COLUMNS: &str = "id, version, definition, created_at, last_at, next_at, name";

fn uuid(id: ScheduleId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}

fn definition_json(definition: &NewSchedule) -> DriverResult<String> {
    serde_json::to_string(definition).map_err(|error| {
        DriverError::damaged(format!("the schedule cannot be written as JSON: {error}"))
    })
}

pub(crate) async fn put(
    session: &mut Session,
    schedule: &Schedule,
    expected: Expected,
) -> DriverResult<Written> {
    let (id, name) = (uuid(schedule.id), schedule.definition.name.as_str());
    let sql = "select id, version from windlass.schedules where id = $1 or name = $2 order by id for update";
    let rows = session.query(sql, params![id, name]).await?;
    let mut found = None;
    for row in &rows {
        let (stored_id, version): (Uuid, i64) = (row.try_get(0)?, row.try_get(1)?);
        let version = unsigned(version);
        if stored_id != id {
            session.roll_back().await?;
            return Ok(Written::Conflict(Some(version)));
        }
        found = Some(version);
    }
    if !expected.allows(found) {
        session.roll_back().await?;
        return Ok(Written::Conflict(found));
    }
    let next = found.unwrap_or(0) + 1;
    let definition = definition_json(&schedule.definition)?;
    let sql = "insert into windlass.schedules (id, name, version, definition, created_at, last_at, next_at)
         values ($1, $2, $3, $4, $5, $6, $7)
         on conflict do nothing returning id";
    let update = "update windlass.schedules
         set name = $2, version = $3, definition = $4, created_at = $5, last_at = $6, next_at = $7
         where id = $1 returning id";
    let written = session
        .query_and_commit(
            if found.is_some() { update } else { sql },
            params![
                id,
                name,
                bigint(next),
                definition,
                Time(schedule.created_at),
                schedule.last_at.map(Time),
                schedule.next_at.map(Time),
            ],
        )
        .await?;
    if written.is_empty() {
        return Err(DriverError::Collision); // another transaction created it or took its name
    }
    Ok(Written::Version(next))
}

pub(crate) async fn all(session: &mut Session) -> DriverResult<Schedules> {
    let sql = format!("select {COLUMNS} from windlass.schedules order by name");
    let rows = session.read(&sql, params![]).await?;
    Ok(skip_unreadable("schedule", &rows, read)
        .into_iter()
        .collect())
}

pub(crate) async fn one(
    session: &mut Session,
    which: &ScheduleRef,
) -> DriverResult<Option<Schedule>> {
    let rows = match which {
        ScheduleRef::Id(id) => {
            let sql = format!("select {COLUMNS} from windlass.schedules where id = $1");
            session.read(&sql, params![uuid(*id)]).await?
        }
        ScheduleRef::Name(name) => {
            let sql = format!("select {COLUMNS} from windlass.schedules where name = $1");
            session.read(&sql, params![name.as_str()]).await?
        }
    };
    let found = rows.first().map(read).transpose()?;
    Ok(found.and_then(Result::ok))
}

/// Returns the fired occurrences scheduled before an instant, newest first.
pub(crate) async fn occurrences(
    session: &mut Session,
    schedule: ScheduleId,
    before: Option<Timestamp>,
    limit: usize,
) -> DriverResult<Vec<FiredOccurrence>> {
    let sql = "select at, job from windlass.occurrences
         where schedule = $1 and at < $2 order by at desc limit $3";
    let before = Time(before.unwrap_or(Timestamp::MAX));
    let params = params![uuid(schedule), before, bigint(limit as u64)];
    let rows = session.read(sql, params).await?;
    let fired = |found: &Row| {
        let job: Option<Uuid> = found.try_get(1)?;
        Ok(FiredOccurrence {
            scheduled_for: row::time(found, 0)?,
            job: job.map(|job| JobId::from_u128(job.as_u128())),
        })
    };
    Ok(skip_unreadable("occurrence", &rows, fired))
}

/// Returns the schedules that are due for longest. Skips those that cannot be read.
pub(crate) async fn due(
    session: &mut Session,
    limit: usize,
    now: Timestamp,
) -> DriverResult<Vec<Schedule>> {
    let sql = format!(
        "select {COLUMNS} from windlass.schedules where next_at <= $1 order by next_at, id limit $2 offset $3"
    );
    let (mut due, mut skipped) = (Vec::new(), 0);
    loop {
        let remaining = limit - due.len();
        let params = params![Time(now), bigint(remaining as u64), bigint(skipped as u64)];
        let rows = session.read(&sql, params).await?;
        due.extend(
            skip_unreadable("schedule", &rows, read)
                .into_iter()
                .flatten(),
        );
        skipped += rows.len();
        if rows.len() < remaining || due.len() == limit {
            return Ok(due);
        }
    }
}

/// Reads a schedule, or what can be read of one with an unreadable definition.
fn read(found: &Row) -> DriverResult<Result<Schedule, UnreadableSchedule>> {
    let id: Uuid = found.try_get(0)?;
    let version: i64 = found.try_get(1)?;
    let stored = ScheduleRow {
        id: ScheduleId::from_u128(id.as_u128()),
        name: found.try_get(6)?,
        version: unsigned(version),
        definition: found.try_get(2)?,
        created_at: row::time(found, 3)?,
        last_at: row::optional_time(found, 4)?,
        next_at: row::optional_time(found, 5)?,
    };
    Ok(stored.read())
}

pub(crate) async fn remove(
    session: &mut Session,
    schedule: ScheduleId,
    expected: Expected,
) -> DriverResult<Written> {
    let id = uuid(schedule);
    let sql = "select version from windlass.schedules where id = $1 for update";
    let rows = session.query(sql, params![id]).await?;
    let found: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?;
    let found = found.map(unsigned);
    let Some(version) = found.filter(|_| expected.allows(found)) else {
        session.roll_back().await?;
        return Ok(Written::Conflict(found));
    };
    for sql in [
        "delete from windlass.schedules where id = $1",
        "delete from windlass.occurrences where schedule = $1",
    ] {
        session.query(sql, params![id]).await?;
    }
    let sql = "delete from windlass.records where topic = $1";
    let topic = Fire::skipped_topic(schedule);
    session.query_and_commit(sql, params![topic]).await?;
    Ok(Written::Version(version))
}

/// Returns the waiting and running jobs among the newest occurrences of each schedule.
pub(crate) async fn unfinished_occurrences(
    session: &mut Session,
    settings: &Settings,
    schedules: &[ScheduleId],
) -> DriverResult<Vec<Vec<Job>>> {
    let ids: Vec<Uuid> = schedules.iter().map(|schedule| uuid(*schedule)).collect();
    let sql =
        include_str!("../sql/unfinished_occurrences.sql").replace("/* columns */", ACTIVE_COLUMNS);
    let params = params![ids, bigint(UNFINISHED_SCAN_MAX as u64)];
    let rows = session.read(&sql, params).await?;
    let (jobs, _) = read::active(session, settings, &rows).await?;
    let mut unfinished: HashMap<ScheduleId, Vec<Job>> = HashMap::new();
    for job in jobs {
        if let Some(occurrence) = job.occurrence {
            unfinished
                .entry(occurrence.schedule_id)
                .or_default()
                .push(job);
        }
    }
    let scheduled_for = |job: &Job| job.occurrence.map(|occurrence| occurrence.scheduled_for);
    let newest_first = |schedule| {
        let mut jobs = unfinished.remove(schedule).unwrap_or_default();
        jobs.sort_by_key(|job| Reverse(scheduled_for(job)));
        jobs
    };
    Ok(schedules.iter().map(newest_first).collect())
}

/// Deletes the occurrences of purged jobs.
pub(crate) async fn remove_occurrences(
    session: &mut Session,
    jobs: impl Iterator<Item = &Job>,
) -> DriverResult<()> {
    let occurrences = jobs.filter_map(|job| job.occurrence);
    let (schedules, instants): (Vec<Uuid>, Vec<Time>) = occurrences
        .map(|occurrence| (uuid(occurrence.schedule_id), Time(occurrence.scheduled_for)))
        .unzip();
    if schedules.is_empty() {
        return Ok(());
    }
    let sql = "delete from windlass.occurrences as fired
         using unnest($1::uuid[], $2::timestamptz[]) as removed (schedule, at)
         where fired.schedule = removed.schedule and fired.at = removed.at";
    session.query(sql, params![schedules, instants]).await?;
    Ok(())
}
