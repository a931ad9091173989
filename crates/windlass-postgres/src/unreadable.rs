//! Jobs that this version cannot read: a newer one wrote them.
//!
//! They are parked with the reason, so that no claim, promotion or sweep looks at them again. Every node looks at the parked
//! ones now and then, and lets those back that it can read.

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::JobId;

use crate::error::{DriverError, DriverResult};
use crate::param::params;
use crate::read;
use crate::row::{self, ACTIVE_COLUMNS, uuid};
use crate::session::Session;
use crate::settings::Settings;

/// One pass looks at this many parked jobs.
const LOOK_MAX: i64 = 500;

/// A job that cannot be read, and why.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable {
    pub(crate) id: JobId,
    pub(crate) reason: String,
}

impl Unreadable {
    pub(crate) fn new(row: &Row, error: DriverError) -> DriverResult<Self> {
        let reason = match error {
            DriverError::Damaged(what) => what,
            DriverError::Sql(error) => error.to_string(),
            other => return Err(other),
        };
        let id = row::id(row, 0)?;
        Ok(Unreadable { id, reason })
    }
}

/// What can be read of rows that begin with the id of a job, and which cannot.
pub(crate) fn split_unreadable<T>(
    rows: &[Row],
    mut read: impl FnMut(&Row) -> DriverResult<T>,
) -> DriverResult<(Vec<T>, Vec<Unreadable>)> {
    let (mut readable, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match read(row) {
            Ok(value) => readable.push(value),
            Err(error) => unreadable.push(Unreadable::new(row, error)?),
        }
    }
    Ok((readable, unreadable))
}

/// What can be read of rows that stand for themselves; the others are passed over.
pub(crate) fn skip_unreadable<T>(
    what: &'static str,
    rows: &[Row],
    read: impl Fn(&Row) -> DriverResult<T>,
) -> Vec<T> {
    let known = |row: &Row| {
        let read = read(row);
        if let Err(error) = &read {
            tracing::debug!(what, ?error, "skipped an unreadable row");
        }
        read.ok()
    };
    rows.iter().filter_map(known).collect()
}

/// Parks jobs that wait or run, within a transaction.
pub(crate) async fn park(session: &mut Session, jobs: &[Unreadable]) -> DriverResult<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let mut jobs: Vec<&Unreadable> = jobs.iter().collect();
    jobs.sort_unstable_by_key(|job| job.id);
    for job in &jobs {
        tracing::warn!(job.id = %job.id, reason = job.reason, "parked an unreadable job");
    }
    let ids: Vec<Uuid> = jobs.iter().map(|job| uuid(job.id)).collect();
    let reasons: Vec<&str> = jobs.iter().map(|job| job.reason.as_str()).collect();
    session
        .query(include_str!("../sql/park.sql"), params![ids, reasons])
        .await?;
    Ok(())
}

/// Looks at parked jobs behind an id and lets those back that can be read; answers where the next pass begins.
pub(crate) async fn unpark_readable(
    session: &mut Session,
    settings: &Settings,
    after: Uuid,
) -> DriverResult<Uuid> {
    let sql = format!(
        "select {ACTIVE_COLUMNS} from {} where unreadable is not null and id > $1 order by id limit $2",
        read::JOBS
    );
    let rows = session.read(&sql, params![after, LOOK_MAX]).await?;
    let (jobs, still) = read::active(session, settings, &rows).await?;
    if !jobs.is_empty() {
        let ids = row::uuids(jobs.iter().map(|job| job.id));
        let sql = "update windlass.jobs set unreadable = null where id = any ($1)";
        session.single(sql, params![ids]).await?;
        tracing::info!(jobs = jobs.len(), "unparked jobs that are readable now");
    }
    let still = still.iter().map(|job| job.id);
    let last = jobs.iter().map(|job| job.id).chain(still).max();
    let full = i64::try_from(rows.len()).is_ok_and(|rows| rows == LOOK_MAX);
    Ok(last.filter(|_| full).map_or(Uuid::nil(), uuid))
}
