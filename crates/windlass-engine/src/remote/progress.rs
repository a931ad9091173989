//! Remote workers report how far they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass_core::{Job, JobId};
use windlass_store::{AttemptId, StoreError};

use super::lease::Claimed;
use super::{Remote, RemoteError, RemoteWorker};
use crate::progress;

/// The progress of a remote attempt may have at most this many bytes, as JSON.
pub const REMOTE_PROGRESS_BYTES_MAX: usize = 16 * 1024;
/// A job reports its progress no more often than this.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl Remote {
    /// Keeps how far an attempt is, for all to see.
    pub async fn progress(
        &self,
        worker: &RemoteWorker,
        of: AttemptId,
        value: &Value,
    ) -> Result<(), RemoteError> {
        let bytes = value.to_string().len();
        if bytes > REMOTE_PROGRESS_BYTES_MAX {
            return Err(RemoteError::ProgressTooLarge { bytes });
        }
        let checked = AtomicBool::new(false);
        let may = |job: Option<&Job>| {
            Claimed::running(worker.name(), of, job).map_err(RemoteError::LeaseLost)?;
            let now = self.engine.now();
            let first = !checked.swap(true, Ordering::Relaxed);
            match first && !self.claims.may_report(of.job, PROGRESS_EVERY, now) {
                true => Err(RemoteError::ProgressTooOften),
                false => Ok(()),
            }
        };
        let busy = || RemoteError::ProgressBusy;
        let version = progress::write(&self.engine, of, value, may, busy).await?;
        self.claims.reported(of.job, version);
        Ok(())
    }

    /// The progress that the attempt of a job reported here.
    pub(super) async fn last_progress(&self, job: JobId) -> Result<Option<Value>, StoreError> {
        match self.claims.progress_version(job) {
            Some(_) => progress::read(&self.engine, job).await,
            None => Ok(None),
        }
    }

    /// The progress of an attempt goes with it; what it reported to another node expires.
    pub(super) async fn forget_progress(&self, job: JobId) -> Result<(), StoreError> {
        if let Some(version) = self.claims.progress_version(job) {
            progress::remove(&self.engine, job, version).await?;
            self.claims.forget_progress(job);
        }
        Ok(())
    }
}
