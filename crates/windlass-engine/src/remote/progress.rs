//! Stores the progress that remote workers report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass_core::{Job, JobId};
use windlass_store::{AttemptId, StoreError};

use super::lease::LeaseCheck;
use super::{Remote, RemoteError, RemoteWorker};
use crate::progress;

/// The largest progress report of a remote attempt, in bytes of JSON.
pub const REMOTE_PROGRESS_BYTES_MAX: usize = 16 * 1024;
/// The shortest interval between two progress reports of a job.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl Remote {
    /// Stores the progress of an attempt, visible to everyone.
    pub async fn progress(
        &self,
        worker: &RemoteWorker,
        attempt_id: AttemptId,
        value: &Value,
    ) -> Result<(), RemoteError> {
        let bytes = value.to_string().len();
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
        let version = progress::write(&self.engine, attempt_id, value, check, busy).await?;
        self.claim_state.reported(attempt_id.job, version);
        Ok(())
    }

    /// Returns the last progress that the job's attempt reported through this process.
    pub(super) async fn last_progress(&self, job: JobId) -> Result<Option<Value>, StoreError> {
        match self.claim_state.progress_version(job) {
            Some(_) => progress::read(&self.engine, job).await,
            None => Ok(None),
        }
    }

    /// Removes the progress of an ended attempt. Progress that was reported through another node
    /// expires.
    pub(super) async fn forget_progress(&self, job: JobId) -> Result<(), StoreError> {
        if let Some(version) = self.claim_state.progress_version(job) {
            progress::remove(&self.engine, job, version).await?;
            self.claim_state.forget_progress(job);
        }
        Ok(())
    }
}
