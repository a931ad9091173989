//! Remote workers report how far they are.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_store::{AttemptId, Expected, StoreError, Written};

use super::lease::{Claimed, Lost};
use super::{Remote, RemoteError, RemoteWorker};
use crate::attempt::PROGRESS;

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
        let (store, now) = (self.engine.store(), self.engine.now());
        let found = store.get(&[of.job]).await?.into_iter().next().flatten();
        Claimed::running(worker.name(), of, found.as_ref()).map_err(RemoteError::LeaseLost)?;
        if !self.claims.may_report(of.job, PROGRESS_EVERY, now) {
            return Err(RemoteError::ProgressTooOften);
        }
        let name = of.job.to_string();
        let reported = json!({"attempt": of.attempt, "progress": value});
        for _ in 0..10 {
            let before = store.document(PROGRESS, &name, now).await?;
            let newest = before
                .as_ref()
                .and_then(|one| one.value.get("attempt")?.as_u64());
            if newest.is_some_and(|attempt| attempt > u64::from(of.attempt)) {
                return Err(RemoteError::LeaseLost(Lost::Over));
            }
            let expected = before.map_or(Expected::Absent, |one| Expected::Version(one.version));
            let written = store.put_document(PROGRESS, &name, &reported, expected, None, now);
            if let Written::Version(_) = written.await? {
                return Ok(());
            }
        }
        Err(RemoteError::ProgressBusy)
    }

    /// The progress that an attempt reported here.
    pub(super) async fn last_progress(&self, of: AttemptId) -> Result<Option<Value>, StoreError> {
        if !self.claims.reported_progress(of.job) {
            return Ok(None);
        }
        let (store, now) = (self.engine.store(), self.engine.now());
        let document = store.document(PROGRESS, &of.job.to_string(), now).await?;
        Ok(document.and_then(|document| document.value.get("progress").cloned()))
    }

    /// The progress of an attempt goes with it; what it reported to another node, the janitor removes.
    pub(super) async fn forget_progress(&self, of: AttemptId) -> Result<(), StoreError> {
        if self.claims.reported_progress(of.job) {
            let (name, any) = (of.job.to_string(), Expected::Anything);
            let store = self.engine.store();
            store.remove_document(PROGRESS, &name, any).await?;
            self.claims.forget_progress(of.job);
        }
        Ok(())
    }
}
