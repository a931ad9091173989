//! The claim rules of each queue: the worker's configuration, overridden by operator settings.

use std::collections::BTreeMap;

use tracing::warn;
use windlass_core::QueueName;
use windlass_core::fairness::{ClaimSettings, RetryLane, Round, Slots as FreeSlots};

use super::Fetcher;
use crate::sources::{QueueRules, Source, Sources};

impl Fetcher {
    /// The queues and patterns that the worker takes jobs from.
    pub(crate) fn sources(&self) -> &Sources {
        &self.config.sources
    }

    /// Returns the current rules of a queue, or `None` if the worker does not serve it.
    pub(crate) fn rules(&self, queue: &QueueName) -> Option<QueueRules> {
        let source = self.sources().of(queue)?;
        let set = self.state().rules.get(queue).cloned();
        Some(set.unwrap_or_else(|| self.sources().own_rules(source)))
    }

    /// Applies operator settings from now on. Guards that do not fit the worker are ignored.
    pub(crate) fn apply_settings(&self, settings: BTreeMap<QueueName, ClaimSettings>) {
        let (mut rules, mut lanes) = (BTreeMap::new(), BTreeMap::new());
        for (queue, settings) in settings {
            let Some(source) = self.sources().of(&queue) else {
                continue;
            };
            let merged = self.merged_rules(&queue, source, settings);
            if let (Source::Pattern(_), Some(lane)) = (source, merged.lane()) {
                lanes.insert(queue.clone(), lane);
            }
            rules.insert(queue, merged);
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

    fn merged_rules(
        &self,
        queue: &QueueName,
        source: Source,
        settings: ClaimSettings,
    ) -> QueueRules {
        let own = self.sources().own_rules(source);
        let (_, slots) = self.sources().slots(source);
        let mut guards = settings.over(own.guards);
        if let Err(problem) = guards.check(slots) {
            warn!(%queue, %problem, "the guards of a queue do not fit this worker; ignoring them");
            guards = own.guards;
        }
        QueueRules {
            guards,
            weight: settings.weight.unwrap_or(own.weight),
            retry: settings.retry.or(own.retry),
        }
    }

    /// The retry lanes with free slots: those of the worker's own queues, and of discovered queues
    /// that have due jobs.
    pub(super) fn free_lanes(&self, round: &Round) -> Vec<(QueueName, FreeSlots)> {
        let state = self.state();
        let patterns = 0..self.sources().discovered.len();
        let is_due = |queue: &QueueName| {
            let mut due = patterns
                .clone()
                .flat_map(|pattern| state.discovery.due(pattern));
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

    /// Sets in the slots how many slots all retry lanes have.
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
