//! All data of the store, and what several verbs need.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use windlass_core::{
    ActionId, ActionTally, GroupKey, Job, JobId, Key, QueueName, ScheduleId, State as JobState,
    Timestamp,
};
use windlass_store::{Attempt, AttemptId, Document, Node, QueueLimits, Record, Schedule};

use crate::failure_group::Group;

/// The sort key of [`Job::claim_order`].
type ClaimOrder = (Reverse<i16>, Timestamp, JobId);

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// The waiting jobs of each queue, in claim order.
    pub(crate) waiting: BTreeMap<QueueName, BTreeSet<ClaimOrder>>,
    /// The running jobs.
    running: BTreeSet<JobId>,
    /// The ended attempts.
    pub(crate) attempts: BTreeMap<(JobId, u32), Attempt>,
    /// The job that last took each unique key. [`Job::holds_key`] says whether it still holds it.
    pub(crate) keys: BTreeMap<(QueueName, Key), JobId>,
    /// Removed jobs that still hold their unique key, and until when.
    pub(crate) holds: BTreeMap<(QueueName, Key), (JobId, Timestamp)>,
    pub(crate) queues: BTreeMap<QueueName, QueueLimits>,
    /// When jobs of queues with a rate started, within the period of the rate.
    pub(crate) starts: BTreeMap<QueueName, VecDeque<Timestamp>>,
    /// The latest claims, to answer a repeated claim.
    pub(crate) claims: VecDeque<(u128, Vec<AttemptId>)>,
    pub(crate) schedules: BTreeMap<ScheduleId, Schedule>,
    /// The occurrences that fired, with their jobs.
    pub(crate) occurrences: BTreeMap<(ScheduleId, Timestamp), Option<JobId>>,
    pub(crate) documents: BTreeMap<(String, String), Document>,
    /// The documents that expire, by expiry time.
    pub(crate) expiring: BTreeSet<(Timestamp, (String, String))>,
    pub(crate) records: BTreeMap<(String, u64), Record>,
    pub(crate) last_cursor: u64,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) groups: BTreeMap<GroupKey, Group>,
    pub(crate) actions: BTreeMap<ActionId, ActionTally>,
}

impl State {
    /// Inserts or replaces a job and updates the indexes.
    pub(crate) fn put(&mut self, mut job: Job) {
        if let Some(before) = self.jobs.remove(&job.id) {
            if let Some(queue) = self.waiting.get_mut(&before.queue) {
                queue.remove(&before.claim_order());
            }
            self.count_revival(&before, Some(&job));
        }
        self.enter_group(&mut job);
        if job.state() == JobState::Waiting {
            let queue = self.waiting.entry(job.queue.clone()).or_default();
            queue.insert(job.claim_order());
        }
        if job.state() == JobState::Running {
            self.running.insert(job.id);
        } else {
            self.running.remove(&job.id);
        }
        self.jobs.insert(job.id, job);
    }

    /// The job that holds a unique key at `now`.
    pub(crate) fn key_holder(&self, queue: &QueueName, key: &Key, now: Timestamp) -> Option<&Job> {
        let id = self.keys.get(&(queue.clone(), key.clone()))?;
        self.jobs.get(id).filter(|job| job.holds_key(now))
    }

    /// The removed job that still holds a unique key at `now`.
    pub(crate) fn removed_holder(
        &self,
        queue: &QueueName,
        key: &Key,
        now: Timestamp,
    ) -> Option<JobId> {
        let (id, until) = self.holds.get(&(queue.clone(), key.clone()))?;
        (*until > now).then_some(*id)
    }

    /// Records that a job holds its unique key.
    pub(crate) fn take_key(&mut self, job: &Job) {
        if let Some(unique) = &job.unique {
            self.keys
                .insert((job.queue.clone(), unique.key.clone()), job.id);
        }
    }

    /// Whether another job holds the job's unique key in `queue`.
    pub(crate) fn key_is_taken(&self, job: &Job, queue: &QueueName, now: Timestamp) -> bool {
        let Some(unique) = &job.unique else {
            return false;
        };
        let holder = self.key_holder(queue, &unique.key, now);
        holder.is_some_and(|holder| holder.id != job.id)
            || self.removed_holder(queue, &unique.key, now).is_some()
    }

    /// The `max_depth` of a queue that is full.
    pub(crate) fn full(&self, queue: &QueueName) -> Option<u64> {
        let max_depth = self.queues.get(queue)?.max_depth?;
        (self.depth(queue) >= max_depth).then_some(max_depth)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Job> {
        self.running.iter().filter_map(|id| self.jobs.get(id))
    }

    pub(crate) fn depth(&self, queue: &QueueName) -> u64 {
        let waiting = self.waiting.get(queue).map_or(0, BTreeSet::len);
        u64::try_from(waiting).unwrap_or(u64::MAX)
    }
}
