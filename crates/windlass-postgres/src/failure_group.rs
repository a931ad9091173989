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
use std::time::Duration;

use tokio_postgres::Row;
use windlass_core::{
    Fingerprint, GROUP_NEW_AFTER, GROUPS_MAX, GroupKey, Job, JobId, Kind, QueueName, Timestamp,
    fixed_hash, hour_of, is_new_group,
};
use windlass_store::{FailureGroup, GROUP_HOURS, GroupFilter, PAGE_MAX};

use crate::error::DriverResult;
use crate::lock;
use crate::param::{Time, bigint, params, unsigned};
use crate::row::{self, cause};
use crate::session::Session;
use crate::statement::Sql;
use crate::unreadable::skip_unreadable;

/// The most groups that a node remembers.
const KNOWN_MAX: usize = 10_000;

/// How long a node remembers that a queue and kind has no space for another group.
const FULL_FOR: Duration = Duration::from_secs(5);

/// The groups that this node knows, and when it has last seen a failure in each.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: Mutex<HashMap<GroupKey, Timestamp>>,
    /// The queues and kinds that had no space for another group, and when.
    full: Mutex<HashMap<(QueueName, Kind), Timestamp>>,
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
            let (added, full) = self.add(session, &unknown, entry, now).await?;
            new.extend(added);
            if full.is_empty() {
                break;
            }
            for job in jobs.iter_mut() {
                if job.group().is_some_and(|(key, _)| full.contains(&key)) {
                    job.count_as_other();
                }
            }
        }
        Ok(new)
    }

    /// Whether a group needs no look-up. One in which something failed in the last 24 h exists, and
    /// is not new.
    fn knows(&self, key: &GroupKey, entry: Entry, now: Timestamp) -> bool {
        let last_seen_at = lock(&self.known).get(key).copied();
        entry == Entry::Failed && last_seen_at.is_some_and(|at| !is_new_group(Some(at), now))
    }

    /// Adds the groups that do not exist yet. Returns the groups that are new, and those for which
    /// there is no space.
    async fn add(
        &self,
        session: &mut Session,
        unknown: &BTreeMap<GroupKey, &Job>,
        entry: Entry,
        now: Timestamp,
    ) -> DriverResult<(Vec<GroupKey>, BTreeSet<GroupKey>)> {
        let old = Time(now.saturating_sub(GROUP_NEW_AFTER));
        let existing = find(session, unknown.keys(), old).await?;
        let is_stale = |at: &Timestamp| entry == Entry::Failed && is_new_group(Some(*at), now);
        let stale = existing.iter().filter(|(_, at)| is_stale(at));
        let stale: Vec<&GroupKey> = stale.map(|(key, _)| key).collect();
        let mut new = renew(session, &stale, old, now).await?;
        let absent = unknown
            .iter()
            .filter(|(key, _)| !existing.contains_key(key));
        let absent: Vec<(&GroupKey, &Job)> = absent.map(|(key, job)| (key, *job)).collect();
        let (full, fitting): (Vec<_>, Vec<_>) =
            absent.iter().partition(|(key, _)| self.is_full(key, now));
        let mut full: BTreeSet<GroupKey> = full.iter().map(|(key, _)| (*key).clone()).collect();
        if !fitting.is_empty() {
            // The jobs without space enter `other` in the second round. A transaction takes all
            // locks at once and in order, so that two of them cannot deadlock.
            let locks = absent.iter().map(|(key, _)| lock_number(key)).collect();
            let (added, too_many) = insert(session, locks, &fitting).await?;
            self.remember_full(&too_many, now);
            new.extend(added);
            full.extend(too_many);
        }
        Ok((new, full))
    }

    fn is_full(&self, key: &GroupKey, now: Timestamp) -> bool {
        let pair = (key.queue.clone(), key.kind.clone());
        let full_at = lock(&self.full).get(&pair).copied();
        key.fingerprint != Fingerprint::OTHER && full_at.is_some_and(|at| now.since(at) < FULL_FOR)
    }

    fn remember_full(&self, too_many: &[GroupKey], now: Timestamp) {
        let mut full = lock(&self.full);
        full.retain(|_, at| now.since(*at) < FULL_FOR);
        let pairs = too_many.iter();
        full.extend(pairs.map(|key| ((key.queue.clone(), key.kind.clone()), now)));
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
        lock(&self.full).clear();
    }
}

/// Returns the groups that exist, and when they were last seen.
async fn find(
    session: &mut Session,
    keys: impl Iterator<Item = &GroupKey> + Clone,
    old: Time,
) -> DriverResult<BTreeMap<GroupKey, Timestamp>> {
    let Keys {
        queues,
        kinds,
        causes,
    } = Keys::of(keys);
    let sql = include_str!("../sql/find_groups.sql");
    let rows = session
        .query(sql, params![queues, kinds, causes, old])
        .await?;
    let found = rows.iter().map(|row| Ok((key(row)?, row::time(row, 3)?)));
    found.collect()
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
    locks: BTreeSet<i64>,
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
    let locks: Vec<i64> = locks.into_iter().collect();
    let (max, other) = (bigint(GROUPS_MAX as u64), cause(Fingerprint::OTHER));
    let exist = "select queue, kind, fingerprint from windlass.failure_groups
         where (queue, kind, fingerprint) in (select * from unnest($1::text[], $2::text[], $3::bigint[]))";
    let [_, added, existing] = session
        .queries([
            (
                Sql::Once(include_str!("../sql/lock_groups.sql")),
                params![locks],
            ),
            (
                Sql::Once(include_str!("../sql/add_groups.sql")),
                params![queues, kinds, causes, seen, errors, max, other],
            ),
            (Sql::Once(exist), params![queues, kinds, causes]),
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

/// Removes groups without jobs that were last seen before an instant. The caller has added all
/// changes, and commits.
pub(crate) async fn trim(session: &mut Session, before: Timestamp) -> DriverResult<()> {
    let sql = include_str!("../sql/lock_empty_groups.sql");
    let rows = session.query(sql, params![Time(before)]).await?;
    let empty = skip_unreadable("failure group", &rows, key);
    if empty.is_empty() {
        return Ok(());
    }
    let Keys {
        queues,
        kinds,
        causes,
    } = Keys::of(empty.iter());
    let sql = include_str!("../sql/trim_groups.sql");
    session.query(sql, params![queues, kinds, causes]).await?;
    Ok(())
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
