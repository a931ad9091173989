//! Recent claims, so that a repeated claim gets the same answer.
//!
//! A caller that does not know the result of a claim repeats it with the same id. Claims of remote
//! workers are kept in a list of their own, so that the many claims of this process do not evict
//! them.

use std::collections::{BTreeMap, VecDeque};

use windlass_store::{AttemptId, WorkerLocation};

/// The most claims of this process that are kept: it repeats a claim at once.
const LOCAL_MAX: usize = 1024;
/// The most claims of remote workers that are kept: they may have to reconnect first.
const REMOTE_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct RecentClaims {
    local: BoundedClaims,
    remote: BoundedClaims,
    /// The claims of the current group. They move to the lists when the group is on disk.
    uncommitted: Vec<(WorkerLocation, u128, Vec<AttemptId>)>,
}

impl RecentClaims {
    /// Returns the attempts that a claim started.
    pub(crate) fn attempts_of(&self, claim: u128) -> Option<&[AttemptId]> {
        let uncommitted = self.uncommitted.iter().find(|(_, id, _)| *id == claim);
        let uncommitted = uncommitted.map(|(_, _, attempts)| attempts);
        let committed = || {
            let local = self.local.attempts.get(&claim);
            local.or_else(|| self.remote.attempts.get(&claim))
        };
        uncommitted.or_else(committed).map(Vec::as_slice)
    }

    /// Adds a claim of the current group.
    pub(crate) fn add(
        &mut self,
        worker_location: WorkerLocation,
        claim: u128,
        attempts: Vec<AttemptId>,
    ) {
        self.uncommitted.push((worker_location, claim, attempts));
    }

    /// Keeps the claims of the current group, which is on disk now.
    pub(crate) fn commit(&mut self) {
        for (place, claim, attempts) in self.uncommitted.drain(..) {
            match place {
                WorkerLocation::Local => self.local.push(claim, attempts, LOCAL_MAX),
                WorkerLocation::Remote => self.remote.push(claim, attempts, REMOTE_MAX),
            }
        }
    }

    /// Forgets the claims of the current group.
    pub(crate) fn roll_back(&mut self) {
        self.uncommitted.clear();
    }
}

#[derive(Debug, Default)]
struct BoundedClaims {
    attempts: BTreeMap<u128, Vec<AttemptId>>,
    order: VecDeque<u128>,
}

impl BoundedClaims {
    fn push(&mut self, claim: u128, attempts: Vec<AttemptId>, max: usize) {
        self.order.push_back(claim);
        self.attempts.insert(claim, attempts);
        if self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.attempts.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_this_process_do_not_evict_claims_of_remote_workers() {
        let mut claims = RecentClaims::default();
        claims.add(WorkerLocation::Remote, 7, Vec::new());
        claims.commit();
        for claim in 100..200_100 {
            claims.add(WorkerLocation::Local, claim, Vec::new());
            claims.commit();
        }
        assert!(claims.attempts_of(7).is_some() && claims.attempts_of(200_099).is_some());
        assert!(claims.attempts_of(100).is_none(), "the list is bounded");
        claims.add(WorkerLocation::Local, 8, Vec::new());
        assert!(claims.attempts_of(8).is_some(), "in the same group");
        claims.roll_back();
        assert!(claims.attempts_of(8).is_none());
    }
}
