//! The latest claims, to answer them again.
//!
//! Those of workers elsewhere are kept apart: however many claims this process makes, they do not push them out.

use std::collections::{BTreeMap, VecDeque};

use windlass_store::{AttemptId, WorkerPlace};

/// So many claims of this process can be asked again: it does so at once.
const HERE_MAX: usize = 1024;
/// So many of workers elsewhere, who may have to find their way back first.
const ELSEWHERE_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct RecentClaims {
    here: BoundedClaims,
    elsewhere: BoundedClaims,
    /// The claims of this group, which are remembered once it is on disk.
    new: Vec<(WorkerPlace, u128, Vec<AttemptId>)>,
}

impl RecentClaims {
    /// The attempts that a claim started.
    pub(crate) fn of(&self, claim: u128) -> Option<&[AttemptId]> {
        let new = self.new.iter().find(|(_, id, _)| *id == claim);
        let new = new.map(|(_, _, attempts)| attempts);
        let kept = || {
            let here = self.here.attempts.get(&claim);
            here.or_else(|| self.elsewhere.attempts.get(&claim))
        };
        new.or_else(kept).map(Vec::as_slice)
    }

    /// Notes a claim of the present group.
    pub(crate) fn note(&mut self, place: WorkerPlace, claim: u128, attempts: Vec<AttemptId>) {
        self.new.push((place, claim, attempts));
    }

    /// The group is on disk.
    pub(crate) fn commit(&mut self) {
        for (place, claim, attempts) in self.new.drain(..) {
            match place {
                WorkerPlace::Here => self.here.push(claim, attempts, HERE_MAX),
                WorkerPlace::Elsewhere => self.elsewhere.push(claim, attempts, ELSEWHERE_MAX),
            }
        }
    }

    /// The group was taken back.
    pub(crate) fn roll_back(&mut self) {
        self.new.clear();
    }
}

#[derive(Debug, Default)]
struct BoundedClaims {
    attempts: BTreeMap<u128, Vec<AttemptId>>,
    order: VecDeque<u128>,
}

impl BoundedClaims {
    fn push(&mut self, claim: u128, attempts: Vec<AttemptId>, most: usize) {
        self.order.push_back(claim);
        self.attempts.insert(claim, attempts);
        if self.order.len() > most
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
    fn claims_of_this_process_do_not_push_out_those_of_others() {
        let mut claims = RecentClaims::default();
        claims.note(WorkerPlace::Elsewhere, 7, Vec::new());
        claims.commit();
        for claim in 100..200_100 {
            claims.note(WorkerPlace::Here, claim, Vec::new());
            claims.commit();
        }
        assert!(claims.of(7).is_some() && claims.of(200_099).is_some());
        assert!(claims.of(100).is_none(), "what is remembered is bounded");
        claims.note(WorkerPlace::Here, 8, Vec::new());
        assert!(claims.of(8).is_some(), "in the same group");
        claims.roll_back();
        assert!(claims.of(8).is_none());
    }
}
