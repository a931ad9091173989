//! Which job starts next, and where jobs wait that must not start.

use std::collections::BTreeSet;

use windlass_core::{JobId, Key, Lane, Timestamp};

use super::{ClaimOrder, Index, LaneKey, Waiting, claim_order, remove_from};

impl Index {
    /// Returns the first job of a lane that may start now, among the kinds that the claim wants.
    ///
    /// Jobs that must not start are taken out of `ready` on the way: jobs with a concurrency key
    /// are parked, and overdue jobs without one move to `overdue`. So each of them is stepped over
    /// once, not in every claim.
    pub(crate) fn first_startable(
        &mut self,
        queue: u32,
        lane: Lane,
        wants: impl Fn(u32) -> bool,
        except: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> Option<ClaimOrder> {
        loop {
            let (first, blocked) = self.find_first(queue, lane, &wants, except, now);
            let mut free_keys = BTreeSet::new();
            for (lane_key, order) in blocked {
                free_keys.extend(self.take_out_blocked(lane_key, order));
            }
            let mut unparked = false;
            for key in free_keys {
                unparked |= self.unpark(&key, now);
            }
            // A job that was parked behind an overdue one may come before `first`: look again.
            if !unparked {
                return first;
            }
        }
    }

    /// Returns the first job that may start, and the blocked jobs before it.
    fn find_first(
        &self,
        queue: u32,
        lane: Lane,
        wants: impl Fn(u32) -> bool,
        except: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> (Option<ClaimOrder>, Vec<(LaneKey, ClaimOrder)>) {
        let mut first: Option<ClaimOrder> = None;
        let mut blocked = Vec::new();
        let lanes = self.ready.range((queue, lane, 0)..=(queue, lane, u32::MAX));
        for (lane_key, orders) in lanes.filter(|((_, _, kind), _)| wants(*kind)) {
            for order in orders {
                if first.is_some_and(|first| first < *order) {
                    break;
                }
                let Some(waiting) = self.waiting.get(&order.2) else {
                    continue;
                };
                if except.contains(&order.2) {
                    continue;
                }
                let overdue = waiting.deadline.is_some_and(|deadline| deadline < now);
                let concurrency = waiting.concurrency.as_ref();
                if overdue || concurrency.is_some_and(|key| self.parking.is_full(key)) {
                    blocked.push((*lane_key, *order));
                } else if waiting.run_at <= now {
                    first = Some(*order);
                    break;
                }
            }
        }
        (first, blocked)
    }

    /// Moves a blocked job from `ready` to where it waits. Returns its concurrency key if the key
    /// still has capacity (the job is overdue), so that parked jobs can use it.
    fn take_out_blocked(&mut self, lane_key: LaneKey, order: ClaimOrder) -> Option<Key> {
        remove_from(&mut self.ready, lane_key, &order);
        let waiting = self.waiting.get(&order.2)?;
        let Some(concurrency) = &waiting.concurrency else {
            self.overdue.entry(lane_key).or_default().insert(order);
            return None;
        };
        self.parking.park(waiting, lane_key, order);
        (!self.parking.is_full(concurrency)).then(|| concurrency.key.clone())
    }

    /// If a concurrency key has capacity, moves the first parked job of each lane that may start
    /// back to `ready`. Returns whether it moved any.
    pub(super) fn unpark(&mut self, key: &Key, now: Timestamp) -> bool {
        let released = self.parking.release(key, now);
        let any = !released.is_empty();
        for (lane_key, order) in released {
            self.ready.entry(lane_key).or_default().insert(order);
        }
        any
    }

    /// Returns a waiting job and its claim order, if it may start now.
    pub(crate) fn startable(&self, id: JobId, now: Timestamp) -> Option<(ClaimOrder, &Waiting)> {
        let waiting = self.waiting.get(&id)?;
        if self.unreadable.contains(&id) {
            return None;
        }
        let full = waiting
            .concurrency
            .as_ref()
            .is_some_and(|concurrency| self.parking.is_full(concurrency));
        let in_time =
            waiting.run_at <= now && waiting.deadline.is_none_or(|deadline| now <= deadline);
        (in_time && !full).then(|| (claim_order(id, waiting), waiting))
    }
}
