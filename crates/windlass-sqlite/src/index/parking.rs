//! Parked jobs: due jobs whose concurrency key is full.
//!
//! They are kept apart from the ready jobs, so that a claim does not step over thousands of jobs
//! that must not start. When a job with the key ends, the first parked job of each lane goes back.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::{Concurrency, Key, Timestamp};

use super::{ClaimOrder, LaneKey, Waiting, lane_key};

/// What decides whether a parked job may go back to the ready jobs.
#[derive(Debug)]
struct Parked {
    limit: u32,
    deadline: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(super) struct Parking {
    running: HashMap<Key, u32>,
    parked: HashMap<Key, BTreeMap<LaneKey, BTreeMap<ClaimOrder, Parked>>>,
}

impl Parking {
    pub(super) fn start(&mut self, key: &Key) {
        *self.running.entry(key.clone()).or_default() += 1;
    }

    pub(super) fn stop(&mut self, key: &Key) {
        if let Some(running) = self.running.get_mut(key) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.running.remove(key);
            }
        }
    }

    pub(super) fn is_full(&self, concurrency: &Concurrency) -> bool {
        self.running
            .get(&concurrency.key)
            .is_some_and(|running| *running >= concurrency.limit)
    }

    pub(super) fn park(&mut self, waiting: &Waiting, lane_key: LaneKey, order: ClaimOrder) {
        let Some(concurrency) = &waiting.concurrency else {
            return;
        };
        let parked = Parked {
            limit: concurrency.limit,
            deadline: waiting.deadline,
        };
        let lanes = self.parked.entry(concurrency.key.clone()).or_default();
        lanes.entry(lane_key).or_default().insert(order, parked);
    }

    pub(super) fn remove(&mut self, waiting: &Waiting, order: &ClaimOrder) {
        let Some(concurrency) = &waiting.concurrency else {
            return;
        };
        if let Some(orders) = self
            .parked
            .get_mut(&concurrency.key)
            .and_then(|lanes| lanes.get_mut(&lane_key(waiting)))
        {
            orders.remove(order);
        }
    }

    /// Removes and returns the first job of each lane that fits within its limit and is not
    /// overdue. One per lane is enough: when it is claimed or removed, the next one follows.
    pub(super) fn release(&mut self, key: &Key, now: Timestamp) -> Vec<(LaneKey, ClaimOrder)> {
        let running = self.running.get(key).copied().unwrap_or(0);
        let Some(lanes) = self.parked.get_mut(key) else {
            return Vec::new();
        };
        let mut released = Vec::new();
        for (lane_key, orders) in lanes.iter_mut() {
            let fits = orders.iter().find(|(_, parked)| {
                running < parked.limit && parked.deadline.is_none_or(|deadline| now <= deadline)
            });
            if let Some(order) = fits.map(|(order, _)| *order) {
                orders.remove(&order);
                released.push((*lane_key, order));
            }
        }
        lanes.retain(|_, orders| !orders.is_empty());
        if lanes.is_empty() {
            self.parked.remove(key);
        }
        released
    }

    /// Returns the claim order of all parked jobs of a queue.
    pub(super) fn orders(&self, queue: u32) -> impl Iterator<Item = ClaimOrder> + '_ {
        let lanes = self
            .parked
            .values()
            .flatten()
            .filter(move |((parked_queue, _, _), _)| *parked_queue == queue);
        let orders: BTreeSet<ClaimOrder> = lanes
            .flat_map(|(_, orders)| orders.keys().copied())
            .collect();
        orders.into_iter()
    }
}
