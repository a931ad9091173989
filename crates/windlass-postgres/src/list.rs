//! Lists jobs, page by page.
//!
//! A list first reads *outlines*: positions, and whether the columns of a job fit the filter. These
//! are small, so it examines up to [`SCAN_MAX`] of them. An outline includes the error or the
//! payload if the filter looks for a text there, unless it is long. Then the list reads the whole
//! jobs whose outlines fit, because only they show the rest, such as tags. `Filter::matches`
//! decides.

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::{JobId, Timestamp};
use windlass_store::{
    Filter, ListCursor, ListOrder, Listed, ListedState, Lister, PAGE_MAX, Page, SCAN_MAX,
};

use crate::error::DriverResult;
use crate::param::{Time, bigint, params};
use crate::read::{DEAD, FINISHED, JOBS, find_in};
use crate::row::{self, cause};
use crate::session::Session;
use crate::settings::Settings;

/// The most whole jobs that a list reads at once, and their bytes unless a single one has more.
const BODIES_MAX: usize = 1000;
const BODY_BYTES_MAX: i64 = 4 << 20;

/// The most bytes of an error or a payload in an outline.
const OUTLINE_TEXT_BYTES_MAX: u64 = 1000;

/// The position of a job, and what is known about it without reading all of it.
struct Outline {
    position: ListCursor,
    fits: bool,
    bytes: i64,
}

/// Returns a page of jobs. The batches of outlines grow.
pub(crate) async fn list(
    session: &mut Session,
    settings: &Settings,
    filter: &Filter,
    page: Page,
    now: Timestamp,
) -> DriverResult<Listed> {
    let mut list = Lister::new(page);
    let mut after = page.after;
    let mut step = page.limit.clamp(1, PAGE_MAX);
    let tables = tables(filter, page.order);
    if tables.is_empty() {
        return Ok(list.finish()); // no job can match, such as a running job that has finished
    }
    let sql = outlines_sql(filter, &tables, page.order);
    // A job may move from `jobs` to another table and back meanwhile, so look there twice.
    let searched: Vec<&'static str> = match tables.as_slice() {
        [table] => vec![table],
        tables => tables.iter().copied().chain([JOBS]).collect(),
    };
    while !list.is_full() {
        let outlines = outlines(session, &sql, filter, after, step, now).await?;
        let mut rest = outlines.as_slice();
        while !list.is_full() && !rest.is_empty() {
            let (part, others) = rest.split_at(chunk_len(rest));
            let candidates = part.iter().filter(|outline| outline.fits);
            let candidates: Vec<JobId> = candidates.map(|outline| outline.position.id).collect();
            let mut bodies = find_in(session, settings, &candidates, &searched, false).await?;
            for outline in part {
                if list.is_full() {
                    break;
                }
                let body = bodies.jobs.remove(&outline.position.id);
                let body = body.map(|found| found.job);
                let body = body.filter(|job| filter.matches(job, now));
                list.look(outline.position, body);
            }
            rest = others;
        }
        after = outlines.last().map(|outline| outline.position);
        if outlines.len() < step {
            break; // no more rows
        }
        step = (step * 4).min(SCAN_MAX);
    }
    Ok(list.finish())
}

/// How many of the outlines to look at together: until as many whole jobs are needed as may be read
/// at once.
fn chunk_len(outlines: &[Outline]) -> usize {
    let (mut jobs, mut bytes) = (0, 0);
    let fits_in = outlines.iter().take_while(|outline| {
        if outline.fits {
            jobs += 1;
            bytes += outline.bytes;
        }
        jobs <= BODIES_MAX && (jobs <= 1 || bytes <= BODY_BYTES_MAX)
    });
    fits_in.count().max(1)
}

async fn outlines(
    session: &mut Session,
    sql: &str,
    filter: &Filter,
    after: Option<ListCursor>,
    limit: usize,
    now: Timestamp,
) -> DriverResult<Vec<Outline>> {
    let time = |at: Option<Timestamp>| at.map(Time);
    let text_max = bigint(OUTLINE_TEXT_BYTES_MAX);
    let rows = session
        .read_in_order(
            sql,
            params![
                after.map_or(Uuid::max(), |after| row::uuid(after.id)),
                bigint(limit as u64),
                filter.queue.as_ref().map(|queue| queue.as_str()),
                filter.kind.as_ref().map(|kind| kind.as_str()),
                filter.fingerprint.map(cause),
                filter.reason.map(|reason| reason.name()),
                filter.state.map(|state| state.name()),
                time(filter.created_from),
                time(filter.created_before),
                time(filter.failed_from),
                time(filter.failed_before),
                time(filter.finished_from),
                time(filter.finished_before),
                time(after.and_then(|after| after.finished_at)),
                Time(now),
                filter.error.as_ref().map(|_| text_max),
                filter.payload.as_ref().map(|_| text_max),
            ],
        )
        .await?;
    let outline = |found: &Row| {
        Ok(Outline {
            position: ListCursor {
                id: row::id(found, 0)?,
                finished_at: row::optional_time(found, 1)?,
            },
            fits: found.try_get(2)? && may_match_text(found, filter)?,
            bytes: found.try_get(3)?,
        })
    };
    rows.iter().map(outline).collect()
}

/// Whether the error and the payload match, if the outline has them.
fn may_match_text(found: &Row, filter: &Filter) -> DriverResult<bool> {
    let (error, payload): (Option<&str>, Option<&str>) = (found.try_get(4)?, found.try_get(5)?);
    // An unreadable error is reported when the whole job is read.
    let error = error.and_then(|error| row::error(error).ok());
    Ok(error.is_none_or(|error| filter.matches_error(Some(&error)))
        && payload.is_none_or(|payload| filter.matches_payload(payload)))
}

/// Returns the tables that can have matches.
fn tables(filter: &Filter, order: ListOrder) -> Vec<&'static str> {
    let tables = match (filter.state, filter.reason) {
        (_, Some(_)) | (Some(ListedState::Dead), _) => vec![DEAD],
        (Some(ListedState::Scheduled | ListedState::Ready | ListedState::Running), None) => {
            vec![JOBS]
        }
        (Some(ListedState::Succeeded | ListedState::Cancelled), None) => vec![FINISHED],
        (None, None) => vec![JOBS, DEAD, FINISHED],
    };
    let has_time = filter.finished_from.is_some() || filter.finished_before.is_some();
    let is_finished = order == ListOrder::Finished || has_time;
    let tables = tables.into_iter();
    tables
        .filter(|table| !is_finished || *table != JOBS)
        .collect()
}

/// The conditions that the columns of all jobs can answer.
///   $1 id of the last job, $2 limit, $3 queue, $4 kind, $5 fingerprint, $6 reason, $7 state, $8-$9
///   created, $10-$11 failed, $12-$13 finished, $14 when the last job finished, $15 now, $16 the
///   most bytes of an error, $17 of a payload
const FITS: &str = "coalesce(
    ($3::text is null or queue = $3) and ($4::text is null or kind = $4)
    and ($5::bigint is null or fingerprint = $5)
    and ($8::timestamptz is null or created_at >= $8) and ($9::timestamptz is null or created_at < $9)
    and ($10::timestamptz is null or failed_at >= $10) and ($11::timestamptz is null or failed_at < $11)";
const FITS_ACTIVE: &str = " and ($7::text is null or $7 = case
        when lease_until is not null then 'running' when run_at > $15 then 'scheduled' else 'ready'
    end)";
const FITS_FINISHED: &str = " and ($6::text is null or reason = $6) and ($7::text is null or state = $7)
    and ($12::timestamptz is null or finished_at >= $12) and ($13::timestamptz is null or finished_at < $13)";

/// The condition for jobs behind the position of a page and between the bounds of the filter.
macro_rules! finished_range {
    () => {
        "($14::timestamptz is null or (finished_at, id) < ($14, $1))
         and ($12::timestamptz is null or finished_at >= $12)
         and ($13::timestamptz is null or finished_at < $13)"
    };
}

/// Returns the SQL for outlines of jobs. A cause is found by its index; `between` keeps the planner
/// from reading all jobs in their order instead.
fn outlines_sql(filter: &Filter, tables: &[&str], order: ListOrder) -> String {
    let parts = tables.iter().map(|table| {
        let fits = if *table == JOBS {
            FITS_ACTIVE
        } else {
            FITS_FINISHED
        };
        let has_index = filter.fingerprint.is_some() && *table != FINISHED;
        let running = match filter.state {
            Some(ListedState::Running) => "and lease_until is not null",
            Some(ListedState::Scheduled | ListedState::Ready) => "and lease_until is null",
            _ => "",
        };
        let (position, rows, sorted) = match order {
            ListOrder::Created if has_index => (
                "null::timestamptz",
                "fingerprint between $5 and $5 and id < $1",
                "fingerprint desc, id desc",
            ),
            ListOrder::Created => ("null::timestamptz", "id < $1", "id desc"),
            ListOrder::Finished if has_index => (
                "finished_at",
                concat!("fingerprint between $5 and $5 and ", finished_range!()),
                "fingerprint desc, finished_at desc, id desc",
            ),
            ListOrder::Finished => (
                "finished_at",
                finished_range!(),
                "finished_at desc, id desc",
            ),
        };
        format!(
            "(select id, {position} as finished_at, {FITS}{fits}, false) as fits,
                 (octet_length(payload) + coalesce(octet_length(extra), 0))::bigint as bytes,
                 case when octet_length(last_error) <= $16::bigint then last_error end as last_error,
                 case when octet_length(payload) <= $17::bigint then payload end as payload
              from {table} where {rows} {running} order by {sorted} limit $2)"
        )
    });
    let parts: Vec<String> = parts.collect();
    let sorted = match order {
        ListOrder::Created => "id desc",
        ListOrder::Finished => "finished_at desc, id desc",
    };
    let parts = parts.join(" union all ");
    format!("select * from ({parts}) as jobs order by {sorted} limit $2")
}
