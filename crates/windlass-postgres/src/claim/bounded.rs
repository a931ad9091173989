//! Claims with limits: queue limits, a cap on running retries, or named jobs.
//!
//! Concurrency keys alone do not need this: `windlass.claim_keyed_v1` takes them into account.
//!
//! Such a claim must count before it takes anything: how many jobs run in the queue, how many run
//! with each concurrency key, how many started within the period of a rate. Two claims that count
//! at the same time would both see the same free slot. So the claim first takes a lock on what it
//! counts, then counts in a *later* statement (the snapshot of a statement that waits for a lock is
//! older than the lock), then chooses with the rules of `core`, and holds the lock until it
//! commits. Claims with limits of the same queue therefore run one after the other.
//!
//! All claims lock in the same order, so they cannot deadlock: the queue first, then the keys of
//! its first candidates in order. Keys of later candidates are locked without waiting; jobs whose
//! key another transaction uses stay for the next claim. Jobs whose key is full are parked.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::LazyLock;

use windlass_core::fairness::{ClaimPlan, Taken};
use windlass_core::{Job, JobId, Lane, Timestamp};
use windlass_store::{CLAIM_MAX, Claimed, QueueLimits};

use super::{ClaimParams, PARK_MAX, columns, started};
use crate::error::DriverResult;
use crate::param::{Time, bigint, int, params, saturating_u32};
use crate::row::{self, ACTIVE_COLUMNS};
use crate::session::Session;
use crate::statement::Sql;
use crate::unreadable::Unreadable;
use crate::watermark::{ClaimOrder, FRONT};

/// The least number of candidates that one query fetches.
const FETCH_MIN: u32 = 100;

static TAKE_NAMED: LazyLock<String> = LazyLock::new(|| {
    include_str!("../../sql/claim_by_id.sql").replace("/* columns */", ACTIVE_COLUMNS)
});

/// Claims jobs. Also returns whether it ended early because it had passed many that cannot start.
/// If some jobs are unreadable, takes nothing and returns these.
pub(super) async fn claim(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    bounded: bool,
) -> DriverResult<Result<(Claimed, bool), Vec<Unreadable>>> {
    let Allowance { plan, limits, now } = allowance(session, claim_params, bounded).await?;
    let sql = Sql::Kept("select from windlass.unpark_overdue_v1($1)");
    session.queue(sql, params![Time(now)])?;
    let mut keys = Keys::default();
    let mut lanes = [
        Candidates::new(0, plan.limit.min(plan.fresh_max)),
        Candidates::new(1, plan.limit.min(plan.retries_max)),
    ];
    let (chosen, both_lanes_ready) =
        choose(session, claim_params, plan, &mut lanes, &mut keys).await?;
    let ids = row::uuids(chosen.iter().copied());
    let rows = session
        .query(
            TAKE_NAMED.as_str(),
            params![
                ids,
                Time(now),
                claim_params.id,
                claim_params.lease,
                claim_params.settings,
                claim_params.worker,
                claim_params.queue,
            ],
        )
        .await?;
    // A claim that starts nothing may be ahead of the next one, so it forgets no start.
    if let Some(rate) = limits.rate.filter(|_| !rows.is_empty()) {
        let since = Time(now.saturating_sub(rate.period));
        let started = int(saturating_u32(rows.len()));
        let sql = include_str!("../../sql/record_starts.sql");
        let params = params![claim_params.queue, Time(now), started, since];
        session.query(sql, params).await?;
    }
    let (mut jobs, mut unreadable) = started(&rows, claim_params)?;
    unreadable.extend(lanes.into_iter().flat_map(|lane| lane.unreadable));
    if !unreadable.is_empty() {
        session.roll_back().await?;
        return Ok(Err(unreadable));
    }
    let left_some = keys.has_passed_many();
    if keys.full.is_empty() {
        session.commit().await?;
    } else {
        // The last statement: it locks running jobs, whose end must not wait for this client.
        let full = row::uuids(keys.full);
        let sql = Sql::Kept("select windlass.park_v1($1, $2)");
        session
            .query_and_commit(sql, params![full, Time(now)])
            .await?;
    }
    let positions: HashMap<JobId, usize> = chosen.into_iter().zip(0..).collect();
    jobs.sort_by_key(|job: &Job| positions.get(&job.id));
    let claimed = Claimed {
        jobs,
        both_lanes_ready,
        ..Claimed::default()
    };
    Ok(Ok((claimed, left_some)))
}

/// What a claim may take within the limits of its queue.
struct Allowance {
    plan: ClaimPlan,
    limits: QueueLimits,
    /// When the claimed jobs start.
    now: Timestamp,
}

/// Locks the queue and returns what its limits leave of the plan.
async fn allowance(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    bounded: bool,
) -> DriverResult<Allowance> {
    let (mut plan, mut now) = (claim_params.claim.plan, claim_params.now);
    plan.limit = plan.limit.min(saturating_u32(CLAIM_MAX));
    let lock = "select limits from windlass.queues where name = $1 for update";
    let limits = if bounded {
        session.query(lock, params![claim_params.queue]).await?
    } else {
        Vec::new()
    };
    let limits: QueueLimits = match limits.first() {
        Some(found) => QueueLimits::from_stored(found.try_get(0)?),
        None => QueueLimits::default(),
    };
    if plan.max_inflight_retries.is_some() {
        let lock = "select pg_advisory_xact_lock(hashtextextended($1, 0))";
        session.query(lock, params![claim_params.queue]).await?;
    }
    if limits.paused.is_some() {
        plan.limit = 0;
    }
    if plan.max_inflight_retries.is_some() || limits.concurrency.is_some() {
        let count = "select count(*), count(*) filter (where lane = 1) from windlass.jobs
             where lease_until is not null and (unreadable is null or lease_until > $2) and queue = $1";
        let rows = session
            .query(count, params![claim_params.queue, Time(now)])
            .await?;
        let count = |column| -> DriverResult<u32> {
            let count: Option<i64> = rows.first().map(|row| row.try_get(column)).transpose()?;
            Ok(saturating_u32(count.unwrap_or(0)))
        };
        plan = plan.limited_by_running(count(1)?);
        if let Some(concurrency) = limits.concurrency {
            plan.limit = plan.limit.min(concurrency.saturating_sub(count(0)?));
        }
    }
    if let Some(rate) = limits.rate {
        // The clocks of nodes differ, so an earlier claim may have a later `now`. Starts must not
        // go back in time, or a window of the period could hold more starts than the rate allows.
        let last = "select at from windlass.starts where queue = $1 order by at desc limit 1";
        let last = session.query(last, params![claim_params.queue]).await?;
        let last = last.first().map(|row| row::time(row, 0)).transpose()?;
        now = last.map_or(now, |last| last.max(now));
        let since = now.saturating_sub(rate.period);
        let sql = "select coalesce(sum(count), 0)::bigint from windlass.starts where queue = $1 and at > $2";
        let rows = session
            .query(sql, params![claim_params.queue, Time(since)])
            .await?;
        let started: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        let started = saturating_u32(started);
        plan.limit = plan.limit.min(rate.count.saturating_sub(started));
    }
    Ok(Allowance { plan, limits, now })
}

/// The concurrency keys that a claim met.
#[derive(Default)]
struct Keys {
    /// How many jobs run with each key; `None` if another transaction uses the key.
    running: BTreeMap<String, Option<u32>>,
    /// Jobs whose key is full.
    full: Vec<JobId>,
    /// How many candidates the claim left because of a key in use.
    busy: usize,
}

impl Keys {
    /// Locks keys that the claim has not met before, and counts their running jobs.
    async fn lock(
        &mut self,
        session: &mut Session,
        candidates: &VecDeque<Candidate>,
        now: Timestamp,
    ) -> DriverResult<()> {
        let keys = candidates.iter().filter_map(|found| found.key.as_ref());
        let new = keys.map(|(key, _)| key.as_str());
        let new: BTreeSet<&str> = new.filter(|key| !self.running.contains_key(*key)).collect();
        if new.is_empty() {
            return Ok(());
        }
        // Only the first lock waits, while the claim holds no other keys.
        let (new, wait) = (Vec::from_iter(new), self.running.is_empty());
        let sql = Sql::Kept("select * from windlass.lock_keys_v1($1, $2, $3)");
        let rows = session.query(sql, params![new, Time(now), wait]).await?;
        let mut running: Vec<Option<u32>> = vec![None; new.len()];
        for found in &rows {
            let number = row::count(found, 0)? as usize;
            if let Some(running) = running.get_mut(number.saturating_sub(1)) {
                *running = Some(row::count(found, 1)?);
            }
        }
        let new = new.into_iter().map(str::to_owned);
        self.running.extend(new.zip(running));
        Ok(())
    }

    /// Whether the candidate may start. Notes it if its key is full or in use.
    fn admit(&mut self, candidate: &Candidate) -> bool {
        let Some((key, limit)) = &candidate.key else {
            return true;
        };
        match self.running.get(key) {
            Some(Some(running)) if running < limit => true,
            Some(Some(_)) => {
                self.full.push(candidate.id);
                false
            }
            _ => {
                self.busy += 1;
                false
            }
        }
    }

    /// Whether the claim has passed enough candidates that it leaves the others to the next one.
    fn has_passed_many(&self) -> bool {
        self.full.len() + self.busy >= PARK_MAX.into()
    }

    /// Counts a job that the claim starts.
    fn start(&mut self, candidate: &Candidate) {
        let key = candidate.key.as_ref();
        if let Some(Some(running)) = key.and_then(|(key, _)| self.running.get_mut(key)) {
            *running += 1;
        }
    }
}

/// A job that the claim may take.
struct Candidate {
    order: ClaimOrder,
    id: JobId,
    key: Option<(String, u32)>,
}

/// The candidates of a lane in claim order, fetched in batches.
struct Candidates {
    lane: i16,
    fetched: VecDeque<Candidate>,
    after: ClaimOrder,
    fetch_size: u32,
    at_end: bool,
    /// Jobs whose position in the claim order cannot be read.
    unreadable: Vec<Unreadable>,
}

impl Candidates {
    fn new(lane: i16, limit: u32) -> Self {
        Candidates {
            lane,
            fetched: VecDeque::new(),
            after: FRONT,
            fetch_size: limit.max(FETCH_MIN),
            at_end: false,
            unreadable: Vec::new(),
        }
    }

    /// Returns the claim order of the next candidate.
    fn front(&self) -> Option<ClaimOrder> {
        self.fetched.front().map(|candidate| candidate.order)
    }

    /// Drops candidates that must not start from the front. Fetches more if none are left.
    async fn advance(
        &mut self,
        session: &mut Session,
        claim_params: &ClaimParams<'_>,
        keys: &mut Keys,
    ) -> DriverResult<()> {
        loop {
            while let Some(candidate) = self.fetched.front() {
                if keys.admit(candidate) {
                    return Ok(());
                }
                self.fetched.pop_front();
            }
            if self.at_end || keys.has_passed_many() {
                return Ok(());
            }
            self.fetch(session, claim_params).await?;
            keys.lock(session, &self.fetched, claim_params.now).await?;
        }
    }

    async fn fetch(
        &mut self,
        session: &mut Session,
        claim_params: &ClaimParams<'_>,
    ) -> DriverResult<()> {
        let (rank, at, id) = columns(self.after);
        let named = claim_params.claim.jobs.as_ref();
        let sql = if named.is_some() {
            include_str!("../../sql/select_named.sql")
        } else {
            include_str!("../../sql/select_candidates.sql")
        };
        let named: Option<Vec<_>> = named.map(|ids| row::uuids(ids.iter().copied()));
        let rows = session
            .query(
                sql,
                params![
                    claim_params.queue,
                    self.lane,
                    Time(claim_params.now),
                    claim_params.kinds,
                    claim_params.includes,
                    rank,
                    at,
                    id,
                    bigint(self.fetch_size.into()),
                    named,
                ],
            )
            .await?;
        self.at_end = rows.len() < self.fetch_size as usize;
        for found in &rows {
            let id = row::id(found, 0)?;
            let key: Option<String> = found.try_get(3)?;
            let limit: Option<i32> = found.try_get(4)?;
            let limit = u32::try_from(limit.unwrap_or(0)).unwrap_or(0);
            let order = match row::time(found, 2) {
                Ok(at) => (found.try_get(1)?, at, id),
                Err(error) => {
                    self.unreadable.push(Unreadable::new(found, error)?);
                    self.at_end = true; // the claim is repeated without this job
                    continue;
                }
            };
            self.after = order;
            if claim_params.claim.except.contains(&id) {
                continue;
            }
            self.fetched.push_back(Candidate {
                order,
                id,
                key: key.map(|key| (key, limit)),
            });
        }
        Ok(())
    }
}

/// Chooses candidates one by one as the plan says. Returns them, and whether both lanes had any.
async fn choose(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    plan: ClaimPlan,
    lanes: &mut [Candidates; 2],
    keys: &mut Keys,
) -> DriverResult<(Vec<JobId>, bool)> {
    let [fresh, retries] = lanes;
    fresh.advance(session, claim_params, keys).await?;
    retries.advance(session, claim_params, keys).await?;
    let both_lanes_ready = fresh.front().is_some() && retries.front().is_some();
    let (mut taken, mut chosen) = (Taken::default(), Vec::new());
    while let Some(lane) = plan.next_lane(taken, fresh.front(), retries.front()) {
        let (candidates, count) = match lane {
            Lane::Fresh => (&mut *fresh, &mut taken.fresh),
            Lane::Retry => (&mut *retries, &mut taken.retries),
        };
        let Some(candidate) = candidates.fetched.pop_front() else {
            break;
        };
        *count += 1;
        keys.start(&candidate);
        chosen.push(candidate.id);
        fresh.advance(session, claim_params, keys).await?;
        retries.advance(session, claim_params, keys).await?;
    }
    Ok((chosen, both_lanes_ready))
}
