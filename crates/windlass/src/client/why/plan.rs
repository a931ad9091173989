//! Which retry policy a waiting or running job has, and which attempts follow.

use std::sync::Arc;

use windlass_core::retry::{AttemptLimit, PolicySource, RetryPolicy};
use windlass_core::{Job as StoredJob, PlannedAttempt, Timestamp, plan_attempts};
use windlass_store::ClaimRetry;

use super::ClaimRules;
use crate::client::Client;
use crate::error::Error;

/// The attempts that a job still has, if each of them fails.
#[derive(Debug, Clone)]
pub struct RetryPlan {
    /// The most failed attempts that the next claim grants the job.
    pub limit: AttemptLimit,
    /// The retry policy of the next claim. `None` if the first failure is the last.
    pub policy: Option<Arc<RetryPolicy>>,
    /// Where the policy comes from.
    pub policy_source: PolicySource,
    /// The attempts, the next one first.
    pub attempts: Vec<PlannedAttempt>,
}

impl Client {
    pub(super) async fn plan(
        &self,
        job: &StoredJob,
        rules: &ClaimRules,
        now: Timestamp,
    ) -> Result<RetryPlan, Error> {
        let queue = self.queue(&job.queue).await?;
        let retry = ClaimRetry {
            queue: queue.settings.claims.retry.clone(),
            worker: rules.retry.clone(),
            kinds: rules.kinds.clone(),
        };
        let resolved = retry.resolve(job);
        let policy = resolved.policy.map(Arc::as_ref);
        Ok(RetryPlan {
            limit: resolved.effective_max,
            attempts: plan_attempts(job, policy, resolved.effective_max, now),
            policy: resolved.policy.cloned(),
            policy_source: resolved.source,
        })
    }
}
