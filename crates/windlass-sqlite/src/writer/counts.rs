//! Job counts and queues with due jobs, both from memory.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{QueueName, Timestamp};
use windlass_store::{Counts, DueQueues, PAGE_MAX};

use super::{Answer, Writer};
use crate::error::if_readable;
use crate::row;

impl Writer<'_> {
    pub(crate) fn due_queues(
        &mut self,
        query: &DueQueues,
        now: Timestamp,
    ) -> Answer<Vec<QueueName>> {
        self.index.promote(now);
        let limit = query.limit.min(PAGE_MAX);
        let kinds = query.kinds.iter();
        let kinds: Vec<u32> = kinds
            .filter_map(|kind| self.names.known(kind.as_str()))
            .collect();
        let mut first = BTreeSet::new();
        for number in self.index.due_queues(&kinds) {
            let Some(queue) = if_readable(self.names.queue(number))? else {
                continue; // a name that only a newer version allows
            };
            let limits = self.queues.get(&queue);
            let is_paused = limits.is_some_and(|limits| limits.paused.is_some());
            if !query.names(&queue) || is_paused {
                continue;
            }
            first.insert(queue);
            if first.len() > limit {
                first.pop_last();
            }
        }
        Ok(Ok(first.into_iter().collect()))
    }

    pub(crate) fn counts(&mut self, now: Timestamp) -> Answer<BTreeMap<QueueName, Counts>> {
        self.index.promote(now);
        let mut queues: BTreeMap<u32, Counts> = BTreeMap::new();
        for (queue, count) in self
            .index
            .counts()
            .filter(|(_, count)| count.waiting > 0 || count.running > 0)
        {
            let counts = queues.entry(queue).or_default();
            counts.scheduled = count.future;
            counts.ready = count.waiting - count.future;
            counts.retrying = count.retrying;
            counts.running = count.running.into();
            counts.oldest_ready = self.index.oldest_ready(queue);
        }
        for ((queue, state), count) in self.index.tallies().filter(|(_, count)| *count > 0) {
            let counts = queues.entry(queue).or_default();
            let state_count = match state {
                row::SUCCEEDED => &mut counts.succeeded,
                row::CANCELLED => &mut counts.cancelled,
                _ => &mut counts.dead,
            };
            *state_count += u64::try_from(count).unwrap_or(0);
        }
        let mut named = BTreeMap::new();
        for (queue, mut counts) in queues {
            let Some(name) = if_readable(self.names.queue(queue))? else {
                continue; // a name that only a newer version allows
            };
            let rate = self.limits(&name).and_then(|limits| limits.rate);
            let starts = self.index.starts(queue).map(|at| (at, 1));
            counts.rate_until = rate.and_then(|rate| rate.used_up_until(starts, now));
            named.insert(name, counts);
        }
        Ok(Ok(named))
    }
}
