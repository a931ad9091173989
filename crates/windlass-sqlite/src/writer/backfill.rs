//! Gives jobs that failed before the schema had causes their cause, when the store is opened.
//!
//! Each transaction handles a batch of jobs, counts them in their failure groups, and records the
//! last one. So a process that is killed in between continues there at the next opening, and no job
//! counts twice. When all jobs are done, the record is gone, and an opening costs nothing.

use rusqlite::{OptionalExtension as _, params};
use windlass_core::{Fingerprint, Job, Outcome};
use windlass_store::StoreError;
use windlass_store::stored::LastAttempt;

use super::Writer;
use crate::error::{DriverResult, if_readable};
use crate::row;

/// The most jobs of one transaction.
const BATCH_MAX: usize = 1000;

impl Writer<'_> {
    /// Runs until all jobs have their cause. If the disk is full or the database refuses a change,
    /// the rest waits for the next opening: jobs without a cause are only missing in groups.
    pub(super) fn backfill(&mut self) -> Result<(), StoreError> {
        let mut jobs = 0;
        loop {
            match self.group_while_opening(Writer::backfill_batch) {
                Ok(0) => break,
                Ok(count) => jobs += count,
                Err(error @ (StoreError::StorageFull(_) | StoreError::Refused { .. })) => {
                    tracing::warn!(%error, "cannot group all failed jobs; trying again at the next start");
                    break;
                }
                Err(error) => return Err(error),
            }
            self.checkpoint_if_due();
        }
        if jobs > 0 {
            tracing::info!(jobs, "grouped jobs that failed before the upgrade");
        }
        Ok(())
    }

    /// Handles the next jobs. Returns how many it found.
    fn backfill_batch(&mut self) -> DriverResult<usize> {
        let mut statement = self.connection.prepare("select last_id from backfill")?;
        let last: Option<Vec<u8>> = statement.query_row([], |row| row.get(0)).optional()?;
        let Some(last) = last else { return Ok(0) };
        let mut statement = self
            .connection
            .prepare_cached(include_str!("../../sql/next_to_backfill.sql"))?;
        let ids: Vec<[u8; 16]> = statement
            .query_map(params![last, row::sql_limit(BATCH_MAX)], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for id in &ids {
            let found = if_readable(self.find(row::id_from(*id)))?.flatten();
            if let Some((mut job, last)) = found {
                self.backfill_one(&mut job, &last)?;
            }
        }
        match ids.last() {
            Some(last) => self
                .connection
                .execute("update backfill set last_id = ?1", [last])?,
            None => self.connection.execute("delete from backfill", [])?,
        };
        Ok(ids.len())
    }

    fn backfill_one(&mut self, job: &mut Job, last: &LastAttempt) -> DriverResult<()> {
        job.fingerprint = earlier_cause(job, last);
        self.tallies.count_earlier_failure(job);
        let mut statement = self
            .connection
            .prepare_cached("update states set fingerprint = ?2 where id = ?1")?;
        statement.execute(params![row::blob(job.id), row::fingerprint(job)])?;
        Ok(())
    }
}

/// The cause that the job would have got if it failed now.
fn earlier_cause(job: &Job, last: &LastAttempt) -> Option<Fingerprint> {
    let of_error = || {
        let error = job.last_error.as_ref()?;
        Some(Fingerprint::new(&job.kind, error))
    };
    let Some(reason) = job.dead_reason() else {
        return of_error();
    };
    let died_of_error = job.finished_at() == job.failed_at && last.outcome != Some(Outcome::Lost);
    let of_reason = || Fingerprint::without_error(&job.kind, reason);
    let cause = of_error().filter(|_| died_of_error);
    Some(cause.unwrap_or_else(of_reason))
}
