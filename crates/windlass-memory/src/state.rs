//! Everything the store holds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use windlass_core::{Job, JobId, Key, QueueName, ScheduleId, State as JobState, Timestamp};
use windlass_store::{Attempt, AttemptId, Document, Node, QueueLimits, Record, Schedule};

/// The order of claims within a queue.
type Place = (Reverse<i16>, Timestamp, JobId);

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// The waiting jobs of each queue, in the order of claims.
    pub(crate) waiting: BTreeMap<QueueName, BTreeSet<Place>>,
    /// The running jobs.
    running: BTreeSet<JobId>,
    /// The ended attempts.
    pub(crate) attempts: BTreeMap<(JobId, u32), Attempt>,
    /// Who took a unique key last; whether it still holds it, the job knows.
    pub(crate) keys: BTreeMap<(QueueName, Key), JobId>,
    /// Who holds a unique key although its job was removed, and until when.
    pub(crate) holds: BTreeMap<(QueueName, Key), (JobId, Timestamp)>,
    pub(crate) queues: BTreeMap<QueueName, QueueLimits>,
    /// When jobs of a queue with a rate were started, as far back as its period.
    pub(crate) starts: BTreeMap<QueueName, VecDeque<Timestamp>>,
    /// The latest claims, to answer them again.
    pub(crate) claims: VecDeque<(u128, Vec<AttemptId>)>,
    pub(crate) schedules: BTreeMap<ScheduleId, Schedule>,
    /// The occurrences that were fired, with their jobs.
    pub(crate) occurrences: BTreeMap<(ScheduleId, Timestamp), Option<JobId>>,
    pub(crate) documents: BTreeMap<(String, String), Document>,
    /// The documents that expire, by when.
    pub(crate) expiring: BTreeSet<(Timestamp, (String, String))>,
    pub(crate) records: BTreeMap<(String, u64), Record>,
    pub(crate) last_cursor: u64,
    pub(crate) nodes: BTreeMap<String, Node>,
}

impl State {
    /// Puts a job in, new or changed, and keeps the order of the waiting ones.
    pub(crate) fn put(&mut self, job: Job) {
        if let Some(before) = self.jobs.get(&job.id)
            && let Some(queue) = self.waiting.get_mut(&before.queue)
        {
            queue.remove(&before.claim_order());
        }
        if job.state() == JobState::Waiting {
            let queue = self.waiting.entry(job.queue.clone()).or_default();
            queue.insert(job.claim_order());
        }
        match job.state() == JobState::Running {
            true => self.running.insert(job.id),
            false => self.running.remove(&job.id),
        };
        self.jobs.insert(job.id, job);
    }

    /// Who holds a unique key at `now`.
    pub(crate) fn key_holder(&self, queue: &QueueName, key: &Key, now: Timestamp) -> Option<&Job> {
        let id = self.keys.get(&(queue.clone(), key.clone()))?;
        self.jobs.get(id).filter(|job| job.holds_key(now))
    }

    /// Which removed job still holds a unique key at `now`.
    pub(crate) fn removed_holder(
        &self,
        queue: &QueueName,
        key: &Key,
        now: Timestamp,
    ) -> Option<JobId> {
        let (id, until) = self.holds.get(&(queue.clone(), key.clone()))?;
        (*until > now).then_some(*id)
    }

    /// Lets a job hold its unique key.
    pub(crate) fn take_key(&mut self, job: &Job) {
        if let Some(unique) = &job.unique {
            self.keys
                .insert((job.queue.clone(), unique.key.clone()), job.id);
        }
    }

    /// Whether another job holds the key that this one would have in that queue.
    pub(crate) fn key_is_taken(&self, job: &Job, queue: &QueueName, now: Timestamp) -> bool {
        let Some(unique) = &job.unique else {
            return false;
        };
        let holder = self.key_holder(queue, &unique.key, now);
        holder.is_some_and(|holder| holder.id != job.id)
            || self.removed_holder(queue, &unique.key, now).is_some()
    }

    /// The bound of a queue that takes no more waiting jobs.
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
