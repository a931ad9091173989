//! Slows down those who try keys that are wrong.
//!
//! Counted are failures of an address, and of a key's public id from that address. The second bound is strict: while it holds,
//! not even the right secret is looked at, so a known id is guessed at a few tries a minute. The first one holds only for tries
//! that would fail anyway, so that one misconfigured worker does not lock out those who share its address behind a proxy.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use windlass_core::Timestamp;
use windlass_listen::network;

/// So many failures of one id from one address are free.
const ID_FREE: u32 = 5;
/// So many failures of one address are free.
const ADDRESS_FREE: u32 = 20;
/// The first wait; it doubles with each further failure.
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// After so long without a failure, all is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(900);
/// So many addresses or ids are remembered at most; the one that failed longest ago makes room.
const REMEMBERED_MAX: usize = 10_000;

/// Who failed how often.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    by_id: Mutex<HashMap<(String, Option<IpAddr>), Failures>>,
    by_address: Mutex<HashMap<Option<IpAddr>, Failures>>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last_at: Timestamp,
    free: u32,
}

impl Failures {
    fn new(free: u32, now: Timestamp) -> Self {
        Failures {
            count: 0,
            last_at: now,
            free,
        }
    }

    /// How long from `now` on nothing more is looked at.
    fn wait(&self, now: Timestamp) -> Option<Duration> {
        let doublings = self.count.checked_sub(self.free)?;
        let wait = WAIT_FIRST
            .saturating_mul(1 << doublings.min(20))
            .min(WAIT_MAX);
        let left = self.last_at.saturating_add(wait).since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// What a failure led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Nothing yet.
    Free,
    /// A wait of so long began.
    Waits(Duration),
    /// The address waits already, and for so long.
    AddressWaits(Duration),
}

impl Throttle {
    /// How long this id from this address has to wait, if it has to.
    pub(super) fn id_waits(
        &self,
        id: &str,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Option<Duration> {
        let all = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(id.to_owned(), peer.map(network)))?.wait(now)
    }

    /// How long this address has to wait before it may fail again.
    fn address_waits(&self, peer: Option<IpAddr>, now: Timestamp) -> Option<Duration> {
        let all = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.get(&peer.map(network))?.wait(now)
    }

    /// Counts a failure.
    ///
    /// An id is counted also while its address waits: who let the address wait first would else try secrets without a bound.
    pub(super) fn failed(&self, id: Option<&str>, peer: Option<IpAddr>, now: Timestamp) -> Counted {
        let peer = peer.map(network);
        let of_id = id.and_then(|id| count(&self.by_id, (id.to_owned(), peer), ID_FREE, now));
        if let Some(wait) = self.address_waits(peer, now) {
            return Counted::AddressWaits(wait);
        }
        let of_address = count(&self.by_address, peer, ADDRESS_FREE, now);
        match of_address.max(of_id) {
            Some(wait) => Counted::Waits(wait),
            None => Counted::Free,
        }
    }

    /// Forgets the failures of a key that was right.
    pub(super) fn succeeded(&self, id: &str, peer: Option<IpAddr>) {
        let mut all = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            all.remove(&(id.to_owned(), peer.map(network)));
        }
    }
}

fn count<K: Hash + Eq + Clone>(
    all: &Mutex<HashMap<K, Failures>>,
    who: K,
    free: u32,
    now: Timestamp,
) -> Option<Duration> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= REMEMBERED_MAX && !all.contains_key(&who) {
        make_room(&mut all, now);
    }
    let failures = all.entry(who).or_insert_with(|| Failures::new(free, now));
    if now.since(failures.last_at) >= FORGET_AFTER {
        *failures = Failures::new(free, now);
    }
    failures.count = failures.count.saturating_add(1);
    failures.last_at = now;
    failures.wait(now)
}

fn make_room<K: Hash + Eq + Clone>(all: &mut HashMap<K, Failures>, now: Timestamp) {
    all.retain(|_, failures| now.since(failures.last_at) < FORGET_AFTER);
    if all.len() >= REMEMBERED_MAX {
        let oldest = all.iter().min_by_key(|(_, failures)| failures.last_at);
        if let Some(oldest) = oldest.map(|(who, _)| who.clone()) {
            all.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn after(seconds: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn an_id_waits_longer_with_each_failure_and_is_forgiven_in_the_end() {
        let throttle = Throttle::default();
        for _ in 1..ID_FREE {
            assert_eq!(throttle.failed(Some("a"), HOME, after(0)), Counted::Free);
            assert_eq!(throttle.id_waits("a", HOME, after(0)), None);
        }
        let mut waits = Vec::new();
        for _ in 0..12 {
            throttle.failed(Some("a"), HOME, after(0));
            waits.push(throttle.id_waits("a", HOME, after(0)).unwrap().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert!(throttle.id_waits("a", HOME, after(299)).is_some());
        assert_eq!(throttle.id_waits("a", HOME, after(300)), None);
        assert_eq!(throttle.failed(Some("a"), HOME, after(1300)), Counted::Free);
    }

    #[test]
    fn neither_another_id_nor_another_address_waits_with_it() {
        let throttle = Throttle::default();
        for _ in 0..ID_FREE + 1 {
            throttle.failed(Some("a"), HOME, after(0));
        }
        let other = Some("192.0.2.7".parse().unwrap());
        assert!(throttle.id_waits("a", HOME, after(0)).is_some());
        assert_eq!(throttle.id_waits("b", HOME, after(0)), None);
        assert_eq!(throttle.id_waits("a", other, after(0)), None);
        throttle.succeeded("a", HOME);
        assert_eq!(throttle.id_waits("a", HOME, after(0)), None);
    }

    #[test]
    fn an_address_that_tries_many_ids_waits_too_and_a_network_is_one_address() {
        let throttle = Throttle::default();
        for number in 0..ADDRESS_FREE {
            let peer = format!("2001:db8::{number:x}").parse().ok();
            throttle.failed(Some(&number.to_string()), peer, after(0));
        }
        let same: Option<IpAddr> = "2001:db8::ffff".parse().ok();
        let other: Option<IpAddr> = "2001:db8:0:1::1".parse().ok();
        assert!(throttle.address_waits(same, after(0)).is_some());
        assert_eq!(throttle.address_waits(other, after(0)), None);
        assert_eq!(throttle.address_waits(same, after(1)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let throttle = Throttle::default();
        for number in 0..REMEMBERED_MAX + 50 {
            let peer = IpAddr::V4(u32::try_from(number).unwrap().into());
            throttle.failed(Some("x"), Some(peer), after(0));
        }
        assert_eq!(throttle.by_address.lock().unwrap().len(), REMEMBERED_MAX);
        assert_eq!(throttle.by_id.lock().unwrap().len(), REMEMBERED_MAX);
    }
}
