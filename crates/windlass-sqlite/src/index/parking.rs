//! Jobs that a full concurrency key holds back stand aside, so that a blocked head never makes a claim walk.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::{Concurrency, Key, Timestamp};

use super::{ClaimOrder, LaneKey, Waiting, lane_key};

/// What decides whether a job comes back.
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

    pub(super) fn is_full(&self, of: &Concurrency) -> bool {
        self.running
            .get(&of.key)
            .is_some_and(|running| *running >= of.limit)
    }

    pub(super) fn park(&mut self, waiting: &Waiting, lane_key: LaneKey, order: ClaimOrder) {
        let Some(of) = &waiting.concurrency else {
            return;
        };
        let parked = Parked {
            limit: of.limit,
            deadline: waiting.deadline,
        };
        let lanes = self.parked.entry(of.key.clone()).or_default();
        lanes.entry(lane_key).or_default().insert(order, parked);
    }

    pub(super) fn remove(&mut self, waiting: &Waiting, order: &ClaimOrder) {
        let Some(of) = &waiting.concurrency else {
            return;
        };
        if let Some(orders) = self
            .parked
            .get_mut(&of.key)
            .and_then(|lanes| lanes.get_mut(&lane_key(waiting)))
        {
            orders.remove(order);
        }
    }

    /// The foremost of each lane_key that fit beside those that run, and are not overdue: whoever claims next finds one.
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

    /// The orders of the jobs of a queue that stand aside.
    pub(super) fn orders(&self, queue: u32) -> impl Iterator<Item = ClaimOrder> + '_ {
        let lanes = self
            .parked
            .values()
            .flatten()
            .filter(move |((of, _, _), _)| *of == queue);
        let orders: BTreeSet<ClaimOrder> = lanes
            .flat_map(|(_, orders)| orders.keys().copied())
            .collect();
        orders.into_iter()
    }
}
