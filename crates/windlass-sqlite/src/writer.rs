//! The writer: all verbs that change the store, on one connection.
//!
//! A plain struct without a thread of its own, so that tests can drive it. Each verb first checks
//! in memory whether it can succeed, then writes rows and updates the index. Only [`Writer::group`]
//! opens a transaction, and no caller gets an answer before its commit.

mod active;
mod backfill;
mod change;
mod claim;
mod counts;
mod document;
mod enqueue;
mod full_disk;
mod load;
mod recent_claims;
mod schedule;
mod settle;
mod statements;
mod tallies;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use windlass_core::{Job, JobId, Key, QueueName, Settlement};
use windlass_store::stored::LastAttempt;
use windlass_store::{AttemptId, QueueLimits, StoreError};

use crate::checkpoint::Checkpointer;
use crate::error::{DriverError, DriverResult};
use crate::index::{Entry, Index, Running, Waiting};
use crate::names::Names;
use crate::reserve::Reserve;
use crate::row;
use crate::schema;
use crate::tallies::Tallies;
use full_disk::FullDisk;
use recent_claims::RecentClaims;
use statements::Statements;

pub(crate) use active::ActivePage;

/// The result of a verb. The outer error fails the transaction (the database failed); the inner one
/// is an answer of the contract, given before anything was written.
pub(crate) type Answer<T> = DriverResult<Result<T, StoreError>>;

pub(crate) struct Writer<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) statements: Statements<'c>,
    pub(crate) names: Names,
    pub(crate) index: Index,
    pub(crate) queues: BTreeMap<QueueName, QueueLimits>,
    pub(crate) claims: RecentClaims,
    /// Attempts of a previous process that were ended at opening and that no sweep has reported
    /// yet.
    pub(crate) lost_at_opening: Vec<(AttemptId, Settlement)>,
    /// Finished jobs of this group by queue and state; written once, before the commit.
    unsaved: BTreeMap<(u32, i64), i64>,
    pub(crate) tallies: Tallies,
    /// SQLite's count of changed rows after the last group.
    changes: u64,
    checkpointer: Checkpointer,
    reserve: Reserve,
    /// `Some` while the disk is full.
    full: Option<FullDisk>,
    path: PathBuf,
    /// Why the store has stopped, if it has.
    stopped: Option<String>,
    stats: Stats,
}

/// Statistics of the writer since the store was opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    /// The number of transactions that were written and synced.
    pub commits: u64,
    /// The number of complete checkpoints.
    pub checkpoints: u64,
    /// The longest time that requests waited for a checkpoint, in microseconds.
    pub longest_pause_micros: u64,
    /// The size of the database in bytes, including what is still only in the WAL.
    pub file_bytes: u64,
}

impl<'c> Writer<'c> {
    /// Builds the index from the file.
    pub(crate) fn open(connection: &'c Connection, path: &Path) -> Result<Self, StoreError> {
        let mut writer = Writer {
            names: Names::load(connection).map_err(DriverError::into_store_error)?,
            statements: Statements::prepare(connection).map_err(DriverError::into_store_error)?,
            connection,
            index: Index::default(),
            queues: BTreeMap::new(),
            claims: RecentClaims::default(),
            lost_at_opening: Vec::new(),
            unsaved: BTreeMap::new(),
            tallies: Tallies::default(),
            changes: 0,
            checkpointer: Checkpointer::open(path)?,
            reserve: Reserve::next_to(path),
            full: None,
            path: path.to_owned(),
            stopped: None,
            stats: Stats::default(),
        };
        let loaded = writer.load_tallies();
        loaded.map_err(DriverError::into_store_error)?;
        // Before the jobs are loaded, so that the index sees the causes.
        writer.backfill()?;
        writer.load().map_err(DriverError::into_store_error)?;
        Ok(writer)
    }

    pub(crate) fn stats(&self) -> DriverResult<Stats> {
        let pages = self
            .connection
            .query_row("pragma page_count", [], |row| row::unsigned(row, 0))?;
        Ok(Stats {
            file_bytes: pages * u64::from(schema::PAGE_BYTES),
            ..self.stats
        })
    }

    /// Writes something, so that the WAL file exists from now on.
    pub(crate) fn create_wal(&mut self) -> DriverResult<()> {
        let version = "select user_version from pragma_user_version";
        let version: u32 = self.connection.query_row(version, [], |row| row.get(0))?;
        Ok(self
            .connection
            .pragma_update(None, "user_version", version)?)
    }

    /// Runs the requests of a group in one transaction. When this returns, their changes are on
    /// disk or rolled back, and the index agrees with the file.
    pub(crate) fn group<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> DriverResult<T>,
    ) -> Result<T, StoreError> {
        if let Some(reason) = &self.stopped {
            return Err(StoreError::Stopped(reason.clone().into()));
        }
        let done = self.transaction(work);
        match done {
            Ok(answers) => {
                self.index.commit();
                self.tallies.commit();
                self.claims.commit();
                // A group that wrote nothing, such as claims without jobs, is not synced.
                let changes = self.connection.total_changes();
                self.stats.commits += u64::from(changes != self.changes);
                self.changes = changes;
                Ok(answers)
            }
            Err(error) => {
                self.index.roll_back();
                self.unsaved.clear();
                self.tallies.roll_back();
                self.claims.roll_back();
                let full = error.is_disk_full().then(|| format!("{error:?}"));
                let error = self.roll_back(error);
                if let Some(cause) = full {
                    self.enter_full(cause);
                }
                Err(error)
            }
        }
    }

    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> DriverResult<T>,
    ) -> DriverResult<T> {
        self.statements.begin.execute([])?;
        let answers = work(self)?;
        self.save_tallies()?;
        self.statements.commit.execute([])?;
        Ok(answers)
    }

    /// Rolls back a failed transaction. After a failed sync, stops the store for good.
    fn roll_back(&mut self, error: DriverError) -> StoreError {
        if self.stop_after_failed_sync(&error) {
            let cause = format!("{error:?}");
            return StoreError::Indeterminate(cause.into());
        }
        let rolled_back = if self.connection.is_autocommit() {
            Ok(()) // SQLite has already rolled back, as it does when the disk is full
        } else {
            self.connection
                .execute_batch("rollback")
                .map_err(DriverError::from)
        };
        let refreshed = rolled_back
            .and_then(|()| self.names.refresh(self.connection))
            .and_then(|()| self.load_queues());
        if let Err(second) = refreshed {
            self.stopped = Some(format!(
                "a failed transaction could not be rolled back: {second:?}"
            ));
        }
        error.into_store_error()
    }

    /// Stops the store if the error is a failed sync. Returns whether it is.
    fn stop_after_failed_sync(&mut self, error: &DriverError) -> bool {
        let failed = error.is_failed_sync();
        if failed {
            self.stopped = Some(format!("the disk failed to sync: {error:?}"));
        }
        failed
    }

    /// Runs a checkpoint if the WAL has grown large. Called between two groups, when the writer has
    /// no open transaction.
    pub(crate) fn checkpoint_if_due(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        if self.full.is_some() {
            return self.checkpoint_into_reserve();
        }
        let started = Pause::start();
        let folded = match self.checkpointer.is_due(self.connection, &self.path) {
            Ok(false) => return,
            Ok(true) => self.checkpointer.finish(self.connection),
            Err(error) => Err(error),
        };
        match folded {
            Ok(whole) => self.stats.checkpoints += u64::from(whole),
            Err(error) if self.stop_after_failed_sync(&error) => {}
            Err(error) if error.is_disk_full() => self.enter_full(format!("{error:?}")),
            Err(_) => {} // the WAL keeps growing, and the next group tries again
        }
        self.stats.longest_pause_micros = self.stats.longest_pause_micros.max(started.micros());
    }

    /// Copies the rest of the WAL into the file before the store is closed. Returns whether all of
    /// it is there, and synced.
    pub(crate) fn checkpoint_to_close(&mut self) -> bool {
        self.stopped.is_none() && matches!(self.checkpointer.finish_last(self.connection), Ok(true))
    }

    /// Returns whether steps of bulk actions should wait for a checkpoint to end.
    pub(crate) fn holds_background(&self) -> bool {
        self.stopped.is_none() && self.full.is_none() && self.checkpointer.is_catching_up()
    }

    #[cfg(test)]
    pub(crate) fn begin_to_catch_up(&mut self) {
        self.checkpointer.begin_to_catch_up();
    }

    /// Waits up to `timeout` for the background part of a checkpoint, then ends the checkpoint if
    /// it can.
    pub(crate) fn wait_for_checkpoint(&mut self, timeout: Duration) {
        self.checkpointer.wait(timeout);
        self.checkpoint_if_due();
    }

    /// Writes the state of a job to disk and to the index.
    fn write(&mut self, job: &mut Job, last: &LastAttempt) -> DriverResult<()> {
        row::put_state(self.connection, &mut self.names, job, last)?;
        let (queue, kind) = self.numbers(job)?;
        self.index_job(job, queue, kind, true);
        Ok(())
    }

    /// Returns the numbers of a job's queue and kind.
    fn numbers(&mut self, job: &Job) -> DriverResult<(u32, u32)> {
        let queue = self.names.number(self.connection, job.queue.as_str())?;
        let kind = self.names.number(self.connection, job.kind.as_str())?;
        Ok((queue, kind))
    }

    /// Adds an active job to the index. A finished job is only counted.
    fn index_job(&mut self, job: &mut Job, queue: u32, kind: u32, has_state: bool) {
        match row::state_number(job) {
            row::WAITING => self
                .index
                .put(job.id, Entry::Waiting(waiting(job, queue, kind, has_state))),
            row::RUNNING => {
                let job = without_payload(job);
                let running = Running { job, queue, kind };
                self.index
                    .put(running.job.id, Entry::Running(Arc::new(running)));
            }
            state => self.tally(queue, state, 1),
        }
    }

    /// Counts finished jobs. The counts are written once for a group.
    fn tally(&mut self, queue: u32, state: i64, by: i64) {
        self.index.tally(queue, state, by);
        *self.unsaved.entry((queue, state)).or_default() += by;
    }

    fn save_tallies(&mut self) -> DriverResult<()> {
        let mut statement = self
            .connection
            .prepare_cached(include_str!("../sql/tally.sql"))?;
        while let Some(((queue, state), by)) = self.unsaved.pop_first() {
            statement.execute(rusqlite::params![queue, state, by])?;
        }
        self.save_failure_groups()?;
        self.save_action_tallies()
    }

    /// Frees a unique key.
    fn remove_hold(&mut self, queue: u32, key: &Key) -> DriverResult<()> {
        self.index.set_hold(queue, key.clone(), None);
        let mut statement = self
            .connection
            .prepare_cached("delete from holds where queue = ?1 and key = ?2")?;
        statement.execute(rusqlite::params![queue, key.as_str()])?;
        Ok(())
    }

    fn find(&mut self, id: JobId) -> DriverResult<Option<(Job, LastAttempt)>> {
        row::find(self.connection, &mut self.names, id)
    }

    /// Returns what was read of a job, or `None` if this version cannot read it. An unreadable job
    /// is taken out of the claim order, so that it does not block others.
    fn skip_unreadable<T>(&mut self, id: JobId, read: DriverResult<T>) -> DriverResult<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) => match error.unreadable() {
                Some(reason) => {
                    warn_unreadable(id, &reason);
                    self.index.set_unreadable(id);
                    Ok(None)
                }
                None => Err(error),
            },
        }
    }

    /// Returns the `max_depth` of a queue that is full.
    pub(crate) fn full(&self, queue: &QueueName) -> Option<u64> {
        let max_depth = self.limits(queue)?.max_depth?;
        let number = self.names.known(queue.as_str());
        let waiting = number.map_or(0, |number| self.index.count(number).waiting);
        (waiting >= max_depth).then_some(max_depth)
    }

    pub(crate) fn limits(&self, queue: &QueueName) -> Option<&QueueLimits> {
        self.queues.get(queue)
    }
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.path.display())
    }
}

fn warn_unreadable(id: JobId, reason: &str) {
    tracing::warn!(job.id = %id, reason, "set aside a job that this version cannot read");
}

/// Returns a copy of a running job for the index, without its payload.
fn without_payload(job: &mut Job) -> Job {
    let payload = std::mem::take(&mut job.payload);
    let light = job.clone();
    job.payload = payload;
    light
}

fn waiting(job: &Job, queue: u32, kind: u32, has_state: bool) -> Waiting {
    Waiting {
        run_at: job.run_at,
        deadline: job.deadline,
        concurrency: job.concurrency.clone().map(Arc::new),
        queue,
        kind,
        priority: job.priority,
        lane: job.lane(),
        has_state,
    }
}

/// Measures a pause, for statistics only.
struct Pause(std::time::Instant);

impl Pause {
    #[expect(
        clippy::disallowed_methods,
        reason = "measures a pause; no rule depends on it"
    )]
    fn start() -> Self {
        Pause(std::time::Instant::now())
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
