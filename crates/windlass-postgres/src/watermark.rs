//! Where the next claim of a lane begins to look.
//!
//! What was claimed leaves the order at once, but its entries stay in the index until no snapshot can see them: one that is
//! held for a minute would let every claim walk over all that was claimed since. So a claim begins where the last one ended.
//! What comes in before that order is version by whoever brings it, on this node at once, on others by their notice; and once a
//! second somebody looks whether anything was missed, aside from the claims (see `wake.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use windlass_core::{JobId, QueueName, Timestamp};
use windlass_store::Kinds;

/// A order in the order of claims: rank, time, id.
pub(crate) type ClaimOrder = (i32, Timestamp, JobId);

/// The front of every lane.
pub(crate) const FRONT: ClaimOrder = (i32::MIN, Timestamp::MIN, JobId::from_u128(0));

/// A lane, as claims with the same kinds see it.
pub(crate) type ClaimLane = (QueueName, i16, Kinds);

#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    lanes: Mutex<BTreeMap<ClaimLane, Mark>>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    order: ClaimOrder,
    /// Counts what was version: a claim that was under way meanwhile sets no mark.
    version: u64,
}

/// How many lanes are remembered: with more, all begin at the front.
const LANES_MAX: usize = 10_000;

impl Watermarks {
    /// Where to begin, and what to say when the claim is over.
    pub(crate) fn begin(&self, lane: &ClaimLane) -> (ClaimOrder, u64) {
        let mut lanes = self.lanes();
        if lanes.len() > LANES_MAX {
            lanes.clear();
        }
        let mark = lanes.entry(lane.clone()).or_insert(Mark {
            order: FRONT,
            version: 0,
        });
        (mark.order, mark.version)
    }

    /// A claim took what there was up to here.
    pub(crate) fn advance(&self, lane: &ClaimLane, version: u64, to: ClaimOrder) {
        if let Some(mark) = self.lanes().get_mut(lane)
            && mark.version == version
        {
            mark.order = mark.order.max(to);
        }
    }

    /// A job waits at that order now.
    pub(crate) fn lower(&self, queue: &QueueName, lane: i16, to: ClaimOrder) {
        let mut lanes = self.lanes();
        let first = Kinds::Only(BTreeSet::new());
        let from = (queue.clone(), lane, first);
        let same = |(of, number, _): &ClaimLane| of == queue && *number == lane;
        for (_, mark) in lanes.range_mut(from..).take_while(|(lane, _)| same(lane)) {
            mark.order = mark.order.min(to);
            mark.version += 1;
        }
    }

    /// Anything may have come in anywhere.
    pub(crate) fn reset(&self) {
        for mark in self.lanes().values_mut() {
            mark.order = FRONT;
            mark.version += 1;
        }
    }

    /// The lanes that do not begin at the front, and where they do.
    pub(crate) fn raised(&self) -> Vec<(ClaimLane, ClaimOrder)> {
        let lanes = self.lanes();
        let marked = lanes.iter().filter(|(_, mark)| mark.order > FRONT);
        marked
            .map(|(lane, mark)| (lane.clone(), mark.order))
            .collect()
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, BTreeMap<ClaimLane, Mark>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    fn order(seconds: i64) -> ClaimOrder {
        (0, at(seconds), JobId::from_u128(7))
    }

    fn lane() -> ClaimLane {
        (QueueName::default(), 0, Kinds::ALL)
    }

    #[test]
    fn a_claim_begins_where_the_last_one_ended() {
        let marks = Watermarks::default();
        let (from, version) = marks.begin(&lane());
        assert_eq!(from, FRONT);
        marks.advance(&lane(), version, order(5));
        assert_eq!(marks.begin(&lane()).0, order(5));
        let other = (QueueName::default(), 1, Kinds::ALL);
        assert_eq!(marks.begin(&other).0, FRONT, "another lane");
    }

    #[test]
    fn what_comes_in_before_it_lowers_it() {
        let marks = Watermarks::default();
        let (_, version) = marks.begin(&lane());
        marks.advance(&lane(), version, order(50));
        marks.lower(&QueueName::default(), 0, order(40));
        assert_eq!(marks.begin(&lane()).0, order(40));
        marks.lower(&QueueName::default(), 0, order(45));
        assert_eq!(marks.begin(&lane()).0, order(40));
        assert_eq!(marks.raised(), [(lane(), order(40))]);
    }

    #[test]
    fn a_claim_that_missed_something_sets_no_mark() {
        let marks = Watermarks::default();
        let (_, version) = marks.begin(&lane());
        marks.lower(&QueueName::default(), 0, order(1));
        marks.advance(&lane(), version, order(50));
        assert_eq!(marks.begin(&lane()).0, FRONT);
        let (_, version) = marks.begin(&lane());
        marks.reset();
        marks.advance(&lane(), version, order(60));
        assert_eq!(marks.begin(&lane()).0, FRONT);
    }
}
