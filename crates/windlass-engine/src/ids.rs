//! Ids and randomness, from one seed: the same seed gives the same ids and the same delays.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use windlass_core::{JobId, Random, ScheduleId, Timestamp};

/// Makes ids and random bits.
#[derive(Debug)]
pub struct Ids(Mutex<Source>);

#[derive(Debug)]
struct Source {
    random: Random,
    last: Timestamp,
    /// How many ids were made in that microsecond.
    count: u64,
}

/// When and from which seed something is made. The same origin makes the same ids at the same time, so that a request that is
/// sent again creates nothing twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// When it is made.
    pub now: Timestamp,
    /// Where its ids come from.
    pub seed: u64,
    /// Whether the same origin may be used again: then what it made before is looked for first.
    pub repeats: bool,
}

impl Origin {
    /// The ids that are made from it, from the first on.
    pub fn ids(&self) -> Ids {
        Ids::seeded(self.seed)
    }
}

/// So many of the bits of an id are drawn; those above them count within a microsecond.
const DRAWN_BITS: u32 = 40;

impl Ids {
    /// From a seed.
    pub fn seeded(seed: u64) -> Self {
        Ids(Mutex::new(Source {
            random: Random::new(seed),
            last: Timestamp::MIN,
            count: 0,
        }))
    }

    /// From a seed that nobody knows.
    pub fn unpredictable() -> Self {
        Ids::seeded(RandomState::new().hash_one(std::process::id()))
    }

    /// 64 random bits.
    pub fn bits(&self) -> u64 {
        self.source().random.bits()
    }

    /// A name for a claim.
    pub fn claim_id(&self) -> u128 {
        let mut source = self.source();
        u128::from(source.random.bits()) << 64 | u128::from(source.random.bits())
    }

    /// The id of a job made at `now`: those of one process sort in the order they were made in.
    pub fn job(&self, now: Timestamp) -> JobId {
        JobId::new(now, self.source().next(now))
    }

    /// The id of a schedule made at `now`.
    pub fn schedule(&self, now: Timestamp) -> ScheduleId {
        ScheduleId::new(now, self.source().next(now))
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn next(&mut self, now: Timestamp) -> u64 {
        self.count = if now == self.last { self.count + 1 } else { 0 };
        self.last = now;
        let drawn = self.random.bits() >> (u64::BITS - DRAWN_BITS);
        // The two bits at the top of an id say what kind of id it is.
        (self.count << DRAWN_BITS | drawn) & (u64::MAX >> 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_moment_sort_as_they_were_made_and_follow_from_the_seed() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let made = |seed| {
            let ids = Ids::seeded(seed);
            (0..20_000).map(|_| ids.job(now)).collect::<Vec<_>>()
        };
        assert!(made(1).is_sorted());
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
        assert_ne!(Ids::unpredictable().bits(), Ids::unpredictable().bits());
    }
}
