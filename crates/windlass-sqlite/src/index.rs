//! The order of jobs in memory. The truth is on disk; what is here can be read back from there.
//!
//! Waiting jobs are ordered per queue, lane and kind; those whose time has not come stand unreadable by time. Becoming due is a
//! move in here and writes nothing. Every change is noted, so that a lane_key that fails can be taken back.

mod due_counts;
mod parking;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque, hash_map};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use windlass_core::{Concurrency, Job, JobId, Key, Lane, Timestamp};
use windlass_store::AttemptId;

use due_counts::DueCounts;
use parking::Parking;

/// The order of claims: priority, time, age.
pub(crate) type ClaimOrder = (Reverse<i16>, Timestamp, JobId);

/// What is kept of a waiting job.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) run_at: Timestamp,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) concurrency: Option<Arc<Concurrency>>,
    pub(crate) queue: u32,
    pub(crate) kind: u32,
    pub(crate) priority: i16,
    pub(crate) lane: Lane,
    /// Whether there is a row in `states`.
    pub(crate) ran: bool,
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

/// Who holds a unique key, and until when it does so after it ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hold {
    pub(crate) id: JobId,
    /// None while the job lives.
    pub(crate) until: Option<Timestamp>,
}

/// How a change is taken back.
enum Undo {
    Put(JobId),
    Take(JobId, Entry),
    Hold((u32, Key), Option<Hold>),
    Tally((u32, i64), i64),
    Start(u32),
}

/// What is counted of a queue.
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
    /// By id, and so by age: those that are handled together lie together, however many there are.
    waiting: BTreeMap<JobId, Waiting>,
    running: Ids<Arc<Running>>,
    /// Due jobs by queue, lane and kind.
    ready: OrderedJobs,
    /// Due jobs that a claim met too late for them: they wait for the sweep, out of the way.
    overdue: OrderedJobs,
    due: DueCounts,
    future: BTreeSet<(Timestamp, JobId)>,
    deadlines: BTreeSet<(Timestamp, JobId)>,
    leases: BTreeSet<(Timestamp, JobId)>,
    parking: Parking,
    /// Waiting jobs that cannot be read: nobody claims them.
    unreadable: BTreeSet<JobId>,
    holds: HashMap<(u32, Key), Hold>,
    counts: HashMap<u32, Count>,
    tallies: HashMap<(u32, i64), i64>,
    starts: HashMap<u32, VecDeque<Timestamp>>,
    /// The latest instant anybody spoke of: what was due then is among the ready ones.
    latest_now: Option<Timestamp>,
    undo: Vec<Undo>,
}

impl Index {
    pub(crate) fn waits(&self, id: JobId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// The job of that attempt, if it still runs.
    pub(crate) fn running_attempt(&self, of: AttemptId) -> Option<&Running> {
        let running = self.running.get(&of.job).map(Arc::as_ref);
        running.filter(|running| running.job.attempt == of.attempt)
    }

    /// Waiting jobs that are older than that one, newest first.
    pub(crate) fn waiting_before(
        &self,
        before: Option<JobId>,
    ) -> impl Iterator<Item = (JobId, &Waiting)> {
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let jobs = self.waiting.range((Bound::Unbounded, before)).rev();
        jobs.map(|(id, waiting)| (*id, waiting))
    }

    /// Running jobs that are older than that one, newest first.
    pub(crate) fn running_before(
        &self,
        before: Option<JobId>,
    ) -> impl Iterator<Item = (JobId, &Running)> {
        let older = |id: &JobId| before.is_none_or(|before| *id < before);
        let jobs = self.running.iter().filter(|(id, _)| older(id));
        let jobs: BTreeMap<JobId, &Running> = jobs.map(|(id, job)| (*id, &**job)).collect();
        jobs.into_iter().rev()
    }

    /// Adds a job that is not there.
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
    pub(crate) fn take_attempt(&mut self, of: AttemptId) -> Option<Arc<Running>> {
        let hash_map::Entry::Occupied(entry) = self.running.entry(of.job) else {
            return None;
        };
        if entry.get().job.attempt != of.attempt {
            return None;
        }
        let running = entry.remove();
        self.remove_running(&running);
        self.undo
            .push(Undo::Take(of.job, Entry::Running(Arc::clone(&running))));
        Some(running)
    }

    /// The changes since the last call stay.
    pub(crate) fn commit(&mut self) {
        self.undo.clear();
    }

    /// The changes since the last `commit` are taken back, the last one first.
    pub(crate) fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Put(id) => drop(self.remove(id)),
                Undo::Take(id, entry) => self.add(id, entry),
                Undo::Hold(key, Some(hold)) => drop(self.holds.insert(key, hold)),
                Undo::Hold(key, None) => drop(self.holds.remove(&key)),
                Undo::Tally(of, by) => *self.tallies.entry(of).or_default() -= by,
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
                        .insert(order(id, &waiting));
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

    /// Takes a waiting job out of the order, in which one that was set unreadable is no longer.
    fn remove_waiting(&mut self, id: JobId, waiting: &Waiting, is_unreadable: bool) {
        let count = self.counts.entry(waiting.queue).or_default();
        count.waiting -= 1;
        count.retrying -= u64::from(waiting.lane == Lane::Retry);
        let order = order(id, waiting);
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
        if let Some(of) = &waiting.concurrency {
            // Its order in front is free again: those that stood unreadable come back.
            self.unpark(&of.key, self.latest_now.unwrap_or(Timestamp::MIN));
        }
    }

    /// Frees what a running job held.
    fn remove_running(&mut self, running: &Running) {
        let count = self.counts.entry(running.queue).or_default();
        count.running -= 1;
        count.retries_running -= u32::from(running.job.lane() == Lane::Retry);
        if let Some(lease) = running.job.lease() {
            self.leases.remove(&(lease.until, running.job.id));
        }
        if let Some(of) = &running.job.concurrency {
            self.parking.stop(&of.key);
            self.unpark(&of.key, self.latest_now.unwrap_or(Timestamp::MIN));
        }
    }

    /// Takes a waiting job that cannot be read out of the order, so that it holds nobody up. It still counts as waiting.
    pub(crate) fn set_unreadable(&mut self, id: JobId) {
        let Some(waiting) = self.waiting.get(&id) else {
            return;
        };
        let order = order(id, waiting);
        if !self.unreadable.insert(id) {
            return;
        }
        match self.future.remove(&(waiting.run_at, id)) {
            true => self.counts.entry(waiting.queue).or_default().future -= 1,
            false => self.due.remove(waiting),
        }
        remove_from(&mut self.ready, lane_key(waiting), &order);
        remove_from(&mut self.overdue, lane_key(waiting), &order);
        self.parking.remove(waiting, &order);
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// Moves what has become due among the ready ones.
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
                    .insert(order(id, waiting));
            }
        }
    }

    /// The queues that have due jobs of these kinds, in no order; one may be named for each kind.
    pub(crate) fn due_queues(&self, kinds: &[u32]) -> Vec<u32> {
        self.due.queues(kinds)
    }

    /// The first_startable job of a lane that may start, among the kinds that are wanted. Those whose key is full, or that are overdue,
    /// stand unreadable: no claim walks over them twice, and they keep nobody from their key.
    pub(crate) fn first_startable(
        &mut self,
        queue: u32,
        lane: Lane,
        wants: impl Fn(u32) -> bool,
        except: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> Option<ClaimOrder> {
        loop {
            let (first_startable, unreadable) = self.find_first(queue, lane, &wants, except, now);
            let mut freed = BTreeSet::new();
            for (lane_key, order) in unreadable {
                freed.extend(self.take_out_of_order(lane_key, order));
            }
            let mut released = false;
            for key in freed {
                released |= self.unpark(&key, now);
            }
            // One that came back in the order of an overdue one may come before all others.
            if !released {
                return first_startable;
            }
        }
    }

    /// The first_startable job that may start, and those before it that must stand unreadable.
    fn find_first(
        &self,
        queue: u32,
        lane: Lane,
        wants: impl Fn(u32) -> bool,
        except: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> (Option<ClaimOrder>, Vec<(LaneKey, ClaimOrder)>) {
        let mut first_startable: Option<ClaimOrder> = None;
        let mut unreadable = Vec::new();
        let lanes = self.ready.range((queue, lane, 0)..=(queue, lane, u32::MAX));
        for (lane_key, orders) in lanes.filter(|((_, _, kind), _)| wants(*kind)) {
            for order in orders {
                if first_startable.is_some_and(|found| found < *order) {
                    break;
                }
                let Some(waiting) = self.waiting.get(&order.2) else {
                    continue;
                };
                if except.contains(&order.2) {
                    continue;
                }
                let overdue = waiting.deadline.is_some_and(|deadline| deadline < now);
                let key = waiting.concurrency.as_ref();
                if overdue || key.is_some_and(|of| self.parking.is_full(of)) {
                    unreadable.push((*lane_key, *order));
                } else if waiting.run_at <= now {
                    first_startable = Some(*order);
                    break;
                }
            }
        }
        (first_startable, unreadable)
    }

    /// Takes a job out of the order; names its key if it is not full, so that others may have it.
    fn take_out_of_order(&mut self, lane_key: LaneKey, order: ClaimOrder) -> Option<Key> {
        remove_from(&mut self.ready, lane_key, &order);
        let waiting = self.waiting.get(&order.2)?;
        let Some(of) = &waiting.concurrency else {
            self.overdue.entry(lane_key).or_default().insert(order);
            return None;
        };
        self.parking.park(waiting, lane_key, order);
        (!self.parking.is_full(of)).then(|| of.key.clone())
    }

    /// Lets those back that fit beside what runs with a key; answers whether there were any.
    fn unpark(&mut self, key: &Key, now: Timestamp) -> bool {
        let released = self.parking.release(key, now);
        let any = !released.is_empty();
        for (lane_key, order) in released {
            self.ready.entry(lane_key).or_default().insert(order);
        }
        any
    }

    /// Whether a waiting job may start now, and its order.
    pub(crate) fn startable(&self, id: JobId, now: Timestamp) -> Option<(ClaimOrder, &Waiting)> {
        let waiting = self.waiting.get(&id)?;
        if self.unreadable.contains(&id) {
            return None;
        }
        let full = waiting
            .concurrency
            .as_ref()
            .is_some_and(|of| self.parking.is_full(of));
        let in_time =
            waiting.run_at <= now && waiting.deadline.is_none_or(|deadline| now <= deadline);
        (in_time && !full).then(|| (order(id, waiting), waiting))
    }

    /// Up to `limit` running jobs whose lease has expired.
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

    /// Every running job.
    pub(crate) fn all_running(&self) -> Vec<JobId> {
        self.leases.iter().map(|(_, id)| *id).collect()
    }

    /// Up to `limit` waiting jobs whose deadline has passed.
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
        let of = (queue, key);
        let before = match hold {
            Some(hold) => self.holds.insert(of.clone(), hold),
            None => self.holds.remove(&of),
        };
        self.undo.push(Undo::Hold(of, before));
    }

    /// Forgets who holds a unique key, if the hold is over. A job that waits or runs holds on.
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

    /// The `run_at` of the job that is ready for longest: the first of each priority in each lane_key.
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
        self.tallies.iter().map(|(of, count)| (*of, *count))
    }

    /// How many jobs of a queue were started within the period before `now`.
    pub(crate) fn started_since(
        &mut self,
        queue: u32,
        now: Timestamp,
        period: std::time::Duration,
    ) -> u32 {
        let starts = self.starts.entry(queue).or_default();
        while starts
            .front()
            .is_some_and(|start| now.since(*start) >= period)
        {
            starts.pop_front();
        }
        u32::try_from(starts.len()).unwrap_or(u32::MAX)
    }

    /// When the last job of a queue with a rate was started.
    pub(crate) fn last_start(&self, queue: u32) -> Option<Timestamp> {
        self.starts.get(&queue)?.back().copied()
    }

    /// When jobs of a queue were started, the oldest first; only of late, and where it has a rate.
    pub(crate) fn starts(&self, queue: u32) -> impl Iterator<Item = Timestamp> + '_ {
        self.starts.get(&queue).into_iter().flatten().copied()
    }

    pub(crate) fn note_start(&mut self, queue: u32, now: Timestamp) {
        self.starts.entry(queue).or_default().push_back(now);
        self.undo.push(Undo::Start(queue));
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, running) = (self.waiting.len(), self.running.len());
        write!(f, "Index({waiting} waiting, {running} running)")
    }
}

/// Takes a job out of an order; answers whether it was in it.
fn remove_from(lanes: &mut OrderedJobs, lane_key: LaneKey, order: &ClaimOrder) -> bool {
    let orders = lanes.get_mut(&lane_key);
    orders.is_some_and(|orders| orders.remove(order))
}

fn lane_key(waiting: &Waiting) -> LaneKey {
    (waiting.queue, waiting.lane, waiting.kind)
}

fn order(id: JobId, waiting: &Waiting) -> ClaimOrder {
    (Reverse(waiting.priority), waiting.run_at, id)
}

/// Ids are random in their lower half: no need to mix them again.
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
        // The top bits choose among the control bytes of the table: they must be random too.
        let low = (id & u128::from(u64::MAX)) as u64;
        self.0 = low.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
