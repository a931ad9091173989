//! Claims: jobs start, each under a lease.
//!
//! A plain claim ("the first N jobs of a queue") of a queue without limits is one call of the
//! function `windlass.claim_v2` in a transaction of its own, so one round trip: it promotes due
//! jobs, checks whether anything limits the claim, takes the jobs and records the claim.
//!
//! A newer version may have written a row that this version cannot read. The driver notices this
//! only after the commit. It then takes back the lease of such a job, as if the job had never been
//! claimed, and sets the job aside (`unreadable.rs`). The other jobs start.
//!
//! If something limits the claim, the function takes nothing. If the only reason is that due jobs
//! have concurrency keys, the driver repeats the claim as one call of `windlass.claim_keyed_v1`.
//! That function locks the keys that it meets, counts their running jobs, and parks jobs whose key
//! is full (`concurrency_key.rs`). For other limits, `bounded.rs` continues with locks and counts
//! in a longer transaction. [`LimitedQueues`](crate::limited::LimitedQueues) remembers what limited
//! the last claim of a queue, and the next one starts in that mode.
//!
//! A claim has an id. The table `claims` records which attempts it started, so that a caller that
//! does not know the result can repeat the claim and get the same leases.

mod bounded;

use std::sync::Arc;

use tokio_postgres::Row;
use windlass_core::fairness::Mix;
use windlass_core::{Job, JobId, QueueName, Timestamp, fixed_hash};
use windlass_store::{CLAIM_MAX, Claim, Claimed, DueQueues, PAGE_MAX};

use crate::error::DriverResult;
use crate::limited::Limit;
use crate::param::{Param, Time, int, params, saturating_u32};
use crate::read::active;
use crate::row::{self, ACTIVE_COLUMNS};
use crate::session::Session;
use crate::settings::{Settings, SettingsById};
use crate::statement::Sql;
use crate::unreadable::{Unreadable, skip_unreadable, split_unreadable};
use crate::watermark::{ClaimLane, ClaimOrder, Watermarks};

/// The most jobs that one claim promotes (marks as due).
const PROMOTE_MAX: i32 = 5000;

/// The most jobs that one claim passes because of their concurrency keys. It leaves the rest to the
/// next claim, because a statement must end in time. It parks those whose key is full.
const PARK_MAX: u16 = 5000;

/// A claim in the form that its statements need.
pub(crate) struct ClaimParams<'a> {
    claim: &'a Claim,
    pub(crate) now: Timestamp,
    pub(crate) id: uuid::Uuid,
    queue: &'a str,
    kinds: Vec<&'a str>,
    /// Whether the claim wants these kinds (`true`) or all others (`false`).
    includes: bool,
    pub(crate) worker: &'a str,
    pub(crate) lease: Time,
    settings: i32,
}

/// Where a claim starts in one lane of its queue.
struct LaneStart {
    lane: ClaimLane,
    from: ClaimOrder,
    version: u64,
}

/// A job that can be claimed now, because it became due or was unparked: its queue, lane and claim
/// order.
pub(crate) type Claimable = (QueueName, i16, ClaimOrder);

/// What `windlass.claim_v2` or `windlass.claim_keyed_v1` returned.
#[derive(Default)]
struct Answer {
    /// The rows of the claimed jobs.
    taken: Vec<Row>,
    /// The first job of each queue and lane that became due.
    promoted: Vec<Claimable>,
    /// The first job of each lane that the claim left because of its concurrency key.
    left: Vec<Claimable>,
    /// A claim with this id was committed before.
    repeated: bool,
    /// The queue has limits.
    bounded: bool,
    /// The queue has due jobs with a concurrency key.
    keyed: bool,
    /// Jobs were left because other transactions used their concurrency keys, or because the claim
    /// had parked many.
    busy: bool,
    /// The claim ended early because it had parked many jobs.
    parked_many: bool,
    /// Both fresh jobs and retries waited.
    both_wait: bool,
    /// No job that the claim could take is left.
    exhausted: bool,
    /// When the next job of any queue becomes due.
    next_at: Option<Timestamp>,
}

/// The column that says what a row is (`windlass.claimed_v1`). The columns before it are a job's.
const PART: usize = 24;

impl Answer {
    /// Reads rows whose part is 0 (a claimed job), 1 (became due), 5 (left), or that of the last
    /// row: 2, 3 (busy) or 4 (parked many).
    fn read(rows: Vec<Row>) -> DriverResult<Self> {
        let mut answer = Answer::default();
        let (mut due, mut left) = (Vec::new(), Vec::new());
        for found in rows {
            match found.try_get(PART)? {
                0_i16 => answer.taken.push(found),
                1_i16 => due.push(found),
                5_i16 => left.push(found),
                part => {
                    answer.busy = part > 2;
                    answer.parked_many = part == 4;
                    answer.repeated = found.try_get(PART + 2)?;
                    answer.bounded = found.try_get(PART + 3)?;
                    answer.keyed = found.try_get(PART + 4)?;
                    answer.both_wait = found.try_get(PART + 5)?;
                    let exhausted: Option<bool> = found.try_get(PART + 6)?;
                    answer.exhausted = exhausted.unwrap_or(false);
                    // If the time cannot be read, the queue is not idle: the next claim looks again.
                    answer.next_at =
                        row::optional_time(&found, PART + 7).unwrap_or(Some(Timestamp::MIN));
                }
            }
        }
        let claimable = |found: &Row| {
            let order = (found.try_get(3)?, row::time(found, 4)?, row::id(found, 0)?);
            Ok((row::name(found, 1)?, found.try_get(PART + 1)?, order))
        };
        answer.promoted = skip_unreadable("promoted", &due, claimable);
        answer.left = skip_unreadable("left", &left, claimable);
        Ok(answer)
    }
}

impl<'a> ClaimParams<'a> {
    pub(crate) fn new(claim: &'a Claim, settings: i32, now: Timestamp) -> Self {
        let (kinds, includes) = claim.kinds.parts();
        ClaimParams {
            claim,
            now,
            id: uuid::Uuid::from_u128(claim.id),
            queue: claim.queue.as_str(),
            kinds: kinds.iter().map(|kind| kind.as_str()).collect(),
            includes,
            worker: claim.worker.as_str(),
            lease: Time(now.saturating_add(claim.lease)),
            settings,
        }
    }

    fn start(&self, number: i16, marks: &Watermarks) -> LaneStart {
        let lane = (self.claim.queue.clone(), number, self.claim.kinds.clone());
        let (from, version) = marks.begin(&lane);
        LaneStart {
            lane,
            from,
            version,
        }
    }

    /// Whether the claim asks only for the first N jobs, without conditions.
    fn is_plain(&self) -> bool {
        self.claim.jobs.is_none()
            && self.claim.except.is_empty()
            && self.claim.plan.max_inflight_retries.is_none()
            && matches!(self.claim.plan.mix, Mix::Shared(_))
    }
}

/// The result of one try of a claim.
pub(crate) enum ClaimOutcome {
    /// The claim is committed.
    Done(DoneClaim),
    /// The claim met unreadable jobs and took nothing. Set them aside, then repeat the claim.
    Unreadable(Vec<Unreadable>),
    /// The claim took nothing. Repeat it in this mode. These jobs became due.
    Repeat(ClaimMode, Vec<Claimable>),
}

/// A claim that is committed.
pub(crate) struct DoneClaim {
    pub(crate) claimed: Claimed,
    /// The first job of each queue and lane that became due.
    pub(crate) promoted: Vec<Claimable>,
    /// Jobs that the claim took but that cannot be read. Their lease must be taken back.
    pub(crate) unreadable: Vec<Unreadable>,
    /// What limited the claim.
    pub(crate) limit: Option<Limit>,
    /// Whether another claim may find more at once: it took jobs but left some because other
    /// transactions used their concurrency keys, or it parked many jobs.
    pub(crate) left_some: bool,
    /// If nothing is left to claim: when the next job of any queue becomes due.
    pub(crate) idle_until: Option<Timestamp>,
}

impl DoneClaim {
    /// A claim that nothing limited, and that may have left jobs to later ones.
    fn new(claimed: Claimed, promoted: Vec<Claimable>) -> Self {
        DoneClaim {
            claimed,
            promoted,
            unreadable: Vec::new(),
            limit: None,
            left_some: false,
            idle_until: None,
        }
    }
}

/// How a claim uses transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimMode {
    /// One round trip, unless something limits the claim.
    Single,
    /// One round trip, unless something other than concurrency keys limits the claim.
    Keyed(BusyKeys),
    /// A transaction that can continue with locks and counts.
    Limited,
}

/// What a claim does with the first concurrency keys that other transactions use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BusyKeys {
    /// It leaves their jobs.
    Skip,
    /// It waits for them.
    Wait,
}

impl ClaimMode {
    /// The mode in which a claim starts, given what limited the last one of its queue.
    pub(crate) fn after(limit: Option<Limit>) -> Self {
        match limit {
            None => ClaimMode::Single,
            Some(Limit::Keys) => ClaimMode::Keyed(BusyKeys::Skip),
            Some(Limit::Queue) => ClaimMode::Limited,
        }
    }
}

/// Claims jobs. If the same claim runs twice at the same time, the second one waits for the first
/// and gets the same leases.
pub(crate) async fn claim(
    session: &mut Session,
    settings: &Settings,
    marks: &Watermarks,
    claim_params: &ClaimParams<'_>,
    mode: ClaimMode,
) -> DriverResult<ClaimOutcome> {
    let (fresh, retry) = (claim_params.start(0, marks), claim_params.start(1, marks));
    let plain = claim_params.is_plain();
    let single = plain && mode != ClaimMode::Limited;
    let answer = call(session, claim_params, &fresh, &retry, (plain, mode)).await?;
    let promoted = answer.promoted;
    if answer.repeated {
        let claimed = repeat_claim(session, settings, claim_params).await?;
        return Ok(ClaimOutcome::Done(DoneClaim::new(claimed, promoted)));
    }
    let limit = if answer.bounded || !plain {
        Some(Limit::Queue)
    } else {
        answer.keyed.then_some(Limit::Keys)
    };
    match (limit, mode) {
        (Some(Limit::Queue), _) if single => {
            return Ok(ClaimOutcome::Repeat(ClaimMode::Limited, promoted));
        }
        (Some(Limit::Keys), ClaimMode::Single) => {
            let mode = ClaimMode::Keyed(BusyKeys::Skip);
            return Ok(ClaimOutcome::Repeat(mode, promoted));
        }
        (Some(Limit::Queue), _) | (Some(Limit::Keys), ClaimMode::Limited) => {
            let claimed = bounded::claim(session, claim_params, answer.bounded).await?;
            return Ok(match claimed {
                Ok((claimed, left_some)) => ClaimOutcome::Done(DoneClaim {
                    limit,
                    left_some,
                    ..DoneClaim::new(claimed, promoted)
                }),
                Err(unreadable) => ClaimOutcome::Unreadable(unreadable),
            });
        }
        (_, ClaimMode::Keyed(_))
            if answer.busy && !answer.parked_many && answer.taken.is_empty() =>
        {
            let mode = ClaimMode::Keyed(BusyKeys::Wait);
            return Ok(ClaimOutcome::Repeat(mode, promoted));
        }
        _ => {}
    }
    let (jobs, unreadable) = started(&answer.taken, claim_params)?;
    if !single {
        // Nothing is committed yet, so the claim can be repeated without the unreadable jobs.
        if !unreadable.is_empty() {
            session.roll_back().await?;
            return Ok(ClaimOutcome::Unreadable(unreadable));
        }
        session.commit().await?;
    }
    // The next claim starts after the jobs of this one, but not after those that this one left.
    for (queue, lane, order) in &answer.left {
        marks.lower(queue, *lane, *order);
    }
    advance(marks, &fresh, &answer.taken)?;
    advance(marks, &retry, &answer.taken)?;
    let claimed = Claimed {
        jobs,
        both_lanes_ready: answer.both_wait,
        ..Claimed::default()
    };
    let left_some = answer.parked_many || answer.busy && !claimed.jobs.is_empty();
    let is_idle = answer.exhausted && limit.is_none() && unreadable.is_empty();
    Ok(ClaimOutcome::Done(DoneClaim {
        claimed,
        promoted,
        unreadable,
        limit,
        left_some,
        idle_until: is_idle.then(|| answer.next_at.unwrap_or(Timestamp::MAX)),
    }))
}

const CLAIM: Sql<'static> = Sql::Kept(
    "select * from windlass.claim_v2(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
);
const CLAIM_KEYED: Sql<'static> = Sql::Kept(
    "select * from windlass.claim_keyed_v1(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)",
);

const LOCK_BOUNDED: Sql<'static> =
    Sql::Kept("select from windlass.queues where name = $1 and bounded for update");

/// Calls the function that promotes due jobs, reads the conditions of the claim, and takes jobs if
/// nothing limits it.
async fn call(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    fresh: &LaneStart,
    retry: &LaneStart,
    (plain, mode): (bool, ClaimMode),
) -> DriverResult<Answer> {
    let plan = claim_params.claim.plan;
    let limit = if plain {
        plan.limit.min(saturating_u32(CLAIM_MAX))
    } else {
        0
    };
    let keys = match mode {
        ClaimMode::Keyed(keys) if plain => Some(keys),
        _ => None,
    };
    let from = |start: &LaneStart| {
        let (rank, at, id) = start.from;
        // The function for keys takes jobs after a position, the other one also the job there.
        let id = id.as_u128().saturating_sub(u128::from(keys.is_some()));
        columns((rank, at, JobId::from_u128(id)))
    };
    let (fresh_rank, fresh_at, fresh_id) = from(fresh);
    let (retry_rank, retry_at, retry_id) = from(retry);
    let wait = keys == Some(BusyKeys::Wait);
    let retry_shares = match keys {
        Some(_) => plan.retry_shares(limit).into_iter().map(int).collect(),
        None => Vec::new(),
    };
    let params: &[Param<'_>] = params![
        claim_params.id,
        fixed_hash(claim_params.id.as_bytes()).cast_signed(),
        claim_params.queue,
        claim_params.kinds,
        claim_params.includes,
        Time(claim_params.now),
        claim_params.lease,
        claim_params.settings,
        claim_params.worker,
        fresh_rank,
        fresh_at,
        fresh_id,
        retry_rank,
        retry_at,
        retry_id,
        int(limit),
        int(plan.retries_first()),
        int(plan.fresh_max),
        int(plan.retries_max),
        PROMOTE_MAX,
        wait, // this and the next two only for keys
        retry_shares,
        i32::from(PARK_MAX),
    ];
    let rows = match (keys, mode) {
        (Some(_), _) => session.single(CLAIM_KEYED, params).await?,
        (None, ClaimMode::Single) if plain => session.single(CLAIM, params).await?,
        _ => {
            // Lock order: queues before jobs, as in enqueues and changes.
            session.queue(LOCK_BOUNDED, params![claim_params.queue])?;
            session.query(CLAIM, params).await?
        }
    };
    Answer::read(rows)
}

fn claim_orders(promoted: &[Row]) -> Vec<Claimable> {
    skip_unreadable("promoted", promoted, |found| {
        let order = (found.try_get(2)?, row::time(found, 3)?, row::id(found, 4)?);
        Ok((row::name(found, 0)?, found.try_get(1)?, order))
    })
}

/// Returns the queues that have due jobs, and the jobs that became due now. Promotes first, because
/// in a queue that no one claims from, no claim has done it.
pub(crate) async fn due_queues(
    session: &mut Session,
    query: &DueQueues,
    now: Timestamp,
) -> DriverResult<(Vec<QueueName>, Vec<Claimable>)> {
    let kinds: Vec<&str> = query.kinds.iter().map(|kind| kind.as_str()).collect();
    let prefix = query.pattern.prefix();
    // Names have no control characters, so this is a bound between the name and the next one.
    let after = query.after.as_ref().map(|after| format!("{after}\u{1}"));
    let from = after.as_deref().map_or(prefix, |after| after.max(prefix));
    let like = query.pattern.as_str().replace('_', r"\_").replace('*', "%");
    let limit = i32::try_from(query.limit.min(PAGE_MAX)).unwrap_or(i32::MAX);
    let promote = params![Time(now), i64::from(PROMOTE_MAX)];
    let due = params![kinds, from, prefix, like, Time(now), limit];
    let [promoted, found] = session
        .queries([
            (Sql::Once(include_str!("../sql/promote.sql")), promote),
            (Sql::Once(include_str!("../sql/due_queues.sql")), due),
        ])
        .await?;
    session.commit().await?;
    let queues = skip_unreadable("queue", &found, |found| row::name(found, 0));
    Ok((queues, claim_orders(&promoted)))
}

fn columns(order: ClaimOrder) -> (i32, Time, uuid::Uuid) {
    let (rank, at, id) = order;
    (rank, Time(at), row::uuid(id))
}

/// Raises the watermark to the last job that the claim took in this lane.
fn advance(marks: &Watermarks, start: &LaneStart, rows: &[Row]) -> DriverResult<()> {
    let mut last = None;
    for found in rows {
        let lane: i16 = found.try_get(PART + 1)?;
        if lane == start.lane.1
            && let Ok(at) = row::time(found, 4)
        {
            last = last.max(Some((found.try_get(3)?, at, row::id(found, 0)?)));
        }
    }
    if let Some(order) = last {
        marks.advance(&start.lane, start.version, order);
    }
    Ok(())
}

/// Returns the jobs of the rows of a claim, each lane in claim order, and the unreadable ones.
fn started(
    rows: &[Row],
    claim_params: &ClaimParams<'_>,
) -> DriverResult<(Vec<Job>, Vec<Unreadable>)> {
    let settings = Arc::new(claim_params.claim.retry.clone());
    let settings = SettingsById::from([(claim_params.settings, Ok(settings))]);
    let (mut jobs, unreadable) = split_unreadable(rows, |found| row::active(found, &settings))?;
    // The rows of each step come in any order; the steps are in the order of the plan.
    for step in jobs.chunk_by_mut(|one, next| one.lane() == next.lane()) {
        step.sort_by_key(Job::claim_order);
    }
    Ok((jobs, unreadable))
}

/// Answers a repeated claim with its attempts that still run.
async fn repeat_claim(
    session: &mut Session,
    settings: &Settings,
    claim_params: &ClaimParams<'_>,
) -> DriverResult<Claimed> {
    let sql = format!(
        "select {ACTIVE_COLUMNS} from windlass.jobs join (
             select unnest(jobs) as job, unnest(attempts) as claimed_attempt from windlass.claims where id = $1
         ) as claimed on claimed.job = id and claimed_attempt = attempt
         where lease_until is not null"
    );
    let rows = session.query(&sql, params![claim_params.id]).await?;
    let (mut jobs, _) = active(session, settings, &rows).await?;
    session.commit().await?;
    jobs.sort_by_key(|job| (job.lane(), job.claim_order()));
    Ok(Claimed {
        jobs,
        repeated: true,
        ..Claimed::default()
    })
}
