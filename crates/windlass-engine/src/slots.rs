//! The slots of a worker in which handlers run. Jobs are claimed only into free ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_core::Timestamp;
use windlass_core::fairness::{Pool, Rate, RetryLane, Slots as FreeSlots};
use windlass_core::{Lane, QueueName};

use crate::sources::Source;

/// The slots of all queues of a worker.
#[derive(Debug)]
pub(crate) struct Slots {
    inner: Mutex<Inner>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Over all queues; the pools of retries alone are next to it.
    total: u32,
    /// The slots of all pools of retries alone.
    lanes_total: u32,
    used: u32,
    /// How many each source uses.
    sources: BTreeMap<Source, u32>,
    /// The queues that use slots or did so lately.
    queues: BTreeMap<QueueName, QueueSlots>,
    /// The queues in which a slot became free since the last call.
    freed: BTreeSet<QueueName>,
}

#[derive(Debug, Default)]
struct QueueSlots {
    used: u32,
    retries: u32,
    lane_used: u32,
    /// When retries were started in a pool with a rate, as far back as its period.
    lane_starts: VecDeque<Timestamp>,
}

/// A slot that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    queue: QueueName,
    source: Source,
    pool: Pool,
    lane: Lane,
}

impl Slots {
    /// This many slots over all queues.
    pub(crate) fn new(total: u32) -> Self {
        let inner = Inner {
            total,
            ..Inner::default()
        };
        Slots {
            inner: Mutex::new(inner),
            freed: Notify::new(),
        }
    }

    /// How many are free over all queues.
    pub(crate) fn free(&self) -> u32 {
        let inner = self.inner();
        inner.total.saturating_sub(inner.used)
    }

    /// How many are taken, the pools of retries included.
    pub(crate) fn used(&self) -> u32 {
        let inner = self.inner();
        let lanes = inner.queues.values().map(|queue| queue.lane_used);
        inner.used + lanes.sum::<u32>()
    }

    /// How many there are, the pools of retries included.
    pub(crate) fn total(&self) -> u32 {
        let inner = self.inner();
        inner.total.saturating_add(inner.lanes_total)
    }

    /// How many are free for a source that has this many.
    pub(crate) fn free_of(&self, source: Source, total: u32) -> u32 {
        let used = self.inner().sources.get(&source).copied();
        total.saturating_sub(used.unwrap_or(0))
    }

    /// The slots of a queue that has `most` of the `total` of its source, as the guards want to
    /// know them.
    pub(crate) fn of(
        &self,
        queue: &QueueName,
        source: Source,
        (total, most): (u32, u32),
    ) -> FreeSlots {
        let free = self.free_of(source, total);
        let inner = self.inner();
        let of = inner.queues.get(queue);
        FreeSlots {
            total: most,
            free: free.min(most.saturating_sub(of.map_or(0, |of| of.used))),
            retries_running: of.map_or(0, |of| of.retries),
        }
    }

    /// The slots of the pool for retries alone, within its rate.
    pub(crate) fn of_lane(&self, queue: &QueueName, lane: RetryLane, now: Timestamp) -> FreeSlots {
        let mut inner = self.inner();
        let of = inner.queues.get_mut(queue);
        let (used, room) = of.map_or((0, u32::MAX), |of| {
            (of.lane_used, of.lane_room(lane.rate, now))
        });
        let room = room.min(lane.rate.map_or(u32::MAX, |rate| rate.count));
        FreeSlots {
            total: lane.concurrency,
            free: lane.concurrency.saturating_sub(used).min(room),
            retries_running: used,
        }
    }

    /// Pools of retries alone have this many slots from now on.
    pub(crate) fn set_lanes_total(&self, slots: u32) {
        self.inner().lanes_total = slots;
        self.freed.notify_one();
    }

    /// Takes a slot for a job that was claimed. `rated` if the starts of the pool are counted.
    pub(crate) fn take(
        self: &Arc<Self>,
        (queue, source): (&QueueName, Source),
        pool: Pool,
        lane: Lane,
        rated: bool,
        now: Timestamp,
    ) -> Slot {
        let mut inner = self.inner();
        let of = inner.queues.entry(queue.clone()).or_default();
        match pool {
            Pool::Main | Pool::Single => {
                of.used += 1;
                of.retries += u32::from(lane == Lane::Retry);
                inner.used += 1;
                *inner.sources.entry(source).or_default() += 1;
            }
            Pool::RetryLane => {
                of.lane_used += 1;
                if rated {
                    of.lane_starts.push_back(now);
                }
            }
        }
        Slot {
            slots: Arc::clone(self),
            queue: queue.clone(),
            source,
            pool,
            lane,
        }
    }

    /// Is notified whenever a slot becomes free.
    pub(crate) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// The queues in which a slot became free since the last call.
    pub(crate) fn take_freed(&self) -> BTreeSet<QueueName> {
        std::mem::take(&mut self.inner().freed)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueSlots {
    /// How many more retries may start now.
    fn lane_room(&mut self, rate: Option<Rate>, now: Timestamp) -> u32 {
        let Some(Rate { count, period }) = rate else {
            return u32::MAX;
        };
        while self
            .lane_starts
            .front()
            .is_some_and(|start| now.since(*start) >= period)
        {
            self.lane_starts.pop_front();
        }
        count.saturating_sub(u32::try_from(self.lane_starts.len()).unwrap_or(u32::MAX))
    }

    fn is_idle(&self) -> bool {
        self.used == 0 && self.lane_used == 0 && self.lane_starts.is_empty()
    }
}

impl Inner {
    fn give_back(&mut self, slot: &Slot) {
        if slot.pool != Pool::RetryLane {
            self.used = self.used.saturating_sub(1);
            let used = self.sources.entry(slot.source).or_default();
            *used = used.saturating_sub(1);
        }
        let Some(of) = self.queues.get_mut(&slot.queue) else {
            return;
        };
        match slot.pool {
            Pool::Main | Pool::Single => {
                of.used = of.used.saturating_sub(1);
                let retry = u32::from(slot.lane == Lane::Retry);
                of.retries = of.retries.saturating_sub(retry);
            }
            Pool::RetryLane => of.lane_used = of.lane_used.saturating_sub(1),
        }
        if of.is_idle() {
            self.queues.remove(&slot.queue);
        }
        self.freed.insert(slot.queue.clone());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.inner().give_back(self);
        self.slots.freed.notify_one();
    }
}
