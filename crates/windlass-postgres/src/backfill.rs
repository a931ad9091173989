//! Fills in the causes of jobs that failed before the schema had causes.
//!
//! `windlass migrate up` does this after the migration, and so does a store that connects before it
//! is done. It goes in steps of [`STEP_MAX`] jobs, each one transaction that writes the causes,
//! counts the jobs in their failure groups and saves the position. So it can be interrupted at any
//! time. An advisory lock lets one node at a time take a step.

use windlass_core::{Fingerprint, Job, Outcome, Timestamp};
use windlass_store::StoreError;
use windlass_store::stored::LastAttempt;

use crate::connect::{ConnectionClass, Connections};
use crate::error::DriverResult;
use crate::failure_group::{Entry, Groups};
use crate::param::params;
use crate::read::{self, DEAD, JOBS};
use crate::row::{self, ACTIVE_COLUMNS, FINISHED_COLUMNS, cause, uuids};
use crate::session::Session;
use crate::settings::Settings;
use crate::tally_change::TallyChanges;
use crate::unreadable::split_unreadable;

/// The advisory lock of the node that takes a step.
const LOCK: i64 = 0x6361_7573_6573;

/// The number of jobs of one step.
const STEP_MAX: i64 = 1000;

/// Runs in the background of a store, and ends when all causes are filled in.
pub(crate) async fn run(connections: &Connections, settings: &Settings, groups: &Groups) {
    while let Err(error) = fill_in(connections, settings, groups).await {
        tracing::warn!(%error, "filling in the causes of old failures failed; retrying in one minute");
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    }
}

/// Fills in all causes.
pub(crate) async fn fill_in(
    connections: &Connections,
    settings: &Settings,
    groups: &Groups,
) -> Result<(), StoreError> {
    while connections
        .run(ConnectionClass::Other, |mut session| async move {
            step(&mut session, settings, groups).await
        })
        .await?
    {}
    Ok(())
}

/// Fills in the causes of the next jobs. Returns `false` when all are done.
async fn step(session: &mut Session, settings: &Settings, groups: &Groups) -> DriverResult<bool> {
    let sql = "select position, in_dead from windlass.cause_backfill";
    if session.read(sql, params![]).await?.is_empty() {
        return Ok(false);
    }
    session.lock_first(LOCK);
    let rows = session.query(sql, params![]).await?;
    let Some(found) = rows.first() else {
        session.roll_back().await?;
        return Ok(false); // another node was faster
    };
    let position: uuid::Uuid = found.try_get(0)?;
    let table = if found.try_get(1)? { DEAD } else { JOBS };
    let columns = if table == JOBS {
        ACTIVE_COLUMNS
    } else {
        FINISHED_COLUMNS
    };
    // A cause does not depend on the payload and the options, which may be large.
    let columns = columns.replace("payload, extra", "'null'::text, null::text");
    let next = format!("select id from {table} where id > $1 order by id limit $2");
    let next = session.query(&next, params![position, STEP_MAX]).await?;
    let is_last = i64::try_from(next.len()).is_ok_and(|rows| rows < STEP_MAX);
    let last: Option<uuid::Uuid> = next.last().map(|row| row.try_get(0)).transpose()?;
    let without_cause = if table == JOBS {
        "fingerprint is null and failures > 0 and last_error is not null"
    } else {
        "fingerprint is null"
    };
    let sql = format!(
        "select {columns} from {table} where id > $1 and id <= $2 and {without_cause} order by id for update"
    );
    let rows = session
        .query(&sql, params![position, last.unwrap_or(position)])
        .await?;
    let jobs: Vec<(Job, LastAttempt)> = if table == JOBS {
        let (jobs, _) = read::active(session, settings, &rows).await?;
        let jobs = jobs.into_iter();
        jobs.map(|job| (job, LastAttempt::default())).collect()
    } else {
        split_unreadable(&rows, row::finished)?.0
    };
    let jobs = jobs.into_iter().map(|(mut job, last)| {
        job.fingerprint = old_cause(&job, &last);
        job
    });
    let jobs: Vec<Job> = jobs.filter(|job| job.group().is_some()).collect();
    write(session, groups, table, jobs).await?;
    save(session, table, last.filter(|_| !is_last)).await?;
    session.commit().await?;
    Ok(true)
}

/// Writes the causes of jobs, and counts the jobs in their groups.
async fn write(
    session: &mut Session,
    groups: &Groups,
    table: &str,
    mut jobs: Vec<Job>,
) -> DriverResult<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let mut entering: Vec<&mut Job> = jobs.iter_mut().collect();
    groups
        .enter(session, &mut entering, Entry::Moved, Timestamp::UNIX_EPOCH)
        .await?;
    // The hour of a change is that of its last failure, so each hour is a change of its own.
    jobs.sort_by_key(|job| job.group_seen_at());
    for same_hour in jobs.chunk_by(|one, next| hour(one) == hour(next)) {
        let mut changes = TallyChanges::default();
        for job in same_hour {
            changes.add_member(job, 1);
            changes.count_failure(job, job.group_seen_at());
        }
        changes.write(session)?;
    }
    let ids = uuids(jobs.iter().map(|job| job.id));
    let causes: Vec<Option<i64>> = jobs.iter().map(|job| job.fingerprint.map(cause)).collect();
    let sql = format!(
        "update {table} as job set fingerprint = filled.fingerprint
         from unnest($1::uuid[], $2::bigint[]) as filled (id, fingerprint) where job.id = filled.id"
    );
    session.query(&sql, params![ids, causes]).await?;
    Ok(())
}

fn hour(job: &Job) -> i64 {
    windlass_core::hour_of(job.group_seen_at())
}

/// The cause of a job that failed before causes were stored. A death has its reason as cause if it
/// is not the end of an attempt with an error of its own.
fn old_cause(job: &Job, last: &LastAttempt) -> Option<Fingerprint> {
    let error = job.last_error.as_ref();
    let of_error = error.map(|error| Fingerprint::new(&job.kind, error));
    let Some(reason) = job.dead_reason() else {
        return of_error;
    };
    let died_of_error = job.finished_at() == job.failed_at && last.outcome != Some(Outcome::Lost);
    let of_reason = || Fingerprint::without_error(&job.kind, reason);
    Some(of_error.filter(|_| died_of_error).unwrap_or_else(of_reason))
}

/// Saves the position behind the last job of a table; `None` if the table is done. The dead jobs
/// come first: one that is revived meanwhile is then found among the active ones.
async fn save(session: &mut Session, table: &str, last: Option<uuid::Uuid>) -> DriverResult<()> {
    if table == JOBS && last.is_none() {
        let sql = "delete from windlass.cause_backfill";
        session.query(sql, params![]).await?;
        return Ok(());
    }
    let in_dead = table == DEAD && last.is_some();
    let position = last.unwrap_or_else(uuid::Uuid::nil);
    let sql = "update windlass.cause_backfill set position = $1, in_dead = $2";
    session.query(sql, params![position, in_dead]).await?;
    Ok(())
}
