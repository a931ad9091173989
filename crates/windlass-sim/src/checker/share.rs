//! The share of retries: while fresh jobs wait, retries get their share of the slots and no more.

use std::collections::BTreeSet;

use windlass_core::{JobId, Lane};

use super::ledger::Ledger;
use super::order::could_run;
use super::{Findings, Invariant};
use crate::history::{ClaimFacts, Entry, Event};

/// How many more slots than their share retries may have had at any time: a credit of one slot, and
/// one slot of rounding.
const AHEAD_MAX: u64 = 2;

/// What the last claims of one fetcher gave out while fresh jobs and retries both waited.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shared {
    slots: u64,
    retries: u64,
}

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    let Event::Claimed(claim) = &entry.event else {
        return;
    };
    let Some(share) = claim.retry_share else {
        return;
    };
    let Some(shared) = after(ledger, entry.node, claim) else {
        return;
    };
    if shared.retries * 1000 > shared.slots * u64::from(share) + AHEAD_MAX * 1000 {
        findings.add(
            Invariant::I18,
            claim.jobs.first().map(|job| job.facts.id),
            || {
                let (retries, slots) = (shared.retries, shared.slots);
                format!(
                    "retries got {retries} of {slots} slots while fresh jobs waited, their share is {share}/1000"
                )
            },
        );
    }
}

/// What the claims gave out, this one included; `None` if this one says nothing about the share.
pub(super) fn after(ledger: &Ledger, node: u32, claim: &ClaimFacts) -> Option<Shared> {
    if !is_contended(ledger, claim) {
        return None;
    }
    let before = ledger.shares.get(&key(node, claim)).copied();
    let before = before.unwrap_or_default();
    let retries = claim.jobs.iter().filter(|job| job.lane == Lane::Retry);
    Some(Shared {
        slots: before.slots + claim.jobs.len() as u64,
        retries: before.retries + retries.count() as u64,
    })
}

/// The fetcher that sends a claim: each keeps an account of its own for each queue.
pub(super) type Fetcher = (u32, bool, windlass_core::QueueName);

pub(super) fn key(node: u32, claim: &ClaimFacts) -> Fetcher {
    (node, claim.is_remote, claim.queue.clone())
}

/// Whether retries were ready, and a fresh job had to wait although it could have run.
fn is_contended(ledger: &Ledger, claim: &ClaimFacts) -> bool {
    let Some(now) = claim.jobs.iter().map(|job| job.started_at).min() else {
        return false;
    };
    let taken: BTreeSet<JobId> = claim.jobs.iter().map(|job| job.facts.id).collect();
    let waits = |lane, is_left: &dyn Fn(&JobId) -> bool| {
        let waiting = ledger.waiting.get(&(claim.queue.clone(), lane));
        let mut waiting = waiting.into_iter().flatten();
        waiting.any(|(_, _, id)| {
            let record = ledger.jobs.get(id);
            is_left(id) && record.is_some_and(|record| could_run(ledger, record, claim, now))
        })
    };
    !claim.repeated
        && waits(Lane::Retry, &|_| true)
        && waits(Lane::Fresh, &|id| !taken.contains(id))
}
