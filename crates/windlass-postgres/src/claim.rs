//! Claims: jobs start, each under a lease.
//!
//! A plain claim ("the first N jobs of a queue") of a queue without limits takes three round trips:
//!
//! 1. Begin; promote due jobs; read the [`ClaimConditions`]; take the retries that come first.
//! 2. Take fresh jobs.
//! 3. Commit, after all rows were read. If a newer version wrote one of the rows, this version
//!    cannot read it and must not lease it; the transaction is rolled back, the unreadable jobs are
//!    parked (`unreadable.rs`), and the claim is repeated without them. After a commit it would be
//!    too late for that.
//!
//! If the first round trip shows that something limits the claim, it takes nothing there, and
//! `bounded.rs` continues with locks and counts.
//!
//! A claim has an id. The table `claims` records which attempts it started, so that a caller that
//! does not know the result can repeat the claim and get the same leases.

mod bounded;

use std::sync::{Arc, LazyLock};

use tokio_postgres::Row;
use windlass_core::fairness::Mix;
use windlass_core::{Job, QueueName, Timestamp, fixed_hash};
use windlass_store::{CLAIM_MAX, Claim, Claimed, DueQueues, PAGE_MAX};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, params, saturating_u32};
use crate::read::active;
use crate::row::{self, ACTIVE_COLUMNS};
use crate::session::Session;
use crate::settings::{Settings, SettingsById};
use crate::unreadable::{Unreadable, skip_unreadable, split_unreadable};
use crate::watermark::{ClaimLane, ClaimOrder, Watermarks};

/// The most jobs that one claim promotes (marks as due).
const PROMOTE_MAX: i64 = 5000;

/// A claim in the form that its statements need.
pub(crate) struct ClaimParams<'a> {
    claim: &'a Claim,
    now: Timestamp,
    id: uuid::Uuid,
    queue: &'a str,
    kinds: Vec<&'a str>,
    /// Whether the claim wants these kinds (`true`) or all others (`false`).
    includes: bool,
    worker: &'a str,
    lease: Time,
    settings: i32,
}

/// Where a claim starts in one lane of its queue.
struct LaneStart {
    lane: ClaimLane,
    from: ClaimOrder,
    version: u64,
}

impl LaneStart {
    /// Starts earlier if one of the promoted jobs comes before the start. Returns whether it does.
    fn lower(&mut self, promoted: &[Promoted]) -> bool {
        let same_lane = promoted
            .iter()
            .filter(|(queue, lane, _)| *queue == self.lane.0 && *lane == self.lane.1);
        let first = same_lane.map(|(_, _, order)| *order).min();
        let earlier = first.filter(|first| *first < self.from);
        self.from = earlier.unwrap_or(self.from);
        earlier.is_some()
    }
}

/// A job that became due: its queue, lane and claim order.
pub(crate) type Promoted = (QueueName, i16, ClaimOrder);

/// What decides how a claim proceeds.
struct ClaimConditions {
    /// The claim was made before.
    repeated: bool,
    /// The queue has limits.
    bounded: bool,
    /// The queue has due jobs with a concurrency key.
    keyed: bool,
    /// Both fresh jobs and retries wait.
    both_wait: bool,
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
            && matches!(self.claim.plan.mix, Mix::RetriesFirst(_))
    }
}

/// The result of one try of a claim.
pub(crate) enum ClaimOutcome {
    /// The claim is committed. Has the claimed jobs, and the jobs that it promoted.
    Done(Claimed, Vec<Promoted>),
    /// The claim met unreadable jobs and took nothing. Park them, then repeat the claim.
    Unreadable(Vec<Unreadable>),
}

/// Claims jobs. If the same claim runs twice at the same time, the second one waits for the first
/// and gets the same leases.
pub(crate) async fn claim(
    session: &mut Session,
    settings: &Settings,
    marks: &Watermarks,
    claim_params: &ClaimParams<'_>,
) -> DriverResult<ClaimOutcome> {
    session.lock_first(fixed_hash(claim_params.id.as_bytes()).cast_signed());
    let plan = claim_params.claim.plan;
    let limit = plan.limit.min(saturating_u32(CLAIM_MAX));
    let first = match plan.mix {
        Mix::RetriesFirst(first) if claim_params.is_plain() => {
            first.min(plan.retries_max).min(limit)
        }
        _ => 0,
    };
    let (mut fresh, mut retry) = (claim_params.start(0, marks), claim_params.start(1, marks));
    let (mut conditions, mut retries, promoted) =
        prepare(session, claim_params, &fresh, &retry, first).await?;
    // Jobs that became due just now may come before the start of this claim: look again from there.
    if fresh.lower(&promoted) | retry.lower(&promoted) {
        let first = if retries.is_empty() { first } else { 0 };
        let (again, more, _) = prepare(session, claim_params, &fresh, &retry, first).await?;
        conditions.both_wait |= again.both_wait;
        retries.extend(more);
    }
    let needs_checks = conditions.bounded || conditions.keyed || !claim_params.is_plain();
    if (conditions.repeated || needs_checks) && !retries.is_empty() {
        return Err(DriverError::Collision); // the conditions changed between the two statements
    }
    if conditions.repeated {
        let claimed = repeat_claim(session, settings, claim_params).await?;
        return Ok(ClaimOutcome::Done(claimed, promoted));
    }
    if needs_checks {
        let claimed =
            bounded::claim(session, claim_params, conditions.bounded, conditions.keyed).await?;
        return Ok(match claimed {
            Ok(claimed) => ClaimOutcome::Done(claimed, promoted),
            Err(unreadable) => ClaimOutcome::Unreadable(unreadable),
        });
    }
    let no_more_retries = len(&retries) < first || plan.retries_max <= len(&retries);
    let fresh_max = (limit - len(&retries)).min(plan.fresh_max);
    let more = take(session, claim_params, &fresh, fresh_max).await?;
    let mut last = Vec::new();
    if !no_more_retries {
        let left = limit - len(&retries) - len(&more);
        let retries_max = left.min(plan.retries_max - len(&retries));
        last = take(session, claim_params, &retry, retries_max).await?;
    }
    let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
    for rows in [&retries, &more, &last] {
        let (started, others) = started(rows, claim_params)?;
        jobs.extend(started);
        unreadable.extend(others);
    }
    // Nothing is committed yet, so the other jobs can still be claimed without the unreadable ones.
    if !unreadable.is_empty() {
        session.roll_back().await?;
        return Ok(ClaimOutcome::Unreadable(unreadable));
    }
    session.commit().await?;
    // The next claim starts after the jobs of this one.
    advance(marks, &fresh, &more)?;
    advance(marks, &retry, &retries)?;
    advance(marks, &retry, &last)?;
    let both_lanes_ready = conditions.both_wait;
    let claimed = Claimed {
        jobs,
        both_lanes_ready,
        repeated: false,
    };
    Ok(ClaimOutcome::Done(claimed, promoted))
}

/// Promotes due jobs, reads the conditions of the claim, and takes the retries that come first, in
/// one round trip. `claim.sql` checks the conditions itself and takes nothing if there are limits.
async fn prepare(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    fresh: &LaneStart,
    retry: &LaneStart,
    first: u32,
) -> DriverResult<(ClaimConditions, Vec<Row>, Vec<Promoted>)> {
    let now = Time(claim_params.now);
    let (fresh_rank, fresh_at, fresh_id) = columns(fresh.from);
    let (retry_rank, retry_at, retry_id) = columns(retry.from);
    let promote = params![now, PROMOTE_MAX];
    let check = params![
        claim_params.queue,
        claim_params.id,
        now,
        claim_params.kinds,
        fresh_rank,
        fresh_at,
        fresh_id,
        retry_rank,
        retry_at,
        retry_id,
        claim_params.includes,
    ];
    let (lane, limit) = (1_i16, i64::from(first));
    let take = params![
        claim_params.queue,
        lane,
        now,
        claim_params.kinds,
        retry_rank,
        retry_at,
        retry_id,
        limit,
        claim_params.id,
        true,
        claim_params.lease,
        claim_params.settings,
        claim_params.worker,
        claim_params.includes,
    ];
    let [promoted, conditions, rows] = session
        .queries([
            (include_str!("../sql/promote.sql"), promote),
            (include_str!("../sql/claim_conditions.sql"), check),
            (&TAKE, take),
        ])
        .await?;
    let claim_orders = claim_orders(&promoted);
    let answer = |column: usize| -> DriverResult<bool> {
        let found = conditions
            .first()
            .map(|row| row.try_get(column))
            .transpose()?;
        Ok(found.unwrap_or(false))
    };
    let conditions = ClaimConditions {
        repeated: answer(0)?,
        bounded: answer(1)?,
        keyed: answer(2)?,
        both_wait: answer(3)? && answer(4)?,
    };
    Ok((conditions, rows, claim_orders))
}

fn claim_orders(promoted: &[Row]) -> Vec<Promoted> {
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
) -> DriverResult<(Vec<QueueName>, Vec<Promoted>)> {
    let kinds: Vec<&str> = query.kinds.iter().map(|kind| kind.as_str()).collect();
    let prefix = query.pattern.prefix();
    // Names have no control characters, so this is a bound between the name and the next one.
    let after = query.after.as_ref().map(|after| format!("{after}\u{1}"));
    let from = after.as_deref().map_or(prefix, |after| after.max(prefix));
    let like = query.pattern.as_str().replace('_', r"\_").replace('*', "%");
    let limit = i32::try_from(query.limit.min(PAGE_MAX)).unwrap_or(i32::MAX);
    let promote = params![Time(now), PROMOTE_MAX];
    let due = params![kinds, from, prefix, like, Time(now), limit];
    let [promoted, found] = session
        .queries([
            (include_str!("../sql/promote.sql"), promote),
            (include_str!("../sql/due_queues.sql"), due),
        ])
        .await?;
    session.commit().await?;
    let queues = skip_unreadable("queue", &found, |found| row::name(found, 0));
    Ok((queues, claim_orders(&promoted)))
}

static TAKE: LazyLock<String> =
    LazyLock::new(|| include_str!("../sql/claim.sql").replace("/* columns */", ACTIVE_COLUMNS));

/// Claims the first jobs of a lane.
async fn take(
    session: &mut Session,
    claim_params: &ClaimParams<'_>,
    start: &LaneStart,
    limit: u32,
) -> DriverResult<Vec<Row>> {
    let (rank, at, id) = columns(start.from);
    let (lane, limit) = (start.lane.1, i64::from(limit));
    let params = params![
        claim_params.queue,
        lane,
        Time(claim_params.now),
        claim_params.kinds,
        rank,
        at,
        id,
        limit,
        claim_params.id,
        false,
        claim_params.lease,
        claim_params.settings,
        claim_params.worker,
        claim_params.includes,
    ];
    session.query(&TAKE, params).await
}

fn columns(order: ClaimOrder) -> (i32, Time, uuid::Uuid) {
    let (rank, at, id) = order;
    (rank, Time(at), row::uuid(id))
}

/// Raises the watermark to the last job that the claim took in this lane.
fn advance(marks: &Watermarks, start: &LaneStart, rows: &[Row]) -> DriverResult<()> {
    let mut last = None;
    for found in rows {
        let order = (found.try_get(3)?, row::time(found, 4)?, row::id(found, 0)?);
        last = last.max(Some(order));
    }
    if let Some(order) = last {
        marks.advance(&start.lane, start.version, order);
    }
    Ok(())
}

/// Returns the jobs of the rows of a claim in claim order, and those that cannot be read.
fn started(
    rows: &[Row],
    claim_params: &ClaimParams<'_>,
) -> DriverResult<(Vec<Job>, Vec<Unreadable>)> {
    let settings = Arc::new(claim_params.claim.retry.clone());
    let settings = SettingsById::from([(claim_params.settings, Ok(settings))]);
    let (mut jobs, unreadable) = split_unreadable(rows, |found| row::active(found, &settings))?;
    jobs.sort_by_key(Job::claim_order);
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
             select unnest(jobs) as job, unnest(attempts) as of from windlass.claims where id = $1
         ) as claimed on claimed.job = id and claimed.of = attempt
         where lease_until is not null"
    );
    let rows = session.query(&sql, params![claim_params.id]).await?;
    let (mut jobs, _) = active(session, settings, &rows).await?;
    session.commit().await?;
    jobs.sort_by_key(|job| (job.lane(), job.claim_order()));
    Ok(Claimed {
        jobs,
        both_lanes_ready: false,
        repeated: true,
    })
}

fn len(rows: &[Row]) -> u32 {
    saturating_u32(rows.len())
}
