//! Reading the log of an attempt, also while it runs.

use windlass_core::{AttemptLog, Job as StoredJob, JobId, Outcome};
use windlass_store::AttemptId;

use super::Client;
use crate::error::Error;

/// The log of an attempt, from [`Client::log`].
#[derive(Debug, Clone)]
pub struct JobLog {
    /// The job.
    pub job: StoredJob,
    /// The number of the attempt. 0 if no attempt has started.
    pub attempt: u32,
    /// How the attempt ended. `None` while it runs, and if it has not started.
    pub outcome: Option<Outcome>,
    /// Its last lines.
    pub log: AttemptLog,
}

impl Client {
    /// Returns what an attempt of a job has logged, also while it runs. Without `attempt`, the latest
    /// attempt counts.
    ///
    /// A handler writes lines with [`Context::log`](crate::Context::log). While it runs, they become
    /// visible within a few seconds. [`AttemptLog::after`](windlass_core::AttemptLog::after) returns
    /// the lines that are new since the last call. Returns `None` if the job does not exist.
    pub async fn log(&self, id: JobId, attempt: Option<u32>) -> Result<Option<JobLog>, Error> {
        let Some(job) = self.get(id).await? else {
            return Ok(None);
        };
        let attempt = attempt.unwrap_or(job.attempt);
        let later = usize::try_from(job.attempt.saturating_sub(attempt)).unwrap_or(usize::MAX);
        let ended = self.attempts(id, later.saturating_add(1)).await?;
        let entry = ended.into_iter().find(|entry| entry.attempt == attempt);
        let attempt_id = AttemptId { job: id, attempt };
        let log = self.engine.attempt_log(attempt_id, entry.as_ref()).await?;
        Ok(Some(JobLog {
            attempt,
            outcome: entry.map(|entry| entry.outcome),
            log,
            job,
        }))
    }
}
