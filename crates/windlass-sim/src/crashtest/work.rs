//! What the jobs of a crash test ask of their handlers, and what the handlers do.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::JobId;

use super::record::{Log, What};
use crate::history::digest_of;

/// The queue of jobs for workers.
pub(super) const QUEUE: &str = "crash";
/// The kind of jobs for workers.
pub(super) const KIND: &str = "crash:work";
/// The length of a lease. Short, so that lost attempts are found soon.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// The payload of a job, and the body of an HTTP job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Work {
    /// Which submission this is.
    pub(super) tag: String,
    /// How long the handler works.
    pub(super) work_ms: u64,
    /// How many attempts fail. A retry follows.
    pub(super) failing_attempts: u32,
    /// Whether the attempts fail for good.
    pub(super) is_fatal: bool,
    /// Makes the payload longer.
    pub(super) filler: String,
}

impl Work {
    pub(super) fn fails(&self, attempt: u32) -> bool {
        self.is_fatal || attempt <= self.failing_attempts
    }
}

impl windlass::Job for Work {
    const KIND: &'static str = KIND;
}

/// How an attempt ended.
pub(super) enum Ended {
    Well,
    Failed,
    /// No retry can help.
    Fatally,
}

/// Does the work of one attempt. Logs its start before, and its effect after.
pub(super) async fn run(
    work: &Work,
    (job, attempt): (JobId, u32),
    payload: &str,
    log: &Log,
) -> Ended {
    let started = What::Started {
        job,
        attempt,
        payload: digest_of(payload),
    };
    if log.write(started).is_err() {
        return Ended::Failed; // without its log, an effect must not happen
    }
    tokio::time::sleep(Duration::from_millis(work.work_ms)).await;
    let ended = if work.is_fatal {
        Ended::Fatally
    } else if work.fails(attempt) || log.write(What::Effect { job, attempt }).is_err() {
        Ended::Failed
    } else {
        Ended::Well
    };
    let _ = log.write(What::Returned { job, attempt }); // only to see concurrent handlers
    ended
}
