//! Jobs go out, each under a lease.

mod bounded;

use std::sync::{Arc, LazyLock};

use tokio_postgres::Row;
use windlass_core::fairness::Mix;
use windlass_core::{Job, QueueName, Timestamp, fixed_hash};
use windlass_store::{CLAIM_MAX, Claim, Claimed, DueQueues, PAGE_MAX};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, params};
use crate::read::active;
use crate::row::{self, ACTIVE_COLUMNS};
use crate::session::Session;
use crate::settings::{Settings, SettingsById};
use crate::unreadable::{Unreadable, skip_unreadable, split_unreadable};
use crate::watermark::{ClaimLane, ClaimOrder, Watermarks};

/// So many jobs whose time has come are moved among the due ones by one claim.
const PROMOTE_MAX: i64 = 5000;

/// What every statement of a claim is version.
pub(crate) struct ClaimParams<'a> {
    claim: &'a Claim,
    now: Timestamp,
    id: uuid::Uuid,
    queue: &'a str,
    kinds: Vec<&'a str>,
    /// Whether those kinds are meant, or all others.
    wanted: bool,
    worker: &'a str,
    lease: Time,
    settings: i32,
}

/// A lane of the queue, as this claim sees it.
struct LaneStart {
    lane: ClaimLane,
    from: ClaimOrder,
    version: u64,
}

impl LaneStart {
    /// Begins earlier, if one of those comes before; answers whether it does.
    fn lower(&mut self, promoted: &[Promoted]) -> bool {
        let of_lane = promoted
            .iter()
            .filter(|(queue, lane, _)| *queue == self.lane.0 && *lane == self.lane.1);
        let first = of_lane.map(|(_, _, order)| *order).min();
        let earlier = first.filter(|first| *first < self.from);
        self.from = earlier.unwrap_or(self.from);
        earlier.is_some()
    }
}

/// A job that became due: its queue, lane and order.
pub(crate) type Promoted = (QueueName, i16, ClaimOrder);

/// What is known before anything is taken.
struct ClaimConditions {
    claimed: bool,
    bounded: bool,
    keyed: bool,
    both_wait: bool,
}

impl<'a> ClaimParams<'a> {
    pub(crate) fn new(claim: &'a Claim, settings: i32, now: Timestamp) -> Self {
        let (kinds, wanted) = claim.kinds.parts();
        ClaimParams {
            claim,
            now,
            id: uuid::Uuid::from_u128(claim.id),
            queue: claim.queue.as_str(),
            kinds: kinds.iter().map(|kind| kind.as_str()).collect(),
            wanted,
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

    /// Whether the claim is nothing but "the first so many".
    fn is_plain(&self) -> bool {
        self.claim.jobs.is_none()
            && self.claim.except.is_empty()
            && self.claim.plan.max_inflight_retries.is_none()
            && matches!(self.claim.plan.mix, Mix::RetriesFirst(_))
    }
}

/// What a claim came to.
pub(crate) enum ClaimOutcome {
    /// It is committed. Which jobs it took, and which became due on the way.
    Done(Claimed, Vec<Promoted>),
    /// It met jobs that cannot be read, and took nothing: once these are parked, it can be made again.
    Unreadable(Vec<Unreadable>),
}

/// Claims jobs. A plain claim of a queue without bounds is three round trips; others look first and lock what they count.
/// Whoever makes the same claim at the same time waits, and then gets the same leases.
pub(crate) async fn claim(
    session: &mut Session,
    settings: &Settings,
    marks: &Watermarks,
    claim_params: &ClaimParams<'_>,
) -> DriverResult<ClaimOutcome> {
    session.lock_first(fixed_hash(claim_params.id.as_bytes()).cast_signed());
    let plan = claim_params.claim.plan;
    let limit = plan.limit.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX));
    let first = match plan.mix {
        Mix::RetriesFirst(first) if claim_params.is_plain() => {
            first.min(plan.retries_max).min(limit)
        }
        _ => 0,
    };
    let (mut fresh, mut retry) = (claim_params.start(0, marks), claim_params.start(1, marks));
    let (mut before, mut retries, promoted) =
        prepare(session, claim_params, &fresh, &retry, first).await?;
    // What became due just now may come before the claim_orders where this claim began.
    if fresh.lower(&promoted) | retry.lower(&promoted) {
        let first = if retries.is_empty() { first } else { 0 };
        let (again, more, _) = prepare(session, claim_params, &fresh, &retry, first).await?;
        before.both_wait |= again.both_wait;
        retries.extend(more);
    }
    let careful = before.bounded || before.keyed || !claim_params.is_plain();
    if (before.claimed || careful) && !retries.is_empty() {
        return Err(DriverError::Collision); // somebody changed what was looked at
    }
    if before.claimed {
        let claimed = repeat_claim(session, settings, claim_params).await?;
        return Ok(ClaimOutcome::Done(claimed, promoted));
    }
    if careful {
        let claimed = bounded::claim(session, claim_params, before.bounded, before.keyed).await?;
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
    // All rows are read before the commit: what cannot be read must not cost its neighbours their start.
    if !unreadable.is_empty() {
        session.roll_back().await?;
        return Ok(ClaimOutcome::Unreadable(unreadable));
    }
    session.commit().await?;
    // The next claim begins behind it.
    advance(marks, &fresh, &more)?;
    advance(marks, &retry, &retries)?;
    advance(marks, &retry, &last)?;
    let both_waited = before.both_wait;
    let claimed = Claimed {
        jobs,
        both_waited,
        repeated: false,
    };
    Ok(ClaimOutcome::Done(claimed, promoted))
}

/// Promotes, looks at what a claim must know, and takes the retries that come first: one flight.
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
    let look = params![
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
        claim_params.wanted,
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
        claim_params.wanted,
    ];
    let [promoted, before, rows] = session
        .queries([
            (include_str!("../sql/promote.sql"), promote),
            (include_str!("../sql/claim_conditions.sql"), look),
            (&TAKE, take),
        ])
        .await?;
    let claim_orders = claim_orders(&promoted);
    let answer = |column: usize| -> DriverResult<bool> {
        let found = before.first().map(|row| row.try_get(column)).transpose()?;
        Ok(found.unwrap_or(false))
    };
    let before = ClaimConditions {
        claimed: answer(0)?,
        bounded: answer(1)?,
        keyed: answer(2)?,
        both_wait: answer(3)? && answer(4)?,
    };
    Ok((before, rows, claim_orders))
}

fn claim_orders(promoted: &[Row]) -> Vec<Promoted> {
    skip_unreadable("promoted", promoted, |found| {
        let order = (found.try_get(2)?, row::time(found, 3)?, row::id(found, 4)?);
        Ok((row::name(found, 0)?, found.try_get(1)?, order))
    })
}

/// The queues that have due jobs, and which jobs became due on the way: no claim may have come to
/// promote them.
pub(crate) async fn due_queues(
    session: &mut Session,
    look: &DueQueues,
    now: Timestamp,
) -> DriverResult<(Vec<QueueName>, Vec<Promoted>)> {
    let kinds: Vec<&str> = look.kinds.iter().map(|kind| kind.as_str()).collect();
    let prefix = look.pattern.prefix();
    // No name holds a control character: the next name behind this one begins here.
    let after = look.after.as_ref().map(|after| format!("{after}\u{1}"));
    let from = after.as_deref().map_or(prefix, |after| after.max(prefix));
    let like = look.pattern.as_str().replace('_', r"\_").replace('*', "%");
    let limit = i32::try_from(look.limit.min(PAGE_MAX)).unwrap_or(i32::MAX);
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

/// Takes the first jobs of a lane.
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
        claim_params.wanted,
    ];
    session.query(&TAKE, params).await
}

fn columns(order: ClaimOrder) -> (i32, Time, uuid::Uuid) {
    let (rank, at, id) = order;
    (rank, Time(at), row::uuid(id))
}

/// The next claim begins behind what this one took, if nothing was left before it.
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

/// The jobs of the rows of a claim, in the order of claims, and those that cannot be read.
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

/// The claim was made before: what still lives of it.
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
        both_waited: false,
        repeated: true,
    })
}

fn len(rows: &[Row]) -> u32 {
    u32::try_from(rows.len()).unwrap_or(u32::MAX)
}
