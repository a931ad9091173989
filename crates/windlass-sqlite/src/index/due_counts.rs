//! Which queues have due jobs of a kind: counted, so that no look walks over jobs or idle queues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Waiting;

/// How many due jobs each queue has, by kind. Those that a limit holds back are due too.
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

    /// The queues that have due jobs of these kinds, in no order; one may be named for each kind.
    pub(super) fn queues(&self, kinds: &[u32]) -> Vec<u32> {
        let of_kinds = kinds.iter().filter_map(|kind| self.0.get(kind));
        of_kinds.flat_map(HashMap::keys).copied().collect()
    }
}
