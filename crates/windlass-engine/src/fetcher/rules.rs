//! How queues are claimed: as the worker says, and as operators set it meanwhile.

use std::collections::BTreeMap;

use tracing::warn;
use windlass_core::QueueName;
use windlass_core::fairness::{ClaimSettings, RetryLane, Round, Slots as FreeSlots};

use super::Fetcher;
use crate::sources::{QueueRules, Source, Sources};

impl Fetcher {
    /// What the worker takes jobs from.
    pub(crate) fn sources(&self) -> &Sources {
        &self.config.sources
    }

    /// How a queue is claimed now, if the worker serves it.
    pub(crate) fn rules(&self, queue: &QueueName) -> Option<QueueRules> {
        let source = self.sources().of(queue)?;
        let set = self.state().rules.get(queue).cloned();
        Some(set.unwrap_or_else(|| self.sources().own_rules(source)))
    }

    /// Claims by what operators set from now on. Where guards do not fit the worker, its own hold.
    pub(crate) fn follow(&self, set: BTreeMap<QueueName, ClaimSettings>) {
        let (mut rules, mut lanes) = (BTreeMap::new(), BTreeMap::new());
        for (queue, set) in set {
            let Some(source) = self.sources().of(&queue) else {
                continue;
            };
            let followed = self.followed(&queue, source, set);
            if let (Source::Pattern(_), Some(lane)) = (source, followed.lane()) {
                lanes.insert(queue.clone(), lane);
            }
            rules.insert(queue, followed);
        }
        let mut state = self.state();
        if state.rules == rules {
            return;
        }
        state.rules = rules;
        state.lanes = lanes;
        drop(state);
        self.count_lanes();
    }

    fn followed(&self, queue: &QueueName, source: Source, set: ClaimSettings) -> QueueRules {
        let own = self.sources().own_rules(source);
        let (_, slots) = self.sources().slots(source);
        let mut guards = set.over(own.guards);
        if let Err(problem) = guards.check(slots) {
            warn!(%queue, %problem, "the guards of a queue do not fit this worker");
            guards = own.guards;
        }
        QueueRules {
            guards,
            weight: set.weight.unwrap_or(own.weight),
            retry: set.retry.or(own.retry),
        }
    }

    /// The pools for retries alone that have free slots: those of the worker's own queues, and of
    /// discovered ones that have due jobs.
    pub(super) fn free_lanes(&self, round: &Round) -> Vec<(QueueName, FreeSlots)> {
        let state = self.state();
        let patterns = 0..self.sources().discovered.len();
        let is_due = |queue: &QueueName| {
            let mut due = patterns.clone().flat_map(|of| state.discovery.due(of));
            round.has_emptied(queue) || due.any(|due| due == queue)
        };
        let discovered = state.lanes.iter().filter(|(queue, _)| is_due(queue));
        let discovered = discovered.map(|(queue, lane)| (queue.clone(), *lane));
        let discovered: Vec<_> = discovered.collect();
        drop(state);
        let now = self.engine.now();
        let lanes = self.own_lanes().chain(discovered);
        let free = lanes.map(|(queue, lane)| {
            let slots = self.slots.of_lane(&queue, lane, now);
            (queue, slots)
        });
        free.filter(|(_, slots)| slots.free > 0).collect()
    }

    fn own_lanes(&self) -> impl Iterator<Item = (QueueName, RetryLane)> {
        let queues = self.sources().queues.iter().map(|queue| &queue.name);
        queues.filter_map(|queue| Some((queue.clone(), self.rules(queue)?.lane()?)))
    }

    /// Lets the slots know how many there are in pools for retries alone.
    pub(super) fn count_lanes(&self) {
        let own = self.own_lanes().map(|(_, lane)| lane);
        let own = own.fold(0, add);
        let total = self.state().lanes.values().copied().fold(own, add);
        self.slots.set_lanes_total(total);
    }
}

fn add(sum: u32, lane: RetryLane) -> u32 {
    sum.saturating_add(lane.concurrency)
}
