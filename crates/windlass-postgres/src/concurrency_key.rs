//! Parked jobs: due jobs whose concurrency key is full.
//!
//! A claim that meets such a job parks it, so that no other claim steps over it
//! (`migrations/0004_concurrency_keys.sql`). The transaction that makes a key free unparks jobs.
//! That is one that ends attempts, or one in which a due job leaves its queue without a start: it
//! may have been unparked instead of others.
//!
//! Such a transaction cannot unpark all jobs: it skips rows that another transaction has locked,
//! and an unreadable job holds its key until its lease expires, which no transaction notices. So
//! every node looks through all parked keys every few seconds.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_postgres::Row;
use windlass_core::{Job, Timestamp};

use crate::claim::Claimable;
use crate::connect::{ConnectionClass, Connections};
use crate::error::DriverResult;
use crate::param::{Time, params};
use crate::row;
use crate::session::Session;
use crate::statement::Sql;
use crate::unreadable::skip_unreadable;
use crate::wake::Wake;

const UNPARK: Sql<'static> = Sql::Kept("select * from windlass.unpark_v1($1, $2)");

/// How often a node looks through the parked keys.
const EVERY: Duration = Duration::from_secs(5);

/// The pause after a page that others follow, as a multiple of the time that the page took.
const PAUSE: u32 = 10;

/// The most keys of a page. After an error the pages are smaller, so that a page that takes too
/// long does not stop the scan.
const PAGE_KEYS: i32 = 1000;

/// Returns the keys of these jobs.
pub(crate) fn keys<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> BTreeSet<&'a str> {
    let keys = jobs.into_iter().filter_map(|job| job.concurrency.as_ref());
    keys.map(|concurrency| concurrency.key.as_str()).collect()
}

/// Unparks jobs of these keys and commits, in one round trip. Returns the jobs.
pub(crate) async fn unpark_and_commit(
    session: &mut Session,
    keys: BTreeSet<&str>,
    now: Timestamp,
) -> DriverResult<Vec<Claimable>> {
    if keys.is_empty() {
        session.commit().await?;
        return Ok(Vec::new());
    }
    let keys: Vec<&str> = keys.into_iter().collect();
    let rows = session
        .query_and_commit(UNPARK, params![keys, Time(now)])
        .await?;
    Ok(unparked(&rows, 0))
}

/// Reads unparked jobs from rows, from this column on.
pub(crate) fn unparked<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
    column: usize,
) -> Vec<Claimable> {
    skip_unreadable("unparked", rows, |found| {
        let (rank, at) = (found.try_get(column + 2)?, row::time(found, column + 3)?);
        let order = (rank, at, row::id(found, column + 4)?);
        Ok((row::name(found, column)?, found.try_get(column + 1)?, order))
    })
}

/// Takes parked retries back to the lane of retries, in the round trip of the next statement. The
/// statements that change or end waiting jobs count the retries of that lane.
pub(crate) fn before_change<'a>(
    session: &mut Session,
    jobs: impl IntoIterator<Item = &'a Job>,
) -> DriverResult<()> {
    let keyed = jobs.into_iter().filter(|job| job.concurrency.is_some());
    let ids = row::uuids(keyed.map(|job| job.id));
    if ids.is_empty() {
        return Ok(());
    }
    let sql = "update windlass.jobs set lane = 1 where id = any ($1) and lane = 3";
    session.queue(sql, params![ids])
}

/// Looks for parked jobs whose key is free, as long as the store is open.
pub(crate) async fn unpark_missed(connections: &Connections, wake: &Wake) {
    let (mut from, mut size, mut pause) = (String::new(), PAGE_KEYS, EVERY);
    loop {
        tokio::time::sleep(pause).await;
        let (after, started) = (&from, tokio::time::Instant::now());
        let looked = connections
            .run(ConnectionClass::Other, |mut session| async move {
                unpark_page(&mut session, after, size).await
            })
            .await;
        match looked {
            Ok((unparked, next)) => {
                wake.notify_orders(unparked);
                pause = if next.is_empty() {
                    EVERY
                } else {
                    EVERY.min(started.elapsed() * PAUSE)
                };
                from = next;
                size = (size * 2).min(PAGE_KEYS);
            }
            Err(error) => {
                pause = EVERY;
                size = (size / 2).max(1);
                tracing::debug!(%error, "scan for parked jobs failed; retrying in 5 s");
            }
        }
    }
}

/// Unparks jobs of the next `size` keys after this one. Returns them, and after which key to
/// continue.
async fn unpark_page(
    session: &mut Session,
    after: &str,
    size: i32,
) -> DriverResult<(Vec<Claimable>, String)> {
    let sql = include_str!("../sql/parked_keys.sql");
    let rows = session.read(sql, params![after, size]).await?;
    let keys: Vec<String> = rows
        .iter()
        .map(|found| Ok(found.try_get(0)?))
        .collect::<DriverResult<_>>()?;
    let Some(last) = keys.last().cloned() else {
        return Ok((Vec::new(), String::new()));
    };
    // No request brings a `now`. The clock of the server is the one that all nodes follow.
    let sql = "select * from windlass.unpark_v1($1, clock_timestamp())";
    let rows = session.single(sql, params![keys]).await?;
    let unparked = unparked(&rows, 0);
    if !unparked.is_empty() {
        let jobs = unparked.len();
        tracing::debug!(jobs, "unparked jobs of free concurrency keys");
    }
    Ok((unparked, last))
}
