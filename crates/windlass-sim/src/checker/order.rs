//! Claim order: the most urgent job first, within each lane.

use std::collections::BTreeSet;

use windlass_core::{JobId, Lane, Timestamp};

use super::ledger::{Ledger, Order, Record};
use super::{Findings, Invariant};
use crate::history::{ClaimFacts, Entry, Event};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    let Event::Claimed(claim) = &entry.event else {
        return;
    };
    if claim.repeated || claim.jobs.is_empty() {
        return;
    }
    for lane in [Lane::Fresh, Lane::Retry] {
        check_lane(ledger, claim, lane, findings);
    }
}

/// No ready job is left behind by a less urgent one. Jobs with a concurrency key may have to wait.
fn check_lane(ledger: &Ledger, claim: &ClaimFacts, lane: Lane, findings: &mut Findings) {
    let records = claim.jobs.iter();
    let records = records.filter_map(|claimed| ledger.jobs.get(&claimed.facts.id));
    let taken: Vec<Order> = records
        .filter(|record| record.lane() == lane)
        .map(Record::order)
        .collect();
    if !taken.is_sorted() {
        findings.add(Invariant::I18, taken.first().map(|order| order.2), || {
            "the jobs of a claim are not in claim order".to_owned()
        });
    }
    let Some(least_urgent) = taken.iter().max() else {
        return;
    };
    let Some(now) = claim.jobs.iter().map(|claimed| claimed.started_at).min() else {
        return;
    };
    let ids: BTreeSet<JobId> = taken.iter().map(|order| order.2).collect();
    let waiting = ledger.waiting.get(&(claim.queue.clone(), lane));
    for order in waiting.into_iter().flatten() {
        if order >= least_urgent {
            return;
        }
        let Some(record) = ledger.jobs.get(&order.2) else {
            continue;
        };
        let id = record.facts.id;
        if !ids.contains(&id) && could_run(ledger, record, claim, now) {
            findings.add(Invariant::I18, id, || {
                format!(
                    "job {} started before it, but is less urgent",
                    least_urgent.2
                )
            });
            return;
        }
    }
}

/// Whether a claim could have taken a waiting job. A job with a concurrency key may have to wait. A
/// deadline that has passed for another caller has passed, even if the clock of this one is behind.
pub(super) fn could_run(
    ledger: &Ledger,
    record: &Record,
    claim: &ClaimFacts,
    now: Timestamp,
) -> bool {
    let facts = &record.facts;
    let latest = ledger.latest.map_or(now, |latest| latest.max(now));
    facts.run_at <= now
        && facts.deadline.is_none_or(|deadline| deadline >= latest)
        && facts.concurrency.is_none()
        && (claim.kinds.is_empty() || claim.kinds.contains(&facts.kind))
        && !claim.except.contains(&facts.id)
}
