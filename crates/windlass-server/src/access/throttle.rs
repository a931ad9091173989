//! Throttles clients that send wrong keys.
//!
//! Counts failures per address, and per address and public key id. The limit per id is strict:
//! during the wait the server refuses even the right secret, so an attacker can guess a secret only
//! a few times per minute. The limit per address applies only to attempts that fail anyway, so that
//! one misconfigured worker does not lock out other clients behind the same proxy.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use windlass_core::Timestamp;
use windlass_listen::network;

use crate::poison::lock;

/// Failures of one id from one address before the first wait.
const ID_FREE: u32 = 5;
/// Failures of one address before the first wait.
const ADDRESS_FREE: u32 = 20;
/// The first wait. Each further failure doubles it.
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The count of failures restarts after this long without one.
const FORGET_AFTER: Duration = Duration::from_secs(900);
/// The most addresses, and the most ids, with a count. A new one replaces the one whose last
/// failure is oldest.
const REMEMBERED_MAX: usize = 10_000;

/// The failure counts of ids and addresses.
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

    /// Returns the rest of the wait at `now`, if one is in progress.
    fn wait(&self, now: Timestamp) -> Option<Duration> {
        let doublings = self.count.checked_sub(self.free)?;
        let wait = WAIT_FIRST
            .saturating_mul(1 << doublings.min(20))
            .min(WAIT_MAX);
        let left = self.last_at.saturating_add(wait).since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// The effect of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Throttling {
    /// No wait.
    None,
    /// A wait of this length began.
    Started(Duration),
    /// The address is already in a wait, with this much time left.
    AddressWaits(Duration),
}

impl Throttle {
    /// Returns how long this id from this address must still wait, if at all.
    pub(super) fn id_wait(
        &self,
        id: &str,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Option<Duration> {
        let all = lock(&self.by_id);
        all.get(&(id.to_owned(), peer.map(network)))?.wait(now)
    }

    /// Returns how long this address must still wait, if at all.
    fn address_wait(&self, peer: Option<IpAddr>, now: Timestamp) -> Option<Duration> {
        let all = lock(&self.by_address);
        all.get(&peer.map(network))?.wait(now)
    }

    /// Counts a failure.
    ///
    /// Counts the id even while its address waits. Otherwise an attacker could first put the
    /// address into a wait and then guess secrets without limit.
    pub(super) fn failed(
        &self,
        id: Option<&str>,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Throttling {
        let peer = peer.map(network);
        let id_wait = id.and_then(|id| count(&self.by_id, (id.to_owned(), peer), ID_FREE, now));
        if let Some(wait) = self.address_wait(peer, now) {
            return Throttling::AddressWaits(wait);
        }
        let address_wait = count(&self.by_address, peer, ADDRESS_FREE, now);
        match address_wait.max(id_wait) {
            Some(wait) => Throttling::Started(wait),
            None => Throttling::None,
        }
    }

    /// Resets the count of an id after a successful authentication.
    pub(super) fn succeeded(&self, id: &str, peer: Option<IpAddr>) {
        let mut all = lock(&self.by_id);
        if !all.is_empty() {
            all.remove(&(id.to_owned(), peer.map(network)));
        }
    }
}

fn count<K: Hash + Eq + Clone>(
    counts: &Mutex<HashMap<K, Failures>>,
    key: K,
    free: u32,
    now: Timestamp,
) -> Option<Duration> {
    let mut counts = lock(counts);
    if counts.len() >= REMEMBERED_MAX && !counts.contains_key(&key) {
        make_room(&mut counts, now);
    }
    let failures = counts
        .entry(key)
        .or_insert_with(|| Failures::new(free, now));
    if now.since(failures.last_at) >= FORGET_AFTER {
        *failures = Failures::new(free, now);
    }
    failures.count = failures.count.saturating_add(1);
    failures.last_at = now;
    failures.wait(now)
}

fn make_room<K: Hash + Eq + Clone>(counts: &mut HashMap<K, Failures>, now: Timestamp) {
    counts.retain(|_, failures| now.since(failures.last_at) < FORGET_AFTER);
    if counts.len() >= REMEMBERED_MAX {
        let oldest = counts.iter().min_by_key(|(_, failures)| failures.last_at);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            counts.remove(&oldest);
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
    fn each_failure_doubles_the_wait_of_an_id_and_the_count_is_forgotten_later() {
        let throttle = Throttle::default();
        for _ in 1..ID_FREE {
            assert_eq!(throttle.failed(Some("a"), HOME, after(0)), Throttling::None);
            assert_eq!(throttle.id_wait("a", HOME, after(0)), None);
        }
        let mut waits = Vec::new();
        for _ in 0..12 {
            throttle.failed(Some("a"), HOME, after(0));
            waits.push(throttle.id_wait("a", HOME, after(0)).unwrap().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert!(throttle.id_wait("a", HOME, after(299)).is_some());
        assert_eq!(throttle.id_wait("a", HOME, after(300)), None);
        assert_eq!(
            throttle.failed(Some("a"), HOME, after(1300)),
            Throttling::None
        );
    }

    #[test]
    fn a_wait_applies_only_to_one_id_from_one_address() {
        let throttle = Throttle::default();
        for _ in 0..ID_FREE + 1 {
            throttle.failed(Some("a"), HOME, after(0));
        }
        let other = Some("192.0.2.7".parse().unwrap());
        assert!(throttle.id_wait("a", HOME, after(0)).is_some());
        assert_eq!(throttle.id_wait("b", HOME, after(0)), None);
        assert_eq!(throttle.id_wait("a", other, after(0)), None);
        throttle.succeeded("a", HOME);
        assert_eq!(throttle.id_wait("a", HOME, after(0)), None);
    }

    #[test]
    fn an_address_that_tries_many_ids_waits_and_an_ipv6_network_counts_as_one() {
        let throttle = Throttle::default();
        for number in 0..ADDRESS_FREE {
            let peer = format!("2001:db8::{number:x}").parse().ok();
            throttle.failed(Some(&number.to_string()), peer, after(0));
        }
        let same: Option<IpAddr> = "2001:db8::ffff".parse().ok();
        let other: Option<IpAddr> = "2001:db8:0:1::1".parse().ok();
        assert!(throttle.address_wait(same, after(0)).is_some());
        assert_eq!(throttle.address_wait(other, after(0)), None);
        assert_eq!(throttle.address_wait(same, after(1)), None);
    }

    #[test]
    fn the_number_of_counts_is_bounded() {
        let throttle = Throttle::default();
        for number in 0..REMEMBERED_MAX + 50 {
            let peer = IpAddr::V4(u32::try_from(number).unwrap().into());
            throttle.failed(Some("x"), Some(peer), after(0));
        }
        assert_eq!(throttle.by_address.lock().unwrap().len(), REMEMBERED_MAX);
        assert_eq!(throttle.by_id.lock().unwrap().len(), REMEMBERED_MAX);
    }
}
