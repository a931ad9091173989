//! The order of jobs in memory. The truth is on disk; what is here can be read back from there.
//!
//! Waiting jobs are ordered per queue, lane and kind; those whose time has not come stand aside by time. Becoming due is a
//! move in here and writes nothing. Every change is noted, so that a group that fails can be taken back.

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
pub(crate) type Place = (Reverse<i16>, Timestamp, JobId);

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
type Group = (u32, Lane, u32);
type Lanes = BTreeMap<Group, BTreeSet<Place>>;

#[derive(Default)]
pub(crate) struct Index {
    /// By id, and so by age: those that are handled together lie together, however many there are.
    waiting: BTreeMap<JobId, Waiting>,
    running: Ids<Arc<Running>>,
    /// Due jobs by queue, lane and kind.
    ready: Lanes,
    /// Due jobs that a claim met too late for them: they wait for the sweep, out of the way.
    overdue: Lanes,
    due: DueCounts,
    future: BTreeSet<(Timestamp, JobId)>,
    deadlines: BTreeSet<(Timestamp, JobId)>,
    leases: BTreeSet<(Timestamp, JobId)>,
    parking: Parking,
    /// Waiting jobs that cannot be read: nobody claims them.
    aside: BTreeSet<JobId>,
    holds: HashMap<(u32, Key), Hold>,
    counts: HashMap<u32, Count>,
    tallies: HashMap<(u32, i64), i64>,
    starts: HashMap<u32, VecDeque<Timestamp>>,
    /// The latest instant anybody spoke of: what was due then is among the ready ones.
    seen: Option<Timestamp>,
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
        self.stop(&running);
        self.undo
            .push(Undo::Take(of.job, Entry::Running(Arc::clone(&running))));
        Some(running)
    }

    /// The changes since the last call stay.
    pub(crate) fn keep(&mut self) {
        self.undo.clear();
    }

    /// The changes since the last `keep` are taken back, the last one first.
    pub(crate) fn take_back(&mut self) {
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
                if self.seen.is_some_and(|seen| waiting.run_at <= seen) {
                    self.due.add(&waiting);
                    self.ready
                        .entry(group(&waiting))
                        .or_default()
                        .insert(place(id, &waiting));
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
            self.stop(&running);
            return Some(Entry::Running(running));
        }
        let waiting = self.waiting.remove(&id)?;
        let is_aside = self.aside.remove(&id);
        self.leave_order(id, &waiting, is_aside);
        Some(Entry::Waiting(waiting))
    }

    /// Takes a waiting job out of the order, in which one that was set aside is no longer.
    fn leave_order(&mut self, id: JobId, waiting: &Waiting, is_aside: bool) {
        let count = self.counts.entry(waiting.queue).or_default();
        count.waiting -= 1;
        count.retrying -= u64::from(waiting.lane == Lane::Retry);
        let place = place(id, waiting);
        if self.seen.is_none_or(|seen| waiting.run_at > seen) {
            count.future -= u64::from(self.future.remove(&(waiting.run_at, id)));
        } else if !is_aside {
            self.due.remove(waiting);
            if !leave(&mut self.ready, group(waiting), &place)
                && !leave(&mut self.overdue, group(waiting), &place)
            {
                self.parking.remove(waiting, &place);
            }
        }
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(of) = &waiting.concurrency {
            // Its place in front is free again: those that stood aside come back.
            self.let_back(&of.key, self.seen.unwrap_or(Timestamp::MIN));
        }
    }

    /// Frees what a running job held.
    fn stop(&mut self, running: &Running) {
        let count = self.counts.entry(running.queue).or_default();
        count.running -= 1;
        count.retries_running -= u32::from(running.job.lane() == Lane::Retry);
        if let Some(lease) = running.job.lease() {
            self.leases.remove(&(lease.until, running.job.id));
        }
        if let Some(of) = &running.job.concurrency {
            self.parking.stop(&of.key);
            self.let_back(&of.key, self.seen.unwrap_or(Timestamp::MIN));
        }
    }

    /// Takes a waiting job that cannot be read out of the order, so that it holds nobody up. It still counts as waiting.
    pub(crate) fn set_aside(&mut self, id: JobId) {
        let Some(waiting) = self.waiting.get(&id) else {
            return;
        };
        let place = place(id, waiting);
        if !self.aside.insert(id) {
            return;
        }
        match self.future.remove(&(waiting.run_at, id)) {
            true => self.counts.entry(waiting.queue).or_default().future -= 1,
            false => self.due.remove(waiting),
        }
        leave(&mut self.ready, group(waiting), &place);
        leave(&mut self.overdue, group(waiting), &place);
        self.parking.remove(waiting, &place);
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// Moves what has become due among the ready ones.
    pub(crate) fn promote(&mut self, now: Timestamp) {
        self.seen = self.seen.max(Some(now));
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
                    .entry(group(waiting))
                    .or_default()
                    .insert(place(id, waiting));
            }
        }
    }

    /// The queues that have due jobs of these kinds, in no order; one may be named for each kind.
    pub(crate) fn due_queues(&self, kinds: &[u32]) -> Vec<u32> {
        self.due.queues(kinds)
    }

    /// The foremost job of a lane that may start, among the kinds that are wanted. Those whose key is full, or that are overdue,
    /// stand aside: no claim walks over them twice, and they keep nobody from their key.
    pub(crate) fn foremost(
        &mut self,
        queue: u32,
        lane: Lane,
        wants: impl Fn(u32) -> bool,
        except: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> Option<Place> {
        loop {
            let (foremost, aside) = self.look(queue, lane, &wants, except, now);
            let mut freed = BTreeSet::new();
            for (group, place) in aside {
                freed.extend(self.stand_aside(group, place));
            }
            let mut released = false;
            for key in freed {
                released |= self.let_back(&key, now);
            }
            // One that came back in the place of an overdue one may come before all others.
            if !released {
                return foremost;
            }
        }
    }

    /// The foremost job that may start, and those before it that must stand aside.
    fn look(
        &self,
        queue: u32,
        lane: Lane,
        wants: impl Fn(u32) -> bool,
        except: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> (Option<Place>, Vec<(Group, Place)>) {
        let mut foremost: Option<Place> = None;
        let mut aside = Vec::new();
        let groups = self.ready.range((queue, lane, 0)..=(queue, lane, u32::MAX));
        for (group, places) in groups.filter(|((_, _, kind), _)| wants(*kind)) {
            for place in places {
                if foremost.is_some_and(|found| found < *place) {
                    break;
                }
                let Some(waiting) = self.waiting.get(&place.2) else {
                    continue;
                };
                if except.contains(&place.2) {
                    continue;
                }
                let overdue = waiting.deadline.is_some_and(|deadline| deadline < now);
                let key = waiting.concurrency.as_ref();
                if overdue || key.is_some_and(|of| self.parking.is_full(of)) {
                    aside.push((*group, *place));
                } else if waiting.run_at <= now {
                    foremost = Some(*place);
                    break;
                }
            }
        }
        (foremost, aside)
    }

    /// Takes a job out of the order; names its key if it is not full, so that others may have it.
    fn stand_aside(&mut self, group: Group, place: Place) -> Option<Key> {
        leave(&mut self.ready, group, &place);
        let waiting = self.waiting.get(&place.2)?;
        let Some(of) = &waiting.concurrency else {
            self.overdue.entry(group).or_default().insert(place);
            return None;
        };
        self.parking.park(waiting, group, place);
        (!self.parking.is_full(of)).then(|| of.key.clone())
    }

    /// Lets those back that fit beside what runs with a key; answers whether there were any.
    fn let_back(&mut self, key: &Key, now: Timestamp) -> bool {
        let released = self.parking.release(key, now);
        let any = !released.is_empty();
        for (group, place) in released {
            self.ready.entry(group).or_default().insert(place);
        }
        any
    }

    /// Whether a waiting job may start now, and its place.
    pub(crate) fn startable(&self, id: JobId, now: Timestamp) -> Option<(Place, &Waiting)> {
        let waiting = self.waiting.get(&id)?;
        if self.aside.contains(&id) {
            return None;
        }
        let full = waiting
            .concurrency
            .as_ref()
            .is_some_and(|of| self.parking.is_full(of));
        let in_time =
            waiting.run_at <= now && waiting.deadline.is_none_or(|deadline| now <= deadline);
        (in_time && !full).then(|| (place(id, waiting), waiting))
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

    /// The `run_at` of the job that is ready for longest: the first of each priority in each group.
    pub(crate) fn oldest_ready(&self, queue: u32) -> Option<Timestamp> {
        let lanes = [Lane::Fresh, Lane::Retry].into_iter();
        let groups = lanes.flat_map(|lane| {
            let all = (queue, lane, 0)..=(queue, lane, u32::MAX);
            self.ready.range(all.clone()).chain(self.overdue.range(all))
        });
        let parked = self.parking.places(queue).map(|place| place.1);
        let heads = groups.flat_map(|(_, places)| {
            let next = |place: &Place| {
                let last = (place.0, Timestamp::MAX, JobId::from_u128(u128::MAX));
                places.range(last..).next().copied()
            };
            std::iter::successors(places.first().copied(), next).map(|place| place.1)
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
fn leave(lanes: &mut Lanes, group: Group, place: &Place) -> bool {
    let places = lanes.get_mut(&group);
    places.is_some_and(|places| places.remove(place))
}

fn group(waiting: &Waiting) -> Group {
    (waiting.queue, waiting.lane, waiting.kind)
}

fn place(id: JobId, waiting: &Waiting) -> Place {
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
