//! Recent starts of jobs in queues with a rate limit.

use std::time::Duration;

use windlass_core::Timestamp;

use super::{Index, Undo};

impl Index {
    /// Returns how many jobs of a queue started within the period before `now`.
    pub(crate) fn started_since(&self, queue: u32, now: Timestamp, period: Duration) -> u32 {
        let starts = self.starts.get(&queue).into_iter().flatten().rev();
        let within = starts.take_while(|start| now.since(**start) < period);
        u32::try_from(within.count()).unwrap_or(u32::MAX)
    }

    /// Forgets starts up to this time.
    pub(crate) fn forget_starts(&mut self, queue: u32, until: Timestamp) {
        if let Some(starts) = self.starts.get_mut(&queue) {
            while starts.front().is_some_and(|start| *start <= until) {
                starts.pop_front();
            }
        }
    }

    /// Returns when the latest job of a queue with a rate limit started.
    pub(crate) fn last_start(&self, queue: u32) -> Option<Timestamp> {
        self.starts.get(&queue)?.back().copied()
    }

    /// Returns the recent start times of jobs in a queue with a rate limit, oldest first.
    pub(crate) fn starts(&self, queue: u32) -> impl Iterator<Item = Timestamp> + '_ {
        self.starts.get(&queue).into_iter().flatten().copied()
    }

    pub(crate) fn note_start(&mut self, queue: u32, now: Timestamp) {
        self.starts.entry(queue).or_default().push_back(now);
        self.undo.push(Undo::Start(queue));
    }
}
