//! Which queue of a worker gets the next free slot.

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
