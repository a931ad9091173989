//! Why a job is dead, and what reviving a dead or cancelled job would do.

use std::sync::Arc;

use windlass_core::retry::{AttemptLimit, PolicySource, RetryPolicy};
use windlass_core::{
    FinishedContext, Job as StoredJob, JobId, RevivalForecast, Timestamp, forecast_revival,
    why_dead,
};
use windlass_store::{ClaimRetry, Filter, Page};

use super::ClaimRules;
use crate::client::Client;
use crate::client::queue::QueueInfo;
use crate::error::Error;

/// How many jobs with the same unique key are read: the one that holds it is among the newest.
const SAME_KEY_MAX: usize = 10;

/// Why a job ended, and what reviving it would do.
#[derive(Debug, Clone)]
pub struct FinishedDiagnosis {
    /// Why the job is dead, as a sentence. `None` if it was cancelled.
    pub death: Option<String>,
    /// The most failed attempts that the next claim grants the job.
    pub limit: AttemptLimit,
    /// The retry policy of the next claim. `None` if the first failure is the last.
    pub policy: Option<Arc<RetryPolicy>>,
    /// Where the policy comes from.
    pub policy_source: PolicySource,
    /// What a revival would do. `None` if the job cannot be revived.
    pub revival: Option<RevivalForecast>,
}

impl Client {
    pub(super) async fn diagnose_finished(
        &self,
        job: &StoredJob,
        rules: &ClaimRules,
        now: Timestamp,
    ) -> Result<FinishedDiagnosis, Error> {
        let queue = self.queue(&job.queue).await?;
        let retry = ClaimRetry {
            queue: queue.settings.claims.retry.clone(),
            worker: rules.retry.clone(),
            kinds: rules.kinds.clone(),
        };
        let resolved = retry.resolve(job);
        let limit = resolved.effective_max;
        let around = FinishedContext {
            limit,
            full_at: full_at(&queue),
            key_held_by: self.key_held_by(job, now).await?,
        };
        Ok(FinishedDiagnosis {
            death: job.dead_reason().map(|reason| why_dead(job, reason, limit)),
            limit,
            policy: resolved.policy.cloned(),
            policy_source: resolved.source,
            revival: forecast_revival(job, &around, now),
        })
    }

    /// Another job that holds the unique key of a job.
    async fn key_held_by(&self, job: &StoredJob, now: Timestamp) -> Result<Option<JobId>, Error> {
        let Some(unique) = &job.unique else {
            return Ok(None);
        };
        let filter = Filter {
            queue: Some(job.queue.clone()),
            unique_key: Some(unique.key.clone()),
            ..Filter::default()
        };
        let listed = self.list(&filter, Page::first(SAME_KEY_MAX)).await?;
        let holds = |other: &&StoredJob| other.id != job.id && other.holds_key(now);
        Ok(listed.jobs.iter().find(holds).map(|other| other.id))
    }
}

/// The `max_depth` of a queue, if that many jobs wait in it.
fn full_at(queue: &QueueInfo) -> Option<u64> {
    let waiting = queue.counts.scheduled + queue.counts.ready;
    queue
        .settings
        .max_depth
        .filter(|max_depth| waiting >= *max_depth)
}
