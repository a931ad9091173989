//! Fires schedules, many in one transaction.
//!
//! The transaction first locks the schedules, in the order of their ids, so that two nodes that
//! fire the same schedules wait for one another instead of deadlocking. The second one then finds
//! other versions, and its steps are stale. Records of skipped occurrences come last, because their
//! lock holds up every other transaction that appends records.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use uuid::Uuid;
use windlass_core::{Job, JobId, Timestamp};
use windlass_store::{Fire, Fired, StoreError};

use super::{definition_json, uuid};
use crate::error::DriverResult;
use crate::param::{Time, bigint, params};
use crate::record::RECORDS_LOCK;
use crate::row::{self, uuids};
use crate::session::Session;
use crate::unique_key;
use crate::write::{Columns, InsertMode};

/// Fires steps. Returns the answers, and the jobs that were created.
pub(crate) async fn fire(
    session: &mut Session,
    fires: &[Fire],
    now: Timestamp,
) -> DriverResult<(Vec<Fired>, Vec<Job>)> {
    let mut answers = vec![Fired::Stale; fires.len()];
    let mut created = Vec::new();
    for round in rounds(fires) {
        created.extend(fire_round(session, &round, &mut answers, now).await?);
    }
    session.commit().await?;
    Ok((answers, created.into_iter().cloned().collect()))
}

/// A step with its position in the batch.
type Step<'a> = (usize, &'a Fire);

/// Splits a batch into rounds in which each schedule has at most one step.
fn rounds(fires: &[Fire]) -> Vec<Vec<Step<'_>>> {
    let mut rounds: Vec<Vec<Step<'_>>> = Vec::new();
    let mut steps_of = HashMap::new();
    for step in fires.iter().enumerate() {
        let earlier: &mut usize = steps_of.entry(step.1.schedule).or_default();
        match rounds.get_mut(*earlier) {
            Some(round) => round.push(step),
            None => rounds.push(vec![step]),
        }
        *earlier += 1;
    }
    rounds
}

/// Fires steps of different schedules. Writes their answers, and returns the created jobs.
async fn fire_round<'a>(
    session: &mut Session,
    steps: &[Step<'a>],
    answers: &mut [Fired],
    now: Timestamp,
) -> DriverResult<Vec<&'a Job>> {
    let moved = move_schedules(session, steps).await?;
    let steps: Vec<Step<'a>> = steps
        .iter()
        .filter(|(_, fire)| moved.contains(&uuid(fire.schedule)))
        .copied()
        .collect();
    let jobs: Vec<&Job> = steps.iter().flat_map(|(_, fire)| &fire.jobs).collect();
    let new = new_occurrences(session, &jobs).await?;
    let created = acquire_keys(session, new, now).await?;
    let columns = Columns::of(created.iter().copied(), now);
    if !columns.is_empty() {
        let sql = include_str!("../../sql/insert_absent_jobs.sql");
        let within = InsertMode::WithinTransaction;
        let stored = columns.insert(session, sql, within).await?;
        if stored.len() != created.len() {
            let reason = "another job has the id of an occurrence's job".to_owned();
            return Err(StoreError::Refused { reason }.into());
        }
    }
    record_skipped(session, &steps, now)?;
    let mut jobs_of: HashMap<usize, Vec<JobId>> = HashMap::new();
    let created_ids: HashSet<JobId> = created.iter().map(|job| job.id).collect();
    for (position, fire) in &steps {
        let ids = fire.jobs.iter().map(|job| job.id);
        jobs_of.insert(
            *position,
            ids.filter(|id| created_ids.contains(id)).collect(),
        );
    }
    for (position, jobs) in jobs_of {
        if let Some(answer) = answers.get_mut(position) {
            *answer = Fired::Done { jobs };
        }
    }
    Ok(created)
}

/// Moves the schedules on that still have the version of their step. Returns their ids.
async fn move_schedules(session: &mut Session, steps: &[Step<'_>]) -> DriverResult<HashSet<Uuid>> {
    let fires = || steps.iter().map(|(_, fire)| fire);
    let ids: Vec<Uuid> = fires().map(|fire| uuid(fire.schedule)).collect();
    let versions: Vec<i64> = fires().map(|fire| bigint(fire.version)).collect();
    let last_ats: Vec<_> = fires().map(|fire| fire.last_at.map(Time)).collect();
    let next_ats: Vec<_> = fires().map(|fire| fire.next_at.map(Time)).collect();
    let definitions = fires().map(|fire| fire.definition.as_ref().map(definition_json).transpose());
    let definitions: Vec<Option<String>> = definitions.collect::<DriverResult<_>>()?;
    let lock = "select from windlass.schedules where id = any ($1) order by id for update";
    session.queue(lock, params![ids])?;
    let sql = "update windlass.schedules as schedule
         set version = schedule.version + 1, last_at = step.last_at, next_at = step.next_at,
             definition = coalesce(step.definition, schedule.definition)
         from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::text[])
             as step (id, version, last_at, next_at, definition)
         where schedule.id = step.id and schedule.version = step.version
         returning schedule.id";
    let params = params![ids, versions, last_ats, next_ats, definitions];
    let moved = session.query(sql, params).await?;
    moved.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Writes occurrences. Returns the jobs whose occurrence no node has fired before.
async fn new_occurrences<'a>(
    session: &mut Session,
    jobs: &[&'a Job],
) -> DriverResult<Vec<&'a Job>> {
    let occurrence_of = |job: &Job| {
        let occurrence = job.occurrence?;
        Some((uuid(occurrence.schedule_id), occurrence.scheduled_for))
    };
    // A job with a unique key may not be created, so its id is written later.
    let id_of = |job: &Job| job.unique.is_none().then_some(row::uuid(job.id));
    let occurrences: BTreeMap<(Uuid, Timestamp), Option<Uuid>> = jobs
        .iter()
        .rev() // of two jobs with the same occurrence, the first is created
        .filter_map(|job| Some((occurrence_of(job)?, id_of(job))))
        .collect();
    let mut fresh = HashSet::new();
    if !occurrences.is_empty() {
        let schedules: Vec<Uuid> = occurrences.keys().map(|(schedule, _)| *schedule).collect();
        let instants: Vec<Time> = occurrences.keys().map(|(_, at)| Time(*at)).collect();
        let ids: Vec<Option<Uuid>> = occurrences.into_values().collect();
        let sql = "insert into windlass.occurrences (schedule, at, job)
             select * from unnest($1::uuid[], $2::timestamptz[], $3::uuid[])
             on conflict do nothing returning schedule, at";
        for found in session
            .query(sql, params![schedules, instants, ids])
            .await?
        {
            fresh.insert((found.try_get(0)?, row::time(&found, 1)?));
        }
    }
    let is_new =
        |job: &&&Job| occurrence_of(job).is_none_or(|occurrence| fresh.remove(&occurrence));
    Ok(jobs.iter().filter(is_new).copied().collect())
}

/// Makes jobs the holders of their unique keys. Returns the jobs without a key, and those whose key
/// was free. Of jobs with the same key, the first gets it.
async fn acquire_keys<'a>(
    session: &mut Session,
    jobs: Vec<&'a Job>,
    now: Timestamp,
) -> DriverResult<Vec<&'a Job>> {
    let mut seen = BTreeSet::new();
    let is_first = |job: &&&Job| {
        unique_key::queue_key(job, &job.queue).is_none_or(|queue_key| seen.insert(queue_key))
    };
    let first: Vec<&Job> = jobs.iter().filter(is_first).copied().collect();
    let missed = unique_key::acquire(session, &first, now).await?;
    let created: Vec<&Job> = first
        .into_iter()
        .filter(|job| !missed.contains(&job.id))
        .collect();
    set_jobs_of_occurrences(session, &created)?;
    Ok(created)
}

/// Writes the ids of the created jobs with unique keys to their occurrences, in the round trip of
/// the next statement.
fn set_jobs_of_occurrences(session: &mut Session, created: &[&Job]) -> DriverResult<()> {
    let keyed = created.iter().filter(|job| job.unique.is_some());
    let keyed: Vec<(&Job, _)> = keyed
        .filter_map(|job| Some((*job, job.occurrence?)))
        .collect();
    if keyed.is_empty() {
        return Ok(());
    }
    let schedules: Vec<Uuid> = keyed
        .iter()
        .map(|(_, fired)| uuid(fired.schedule_id))
        .collect();
    let instants: Vec<Time> = keyed
        .iter()
        .map(|(_, fired)| Time(fired.scheduled_for))
        .collect();
    let jobs = uuids(keyed.iter().map(|(job, _)| job.id));
    let sql = "update windlass.occurrences as fired set job = created.job
         from unnest($1::uuid[], $2::timestamptz[], $3::uuid[]) as created (schedule, at, job)
         where fired.schedule = created.schedule and fired.at = created.at";
    session.queue(sql, params![schedules, instants, jobs])
}

/// Writes the records of skipped occurrences, in the round trip of the next statement or of the
/// commit.
fn record_skipped(session: &mut Session, steps: &[Step<'_>], now: Timestamp) -> DriverResult<()> {
    let (mut lengthened, mut cursors) = (Vec::new(), Vec::new());
    let (mut topics, mut values) = (Vec::new(), Vec::new());
    for (_, fire) in steps {
        let topic = Fire::skipped_topic(fire.schedule);
        if let Some(cursor) = fire.lengthened {
            lengthened.push(topic.clone());
            cursors.push(bigint(cursor));
        }
        for record in fire.skipped_records() {
            topics.push(topic.clone());
            values.push(record.to_string());
        }
    }
    if !cursors.is_empty() {
        let sql = "delete from windlass.records as record
             using unnest($1::text[], $2::bigint[]) as lengthened (topic, cursor)
             where record.cursor = lengthened.cursor and record.topic = lengthened.topic";
        session.queue(sql, params![lengthened, cursors])?;
    }
    if !topics.is_empty() {
        session.queue("select pg_advisory_xact_lock($1)", params![RECORDS_LOCK])?;
        let sql = "insert into windlass.records (topic, at, value)
             select topic, $2, value
             from unnest($1::text[], $3::text[]) with ordinality as new (topic, value, position)
             order by position";
        session.queue(sql, params![topics, Time(now), values])?;
    }
    Ok(())
}
