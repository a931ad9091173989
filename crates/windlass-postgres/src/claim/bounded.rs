//! Claims that something bounds: a queue's limits, concurrency keys, retries in flight, or that name their jobs.
//!
//! What is counted is locked first, so that two claims never count the same free slot. The order of locks is always the same:
//! the queue, then the keys.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::LazyLock;

use windlass_core::fairness::{ClaimPlan, Taken};
use windlass_core::{Job, JobId, Lane, Timestamp};
use windlass_store::{CLAIM_MAX, Claimed, QueueLimits};

use super::{ClaimParams, columns, started};
use crate::error::DriverResult;
use crate::param::{Time, bigint, int, params};
use crate::row::{self, ACTIVE_COLUMNS};
use crate::session::Session;
use crate::unreadable::Unreadable;
use crate::watermark::{ClaimOrder, FRONT};

/// Whoever counts what runs with a key holds this lock.
const KEYS_LOCK: i64 = 0x6B65_7973;

/// So many candidates of a lane are looked at in one fetch_size, at least.
const FETCH_MIN: u32 = 100;

static TAKE_NAMED: LazyLock<String> = LazyLock::new(|| {
    include_str!("../../sql/claim_by_id.sql").replace("/* columns */", ACTIVE_COLUMNS)
});

/// Claims jobs, or takes nothing and answers which cannot be read.
pub(super) async fn claim(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    bounded: bool,
    keyed: bool,
) -> DriverResult<Result<Claimed, Vec<Unreadable>>> {
    let Allowance { plan, limits, now } = allowance(session, claim_params, bounded).await?;
    let running = if keyed {
        running_by_key(session, now).await?
    } else {
        BTreeMap::new()
    };
    let mut lanes = [
        Candidates::new(0, plan.limit.min(plan.fresh_max)),
        Candidates::new(1, plan.limit.min(plan.retries_max)),
    ];
    let mut choice = Choice {
        running,
        keyed,
        plan,
    };
    let (chosen, both_waited) = choice.choose(session, claim_params, &mut lanes).await?;
    let ids = row::uuids(chosen.iter().copied());
    let rows = session
        .query(
            &TAKE_NAMED,
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
    if let Some(rate) = limits.rate {
        let since = Time(now.saturating_sub(rate.period));
        let started = int(u32::try_from(rows.len()).unwrap_or(u32::MAX));
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
    session.commit().await?;
    let places: HashMap<JobId, usize> = chosen.into_iter().zip(0..).collect();
    jobs.sort_by_key(|job: &Job| places.get(&job.id));
    Ok(Ok(Claimed {
        jobs,
        both_waited,
        repeated: false,
    }))
}

/// What a claim may take.
struct Allowance {
    plan: ClaimPlan,
    limits: QueueLimits,
    /// When what it takes starts.
    now: Timestamp,
}

/// What is left of the plan within the limits of the queue, which is locked for that.
async fn allowance(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    bounded: bool,
) -> DriverResult<Allowance> {
    let (mut plan, mut now) = (claim_params.claim.plan, claim_params.now);
    plan.limit = plan.limit.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX));
    let lock = "select limits from windlass.queues where name = $1 for update";
    let limits = match bounded {
        true => session.query(lock, params![claim_params.queue]).await?,
        false => Vec::new(),
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
            Ok(u32::try_from(count.unwrap_or(0)).unwrap_or(u32::MAX))
        };
        plan = plan.beside(count(1)?);
        if let Some(concurrency) = limits.concurrency {
            plan.limit = plan.limit.min(concurrency.saturating_sub(count(0)?));
        }
    }
    if let Some(rate) = limits.rate {
        // A claim of another node may have been first although its clock is fetched: in the order of the lock, no job starts
        // before those that started last, so that no window of the period ever holds more than the rate.
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
        let started = u32::try_from(started).unwrap_or(u32::MAX);
        plan.limit = plan.limit.min(rate.count.saturating_sub(started));
    }
    Ok(Allowance { plan, limits, now })
}

/// How many jobs run with each key. An unreadable one counts as long as its lease lasts: no sweep
/// ends it.
async fn running_by_key(
    session: &mut Session,
    now: Timestamp,
) -> DriverResult<BTreeMap<String, u32>> {
    session
        .query("select pg_advisory_xact_lock($1)", params![KEYS_LOCK])
        .await?;
    let sql = "select concurrency_key, count(*) from windlass.jobs
         where lease_until is not null and (unreadable is null or lease_until > $1) and concurrency_key is not null
         group by concurrency_key";
    let rows = session.query(sql, params![Time(now)]).await?;
    let mut running = BTreeMap::new();
    for row in &rows {
        let count: i64 = row.try_get(1)?;
        running.insert(row.try_get(0)?, u32::try_from(count).unwrap_or(u32::MAX));
    }
    Ok(running)
}

/// A job that might be taken.
struct Candidate {
    order: ClaimOrder,
    id: JobId,
    key: Option<(String, u32)>,
}

/// The candidates of a lane, fetched in steps.
struct Candidates {
    lane: i16,
    fetched: VecDeque<Candidate>,
    after: ClaimOrder,
    fetch_size: u32,
    at_end: bool,
    /// Those whose order in the order cannot be read.
    unreadable: Vec<Unreadable>,
}

impl Candidates {
    fn new(lane: i16, wanted: u32) -> Self {
        Candidates {
            lane,
            fetched: VecDeque::new(),
            after: FRONT,
            fetch_size: wanted.max(FETCH_MIN),
            at_end: false,
            unreadable: Vec::new(),
        }
    }

    /// Whose order in the order of claims comes next.
    fn front(&self) -> Option<ClaimOrder> {
        self.fetched.front().map(|candidate| candidate.order)
    }

    /// Drops those whose key is full from the front; fetches more where none are left.
    async fn advance(
        &mut self,
        session: &mut Session,
        claim_params: &ClaimParams<'_>,
        running: &BTreeMap<String, u32>,
        keyed: bool,
    ) -> DriverResult<()> {
        loop {
            let full =
                |key: &(String, u32)| running.get(&key.0).is_some_and(|count| *count >= key.1);
            let blocked = |candidate: &Candidate| candidate.key.as_ref().is_some_and(full);
            while self.fetched.front().is_some_and(blocked) {
                self.fetched.pop_front();
            }
            if !self.fetched.is_empty() || self.at_end {
                return Ok(());
            }
            self.fetch(session, claim_params, running, keyed).await?;
        }
    }

    async fn fetch(
        &mut self,
        session: &mut Session,
        claim_params: &ClaimParams<'_>,
        running: &BTreeMap<String, u32>,
        keyed: bool,
    ) -> DriverResult<()> {
        let keys: Vec<&str> = running.keys().map(String::as_str).collect();
        let counts: Vec<i32> = running.values().map(|count| int(*count)).collect();
        let (rank, at, id) = columns(self.after);
        let ids = claim_params.claim.jobs.as_ref();
        let ids: Option<Vec<_>> = ids.map(|ids| row::uuids(ids.iter().copied()));
        let rows = session
            .query(
                include_str!("../../sql/select_candidates.sql"),
                params![
                    claim_params.queue,
                    self.lane,
                    Time(claim_params.now),
                    claim_params.kinds,
                    ids,
                    rank,
                    at,
                    id,
                    bigint(self.fetch_size.into()),
                    keyed,
                    keys,
                    counts,
                    claim_params.wanted,
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
                    self.at_end = true; // the claim is made again without it
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

struct Choice {
    /// How many run with each key; known only if jobs with keys are looked at.
    running: BTreeMap<String, u32>,
    keyed: bool,
    plan: ClaimPlan,
}

impl Choice {
    /// Takes candidates one by one as the plan says; answers whether both lanes had any.
    async fn choose(
        &mut self,
        session: &mut Session,
        claim_params: &ClaimParams<'_>,
        lanes: &mut [Candidates; 2],
    ) -> DriverResult<(Vec<JobId>, bool)> {
        let [fresh, retries] = lanes;
        fresh
            .advance(session, claim_params, &self.running, self.keyed)
            .await?;
        retries
            .advance(session, claim_params, &self.running, self.keyed)
            .await?;
        let both_waited = fresh.front().is_some() && retries.front().is_some();
        let (mut taken, mut chosen) = (Taken::default(), Vec::new());
        while let Some(lane) = self.plan.next_lane(taken, fresh.front(), retries.front()) {
            let (candidates, count) = match lane {
                Lane::Fresh => (&mut *fresh, &mut taken.fresh),
                Lane::Retry => (&mut *retries, &mut taken.retries),
            };
            let Some(candidate) = candidates.fetched.pop_front() else {
                break;
            };
            *count += 1;
            if let Some((key, _)) = candidate.key {
                *self.running.entry(key).or_default() += 1;
            }
            chosen.push(candidate.id);
            fresh
                .advance(session, claim_params, &self.running, self.keyed)
                .await?;
            retries
                .advance(session, claim_params, &self.running, self.keyed)
                .await?;
        }
        Ok((chosen, both_waited))
    }
}
