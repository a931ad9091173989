//! Schedules and their occurrences.

use std::collections::BTreeSet;

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::schedule::NewSchedule;
use windlass_core::{Job, ScheduleId, Timestamp};
use windlass_store::{Expected, Fire, Fired, Schedule, Written};

use crate::fault::{Fault, Step};
use crate::general::append_within;
use crate::keys;
use crate::param::{Time, bigint, params};
use crate::row;
use crate::session::Session;
use crate::write::{Columns, How};

const COLUMNS: &str = "id, version, definition, created_at, last_at, next_at";

fn uuid(id: ScheduleId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}

pub(crate) async fn put(
    session: &mut Session,
    schedule: &Schedule,
    expected: Expected,
) -> Step<Written> {
    let (id, name) = (uuid(schedule.id), schedule.definition.name.as_str());
    let sql = "select id, version from windlass.schedules where id = $1 or name = $2 order by id for update";
    let rows = session.query(sql, params![id, name]).await?;
    let mut found = None;
    for row in &rows {
        let (of, version): (Uuid, i64) = (row.try_get(0)?, row.try_get(1)?);
        let version = u64::try_from(version).unwrap_or(0);
        if of != id {
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
    let definition = serde_json::to_string(&schedule.definition)
        .map_err(|error| Fault::damaged(format!("a schedule: {error}")))?;
    let sql = "insert into windlass.schedules (id, name, version, definition, created_at, last_at, next_at)
         values ($1, $2, $3, $4, $5, $6, $7)
         on conflict do nothing returning id";
    let update = "update windlass.schedules
         set name = $2, version = $3, definition = $4, created_at = $5, last_at = $6, next_at = $7
         where id = $1 returning id";
    let written = session
        .last(
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
        return Err(Fault::Collision); // somebody else created it, or took its name, just now
    }
    Ok(Written::Version(next))
}

pub(crate) async fn all(session: &mut Session) -> Step<Vec<Schedule>> {
    let sql = format!("select {COLUMNS} from windlass.schedules order by name");
    session
        .look(&sql, params![])
        .await?
        .iter()
        .map(read)
        .collect()
}

pub(crate) async fn due(
    session: &mut Session,
    limit: usize,
    now: Timestamp,
) -> Step<Vec<Schedule>> {
    let sql = format!(
        "select {COLUMNS} from windlass.schedules where next_at <= $1 order by next_at, id limit $2"
    );
    let params = params![Time(now), bigint(limit as u64)];
    session.look(&sql, params).await?.iter().map(read).collect()
}

fn read(found: &Row) -> Step<Schedule> {
    let id: Uuid = found.try_get(0)?;
    let version: i64 = found.try_get(1)?;
    let definition = NewSchedule::from_json(found.try_get(2)?);
    Ok(Schedule {
        id: ScheduleId::from_u128(id.as_u128()),
        version: u64::try_from(version).unwrap_or(0),
        definition: definition.map_err(|error| Fault::damaged(format!("a schedule: {error}")))?,
        created_at: row::time(found, 3)?,
        last_at: row::optional_time(found, 4)?,
        next_at: row::optional_time(found, 5)?,
    })
}

pub(crate) async fn remove(session: &mut Session, schedule: ScheduleId) -> Step<bool> {
    let id = uuid(schedule);
    let sql = "delete from windlass.schedules where id = $1 returning id";
    let removed = session.query(sql, params![id]).await?;
    let sql = "delete from windlass.occurrences where schedule = $1";
    session.last(sql, params![id]).await?;
    Ok(!removed.is_empty())
}

/// Fires occurrences; answers which jobs are new.
pub(crate) async fn fire(
    session: &mut Session,
    fire: &Fire,
    now: Timestamp,
) -> Step<(Fired, Vec<Job>)> {
    let sql = "update windlass.schedules set version = version + 1, last_at = $3, next_at = $4
         where id = $1 and version = $2 returning id";
    let moved = session
        .query(
            sql,
            params![
                uuid(fire.schedule),
                bigint(fire.version),
                fire.last_at.map(Time),
                fire.next_at.map(Time),
            ],
        )
        .await?;
    if moved.is_empty() {
        session.roll_back().await?;
        return Ok((Fired::Stale, Vec::new()));
    }
    if let Some(record) = fire.skipped_record() {
        append_within(session, Fire::SKIPPED_TOPIC, &[record], now).await?;
    }
    let new = new_occurrences(session, &fire.jobs).await?;
    let places = new.iter().filter_map(|job| keys::place(job, &job.queue));
    let mut held: BTreeSet<keys::Place> = keys::holders(session, &places.collect(), now)
        .await?
        .into_keys()
        .collect();
    let free = |job: &&Job| keys::place(job, &job.queue).is_none_or(|place| held.insert(place));
    let made: Vec<&Job> = new.into_iter().filter(free).collect();
    let missed = keys::take(session, &made, now).await?;
    let columns = Columns::of(made.iter().copied(), now);
    let stored = match columns.is_empty() {
        true => Vec::new(),
        false => {
            let sql = include_str!("../sql/insert_again.sql");
            columns.insert(session, sql, How::Within).await?
        }
    };
    if !missed.is_empty() || stored.len() != made.len() {
        return Err(Fault::Collision);
    }
    session.commit().await?;
    let jobs = made.len();
    Ok((Fired::Done { jobs }, made.into_iter().cloned().collect()))
}

/// The jobs whose occurrence was not fired before, by anybody.
async fn new_occurrences<'a>(session: &mut Session, jobs: &'a [Job]) -> Step<Vec<&'a Job>> {
    let of = |job: &Job| {
        job.occurrence
            .map(|of| (uuid(of.schedule_id), of.scheduled_for))
    };
    let wanted: BTreeSet<(Uuid, Timestamp)> = jobs.iter().filter_map(of).collect();
    let schedules: Vec<Uuid> = wanted.iter().map(|(schedule, _)| *schedule).collect();
    let instants: Vec<Time> = wanted.iter().map(|(_, at)| Time(*at)).collect();
    let sql = "insert into windlass.occurrences (schedule, at)
         select * from unnest($1::uuid[], $2::timestamptz[]) on conflict do nothing returning schedule, at";
    let rows = session.query(sql, params![schedules, instants]).await?;
    let mut fresh = BTreeSet::new();
    for found in &rows {
        fresh.insert((found.try_get(0)?, row::time(found, 1)?));
    }
    let is_new = |job: &&Job| of(job).is_none_or(|occurrence| fresh.remove(&occurrence));
    Ok(jobs.iter().filter(is_new).collect())
}
