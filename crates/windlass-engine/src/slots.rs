//! The slots of a worker. Each running handler takes one slot, and jobs are claimed only for free
//! slots.
//!
//! A queue may have a retry lane: a pool of further slots that only its retries use.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use windlass_core::Timestamp;
use windlass_core::fairness::{Pool, Rate, RetryLane, Slots as FreeSlots};
use windlass_core::{Lane, QueueName};

use crate::poison::lock;
use crate::saturate::to_u32;
use crate::sources::Source;

/// The slots of all queues of a worker.
#[derive(Debug)]
pub(crate) struct Slots {
    counts: Mutex<SlotCounts>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct SlotCounts {
    /// The number of slots over all queues, without the retry lanes.
    total: u32,
    /// The number of slots of all retry lanes.
    lanes_total: u32,
    used: u32,
    /// The number of slots that each source uses.
    sources: BTreeMap<Source, u32>,
    /// The queues that use slots, or whose rate limit still counts recent starts.
    queues: BTreeMap<QueueName, QueueSlots>,
    /// The queues in which a slot became free since the last call of `take_freed`.
    freed: BTreeSet<QueueName>,
}

#[derive(Debug, Default)]
struct QueueSlots {
    used: u32,
    retries: u32,
    lane_used: u32,
    /// The recent starts in a retry lane with a rate limit, as far back as its period.
    lane_starts: VecDeque<Timestamp>,
}

/// A taken slot. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    queue: QueueName,
    source: Source,
    pool: Pool,
    lane: Lane,
}

impl Slots {
    /// Creates `total` slots over all queues.
    pub(crate) fn new(total: u32) -> Self {
        let counts = SlotCounts {
            total,
            ..SlotCounts::default()
        };
        Slots {
            counts: Mutex::new(counts),
            freed: Notify::new(),
        }
    }

    /// The number of free slots over all queues, without the retry lanes.
    pub(crate) fn free(&self) -> u32 {
        let counts = self.counts();
        counts.total.saturating_sub(counts.used)
    }

    /// The number of taken slots, including the retry lanes.
    pub(crate) fn used(&self) -> u32 {
        let counts = self.counts();
        let lanes = counts.queues.values().map(|queue| queue.lane_used);
        counts.used + lanes.sum::<u32>()
    }

    /// The number of slots, including the retry lanes.
    pub(crate) fn total(&self) -> u32 {
        let counts = self.counts();
        counts.total.saturating_add(counts.lanes_total)
    }

    /// The number of free slots of a source that has `total` slots.
    pub(crate) fn free_of(&self, source: Source, total: u32) -> u32 {
        let used = self.counts().sources.get(&source).copied();
        total.saturating_sub(used.unwrap_or(0))
    }

    /// The slots of a queue, in the form that the guards need. The queue may use `queue_max` of the
    /// `total` slots of its source.
    pub(crate) fn of(
        &self,
        queue: &QueueName,
        source: Source,
        (total, queue_max): (u32, u32),
    ) -> FreeSlots {
        let free = self.free_of(source, total);
        let counts = self.counts();
        let queue_slots = counts.queues.get(queue);
        FreeSlots {
            total: queue_max,
            free: free.min(
                queue_max.saturating_sub(queue_slots.map_or(0, |queue_slots| queue_slots.used)),
            ),
            retries_running: queue_slots.map_or(0, |queue_slots| queue_slots.retries),
        }
    }

    /// The slots of a queue's retry lane that its rate limit allows now.
    pub(crate) fn of_lane(&self, queue: &QueueName, lane: RetryLane, now: Timestamp) -> FreeSlots {
        let mut counts = self.counts();
        let queue_slots = counts.queues.get_mut(queue);
        let (used, rate_left) = queue_slots.map_or((0, u32::MAX), |queue_slots| {
            (queue_slots.lane_used, queue_slots.rate_left(lane.rate, now))
        });
        let rate_left = rate_left.min(lane.rate.map_or(u32::MAX, |rate| rate.count));
        FreeSlots {
            total: lane.concurrency,
            free: lane.concurrency.saturating_sub(used).min(rate_left),
            retries_running: used,
        }
    }

    /// Sets the number of slots of all retry lanes.
    pub(crate) fn set_lanes_total(&self, slots: u32) {
        self.counts().lanes_total = slots;
        self.freed.notify_one();
    }

    /// Takes a slot for a claimed job. If `rated`, the start counts against the rate limit of the
    /// retry lane.
    pub(crate) fn take(
        self: &Arc<Self>,
        (queue, source): (&QueueName, Source),
        pool: Pool,
        lane: Lane,
        rated: bool,
        now: Timestamp,
    ) -> Slot {
        let mut counts = self.counts();
        let queue_slots = counts.queues.entry(queue.clone()).or_default();
        match pool {
            Pool::Main | Pool::Single => {
                queue_slots.used += 1;
                queue_slots.retries += u32::from(lane == Lane::Retry);
                counts.used += 1;
                *counts.sources.entry(source).or_default() += 1;
            }
            Pool::RetryLane => {
                queue_slots.lane_used += 1;
                if rated {
                    queue_slots.lane_starts.push_back(now);
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

    /// Notified whenever a slot becomes free.
    pub(crate) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// Returns the queues in which a slot became free since the last call.
    pub(crate) fn take_freed(&self) -> BTreeSet<QueueName> {
        std::mem::take(&mut self.counts().freed)
    }

    fn counts(&self) -> MutexGuard<'_, SlotCounts> {
        lock(&self.counts)
    }
}

impl QueueSlots {
    /// How many more retries the rate limit allows to start now.
    fn rate_left(&mut self, rate: Option<Rate>, now: Timestamp) -> u32 {
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
        count.saturating_sub(to_u32(self.lane_starts.len()))
    }

    fn is_idle(&self) -> bool {
        self.used == 0 && self.lane_used == 0 && self.lane_starts.is_empty()
    }
}

impl SlotCounts {
    fn give_back(&mut self, slot: &Slot) {
        if slot.pool != Pool::RetryLane {
            self.used = self.used.saturating_sub(1);
            let used = self.sources.entry(slot.source).or_default();
            *used = used.saturating_sub(1);
        }
        let Some(queue_slots) = self.queues.get_mut(&slot.queue) else {
            return;
        };
        match slot.pool {
            Pool::Main | Pool::Single => {
                queue_slots.used = queue_slots.used.saturating_sub(1);
                let retry = u32::from(slot.lane == Lane::Retry);
                queue_slots.retries = queue_slots.retries.saturating_sub(retry);
            }
            Pool::RetryLane => queue_slots.lane_used = queue_slots.lane_used.saturating_sub(1),
        }
        if queue_slots.is_idle() {
            self.queues.remove(&slot.queue);
        }
        self.freed.insert(slot.queue.clone());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.counts().give_back(self);
        self.slots.freed.notify_one();
    }
}
