//! The places of a worker in which handlers run. Jobs are claimed only into free ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_core::Timestamp;
use windlass_core::fairness::{Pool, Rate, RetryLane, Slots as SlotsOf};
use windlass_core::{Lane, QueueName};

/// The slots of all queues of a worker.
#[derive(Debug)]
pub(crate) struct Slots {
    inner: Mutex<Inner>,
    freed: Notify,
}

#[derive(Debug)]
struct Inner {
    /// Over all queues; the pools of retries alone are beside it.
    total: u32,
    used: u32,
    queues: Vec<QueueSlots>,
}

#[derive(Debug)]
struct QueueSlots {
    total: u32,
    used: u32,
    retries: u32,
    lane: LaneSlots,
}

#[derive(Debug)]
struct LaneSlots {
    /// None where retries have no pool of their own. Those that run in one that was taken away run
    /// on.
    of: Option<RetryLane>,
    used: u32,
    /// When retries were started, as far back as the period of the rate.
    starts: VecDeque<Timestamp>,
}

/// A slot that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    queue: usize,
    pool: Pool,
    lane: Lane,
}

impl Slots {
    /// Slots of queues, each with its own number and perhaps a pool for retries alone.
    pub(crate) fn new(total: u32, queues: &[(QueueName, u32, Option<RetryLane>)]) -> Self {
        let queue = |(_, total, lane): &(QueueName, u32, Option<RetryLane>)| QueueSlots {
            total: *total,
            used: 0,
            retries: 0,
            lane: LaneSlots {
                of: *lane,
                used: 0,
                starts: VecDeque::new(),
            },
        };
        Slots {
            inner: Mutex::new(Inner {
                total,
                used: 0,
                queues: queues.iter().map(queue).collect(),
            }),
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
        let lanes = inner.queues.iter().map(|queue| queue.lane.used);
        inner.used + lanes.sum::<u32>()
    }

    /// How many there are, the pools of retries included.
    pub(crate) fn total(&self) -> u32 {
        let inner = self.inner();
        let lanes = inner.queues.iter().filter_map(|queue| queue.lane.of);
        lanes.fold(inner.total, |sum, lane| {
            sum.saturating_add(lane.concurrency)
        })
    }

    /// The slots of a queue, as the guards want to know them.
    pub(crate) fn of(&self, queue: usize) -> SlotsOf {
        let inner = self.inner();
        let of = inner.queues.get(queue);
        of.map_or(NONE, |of| SlotsOf {
            total: of.total,
            free: of.total.saturating_sub(of.used),
            retries_running: of.retries,
        })
    }

    /// The slots of the pool for retries alone, within its rate.
    pub(crate) fn of_lane(&self, queue: usize, now: Timestamp) -> SlotsOf {
        let mut inner = self.inner();
        let lane = inner.queues.get_mut(queue).map(|of| &mut of.lane);
        let Some((lane, of)) = lane.and_then(|lane| lane.of.map(|of| (lane, of))) else {
            return NONE;
        };
        let free = of.concurrency.saturating_sub(lane.used);
        SlotsOf {
            total: of.concurrency,
            free: free.min(lane.room(of.rate, now)),
            retries_running: lane.used,
        }
    }

    /// Gives retries of a queue another pool of their own, or none, from now on.
    pub(crate) fn set_lane(&self, queue: usize, lane: Option<RetryLane>) {
        let mut inner = self.inner();
        if let Some(of) = inner.queues.get_mut(queue) {
            of.lane.of = lane;
        }
        drop(inner);
        self.freed.notify_one();
    }

    /// Takes a slot for a job that was claimed.
    pub(crate) fn take(
        self: &Arc<Self>,
        queue: usize,
        pool: Pool,
        lane: Lane,
        now: Timestamp,
    ) -> Slot {
        let mut inner = self.inner();
        if pool != Pool::RetryLane {
            inner.used += 1;
        }
        if let Some(of) = inner.queues.get_mut(queue) {
            match pool {
                Pool::Main | Pool::Single => {
                    of.used += 1;
                    of.retries += u32::from(lane == Lane::Retry);
                }
                Pool::RetryLane => of.lane.take(now),
            }
        }
        Slot {
            slots: Arc::clone(self),
            queue,
            pool,
            lane,
        }
    }

    /// Is told whenever a slot becomes free.
    pub(crate) fn freed(&self) -> &Notify {
        &self.freed
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NONE: SlotsOf = SlotsOf {
    total: 0,
    free: 0,
    retries_running: 0,
};

impl LaneSlots {
    /// How many more retries may start now.
    fn room(&mut self, rate: Option<Rate>, now: Timestamp) -> u32 {
        let Some(Rate { count, period }) = rate else {
            return u32::MAX;
        };
        while self
            .starts
            .front()
            .is_some_and(|start| now.since(*start) >= period)
        {
            self.starts.pop_front();
        }
        count.saturating_sub(u32::try_from(self.starts.len()).unwrap_or(u32::MAX))
    }

    fn take(&mut self, now: Timestamp) {
        self.used += 1;
        if self.of.is_some_and(|of| of.rate.is_some()) {
            self.starts.push_back(now);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inner = self.slots.inner();
        if self.pool != Pool::RetryLane {
            inner.used = inner.used.saturating_sub(1);
        }
        if let Some(of) = inner.queues.get_mut(self.queue) {
            match self.pool {
                Pool::Main | Pool::Single => {
                    of.used = of.used.saturating_sub(1);
                    let retry = u32::from(self.lane == Lane::Retry);
                    of.retries = of.retries.saturating_sub(retry);
                }
                Pool::RetryLane => of.lane.used = of.lane.used.saturating_sub(1),
            }
        }
        drop(inner);
        self.slots.freed.notify_one();
    }
}
