//! The claim order of all active jobs, kept in memory.
//!
//! Why in memory: an index on disk that gives the claim order would have to be written when a job
//! is enqueued, becomes due, is claimed, and is retried. SQLite tables here have only their
//! primary key, so a job costs three row writes from enqueue to success. One process owns the
//! file (`lock.rs`), so no one else can change the order behind our back. The file stays the only
//! durable state: the writer rebuilds this index from it at every start (`writer/load.rs`).
//!
//! Due jobs are in `ready`, one sorted set for each queue, lane (fresh jobs or retries) and kind,
//! so a claim finds the next job without stepping over jobs of other kinds. Jobs whose `run_at` is
//! in the future are in `future`, sorted by time. When such a job becomes due, `promote` moves it
//! to `ready`; nothing is written to disk.
//!
//! Undo: the writer changes this index while a transaction is still open. If the transaction fails,
//! the index must go back to what the file says. Every change that matters after a rollback
//! therefore pushes its inverse to `undo`. A commit clears the list; a rollback applies it
//! backwards. Three things are deliberately not undone: promotions (a due job stays due), parking
//! (a job whose concurrency key is full is kept out of `ready`) and marks of unreadable jobs. A due
//! job that a rollback restores is put into `ready`, and the next claim that meets it takes it out
//! again if it still must not start.

mod due_counts;
mod next_job;
mod parking;
mod starts;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque, hash_map};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use windlass_core::{Concurrency, Job, JobId, Key, Lane, Timestamp};
use windlass_store::AttemptId;

use due_counts::DueCounts;
use parking::Parking;

/// The order in which jobs are claimed: highest priority first, then `run_at`, then id (age).
pub(crate) type ClaimOrder = (Reverse<i16>, Timestamp, JobId);

/// What the index knows about a waiting job.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) run_at: Timestamp,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) concurrency: Option<Arc<Concurrency>>,
    pub(crate) queue: u32,
    pub(crate) kind: u32,
    pub(crate) priority: i16,
    pub(crate) lane: Lane,
    /// Whether the job has a row in `states`: it was claimed before, or changed by an action.
    pub(crate) has_state: bool,
}

/// A running job, without its payload.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) job: Job,
    pub(crate) queue: u32,
    pub(crate) kind: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Waiting(Waiting),
    Running(Arc<Running>),
}

/// The job that holds a unique key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hold {
    pub(crate) id: JobId,
    /// When the hold of a finished job ends; `None` while the job is active.
    pub(crate) until: Option<Timestamp>,
}

/// The inverse of one change of the index.
enum Undo {
    Put(JobId),
    Take(JobId, Entry),
    Hold((u32, Key), Option<Hold>),
    Tally((u32, i64), i64),
    Start(u32),
}

/// The numbers of active jobs of a queue. Finished jobs are in `tallies`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) waiting: u64,
    pub(crate) future: u64,
    pub(crate) retrying: u64,
    pub(crate) running: u32,
    pub(crate) retries_running: u32,
}

type Ids<T> = HashMap<JobId, T, BuildHasherDefault<IdHasher>>;
/// Queue, lane and kind.
type LaneKey = (u32, Lane, u32);
type OrderedJobs = BTreeMap<LaneKey, BTreeSet<ClaimOrder>>;

#[derive(Default)]
pub(crate) struct Index {
    /// By id, and so by age. Jobs that were enqueued together are neighbours in memory, which keeps
    /// look-ups in the CPU caches even with millions of waiting jobs.
    waiting: BTreeMap<JobId, Waiting>,
    running: Ids<Arc<Running>>,
    /// Due jobs in claim order, by queue, lane and kind.
    ready: OrderedJobs,
    /// Due jobs without a concurrency key that a claim met after their deadline. They wait here for
    /// the sweep, so that no other claim steps over them. Those with a key are in `parking`.
    overdue: OrderedJobs,
    due: DueCounts,
    future: BTreeSet<(Timestamp, JobId)>,
    deadlines: BTreeSet<(Timestamp, JobId)>,
    leases: BTreeSet<(Timestamp, JobId)>,
    parking: Parking,
    /// Waiting jobs whose rows this version cannot read. They are in none of the sorted sets, so no
    /// claim gets them.
    unreadable: BTreeSet<JobId>,
    /// The job that holds each unique key, by queue and key.
    holds: HashMap<(u32, Key), Hold>,
    counts: HashMap<u32, Count>,
    /// The number of finished jobs, by queue and state.
    tallies: HashMap<(u32, i64), i64>,
    /// Recent starts in queues with a rate limit, oldest first.
    starts: HashMap<u32, VecDeque<Timestamp>>,
    /// The latest `now` of any request. Jobs due at that time are in `ready`, others in `future`.
    latest_now: Option<Timestamp>,
    undo: Vec<Undo>,
}

impl Index {
    pub(crate) fn waits(&self, id: JobId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Returns the job of an attempt that still runs.
    pub(crate) fn running_attempt(&self, attempt: AttemptId) -> Option<&Running> {
        let running = self.running.get(&attempt.job).map(Arc::as_ref);
        running.filter(|running| running.job.attempt == attempt.attempt)
    }

    /// Returns waiting jobs with an id below `before`, newest first.
    pub(crate) fn waiting_before(
        &self,
        before: Option<JobId>,
    ) -> impl Iterator<Item = (JobId, &Waiting)> {
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let jobs = self.waiting.range((Bound::Unbounded, before)).rev();
        jobs.map(|(id, waiting)| (*id, waiting))
    }

    /// Returns running jobs with an id below `before`, newest first.
    pub(crate) fn running_before(
        &self,
        before: Option<JobId>,
    ) -> impl Iterator<Item = (JobId, &Running)> {
        let older = |id: &JobId| before.is_none_or(|before| *id < before);
        let jobs = self.running.iter().filter(|(id, _)| older(id));
        let jobs: BTreeMap<JobId, &Running> = jobs.map(|(id, job)| (*id, &**job)).collect();
        jobs.into_iter().rev()
    }

    /// Adds a job that is not in the index.
    pub(crate) fn put(&mut self, id: JobId, entry: Entry) {
        self.undo.push(Undo::Put(id));
        self.add(id, entry);
    }

    /// Removes a job.
    pub(crate) fn take(&mut self, id: JobId) -> Option<Entry> {
        let entry = self.remove(id)?;
        self.undo.push(Undo::Take(id, entry.clone()));
        Some(entry)
    }

    /// Removes the job of an attempt that still runs.
    pub(crate) fn take_attempt(&mut self, attempt: AttemptId) -> Option<Arc<Running>> {
        let hash_map::Entry::Occupied(entry) = self.running.entry(attempt.job) else {
            return None;
        };
        if entry.get().job.attempt != attempt.attempt {
            return None;
        }
        let running = entry.remove();
        self.remove_running(&running);
        self.undo.push(Undo::Take(
            attempt.job,
            Entry::Running(Arc::clone(&running)),
        ));
        Some(running)
    }

    /// Keeps all changes since the last commit or rollback.
    pub(crate) fn commit(&mut self) {
        self.undo.clear();
    }

    /// Undoes all changes since the last commit, the latest first.
    pub(crate) fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Put(id) => drop(self.remove(id)),
                Undo::Take(id, entry) => self.add(id, entry),
                Undo::Hold(key, Some(hold)) => drop(self.holds.insert(key, hold)),
                Undo::Hold(key, None) => drop(self.holds.remove(&key)),
                Undo::Tally(tally, by) => *self.tallies.entry(tally).or_default() -= by,
                Undo::Start(queue) => {
                    if let Some(starts) = self.starts.get_mut(&queue) {
                        starts.pop_back();
                    }
                }
            }
        }
    }

    fn add(&mut self, id: JobId, entry: Entry) {
        match entry {
            Entry::Waiting(waiting) => {
                let count = self.counts.entry(waiting.queue).or_default();
                count.waiting += 1;
                count.retrying += u64::from(waiting.lane == Lane::Retry);
                if self
                    .latest_now
                    .is_some_and(|latest_now| waiting.run_at <= latest_now)
                {
                    self.due.add(&waiting);
                    self.ready
                        .entry(lane_key(&waiting))
                        .or_default()
                        .insert(claim_order(id, &waiting));
                } else {
                    count.future += 1;
                    self.future.insert((waiting.run_at, id));
                }
                if let Some(deadline) = waiting.deadline {
                    self.deadlines.insert((deadline, id));
                }
                self.waiting.insert(id, waiting);
            }
            Entry::Running(running) => {
                let count = self.counts.entry(running.queue).or_default();
                count.running += 1;
                count.retries_running += u32::from(running.job.lane() == Lane::Retry);
                if let Some(concurrency) = &running.job.concurrency {
                    self.parking.start(&concurrency.key);
                }
                if let Some(lease) = running.job.lease() {
                    self.leases.insert((lease.until, id));
                }
                self.running.insert(id, running);
            }
        }
    }

    fn remove(&mut self, id: JobId) -> Option<Entry> {
        if let Some(running) = self.running.remove(&id) {
            self.remove_running(&running);
            return Some(Entry::Running(running));
        }
        let waiting = self.waiting.remove(&id)?;
        let is_unreadable = self.unreadable.remove(&id);
        self.remove_waiting(id, &waiting, is_unreadable);
        Some(Entry::Waiting(waiting))
    }

    /// Removes a waiting job from all sorted sets and counts. An unreadable job is in no sorted set
    /// of due jobs.
    fn remove_waiting(&mut self, id: JobId, waiting: &Waiting, is_unreadable: bool) {
        let count = self.counts.entry(waiting.queue).or_default();
        count.waiting -= 1;
        count.retrying -= u64::from(waiting.lane == Lane::Retry);
        let order = claim_order(id, waiting);
        if self
            .latest_now
            .is_none_or(|latest_now| waiting.run_at > latest_now)
        {
            count.future -= u64::from(self.future.remove(&(waiting.run_at, id)));
        } else if !is_unreadable {
            self.due.remove(waiting);
            if !remove_from(&mut self.ready, lane_key(waiting), &order)
                && !remove_from(&mut self.overdue, lane_key(waiting), &order)
            {
                self.parking.remove(waiting, &order);
            }
        }
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(concurrency) = &waiting.concurrency {
            // Unparking puts only the first job of each lane back into `ready`. If this was that
            // job, the next parked one must take its turn.
            self.unpark(&concurrency.key, self.latest_now.unwrap_or(Timestamp::MIN));
        }
    }

    /// Updates counts, leases and concurrency keys after a running job was removed.
    fn remove_running(&mut self, running: &Running) {
        let count = self.counts.entry(running.queue).or_default();
        count.running -= 1;
        count.retries_running -= u32::from(running.job.lane() == Lane::Retry);
        if let Some(lease) = running.job.lease() {
            self.leases.remove(&(lease.until, running.job.id));
        }
        if let Some(concurrency) = &running.job.concurrency {
            self.parking.stop(&concurrency.key);
            self.unpark(&concurrency.key, self.latest_now.unwrap_or(Timestamp::MIN));
        }
    }

    /// Removes an unreadable waiting job from all orders, so that it blocks no claim or sweep. The
    /// job still counts as waiting.
    pub(crate) fn set_unreadable(&mut self, id: JobId) {
        let Some(waiting) = self.waiting.get(&id) else {
            return;
        };
        let order = claim_order(id, waiting);
        if !self.unreadable.insert(id) {
            return;
        }
        if self.future.remove(&(waiting.run_at, id)) {
            self.counts.entry(waiting.queue).or_default().future -= 1;
        } else {
            self.due.remove(waiting);
        }
        remove_from(&mut self.ready, lane_key(waiting), &order);
        remove_from(&mut self.overdue, lane_key(waiting), &order);
        self.parking.remove(waiting, &order);
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// Moves jobs that are due at `now` from `future` to `ready`.
    pub(crate) fn promote(&mut self, now: Timestamp) {
        self.latest_now = self.latest_now.max(Some(now));
        while let Some((run_at, id)) = self
            .future
            .first()
            .copied()
            .filter(|(run_at, _)| *run_at <= now)
        {
            self.future.remove(&(run_at, id));
            if let Some(waiting) = self.waiting.get(&id) {
                self.counts.entry(waiting.queue).or_default().future -= 1;
                self.due.add(waiting);
                self.ready
                    .entry(lane_key(waiting))
                    .or_default()
                    .insert(claim_order(id, waiting));
            }
        }
    }

    /// Returns the queues that have due jobs of these kinds, unsorted. A queue may appear once for
    /// each kind.
    pub(crate) fn due_queues(&self, kinds: &[u32]) -> Vec<u32> {
        self.due.queues(kinds)
    }

    /// Returns up to `limit` running jobs whose lease has expired.
    pub(crate) fn expired_leases(
        &self,
        now: Timestamp,
        limit: usize,
        chosen: impl Fn(JobId) -> bool,
    ) -> Vec<JobId> {
        let expired = self
            .leases
            .iter()
            .take_while(|(until, _)| *until <= now)
            .filter(|(_, id)| chosen(*id))
            .take(limit);
        expired.map(|(_, id)| *id).collect()
    }

    /// Returns every running job.
    pub(crate) fn all_running(&self) -> Vec<JobId> {
        self.leases.iter().map(|(_, id)| *id).collect()
    }

    /// Returns up to `limit` waiting jobs whose deadline has passed.
    pub(crate) fn overdue(
        &self,
        now: Timestamp,
        limit: usize,
        chosen: impl Fn(JobId) -> bool,
    ) -> Vec<JobId> {
        let overdue = self
            .deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline < now)
            .filter(|(_, id)| chosen(*id))
            .take(limit);
        overdue.map(|(_, id)| *id).collect()
    }

    pub(crate) fn hold(&self, queue: u32, key: &Key, now: Timestamp) -> Option<Hold> {
        let hold = self.holds.get(&(queue, key.clone())).copied()?;
        hold.until.is_none_or(|until| until > now).then_some(hold)
    }

    pub(crate) fn set_hold(&mut self, queue: u32, key: Key, hold: Option<Hold>) {
        let queue_key = (queue, key);
        let previous = match hold {
            Some(hold) => self.holds.insert(queue_key.clone(), hold),
            None => self.holds.remove(&queue_key),
        };
        self.undo.push(Undo::Hold(queue_key, previous));
    }

    /// Removes the hold of a unique key if it has ended. Active jobs keep their keys.
    pub(crate) fn end_hold(&mut self, queue: u32, key: Key, now: Timestamp) {
        let held = self.holds.get(&(queue, key.clone()));
        if held.is_some_and(|hold| hold.until.is_some_and(|until| until <= now)) {
            self.set_hold(queue, key, None);
        }
    }

    pub(crate) fn count(&self, queue: u32) -> Count {
        self.counts.get(&queue).copied().unwrap_or_default()
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, Count)> + '_ {
        self.counts.iter().map(|(queue, count)| (*queue, *count))
    }

    /// Returns the `run_at` of the job that has been ready longest. Looks only at the first job of
    /// each priority in each lane: they are sorted by `run_at`.
    pub(crate) fn oldest_ready(&self, queue: u32) -> Option<Timestamp> {
        let lanes = [Lane::Fresh, Lane::Retry].into_iter();
        let lanes = lanes.flat_map(|lane| {
            let all = (queue, lane, 0)..=(queue, lane, u32::MAX);
            self.ready.range(all.clone()).chain(self.overdue.range(all))
        });
        let parked = self.parking.orders(queue).map(|order| order.1);
        let heads = lanes.flat_map(|(_, orders)| {
            let next = |order: &ClaimOrder| {
                let last = (order.0, Timestamp::MAX, JobId::from_u128(u128::MAX));
                orders.range(last..).next().copied()
            };
            std::iter::successors(orders.first().copied(), next).map(|order| order.1)
        });
        heads.chain(parked).min()
    }

    pub(crate) fn tally(&mut self, queue: u32, state: i64, by: i64) {
        *self.tallies.entry((queue, state)).or_default() += by;
        self.undo.push(Undo::Tally((queue, state), by));
    }

    pub(crate) fn tallies(&self) -> impl Iterator<Item = ((u32, i64), i64)> + '_ {
        self.tallies.iter().map(|(tally, count)| (*tally, *count))
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, running) = (self.waiting.len(), self.running.len());
        write!(f, "Index({waiting} waiting, {running} running)")
    }
}

/// Removes a job from an order. Returns whether it was there.
fn remove_from(lanes: &mut OrderedJobs, lane_key: LaneKey, order: &ClaimOrder) -> bool {
    let orders = lanes.get_mut(&lane_key);
    orders.is_some_and(|orders| orders.remove(order))
}

fn lane_key(waiting: &Waiting) -> LaneKey {
    (waiting.queue, waiting.lane, waiting.kind)
}

fn claim_order(id: JobId, waiting: &Waiting) -> ClaimOrder {
    (Reverse(waiting.priority), waiting.run_at, id)
}

/// Hashes job ids with one multiplication: their lower half is random already.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = windlass_core::fixed_hash(bytes);
    }

    fn write_u128(&mut self, id: u128) {
        // The hash table takes its control bytes from the top bits, so these must be random too.
        let low = (id & u128::from(u64::MAX)) as u64;
        self.0 = low.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
