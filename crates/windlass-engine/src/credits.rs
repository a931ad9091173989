//! The retry credit of each queue, for workers in this process and for remote ones.
//!
//! When fresh jobs and retries wait in the same queue, both get their configured share. A claim
//! takes whole jobs, so its split is rarely exact. The credit is the remainder that retries are
//! owed from earlier claims: the next claim starts from it. The rule itself is in `core`
//! ([`Guards`]); this module only remembers the credit of each queue between two claims.

use std::collections::BTreeMap;

use windlass_core::QueueName;
use windlass_core::fairness::{ClaimPlan, Credit, Guards, Pool, Slots, Taken};

/// The number of queues to remember. Forgetting one costs a little fairness and no job.
const QUEUES_MAX: usize = 10_000;

/// The credit of retries, by queue.
#[derive(Debug, Default)]
pub(crate) struct Credits(BTreeMap<QueueName, Credit>);

impl Credits {
    /// Plans the next claim of a pool. A pool for retries alone has nothing to share.
    pub(crate) fn plan(
        &self,
        queue: &QueueName,
        guards: Guards,
        pool: Pool,
        slots: Slots,
    ) -> ClaimPlan {
        guards.plan(pool, slots, self.of(queue, pool))
    }

    /// Updates the credit of a queue after a claim.
    pub(crate) fn count(
        &mut self,
        queue: &QueueName,
        guards: Guards,
        pool: Pool,
        plan: &ClaimPlan,
        taken: Taken,
    ) {
        let credit = guards.credit_after(self.of(queue, pool), plan, taken);
        self.set(queue, pool, credit);
    }

    /// Updates the credit of a queue after a claim whose answer is lost.
    pub(crate) fn count_lost(
        &mut self,
        queue: &QueueName,
        guards: Guards,
        pool: Pool,
        plan: &ClaimPlan,
    ) {
        let credit = guards.credit_after_lost(self.of(queue, pool), plan);
        self.set(queue, pool, credit);
    }

    fn set(&mut self, queue: &QueueName, pool: Pool, credit: Credit) {
        if pool == Pool::RetryLane || credit == self.of(queue, pool) {
            return;
        }
        while self.0.len() >= QUEUES_MAX && !self.0.contains_key(queue) {
            self.0.pop_first();
        }
        self.0.insert(queue.clone(), credit);
    }

    fn of(&self, queue: &QueueName, pool: Pool) -> Credit {
        match pool {
            Pool::RetryLane => Credit::default(),
            Pool::Main | Pool::Single => self.0.get(queue).copied().unwrap_or_default(),
        }
    }
}
