//! Where the next claim of a lane begins to look.
//!
//! What was claimed leaves the order at once, but its entries stay in the index until no snapshot can see them: one that is
//! held for a minute would let every claim walk over all that was claimed since. So a claim begins where the last one ended.
//! What comes in before that place is told by whoever brings it, on this node at once, on others by their notice; and once a
//! second somebody looks whether anything was missed, aside from the claims (see `wake.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use windlass_core::{JobId, QueueName, Timestamp};
use windlass_store::Kinds;

/// A place in the order of claims: rank, time, id.
pub(crate) type Place = (i32, Timestamp, JobId);

/// The front of every lane.
pub(crate) const FRONT: Place = (i32::MIN, Timestamp::MIN, JobId::from_u128(0));

/// A lane, as claims with the same kinds see it.
pub(crate) type Lane = (QueueName, i16, Kinds);

#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    lanes: Mutex<BTreeMap<Lane, Mark>>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    place: Place,
    /// Counts what was told: a claim that was under way meanwhile sets no mark.
    told: u64,
}

/// How many lanes are remembered: with more, all begin at the front.
const LANES_MAX: usize = 10_000;

impl Watermarks {
    /// Where to begin, and what to say when the claim is over.
    pub(crate) fn begin(&self, lane: &Lane) -> (Place, u64) {
        let mut lanes = self.lanes();
        if lanes.len() > LANES_MAX {
            lanes.clear();
        }
        let mark = lanes.entry(lane.clone()).or_insert(Mark {
            place: FRONT,
            told: 0,
        });
        (mark.place, mark.told)
    }

    /// A claim took what there was up to here.
    pub(crate) fn advance(&self, lane: &Lane, told: u64, to: Place) {
        if let Some(mark) = self.lanes().get_mut(lane)
            && mark.told == told
        {
            mark.place = mark.place.max(to);
        }
    }

    /// A job waits at that place now.
    pub(crate) fn lower(&self, queue: &QueueName, lane: i16, to: Place) {
        let mut lanes = self.lanes();
        let first = Kinds::Only(BTreeSet::new());
        let from = (queue.clone(), lane, first);
        let same = |(of, number, _): &Lane| of == queue && *number == lane;
        for (_, mark) in lanes.range_mut(from..).take_while(|(lane, _)| same(lane)) {
            mark.place = mark.place.min(to);
            mark.told += 1;
        }
    }

    /// Anything may have come in anywhere.
    pub(crate) fn forget(&self) {
        for mark in self.lanes().values_mut() {
            mark.place = FRONT;
            mark.told += 1;
        }
    }

    /// The lanes that do not begin at the front, and where they do.
    pub(crate) fn all(&self) -> Vec<(Lane, Place)> {
        let lanes = self.lanes();
        let marked = lanes.iter().filter(|(_, mark)| mark.place > FRONT);
        marked
            .map(|(lane, mark)| (lane.clone(), mark.place))
            .collect()
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, BTreeMap<Lane, Mark>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    fn place(seconds: i64) -> Place {
        (0, at(seconds), JobId::from_u128(7))
    }

    fn lane() -> Lane {
        (QueueName::default(), 0, Kinds::ALL)
    }

    #[test]
    fn a_claim_begins_where_the_last_one_ended() {
        let marks = Watermarks::default();
        let (from, told) = marks.begin(&lane());
        assert_eq!(from, FRONT);
        marks.advance(&lane(), told, place(5));
        assert_eq!(marks.begin(&lane()).0, place(5));
        let other = (QueueName::default(), 1, Kinds::ALL);
        assert_eq!(marks.begin(&other).0, FRONT, "another lane");
    }

    #[test]
    fn what_comes_in_before_it_lowers_it() {
        let marks = Watermarks::default();
        let (_, told) = marks.begin(&lane());
        marks.advance(&lane(), told, place(50));
        marks.lower(&QueueName::default(), 0, place(40));
        assert_eq!(marks.begin(&lane()).0, place(40));
        marks.lower(&QueueName::default(), 0, place(45));
        assert_eq!(marks.begin(&lane()).0, place(40));
        assert_eq!(marks.all(), [(lane(), place(40))]);
    }

    #[test]
    fn a_claim_that_missed_something_sets_no_mark() {
        let marks = Watermarks::default();
        let (_, told) = marks.begin(&lane());
        marks.lower(&QueueName::default(), 0, place(1));
        marks.advance(&lane(), told, place(50));
        assert_eq!(marks.begin(&lane()).0, FRONT);
        let (_, told) = marks.begin(&lane());
        marks.forget();
        marks.advance(&lane(), told, place(60));
        assert_eq!(marks.begin(&lane()).0, FRONT);
    }
}
