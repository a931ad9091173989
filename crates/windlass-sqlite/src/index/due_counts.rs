//! Counts of due jobs by kind and queue.
//!
//! With them, finding the queues that have work needs no scan of jobs or of idle queues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Waiting;

/// The number of due jobs of each queue, by kind. Includes due jobs that a limit holds back.
#[derive(Debug, Default)]
pub(super) struct DueCounts(HashMap<u32, HashMap<u32, u64>>);

impl DueCounts {
    pub(super) fn add(&mut self, waiting: &Waiting) {
        let queues = self.0.entry(waiting.kind).or_default();
        *queues.entry(waiting.queue).or_default() += 1;
    }

    pub(super) fn remove(&mut self, waiting: &Waiting) {
        let Some(queues) = self.0.get_mut(&waiting.kind) else {
            return;
        };
        if let Entry::Occupied(mut count) = queues.entry(waiting.queue) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Returns the queues that have due jobs of these kinds, unsorted. A queue may appear once for
    /// each kind.
    pub(super) fn queues(&self, kinds: &[u32]) -> Vec<u32> {
        let counts = kinds.iter().filter_map(|kind| self.0.get(kind));
        counts.flat_map(HashMap::keys).copied().collect()
    }
}
