//! Stores the progress and the log lines that remote workers report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass_core::{AttemptLog, Job};
use windlass_store::{AttemptId, StoreError};

use super::claim_state::StoredReports;
use super::lease::LeaseCheck;
use super::{Remote, RemoteError, RemoteWorker};
use crate::logs::ReportedLines;
use crate::{logs, progress};

/// The largest progress report of a remote attempt, in bytes of JSON.
pub const REMOTE_PROGRESS_BYTES_MAX: usize = 16 * 1024;
/// The shortest interval between two progress reports of a job.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What a remote worker reports about a running attempt.
#[derive(Debug, Clone, Default)]
pub struct RemoteProgress {
    /// How far the attempt is.
    pub progress: Option<Value>,
    /// New lines of its log.
    pub lines: ReportedLines,
}

impl From<Value> for RemoteProgress {
    fn from(progress: Value) -> Self {
        RemoteProgress {
            progress: Some(progress),
            ..RemoteProgress::default()
        }
    }
}

impl Remote {
    /// Stores the progress and the log lines of an attempt, visible to everyone.
    pub async fn progress(
        &self,
        worker: &RemoteWorker,
        attempt_id: AttemptId,
        report: &RemoteProgress,
    ) -> Result<(), RemoteError> {
        let bytes = report
            .progress
            .as_ref()
            .map_or(0, |it| it.to_string().len());
        if bytes > REMOTE_PROGRESS_BYTES_MAX {
            return Err(RemoteError::ProgressTooLarge { bytes });
        }
        let checked = AtomicBool::new(false);
        let check = |job: Option<&Job>| {
            LeaseCheck::running_job(worker.name(), attempt_id, job)
                .map_err(RemoteError::LeaseLost)?;
            let now = self.engine.now();
            let first = !checked.swap(true, Ordering::Relaxed);
            if first
                && !self
                    .claim_state
                    .may_report(attempt_id.job, PROGRESS_EVERY, now)
            {
                Err(RemoteError::ProgressTooOften)
            } else {
                Ok(())
            }
        };
        let busy = || RemoteError::ProgressBusy;
        let mut stored = StoredReports::default();
        if let Some(value) = &report.progress {
            let version = progress::write(&self.engine, attempt_id, value, check, busy).await?;
            stored.progress = Some(version);
        }
        if !report.lines.lines.is_empty() {
            logs::append(&self.engine, attempt_id, &report.lines, check, busy).await?;
            stored.log = true;
        }
        self.claim_state.reported(attempt_id.job, stored);
        Ok(())
    }

    /// Returns the last progress and the log that the attempt reported through this process.
    pub(super) async fn reports(
        &self,
        attempt_id: AttemptId,
    ) -> Result<(Option<Value>, AttemptLog), StoreError> {
        let stored = self.claim_state.stored_reports(attempt_id.job);
        let progress = match stored.progress {
            Some(_) => progress::read(&self.engine, attempt_id.job).await?,
            None => None,
        };
        let log = match stored.log {
            true => logs::read(&self.engine, attempt_id).await?,
            false => AttemptLog::default(),
        };
        Ok((progress, log))
    }

    /// Removes the reports of a settled attempt. Progress that was reported through another node
    /// expires. Lines that were reported through another node stay in their document until the job
    /// is removed.
    pub(super) async fn forget_reports(&self, attempt_id: AttemptId) -> Result<(), StoreError> {
        let stored = self.claim_state.stored_reports(attempt_id.job);
        if let Some(version) = stored.progress {
            progress::remove(&self.engine, attempt_id.job, version).await?;
        }
        if stored.log {
            logs::remove(&self.engine, attempt_id).await?;
        }
        self.claim_state.forget_progress(attempt_id.job);
        Ok(())
    }
}
