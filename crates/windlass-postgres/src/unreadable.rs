//! Jobs that this version cannot read, because a newer version wrote them.
//!
//! During a rolling upgrade, old and new nodes share the database, and an old node may meet a row
//! with a value it does not know. It must not lease such a job, and the job must not block others:
//! a claim that always fails at the same first row would stop the queue. So the node *sets the job
//! aside*: it sets the column `unreadable` to the reason and clears `due`, which takes the row out
//! of all indexes that claims, promotions and sweeps use.
//!
//! Once a minute every node tries to read the jobs that were set aside (`upkeep.rs`), and picks up
//! those that it can read. A new node thereby picks up what an old node has set aside.
//!
//! The index of these jobs is called `parked`. Migrations never change once released, so it keeps
//! this name. Parked jobs are something else today: jobs whose concurrency key is full
//! (`concurrency_key.rs`).

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::JobId;

use crate::claim::{ClaimParams, Claimable};
use crate::concurrency_key;
use crate::error::{DriverError, DriverResult};
use crate::param::{Time, params};
use crate::read;
use crate::row::{self, ACTIVE_COLUMNS, uuid};
use crate::session::Session;
use crate::settings::Settings;

/// The most jobs that one pass tries to read.
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

/// Reads rows whose first column is the id of a job. Returns the values, and the unreadable jobs.
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

/// Reads rows, and skips those that cannot be read.
pub(crate) fn skip_unreadable<'a, T>(
    what: &'static str,
    rows: impl IntoIterator<Item = &'a Row>,
    read: impl Fn(&Row) -> DriverResult<T>,
) -> Vec<T> {
    let read_or_skip = |row: &Row| {
        let read = read(row);
        if let Err(error) = &read {
            tracing::debug!(what, ?error, "skipped an unreadable row");
        }
        read.ok()
    };
    rows.into_iter().filter_map(read_or_skip).collect()
}

/// Sets active jobs aside. The caller commits.
pub(crate) async fn set_aside(session: &mut Session, jobs: &[Unreadable]) -> DriverResult<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let (ids, reasons) = report(jobs);
    session
        .query(include_str!("../sql/set_aside.sql"), params![ids, reasons])
        .await?;
    Ok(())
}

/// Takes back the leases of jobs that a claim has just taken, and sets these jobs aside. Returns
/// the parked jobs that can start now because a concurrency key became free.
pub(crate) async fn give_back(
    session: &mut Session,
    jobs: &[Unreadable],
    claim_params: &ClaimParams<'_>,
) -> DriverResult<Vec<Claimable>> {
    let (ids, reasons) = report(jobs);
    let forget = params![claim_params.id, ids];
    session
        .query(include_str!("../sql/forget_claimed.sql"), forget)
        .await?;
    let empty = "delete from windlass.claims where id = $1 and jobs = '{}'";
    session.query(empty, params![claim_params.id]).await?;
    let give_back = params![ids, reasons, claim_params.lease, claim_params.worker];
    session.queue(include_str!("../sql/give_back.sql"), give_back)?;
    // The claim may have parked jobs because these filled their key.
    let unpark = "select * from windlass.unpark_v1(array(
             select distinct concurrency_key from windlass.jobs where id = any ($1) and concurrency_key is not null
         ), $2)";
    let rows = session
        .query_and_commit(unpark, params![ids, Time(claim_params.now)])
        .await?;
    Ok(concurrency_key::unparked(&rows, 0))
}

/// Logs unreadable jobs. Returns their ids in order, and why they cannot be read.
fn report(jobs: &[Unreadable]) -> (Vec<Uuid>, Vec<&str>) {
    let mut jobs: Vec<&Unreadable> = jobs.iter().collect();
    jobs.sort_unstable_by_key(|job| job.id);
    for job in &jobs {
        tracing::warn!(job.id = %job.id, reason = job.reason, "set aside a job that this version cannot read");
    }
    let ids = jobs.iter().map(|job| uuid(job.id)).collect();
    (ids, jobs.iter().map(|job| job.reason.as_str()).collect())
}

/// Picks up the jobs after this id that can be read now. Returns the id after which the next pass
/// starts.
pub(crate) async fn pick_up_readable(
    session: &mut Session,
    settings: &Settings,
    after: Uuid,
) -> DriverResult<Uuid> {
    let sql = format!(
        "select {ACTIVE_COLUMNS} from {} where unreadable is not null and id > $1 order by id limit $2",
        read::JOBS
    );
    let rows = session.read(&sql, params![after, LOOK_MAX]).await?;
    let (jobs, unreadable) = read::active(session, settings, &rows).await?;
    if !jobs.is_empty() {
        let ids = row::uuids(jobs.iter().map(|job| job.id));
        session
            .single(include_str!("../sql/pick_up.sql"), params![ids])
            .await?;
        tracing::info!(jobs = jobs.len(), "picked up jobs that are readable now");
    }
    let unreadable = unreadable.iter().map(|job| job.id);
    let last = jobs.iter().map(|job| job.id).chain(unreadable).max();
    let full = i64::try_from(rows.len()).is_ok_and(|rows| rows == LOOK_MAX);
    Ok(last.filter(|_| full).map_or(Uuid::nil(), uuid))
}
