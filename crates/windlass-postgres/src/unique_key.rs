//! Unique keys, and which job holds one.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{Job, JobId, Key, QueueName, Timestamp};

use crate::error::DriverResult;
use crate::param::{Time, params};
use crate::row::{self, uuids};
use crate::session::Session;

/// A unique key with its queue: keys are unique within a queue.
pub(crate) type QueueKey = (QueueName, Key);

pub(crate) fn queue_key(job: &Job, queue: &QueueName) -> Option<QueueKey> {
    let unique = job.unique.as_ref()?;
    Some((queue.clone(), unique.key.clone()))
}

/// Returns the holders of these keys at `now`, and locks them until the end of the transaction. All
/// transactions lock keys in the same order, so they cannot deadlock.
pub(crate) async fn holders(
    session: &mut Session,
    queue_keys: &BTreeSet<QueueKey>,
    now: Timestamp,
) -> DriverResult<BTreeMap<QueueKey, JobId>> {
    if queue_keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let queues: Vec<&str> = queue_keys.iter().map(|(queue, _)| queue.as_str()).collect();
    let keys: Vec<&str> = queue_keys.iter().map(|(_, key)| key.as_str()).collect();
    let rows = session
        .query(
            include_str!("../sql/lock_keys.sql"),
            params![queues, keys, Time(now)],
        )
        .await?;
    let mut holders = BTreeMap::new();
    for found in &rows {
        holders.insert(
            (row::name(found, 0)?, row::name(found, 1)?),
            row::id(found, 2)?,
        );
    }
    Ok(holders)
}

/// Makes active jobs the holders of their keys. Returns the jobs whose key another job holds.
pub(crate) async fn acquire(
    session: &mut Session,
    jobs: &[&Job],
    now: Timestamp,
) -> DriverResult<BTreeSet<JobId>> {
    let mut keyed: Vec<&&Job> = jobs.iter().filter(|job| job.unique.is_some()).collect();
    if keyed.is_empty() {
        return Ok(BTreeSet::new());
    }
    keyed.sort_by_key(|job| (&job.queue, job.unique.as_ref().map(|unique| &unique.key)));
    let acquired = put(session, &keyed, true, now).await?;
    let missed = keyed
        .iter()
        .map(|job| job.id)
        .filter(|id| !acquired.contains(id));
    Ok(missed.collect())
}

async fn put(
    session: &mut Session,
    jobs: &[&&Job],
    active: bool,
    now: Timestamp,
) -> DriverResult<BTreeSet<JobId>> {
    let queues: Vec<&str> = jobs.iter().map(|job| job.queue.as_str()).collect();
    let keys = jobs.iter().map(|job| job.unique.as_ref());
    let keys: Vec<Option<&str>> = keys
        .map(|unique| unique.map(|unique| unique.key.as_str()))
        .collect();
    let ids = uuids(jobs.iter().map(|job| job.id));
    let until_times: Vec<_> = jobs.iter().map(|job| job.key_until().map(Time)).collect();
    let rows = session
        .query(
            include_str!("../sql/acquire_keys.sql"),
            params![queues, keys, ids, until_times, active, Time(now)],
        )
        .await?;
    rows.iter().map(|row| row::id(row, 0)).collect()
}

/// Frees the keys of finished jobs, except keys that outlast their job.
pub(crate) async fn release(
    session: &mut Session,
    jobs: &[&Job],
    now: Timestamp,
) -> DriverResult<()> {
    let keyed = jobs.iter().filter(|job| job.unique.is_some());
    let (outlasting, freed): (Vec<&&Job>, Vec<&&Job>) = keyed.partition(|job| job.holds_key(now));
    if !outlasting.is_empty() {
        put(session, &outlasting, false, now).await?;
    }
    if !freed.is_empty() {
        release_in(session, freed.iter().map(|job| (&job.queue, **job)))?;
    }
    Ok(())
}

/// Frees the keys that jobs hold in these queues, in the round trip of the next statement.
pub(crate) fn release_in<'a>(
    session: &mut Session,
    jobs: impl Iterator<Item = (&'a QueueName, &'a Job)>,
) -> DriverResult<()> {
    let (mut queues, mut keys, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for (queue, job) in jobs {
        if let Some(unique) = &job.unique {
            queues.push(queue.as_str());
            keys.push(unique.key.as_str());
            ids.push(row::uuid(job.id));
        }
    }
    if !ids.is_empty() {
        let sql = include_str!("../sql/release_keys.sql");
        session.queue(sql, params![queues, keys, ids])?;
    }
    Ok(())
}
