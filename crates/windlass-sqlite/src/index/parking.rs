//! Jobs that a full concurrency key holds back stand aside, so that a blocked head never makes a claim walk.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::{Concurrency, Key, Timestamp};

use super::{Group, Place, Waiting, group};

/// What decides whether a job comes back.
#[derive(Debug)]
struct Parked {
    limit: u32,
    deadline: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(super) struct Parking {
    running: HashMap<Key, u32>,
    parked: HashMap<Key, BTreeMap<Group, BTreeMap<Place, Parked>>>,
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

    pub(super) fn park(&mut self, waiting: &Waiting, group: Group, place: Place) {
        let Some(of) = &waiting.concurrency else {
            return;
        };
        let parked = Parked {
            limit: of.limit,
            deadline: waiting.deadline,
        };
        let groups = self.parked.entry(of.key.clone()).or_default();
        groups.entry(group).or_default().insert(place, parked);
    }

    pub(super) fn remove(&mut self, waiting: &Waiting, place: &Place) {
        let Some(of) = &waiting.concurrency else {
            return;
        };
        if let Some(places) = self
            .parked
            .get_mut(&of.key)
            .and_then(|groups| groups.get_mut(&group(waiting)))
        {
            places.remove(place);
        }
    }

    /// The foremost of each group that fit beside those that run, and are not overdue: whoever claims next finds one.
    pub(super) fn release(&mut self, key: &Key, now: Timestamp) -> Vec<(Group, Place)> {
        let running = self.running.get(key).copied().unwrap_or(0);
        let Some(groups) = self.parked.get_mut(key) else {
            return Vec::new();
        };
        let mut released = Vec::new();
        for (group, places) in groups.iter_mut() {
            let fits = places.iter().find(|(_, parked)| {
                running < parked.limit && parked.deadline.is_none_or(|deadline| now <= deadline)
            });
            if let Some(place) = fits.map(|(place, _)| *place) {
                places.remove(&place);
                released.push((*group, place));
            }
        }
        groups.retain(|_, places| !places.is_empty());
        if groups.is_empty() {
            self.parked.remove(key);
        }
        released
    }

    /// The places of the jobs of a queue that stand aside.
    pub(super) fn places(&self, queue: u32) -> impl Iterator<Item = Place> + '_ {
        let groups = self
            .parked
            .values()
            .flatten()
            .filter(move |((of, _, _), _)| *of == queue);
        let places: BTreeSet<Place> = groups
            .flat_map(|(_, places)| places.keys().copied())
            .collect();
        places.into_iter()
    }
}
