//! Which queue of a worker gets the next free slot.

use std::collections::VecDeque;

use crate::QueueName;

/// A queue that a claim takes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimQueue {
    /// Its name.
    pub name: QueueName,
    /// Its share next to the others.
    pub weight: u32,
}

impl ClaimQueue {
    /// One with the same share as the others.
    pub fn plain(name: QueueName) -> Self {
        ClaimQueue { name, weight: 1 }
    }
}

/// How a claim goes through its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueOrder {
    /// Each gets its share by weight, over many claims.
    #[default]
    Weighted,
    /// The first is emptied before the second.
    Strict,
}

/// Whose turn it is among the queues of one worker (smooth weighted round robin).
///
/// Invariant: over any stretch in which all of them have work, each gets its share by weight, to within one slot.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    credit: Vec<i64>,
}

/// One queue that may take slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taker {
    /// Its share beside the others; 0 counts as 1.
    pub weight: u32,
    /// It can take no more than this.
    pub most: u32,
}

impl Turns {
    /// Shares `slots` among the takers, in their order; what one cannot take goes to the others.
    pub fn share(&mut self, slots: u32, takers: &[Taker]) -> Vec<u32> {
        self.credit.resize(takers.len(), 0);
        let room: u64 = takers.iter().map(|taker| u64::from(taker.most)).sum();
        let mut shares = vec![0; takers.len()];
        if u64::from(slots) >= room {
            // Nobody goes short, so nobody is owed anything.
            return takers.iter().map(|taker| taker.most).collect();
        }
        for _ in 0..slots {
            let mut total = 0;
            let mut next: Option<(usize, i64)> = None;
            for (place, taker) in takers.iter().enumerate() {
                let taken = shares.get(place).copied().unwrap_or(0);
                let Some(credit) = self.credit.get_mut(place).filter(|_| taken < taker.most) else {
                    continue;
                };
                let weight = i64::from(taker.weight.max(1));
                *credit += weight;
                total += weight;
                if next.is_none_or(|(_, most)| *credit > most) {
                    next = Some((place, *credit));
                }
            }
            let Some((place, _)) = next else { break };
            if let (Some(credit), Some(share)) = (self.credit.get_mut(place), shares.get_mut(place))
            {
                *credit -= total;
                *share += 1;
            }
        }
        shares
    }
}

/// One turn over the queues of a worker: free slots are offered by weight, and what one queue
/// leaves, others get.
///
/// A queue that does not fill what it is offered is not asked again in the same round.
#[derive(Debug)]
pub struct Round {
    hungry: Vec<bool>,
    /// The queues that are asked next, and how many slots each is offered.
    offers: VecDeque<(usize, u32)>,
}

impl Round {
    /// A round over this many queues.
    pub fn new(queues: usize) -> Self {
        Round {
            hungry: vec![true; queues],
            offers: VecDeque::new(),
        }
    }

    /// The queue to claim from next, and for how many of the `free` slots; `None` when the round is
    /// over.
    pub fn next(&mut self, turns: &mut Turns, free: u32, takers: &[Taker]) -> Option<(usize, u32)> {
        if free == 0 {
            return None;
        }
        if self.offers.is_empty() {
            let hungry = takers
                .iter()
                .zip(&self.hungry)
                .map(|(taker, hungry)| Taker {
                    most: if *hungry { taker.most } else { 0 },
                    ..*taker
                });
            let hungry: Vec<Taker> = hungry.collect();
            let shares = turns.share(free, &hungry).into_iter().enumerate();
            self.offers = shares.filter(|(_, share)| *share > 0).collect();
        }
        let (queue, share) = self.offers.pop_front()?;
        Some((queue, share.min(free)))
    }

    /// The queue had nothing more to give.
    pub fn emptied(&mut self, queue: usize) {
        if let Some(hungry) = self.hungry.get_mut(queue) {
            *hungry = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn takers(of: &[(u32, u32)]) -> Vec<Taker> {
        of.iter()
            .map(|(weight, most)| Taker {
                weight: *weight,
                most: *most,
            })
            .collect()
    }

    #[test]
    fn slots_are_shared_by_weight_even_one_at_a_time() {
        let mut turns = Turns::default();
        let queues = takers(&[(3, 100), (1, 100)]);
        let mut got = [0, 0];
        for _ in 0..40 {
            let shares = turns.share(1, &queues);
            got[0] += shares[0];
            got[1] += shares[1];
        }
        assert_eq!(got, [30, 10]);
    }

    #[test]
    fn what_one_queue_cannot_take_goes_to_the_others() {
        let mut turns = Turns::default();
        assert_eq!(turns.share(10, &takers(&[(9, 2), (1, 100)])), [2, 8]);
        assert_eq!(turns.share(10, &takers(&[(1, 0), (1, 3)])), [0, 3]);
        assert_eq!(turns.share(10, &[]), Vec::<u32>::new());
    }

    #[test]
    fn a_round_offers_what_one_queue_leaves_to_the_others_and_ends() {
        let (mut turns, mut round) = (Turns::default(), Round::new(3));
        let queues = takers(&[(1, 100), (1, 100), (1, 100)]);
        // The first has one job, the second as many as it is asked for, the third none.
        let (mut free, mut got) = (9, [0, 0, 0]);
        let mut asked = 0;
        while let Some((queue, share)) = round.next(&mut turns, free, &queues) {
            asked += 1;
            let has = [1 - got[0], 100, 0];
            let taken = share.min(has[queue]);
            if taken < share {
                round.emptied(queue);
            }
            got[queue] += taken;
            free -= taken;
        }
        assert_eq!((got, free), ([1, 8, 0], 0));
        assert_eq!(asked, 4, "each once, and the second again");
        let mut round = Round::new(1);
        assert_eq!(round.next(&mut turns, 5, &takers(&[(1, 2)])), Some((0, 2)));
        round.emptied(0);
        assert_eq!(round.next(&mut turns, 5, &takers(&[(1, 2)])), None);
        assert_eq!(Round::new(0).next(&mut turns, 5, &[]), None);
    }

    proptest! {
        #[test]
        fn no_slot_is_given_twice_or_wasted(
            slots in 0_u32..200,
            queues in proptest::collection::vec((0_u32..10, 0_u32..100), 0..6),
        ) {
            let queues = takers(&queues);
            let shares = Turns::default().share(slots, &queues);
            let room: u32 = queues.iter().map(|taker| taker.most).sum();
            prop_assert_eq!(shares.iter().sum::<u32>(), slots.min(room));
            for (share, taker) in shares.iter().zip(&queues) {
                prop_assert!(*share <= taker.most);
            }
        }
    }
}
