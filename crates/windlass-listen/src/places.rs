//! How many connections there may be, in all and from one address.
//!
//! Past its bound a connection is not turned away at once: a few places are kept in reserve, where one request is answered,
//! with health if that was asked for and with 503 else. Whoever takes such a place and says nothing loses it to the next one.
//! So a flooded server still tells how it is.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaceLimits {
    pub(crate) all: usize,
    pub(crate) per_address: usize,
}

/// Connections in reserve past `Limits::connections`.
pub const RESERVE: usize = 64;
/// Those of one address.
const RESERVE_PER_ADDRESS: usize = 4;

/// What is counted as one client: an address, or a /64 network in IPv6, since a client that has one
/// has all its addresses.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !0 << 64).into()),
        v4 => v4,
    }
}

/// Counts connections.
#[derive(Debug)]
pub(crate) struct Places {
    limits: PlaceLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
    /// The oldest first.
    reserve: BTreeMap<u64, Reserved>,
    reserved: u64,
}

/// A place in reserve.
#[derive(Debug)]
struct Reserved {
    address: IpAddr,
    /// Whether nothing was asked on it yet.
    silent: bool,
    lost: CancellationToken,
}

/// What kind of place a connection has.
#[derive(Debug, Clone)]
enum Kind {
    /// It may ask for everything.
    Full,
    /// It may ask once, for health, until the place is lost.
    Reserve {
        number: u64,
        lost: CancellationToken,
    },
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    kind: Kind,
}

impl Places {
    pub(crate) fn new(limits: PlaceLimits) -> Arc<Self> {
        Arc::new(Places {
            limits,
            taken: Mutex::default(),
        })
    }

    /// A place for a connection from an address, if there is one.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = network(address);
        let mut taken = self.lock();
        let here = taken.by_address.get(&address).copied().unwrap_or_default();
        let kind = if taken.all < self.limits.all && here < self.limits.per_address {
            taken.all += 1;
            *taken.by_address.entry(address).or_default() += 1;
            Kind::Full
        } else {
            taken.reserve(address)?
        };
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
    /// A place in reserve; one who is silent loses his where there is none left.
    fn reserve(&mut self, address: IpAddr) -> Option<Kind> {
        let of_address = |one: &Reserved| one.address == address;
        if self.reserve.values().filter(|one| of_address(one)).count() >= RESERVE_PER_ADDRESS {
            self.take_from_silent(of_address)?;
        } else if self.reserve.len() >= RESERVE {
            self.take_from_silent(|_| true)?;
        }
        let (number, lost) = (self.reserved, CancellationToken::new());
        self.reserved += 1;
        let reserved = Reserved {
            address,
            silent: true,
            lost: lost.clone(),
        };
        self.reserve.insert(number, reserved);
        Some(Kind::Reserve { number, lost })
    }

    fn take_from_silent(&mut self, of: impl Fn(&Reserved) -> bool) -> Option<()> {
        let mut places = self.reserve.iter();
        let (number, _) = places.find(|(_, one)| one.silent && of(one))?;
        let number = *number;
        self.reserve.remove(&number)?.lost.cancel();
        Some(())
    }
}

impl Place {
    /// Whether only health is answered on it, once.
    pub(crate) fn is_reserve(&self) -> bool {
        matches!(self.kind, Kind::Reserve { .. })
    }

    /// A request came: the place is not lost to another one any more.
    pub(crate) fn speaks(&self) {
        if let Kind::Reserve { number, .. } = &self.kind
            && let Some(reserved) = self.places.lock().reserve.get_mut(number)
        {
            reserved.silent = false;
        }
    }

    /// Ends when the place is another one's.
    pub(crate) async fn lost(&self) {
        match &self.kind {
            Kind::Full => std::future::pending().await,
            Kind::Reserve { lost, .. } => lost.cancelled().await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        match &self.kind {
            Kind::Reserve { number, .. } => {
                taken.reserve.remove(number);
            }
            Kind::Full => {
                taken.all = taken.all.saturating_sub(1);
                let left = taken
                    .by_address
                    .get(&self.address)
                    .map_or(0, |here| here - 1);
                match left {
                    0 => taken.by_address.remove(&self.address),
                    left => taken.by_address.insert(self.address, left),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    fn is_lost(place: &Place) -> bool {
        matches!(&place.kind, Kind::Reserve { lost, .. } if lost.is_cancelled())
    }

    #[test]
    fn an_address_and_all_together_are_bounded_and_places_come_back() {
        let limits = PlaceLimits {
            all: 5,
            per_address: 3,
        };
        let places = Places::new(limits);
        let take = |address: u32, count: usize| -> Vec<Place> {
            let taken = (0..count).map(|_| places.take(ip(address)));
            taken.map(|place| place.expect("a place")).collect()
        };
        let reserves = |places: &[Place]| places.iter().map(Place::is_reserve).collect::<Vec<_>>();
        let first = take(1, 5);
        assert_eq!(reserves(&first), [false, false, false, true, true]);
        let second = take(2, 3);
        assert_eq!(reserves(&second), [false, false, true]);
        drop(first);
        assert_eq!(reserves(&take(2, 1)), [false]);
        drop(second);
        let taken = places.lock();
        assert!(taken.by_address.is_empty() && taken.reserve.is_empty() && taken.all == 0);
    }

    #[test]
    fn one_who_is_silent_in_the_reserve_loses_his_place_to_the_next() {
        let places = Places::new(PlaceLimits {
            all: 0,
            per_address: 1,
        });
        let here: Vec<Place> = (0..4).filter_map(|_| places.take(ip(1))).collect();
        here[0].speaks();
        let next = places.take(ip(1)).unwrap();
        let lost: Vec<bool> = here.iter().map(is_lost).collect();
        assert_eq!(lost, [false, true, false, false], "the oldest silent one");
        next.speaks();
        here[2].speaks();
        here[3].speaks();
        assert!(places.take(ip(1)).is_none(), "all of them are answered");
        let others: Vec<_> = (2..1000)
            .filter_map(|number| places.take(ip(number)))
            .collect();
        assert_eq!(
            others.iter().filter(|place| !is_lost(place)).count(),
            RESERVE - 4
        );
        assert_eq!(places.lock().reserve.len(), RESERVE);
        drop((here, next, others));
        assert_eq!(places.lock().reserve.len(), 0);
    }
}
