//! What retries of each queue are owed, and what the next claim of a queue takes by that: for
//! workers in this process and for remote ones.

use std::collections::BTreeMap;

use windlass_core::QueueName;
use windlass_core::fairness::{ClaimPlan, Credit, Guards, Pool, Slots, Taken};

/// At most this many queues are remembered; a forgotten one costs a little fairness and no job.
const QUEUES_MAX: usize = 10_000;

/// What retries are owed, by queue.
#[derive(Debug, Default)]
pub(crate) struct Credits(BTreeMap<QueueName, Credit>);

impl Credits {
    /// What the next claim of a pool takes. In a pool of retries alone nothing is shared.
    pub(crate) fn plan(
        &self,
        queue: &QueueName,
        guards: Guards,
        pool: Pool,
        slots: Slots,
    ) -> ClaimPlan {
        guards.plan(pool, slots, self.of(queue, pool))
    }

    /// Counts what a claim took.
    pub(crate) fn count(
        &mut self,
        queue: &QueueName,
        guards: Guards,
        pool: Pool,
        plan: &ClaimPlan,
        taken: Taken,
    ) {
        let before = self.of(queue, pool);
        let credit = guards.credit_after(before, plan, taken);
        if pool == Pool::RetryLane || credit == before {
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
