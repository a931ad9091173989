//! How many connections there may be, in all and from one address.
//!
//! Past its bound a connection is not turned away at once: a few places are kept in reserve, where one request is answered,
//! with health if that was asked for and with 503 else. So a flooded server still tells how it is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::network;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceLimits {
    pub(super) all: usize,
    pub(super) per_address: usize,
}

/// Places in reserve, in all and for one address.
const RESERVE: usize = 64;
const RESERVE_PER_ADDRESS: usize = 4;

/// Counts connections.
#[derive(Debug)]
pub(super) struct Places {
    limits: PlaceLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    reserve: usize,
    by_address: HashMap<IpAddr, (usize, usize)>,
}

/// What kind of place a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may ask for everything.
    Full,
    /// It may ask once, for health.
    Reserve,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    pub(super) kind: Kind,
}

impl Places {
    pub(super) fn new(limits: PlaceLimits) -> Arc<Self> {
        Arc::new(Places {
            limits,
            taken: Mutex::default(),
        })
    }

    /// A place for a connection from an address, if there is one.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = network(address);
        let mut taken = self.lock();
        let (full, reserve) = taken.by_address.get(&address).copied().unwrap_or_default();
        let kind = if taken.all < self.limits.all && full < self.limits.per_address {
            Kind::Full
        } else if taken.reserve < RESERVE && reserve < RESERVE_PER_ADDRESS {
            Kind::Reserve
        } else {
            return None;
        };
        taken.count(address, kind, |count| count + 1);
        Some(Place {
            places: Arc::clone(self),
            address,
            kind,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn count(&mut self, address: IpAddr, kind: Kind, change: impl Fn(usize) -> usize) {
        let of_address = self.by_address.entry(address).or_default();
        let (all, here) = match kind {
            Kind::Full => (&mut self.all, &mut of_address.0),
            Kind::Reserve => (&mut self.reserve, &mut of_address.1),
        };
        (*all, *here) = (change(*all), change(*here));
        if *of_address == (0, 0) {
            self.by_address.remove(&address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.count(self.address, self.kind, |count| count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn an_address_and_all_together_are_bounded_and_places_come_back() {
        let limits = PlaceLimits {
            all: 5,
            per_address: 3,
        };
        let places = Places::new(limits);
        let kinds = |address: u32, count: usize| -> Vec<Option<Place>> {
            (0..count).map(|_| places.take(ip(address))).collect()
        };
        let first = kinds(1, 8);
        let kind_of = |place: &Option<Place>| place.as_ref().map(|place| place.kind);
        let of: Vec<_> = first.iter().map(kind_of).collect();
        let (full, reserve) = (Some(Kind::Full), Some(Kind::Reserve));
        assert_eq!(
            of,
            [full, full, full, reserve, reserve, reserve, reserve, None]
        );
        let second = kinds(2, 3);
        assert_eq!(
            second.iter().map(kind_of).collect::<Vec<_>>(),
            [full, full, reserve]
        );
        drop(first);
        assert_eq!(kind_of(&places.take(ip(2))), full);
        drop(second);
        assert!(places.lock().by_address.is_empty());
    }

    #[test]
    fn the_reserve_is_bounded_too() {
        let places = Places::new(PlaceLimits {
            all: 0,
            per_address: 1,
        });
        let taken: Vec<_> = (0..100)
            .filter_map(|number| places.take(ip(number)))
            .collect();
        assert_eq!(taken.len(), RESERVE);
    }
}
