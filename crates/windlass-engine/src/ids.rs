//! Ids and random numbers from one seed. The same seed gives the same ids and the same delays.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard};

use windlass_core::{ActionId, JobId, Random, ScheduleId, Timestamp};

use crate::poison::lock;

/// Generates ids and random bits.
#[derive(Debug)]
pub struct Ids(Mutex<IdSource>);

#[derive(Debug)]
struct IdSource {
    random: Random,
    last: Timestamp,
    /// How many ids were made in the microsecond `last`.
    count: u64,
}

/// The time and the seed of a request's ids.
///
/// The same origin yields the same ids, so a request that is sent twice creates nothing twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The time of the request.
    pub now: Timestamp,
    /// The seed of the ids.
    pub seed: u64,
    /// Whether the same origin may come again. If so, look for what it created before.
    pub repeats: bool,
}

impl Origin {
    /// A generator that yields the ids of this origin, from the first one on.
    pub fn ids(&self) -> Ids {
        Ids::seeded(self.seed)
    }
}

/// The number of random bits of an id. The bits above them count the ids of one microsecond.
const DRAWN_BITS: u32 = 40;

impl Ids {
    /// A generator with a fixed seed.
    pub fn seeded(seed: u64) -> Self {
        Ids(Mutex::new(IdSource {
            random: Random::new(seed),
            last: Timestamp::MIN,
            count: 0,
        }))
    }

    /// A generator with a random seed.
    pub fn unpredictable() -> Self {
        Ids::seeded(RandomState::new().hash_one(std::process::id()))
    }

    /// 64 random bits.
    pub fn bits(&self) -> u64 {
        self.source().random.bits()
    }

    /// A random id for a claim.
    pub fn claim_id(&self) -> u128 {
        let mut source = self.source();
        u128::from(source.random.bits()) << 64 | u128::from(source.random.bits())
    }

    /// A new job id. The ids of one process sort in the order of their creation.
    pub fn job(&self, now: Timestamp) -> JobId {
        JobId::new(now, self.source().next(now))
    }

    /// A new schedule id.
    pub fn schedule(&self, now: Timestamp) -> ScheduleId {
        ScheduleId::new(now, self.source().next(now))
    }

    /// A new id of a bulk action or replay.
    pub fn action(&self, now: Timestamp) -> ActionId {
        ActionId::new(now, self.source().next(now))
    }

    fn source(&self) -> MutexGuard<'_, IdSource> {
        lock(&self.0)
    }
}

impl IdSource {
    fn next(&mut self, now: Timestamp) -> u64 {
        self.count = if now == self.last { self.count + 1 } else { 0 };
        self.last = now;
        let drawn = self.random.bits() >> (u64::BITS - DRAWN_BITS);
        // The two top bits are the variant of the UUID.
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
