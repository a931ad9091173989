//! Which queue of a worker gets the next free slots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use crate::QueueName;

/// A queue that a claim takes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimQueue {
    /// The name of the queue.
    pub name: QueueName,
    /// Its share, relative to the weights of the other queues.
    pub weight: u32,
}

impl ClaimQueue {
    /// Makes a queue with weight 1.
    pub fn plain(name: QueueName) -> Self {
        ClaimQueue { name, weight: 1 }
    }
}

/// How a worker divides its slots between its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueOrder {
    /// By weight, over many claims.
    #[default]
    Weighted,
    /// Empties the first queue before it claims from the second.
    Strict,
}

/// Whose turn it is among the queues of one worker: weighted round robin in the order of names.
///
/// The set of queues may change between calls. Only the last served queue is remembered, so memory
/// does not grow with the number of queues. Invariant: in one round each queue that can use slots
/// gets as many as its weight, so a queue that joins waits for at most one round.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    /// The queue that was served last.
    last: Option<QueueName>,
    /// How many more slots that queue gets before its turn ends.
    left: u32,
}

/// A queue that can use slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDemand {
    /// Its share, relative to the weights of the other queues; 0 counts as 1.
    pub weight: u32,
    /// The most slots it can use.
    pub most: u32,
}

struct Share {
    queue: QueueName,
    taker: QueueDemand,
    got: u32,
}

impl Turns {
    /// The queue that was served last. The next turn is that of the name after it.
    pub fn last(&self) -> Option<&QueueName> {
        self.last.as_ref()
    }

    /// The queue whose turn has not ended yet.
    pub fn unfinished(&self) -> Option<&QueueName> {
        self.last.as_ref().filter(|_| self.left > 0)
    }

    /// Starts again at the first name. Call it when no queue wants more slots, so that none is owed
    /// any.
    pub fn start_over(&mut self) {
        *self = Turns::default();
    }

    /// Divides `slots` among the takers, starting with the one whose turn it is. Slots that one
    /// taker cannot use go to the others. Leaves out queues that get no slot.
    pub fn share(
        &mut self,
        slots: u32,
        takers: &BTreeMap<QueueName, QueueDemand>,
    ) -> Vec<(QueueName, u32)> {
        let mut shares = self.in_turn(takers);
        let mut begun = self.unfinished().cloned().map(|queue| (queue, self.left));
        let mut slots_left = slots;
        let mut open: Vec<&mut Share> = shares.iter_mut().collect();
        while slots_left > 0 && !open.is_empty() {
            open.retain_mut(|share| {
                if slots_left == 0 {
                    return true;
                }
                let turn = match begun.take() {
                    Some((queue, left)) if queue == share.queue => left,
                    _ => share.taker.weight.max(1),
                };
                let given = turn.min(share.taker.most - share.got).min(slots_left);
                share.got += given;
                slots_left -= given;
                let wants_more = share.got < share.taker.most;
                // If the slots ran out, the next call continues this turn: `most` is often only the
                // number of free slots.
                let turn_continues = wants_more || slots_left == 0;
                self.left = if turn_continues { turn - given } else { 0 };
                self.last = Some(share.queue.clone());
                wants_more
            });
        }
        let shared = shares.into_iter().filter(|share| share.got > 0);
        shared.map(|share| (share.queue, share.got)).collect()
    }

    /// The takers that can use slots, in the order of names, starting with the one whose turn it
    /// is.
    fn in_turn(&self, takers: &BTreeMap<QueueName, QueueDemand>) -> Vec<Share> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let (from_turn, up_to_turn) = match (&self.last, self.left) {
            (None, _) => (all, None),
            (Some(last), 0) => (
                (Bound::Excluded(last), Bound::Unbounded),
                Some((Bound::Unbounded, Bound::Included(last))),
            ),
            (Some(last), _) => (
                (Bound::Included(last), Bound::Unbounded),
                Some((Bound::Unbounded, Bound::Excluded(last))),
            ),
        };
        let up_to_turn = up_to_turn.map(|range| takers.range::<QueueName, _>(range));
        let from_turn = takers.range::<QueueName, _>(from_turn);
        let in_turn = from_turn.chain(up_to_turn.into_iter().flatten());
        let can_take = in_turn.filter(|(_, taker)| taker.most > 0);
        let share = |(queue, taker): (&QueueName, &QueueDemand)| Share {
            queue: queue.clone(),
            taker: *taker,
            got: 0,
        };
        can_take.map(share).collect()
    }
}

/// One pass over the queues of a worker. Offers free slots by weight, and offers slots that one
/// queue leaves to the others.
///
/// A queue that does not fill its offer gets no further offer in the same round.
#[derive(Debug, Default)]
pub struct Round {
    emptied: BTreeSet<QueueName>,
    /// The next queues to claim from, and how many slots each is offered.
    offers: VecDeque<(QueueName, u32)>,
}

impl Round {
    /// Whether offers are left, so that `next` does not call `takers`.
    pub fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// The queue to claim from next, and for how many of the `free` slots; `None` if no taker wants
    /// more.
    pub fn next(
        &mut self,
        turns: &mut Turns,
        free: u32,
        takers: impl FnOnce() -> BTreeMap<QueueName, QueueDemand>,
    ) -> Option<(QueueName, u32)> {
        if free == 0 {
            return None;
        }
        if self.offers.is_empty() {
            let mut takers = takers();
            takers.retain(|queue, _| !self.emptied.contains(queue));
            self.offers = turns.share(free, &takers).into();
        }
        let (queue, share) = self.offers.pop_front()?;
        Some((queue, share.min(free)))
    }

    /// Records that the queue has no more jobs to give.
    pub fn emptied(&mut self, queue: &QueueName) {
        self.emptied.insert(queue.clone());
    }

    /// Whether the queue has no more jobs to give.
    pub fn has_emptied(&self, queue: &QueueName) -> bool {
        self.emptied.contains(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Takers = BTreeMap<QueueName, QueueDemand>;

    fn name(number: usize) -> QueueName {
        QueueName::new(&format!("q{number}")).unwrap()
    }

    fn takers(given: &[(u32, u32)]) -> Takers {
        let taker = |(number, (weight, most)): (usize, &(u32, u32))| {
            let (weight, most) = (*weight, *most);
            (name(number), QueueDemand { weight, most })
        };
        given.iter().enumerate().map(taker).collect()
    }

    fn shares(turns: &mut Turns, slots: u32, given: &[(u32, u32)]) -> Vec<u32> {
        let shared: BTreeMap<_, _> = turns.share(slots, &takers(given)).into_iter().collect();
        let got = |number| shared.get(&name(number)).copied().unwrap_or(0);
        (0..given.len()).map(got).collect()
    }

    #[test]
    fn slots_are_shared_by_weight_even_one_at_a_time() {
        let mut turns = Turns::default();
        let mut got = [0, 0];
        for _ in 0..40 {
            let shares = shares(&mut turns, 1, &[(3, 100), (1, 100)]);
            got[0] += shares[0];
            got[1] += shares[1];
        }
        assert_eq!(got, [30, 10]);
    }

    #[test]
    fn a_turn_continues_over_calls_that_offer_one_slot_each() {
        let mut turns = Turns::default();
        let mut got = [0, 0];
        for _ in 0..40 {
            let shares = shares(&mut turns, 1, &[(3, 1), (1, 1)]);
            got[0] += shares[0];
            got[1] += shares[1];
        }
        assert_eq!(got, [30, 10]);
    }

    #[test]
    fn what_one_queue_cannot_take_goes_to_the_others() {
        let mut turns = Turns::default();
        assert_eq!(shares(&mut turns, 10, &[(9, 2), (1, 100)]), [2, 8]);
        assert_eq!(shares(&mut turns, 10, &[(1, 0), (1, 3)]), [0, 3]);
        assert_eq!(turns.share(10, &Takers::new()), []);
    }

    #[test]
    fn a_queue_that_joins_gets_a_slot_within_one_turn_of_the_others() {
        let mut turns = Turns::default();
        let mut all = takers(&[(1, 1_000_000), (1, 1_000_000)]);
        for _ in 0..1001 {
            turns.share(1, &all);
        }
        let joins = QueueName::new("a").unwrap();
        let (weight, most) = (1, 1);
        all.insert(joins.clone(), QueueDemand { weight, most });
        let served: Vec<_> = (0..3).flat_map(|_| turns.share(1, &all)).collect();
        assert!(served.contains(&(joins, 1)), "{served:?}");
    }

    #[test]
    fn a_round_offers_what_one_queue_leaves_to_the_others_and_ends() {
        let (mut turns, mut round) = (Turns::default(), Round::default());
        let queues = || takers(&[(1, 100), (1, 100), (1, 100)]);
        // The first has one job, the second as many as it is asked for, the third none.
        let (mut free, mut got) = (9, [0, 0, 0]);
        let mut asked = 0;
        while let Some((queue, share)) = round.next(&mut turns, free, queues) {
            asked += 1;
            let index = (0..3).find(|number| name(*number) == queue).unwrap();
            let has = [1 - got[0], 100, 0];
            let taken = share.min(has[index]);
            if taken < share {
                round.emptied(&queue);
            }
            got[index] += taken;
            free -= taken;
        }
        assert_eq!((got, free), ([1, 8, 0], 0));
        assert_eq!(asked, 4, "each once, and the second again");
        let mut round = Round::default();
        let one = || takers(&[(1, 2)]);
        assert_eq!(round.next(&mut turns, 5, one), Some((name(0), 2)));
        round.emptied(&name(0));
        assert_eq!(round.next(&mut turns, 5, one), None);
        assert_eq!(Round::default().next(&mut turns, 5, Takers::new), None);
    }

    proptest! {
        #[test]
        fn no_slot_is_given_twice_or_wasted(
            slots in proptest::collection::vec(0_u32..200, 1..4),
            queues in proptest::collection::vec((0_u32..10, 0_u32..100), 0..6),
        ) {
            let mut turns = Turns::default();
            for slots in slots {
                let shares = shares(&mut turns, slots, &queues);
                let room: u32 = queues.iter().map(|(_, most)| most).sum();
                prop_assert_eq!(shares.iter().sum::<u32>(), slots.min(room));
                for (share, (_, most)) in shares.iter().zip(&queues) {
                    prop_assert!(share <= most);
                }
            }
        }

        #[test]
        fn each_of_a_changing_set_of_queues_gets_its_weight_in_every_turn(
            weights in proptest::collection::vec(1_u32..5, 1..8),
            batches in proptest::collection::vec(1_u32..6, 1..40),
            absent in 0_usize..8,
        ) {
            // One queue comes and goes; the others always want more.
            let mut turns = Turns::default();
            let mut got = vec![0_u32; weights.len()];
            for (step, batch) in batches.iter().enumerate() {
                let most = |number| if number == absent && step % 2 == 0 { 0 } else { 1000 };
                let given: Vec<_> = weights.iter().enumerate().map(|(n, w)| (*w, most(n))).collect();
                for (sum, share) in got.iter_mut().zip(shares(&mut turns, *batch, &given)) {
                    *sum += share;
                }
            }
            let turns_of = |number: usize| f64::from(got[number]) / f64::from(weights[number]);
            let always = (0..weights.len()).filter(|number| *number != absent);
            let turned: Vec<f64> = always.map(turns_of).collect();
            for (one, other) in turned.iter().zip(turned.iter().skip(1)) {
                prop_assert!((one - other).abs() <= 1.0, "{:?} by {:?}", got, weights);
            }
        }
    }
}
