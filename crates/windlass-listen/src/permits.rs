//! Connection permits: how many connections may be open, in total and from one address.
//!
//! The listener does not turn a connection away as soon as a limit is reached. A few reserve
//! permits remain. On a reserve permit the listener answers one request: a health check as usual,
//! anything else with 503. A client that holds a reserve permit and sends nothing loses it to the
//! next client. So health checks keep working while the server is flooded.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::CancellationToken;

use crate::lock;

/// How many connections may be open at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PermitLimits {
    pub(crate) total: usize,
    pub(crate) per_address: usize,
}

/// The number of reserve connections, in addition to `Limits::connections`.
pub const RESERVE: usize = 64;
/// The number of reserve connections that one address may have.
const RESERVE_PER_ADDRESS: usize = 4;

/// Returns the address that limits count a client by: the IPv4 address, or the /64 network of an
/// IPv6 address, because the owner of one address of a /64 owns all of them.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !0 << 64).into()),
        v4 => v4,
    }
}

/// Issues the permits of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionPermits {
    limits: PermitLimits,
    issued: Mutex<IssuedPermits>,
}

#[derive(Debug, Default)]
struct IssuedPermits {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    /// By number, so the oldest permit comes first.
    reserve: BTreeMap<u64, ReservePermit>,
    next_reserve_number: u64,
}

#[derive(Debug)]
struct ReservePermit {
    address: IpAddr,
    /// Whether the client has not sent a request yet.
    unused: bool,
    revoked: CancellationToken,
}

#[derive(Debug, Clone)]
enum PermitKind {
    /// For any number of requests.
    Full,
    /// For one request, unless the permit is revoked first.
    Reserve {
        number: u64,
        revoked: CancellationToken,
    },
}

/// The right to keep one connection open, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    address: IpAddr,
    kind: PermitKind,
}

impl ConnectionPermits {
    pub(crate) fn new(limits: PermitLimits) -> Arc<Self> {
        Arc::new(ConnectionPermits {
            limits,
            issued: Mutex::default(),
        })
    }

    /// Issues a permit for a connection from `address`, or `None` if no permit is left.
    pub(crate) fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let address = network(address);
        let mut issued = self.lock();
        let from_address = issued.by_address.get(&address).copied().unwrap_or_default();
        let within_limits =
            issued.total < self.limits.total && from_address < self.limits.per_address;
        let kind = if within_limits {
            issued.total += 1;
            *issued.by_address.entry(address).or_default() += 1;
            PermitKind::Full
        } else {
            issued.acquire_reserve(address)?
        };
        Some(ConnectionPermit {
            permits: Arc::clone(self),
            address,
            kind,
        })
    }

    fn lock(&self) -> MutexGuard<'_, IssuedPermits> {
        lock(&self.issued)
    }
}

impl IssuedPermits {
    /// Issues a reserve permit. If none is left, it revokes the oldest unused one first.
    fn acquire_reserve(&mut self, address: IpAddr) -> Option<PermitKind> {
        let is_from_address = |permit: &ReservePermit| permit.address == address;
        let from_address = self.reserve.values().filter(|one| is_from_address(one));
        if from_address.count() >= RESERVE_PER_ADDRESS {
            self.revoke_unused(is_from_address)?;
        } else if self.reserve.len() >= RESERVE {
            self.revoke_unused(|_| true)?;
        }
        let (number, revoked) = (self.next_reserve_number, CancellationToken::new());
        self.next_reserve_number += 1;
        let permit = ReservePermit {
            address,
            unused: true,
            revoked: revoked.clone(),
        };
        self.reserve.insert(number, permit);
        Some(PermitKind::Reserve { number, revoked })
    }

    /// Revokes the oldest unused reserve permit that matches, if there is one.
    fn revoke_unused(&mut self, matches: impl Fn(&ReservePermit) -> bool) -> Option<()> {
        let mut permits = self.reserve.iter();
        let (number, _) = permits.find(|(_, permit)| permit.unused && matches(permit))?;
        let number = *number;
        self.reserve.remove(&number)?.revoked.cancel();
        Some(())
    }
}

impl ConnectionPermit {
    /// Whether this is a reserve permit, on which the listener answers only one request.
    pub(crate) fn is_reserve(&self) -> bool {
        matches!(self.kind, PermitKind::Reserve { .. })
    }

    /// Records that the client sent a request, so the permit can no longer be revoked.
    pub(crate) fn mark_used(&self) {
        if let PermitKind::Reserve { number, .. } = &self.kind
            && let Some(permit) = self.permits.lock().reserve.get_mut(number)
        {
            permit.unused = false;
        }
    }

    /// Waits until the permit is revoked. A full permit never is.
    pub(crate) async fn revoked(&self) {
        match &self.kind {
            PermitKind::Full => std::future::pending().await,
            PermitKind::Reserve { revoked, .. } => revoked.cancelled().await,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut issued = self.permits.lock();
        match &self.kind {
            PermitKind::Reserve { number, .. } => {
                issued.reserve.remove(number);
            }
            PermitKind::Full => {
                issued.total = issued.total.saturating_sub(1);
                let from_address = issued.by_address.get(&self.address);
                match from_address.map_or(0, |count| count - 1) {
                    0 => issued.by_address.remove(&self.address),
                    left => issued.by_address.insert(self.address, left),
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

    fn is_revoked(permit: &ConnectionPermit) -> bool {
        matches!(&permit.kind, PermitKind::Reserve { revoked, .. } if revoked.is_cancelled())
    }

    #[test]
    fn permits_are_limited_by_address_and_in_total_and_come_back() {
        let limits = PermitLimits {
            total: 5,
            per_address: 3,
        };
        let permits = ConnectionPermits::new(limits);
        let acquire = |address: u32, count: usize| -> Vec<ConnectionPermit> {
            let acquired = (0..count).map(|_| permits.acquire(ip(address)));
            acquired.map(|permit| permit.expect("a permit")).collect()
        };
        let are_reserve = |permits: &[ConnectionPermit]| {
            let kinds = permits.iter().map(ConnectionPermit::is_reserve);
            kinds.collect::<Vec<_>>()
        };
        let first = acquire(1, 5);
        assert_eq!(are_reserve(&first), [false, false, false, true, true]);
        let second = acquire(2, 3);
        assert_eq!(are_reserve(&second), [false, false, true]);
        drop(first);
        assert_eq!(are_reserve(&acquire(2, 1)), [false]);
        drop(second);
        let issued = permits.lock();
        assert!(issued.by_address.is_empty() && issued.reserve.is_empty() && issued.total == 0);
    }

    #[test]
    fn an_unused_reserve_permit_is_revoked_for_the_next_client() {
        let permits = ConnectionPermits::new(PermitLimits {
            total: 0,
            per_address: 1,
        });
        let held: Vec<_> = (0..4).filter_map(|_| permits.acquire(ip(1))).collect();
        held[0].mark_used();
        let next = permits.acquire(ip(1)).unwrap();
        let revoked: Vec<bool> = held.iter().map(is_revoked).collect();
        assert_eq!(
            revoked,
            [false, true, false, false],
            "the oldest unused one"
        );
        next.mark_used();
        held[2].mark_used();
        held[3].mark_used();
        assert!(permits.acquire(ip(1)).is_none(), "all of them are in use");
        let others: Vec<_> = (2..1000)
            .filter_map(|number| permits.acquire(ip(number)))
            .collect();
        assert_eq!(
            others.iter().filter(|permit| !is_revoked(permit)).count(),
            RESERVE - 4
        );
        assert_eq!(permits.lock().reserve.len(), RESERVE);
        drop((held, next, others));
        assert_eq!(permits.lock().reserve.len(), 0);
    }
}
