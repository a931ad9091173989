//! Failure groups: which groups exist, and their numbers.
//!
//! A storm of failures must not queue up for one row. So a transaction only appends changes of
//! groups ([`TallyChanges`]), and a background task adds them to the groups (`fold.rs`). Reads sum
//! both in one snapshot, so they are exact at any time.
//!
//! The row of a group is added directly, by the transaction of its first failure. That decides
//! which failure made the group new. [`Groups`] remembers the groups that this node has seen
//! recently: a failure in one of them needs no look-up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

use tokio_postgres::Row;
use windlass_core::{
    Fingerprint, GROUP_NEW_AFTER, GROUPS_MAX, GroupKey, Job, JobId, Timestamp, fixed_hash, hour_of,
    is_new_group,
};
use windlass_store::{FailureGroup, GROUP_HOURS, GroupFilter, PAGE_MAX};

use crate::error::DriverResult;
use crate::lock;
use crate::param::{Time, bigint, params, unsigned};
use crate::row::{self, cause};
use crate::session::Session;
use crate::unreadable::skip_unreadable;

/// The most groups that a node remembers.
const KNOWN_MAX: usize = 10_000;

/// The groups that this node knows, and when it has last seen a failure in each.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: Mutex<HashMap<GroupKey, Timestamp>>,
}

/// Why jobs enter groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// They failed or died just now.
    Failed,
    /// An operator moved or revived them.
    Moved,
}

/// The keys of groups as arrays of column values.
struct Keys<'a> {
    queues: Vec<&'a str>,
    kinds: Vec<&'a str>,
    causes: Vec<i64>,
}

impl<'a> Keys<'a> {
    fn of(keys: impl Iterator<Item = &'a GroupKey> + Clone) -> Self {
        Keys {
            queues: keys.clone().map(|key| key.queue.as_str()).collect(),
            kinds: keys.clone().map(|key| key.kind.as_str()).collect(),
            causes: keys.map(|key| cause(key.fingerprint)).collect(),
        }
    }
}

impl Groups {
    /// Makes sure that the groups of these jobs exist. A job whose cause gets no group anymore gets
    /// the cause `other`. Returns the groups that these failures made new.
    pub(crate) async fn enter(
        &self,
        session: &mut Session,
        jobs: &mut [&mut Job],
        entry: Entry,
        now: Timestamp,
    ) -> DriverResult<BTreeSet<GroupKey>> {
        let mut new = BTreeSet::new();
        // In the second round are the jobs that share the group `other`, for which there is space.
        for _ in 0..2 {
            let keys = jobs.iter().filter_map(|job| Some((job.group()?.0, &**job)));
            let mut unknown: BTreeMap<GroupKey, &Job> = BTreeMap::new();
            for (key, job) in keys.filter(|(key, _)| !new.contains(key)) {
                if !self.knows(&key, entry, now) {
                    unknown.entry(key).or_insert(job);
                }
            }
            if unknown.is_empty() {
                break;
            }
            let (added, full) = add(session, &unknown, entry, now).await?;
            new.extend(added);
            if full.is_empty() {
                break;
            }
            for job in jobs.iter_mut() {
                if job.group().is_some_and(|(key, _)| full.contains(&key)) {
                    job.fingerprint = Some(Fingerprint::OTHER);
                }
            }
        }
        Ok(new)
    }

    fn knows(&self, key: &GroupKey, entry: Entry, now: Timestamp) -> bool {
        let last_seen_at = lock(&self.known).get(key).copied();
        last_seen_at.is_some_and(|at| entry == Entry::Moved || !is_new_group(Some(at), now))
    }

    /// Remembers groups that failed at `now`. Call it after the commit: a group of a transaction
    /// that was rolled back does not exist.
    pub(crate) fn remember(&self, failed: impl IntoIterator<Item = GroupKey>, now: Timestamp) {
        let mut known = lock(&self.known);
        for key in failed {
            if known.len() >= KNOWN_MAX && !known.contains_key(&key) {
                known.clear();
            }
            let last_seen_at = known.entry(key).or_insert(now);
            *last_seen_at = now.max(*last_seen_at);
        }
    }

    /// Forgets all groups, because some were removed.
    pub(crate) fn forget(&self) {
        lock(&self.known).clear();
    }
}

/// Adds the groups that do not exist yet. Returns the groups that are new, and those for which
/// there is no space.
async fn add(
    session: &mut Session,
    unknown: &BTreeMap<GroupKey, &Job>,
    entry: Entry,
    now: Timestamp,
) -> DriverResult<(Vec<GroupKey>, BTreeSet<GroupKey>)> {
    let Keys {
        queues,
        kinds,
        causes,
    } = Keys::of(unknown.keys());
    let (old, other) = (
        Time(now.saturating_sub(GROUP_NEW_AFTER)),
        cause(Fingerprint::OTHER),
    );
    let sql = include_str!("../sql/find_groups.sql");
    let params = params![queues, kinds, causes, old, other];
    let (mut absent, mut stale, mut full) = (Vec::new(), Vec::new(), BTreeSet::new());
    let all: Vec<(&GroupKey, &Job)> = unknown.iter().map(|(key, job)| (key, *job)).collect();
    for found in session.query(sql, params).await? {
        let position: i64 = found.try_get(0)?;
        let position = usize::try_from(position - 1).unwrap_or(usize::MAX);
        let Some((key, job)) = all.get(position) else {
            continue;
        };
        let siblings: Option<i64> = found.try_get(2)?;
        match (row::optional_time(&found, 1)?, siblings) {
            (Some(last), _) if entry == Entry::Failed && is_new_group(Some(last), now) => {
                stale.push(*key);
            }
            (Some(_), _) => {}
            (None, siblings)
                if siblings.map_or(0, unsigned) < GROUPS_MAX as u64
                    || key.fingerprint == Fingerprint::OTHER =>
            {
                absent.push((*key, *job));
            }
            (None, _) => {
                full.insert((*key).clone());
            }
        }
    }
    let mut new = renew(session, &stale, old, now).await?;
    if !absent.is_empty() {
        let (added, too_many) = insert(session, &absent).await?;
        new.extend(added);
        full.extend(too_many);
    }
    Ok((new, full))
}

/// Marks groups as seen now that nothing failed in for long. Returns those that no one else has
/// marked meanwhile.
async fn renew(
    session: &mut Session,
    stale: &[&GroupKey],
    old: Time,
    now: Timestamp,
) -> DriverResult<Vec<GroupKey>> {
    if stale.is_empty() {
        return Ok(Vec::new());
    }
    let Keys {
        queues,
        kinds,
        causes,
    } = Keys::of(stale.iter().copied());
    let sql = include_str!("../sql/renew_groups.sql");
    let params = params![queues, kinds, causes, old, Time(now)];
    let rows = session.query(sql, params).await?;
    rows.iter().map(key).collect()
}

/// Adds groups under a lock, so that a queue and kind never gets too many. Returns the added
/// groups, and those for which there is no space.
async fn insert(
    session: &mut Session,
    absent: &[(&GroupKey, &Job)],
) -> DriverResult<(Vec<GroupKey>, Vec<GroupKey>)> {
    let Keys {
        queues,
        kinds,
        causes,
    } = Keys::of(absent.iter().map(|(key, _)| *key));
    let seen: Vec<Time> = absent
        .iter()
        .map(|(_, job)| Time(job.group_seen_at()))
        .collect();
    let errors: Vec<String> = absent
        .iter()
        .map(|(_, job)| job.group_error().replace('\0', "\u{fffd}"))
        .collect();
    let locks: BTreeSet<i64> = absent.iter().map(|(key, _)| lock_number(key)).collect();
    let locks: Vec<i64> = locks.into_iter().collect();
    let (max, other) = (bigint(GROUPS_MAX as u64), cause(Fingerprint::OTHER));
    let exist = "select queue, kind, fingerprint from windlass.failure_groups
         where (queue, kind, fingerprint) in (select * from unnest($1::text[], $2::text[], $3::bigint[]))";
    let [_, added, existing] = session
        .queries([
            (include_str!("../sql/lock_groups.sql"), params![locks]),
            (
                include_str!("../sql/add_groups.sql"),
                params![queues, kinds, causes, seen, errors, max, other],
            ),
            (exist, params![queues, kinds, causes]),
        ])
        .await?;
    let added: Vec<GroupKey> = added.iter().map(key).collect::<DriverResult<_>>()?;
    let existing: BTreeSet<GroupKey> = existing.iter().map(key).collect::<DriverResult<_>>()?;
    let full = absent.iter().map(|(key, _)| (*key).clone());
    let full = full.filter(|key| !existing.contains(key)).collect();
    Ok((added, full))
}

/// The advisory lock for adding groups to a queue and kind.
fn lock_number(key: &GroupKey) -> i64 {
    fixed_hash(format!("group {} {}", key.queue, key.kind).as_bytes()).cast_signed()
}

fn key(found: &Row) -> DriverResult<GroupKey> {
    Ok(GroupKey {
        queue: row::name(found, 0)?,
        kind: row::name(found, 1)?,
        fingerprint: row::fingerprint(found.try_get(2)?),
    })
}

pub(crate) async fn list(
    session: &mut Session,
    filter: &GroupFilter,
    after: Option<&GroupKey>,
    limit: usize,
    now: Timestamp,
) -> DriverResult<Vec<FailureGroup>> {
    let queue = filter.queue.as_ref().map(|queue| queue.as_str());
    let kind = filter.kind.as_ref().map(|kind| kind.as_str());
    let after_queue = after.map(|key| key.queue.as_str());
    let after_kind = after.map(|key| key.kind.as_str());
    let after_cause = after.map(|key| cause(key.fingerprint));
    let last_hour = hour_of(now);
    let first_hour = last_hour - i64::try_from(GROUP_HOURS).unwrap_or(0) + 1;
    let rows = session
        .read(
            include_str!("../sql/select_groups.sql"),
            params![
                queue,
                kind,
                filter.fingerprint.map(cause),
                after_queue,
                after_kind,
                after_cause,
                bigint(limit.min(PAGE_MAX) as u64),
                first_hour,
                last_hour,
            ],
        )
        .await?;
    Ok(skip_unreadable("failure group", &rows, |found| {
        group(found, first_hour)
    }))
}

fn group(found: &Row, first_hour: i64) -> DriverResult<FailureGroup> {
    let sample: Option<uuid::Uuid> = found.try_get(7)?;
    let hours: Option<Vec<i64>> = found.try_get(9)?;
    let failures: Option<Vec<i64>> = found.try_get(10)?;
    let mut group = FailureGroup {
        key: key(found)?,
        dead: row::number(found, 3)?,
        retrying: row::number(found, 4)?,
        first_seen_at: row::time(found, 5)?,
        last_seen_at: row::time(found, 6)?,
        sample: sample.map(|sample| JobId::from_u128(sample.as_u128())),
        error: found.try_get(8)?,
        hours: [0; GROUP_HOURS],
    };
    for (hour, count) in hours.iter().flatten().zip(failures.iter().flatten()) {
        let position = usize::try_from(hour - first_hour).ok();
        if let Some(shown) = position.and_then(|position| group.hours.get_mut(position)) {
            *shown = unsigned(*count);
        }
    }
    Ok(group)
}
