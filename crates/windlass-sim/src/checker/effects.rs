//! What handlers did outside of the store.

use std::collections::BTreeMap;

use windlass_core::{Delivery, JobId, Outcome, State};
use windlass_store::AttemptId;

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{Entry, Event, History};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    check_handlers(ledger, entry, findings);
    let Event::Started { attempt, .. } = &entry.event else {
        return;
    };
    let claimed = ledger.jobs.get(&attempt.job);
    if claimed.is_none_or(|record| record.attempt < attempt.attempt) {
        findings.add(Invariant::I5, attempt.job, || {
            format!("attempt {} started without a lease", attempt.attempt)
        });
    }
}

/// An attempt starts once, and never next to another handler of the same job on its node.
pub(super) fn check_handlers(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    let Event::Started { attempt, .. } = &entry.event else {
        return;
    };
    if ledger.starts_of.contains_key(attempt) {
        findings.add(Invariant::I5, attempt.job, || {
            format!("attempt {} started twice", attempt.attempt)
        });
    }
    let handlers = ledger.handlers.get(&(entry.node, attempt.job));
    if handlers.is_some_and(|handlers| !handlers.is_empty()) {
        findings.add(Invariant::I5, attempt.job, || {
            format!(
                "attempt {} started while an earlier handler ran",
                attempt.attempt
            )
        });
    }
}

pub(super) fn check_last(ledger: &Ledger, history: &History, findings: &mut Findings) {
    let mut starts: BTreeMap<JobId, u32> = BTreeMap::new();
    for (attempt, count) in &ledger.starts_of {
        *starts.entry(attempt.job).or_default() += count;
    }
    for (job, starts) in &starts {
        let Some(record) = ledger.jobs.get(job) else {
            findings.add(Invariant::I2, *job, || "an unknown job started".to_owned());
            continue;
        };
        let max = 1 + record.restarts;
        if record.facts.delivery == Delivery::AtMostOnce && *starts > max {
            findings.add(Invariant::I6b, *job, || {
                format!("an at-most-once job started {starts} times, at most {max} are allowed")
            });
        }
    }
    if history.last.is_none() {
        return;
    }
    for (job, record) in &ledger.jobs {
        if record.state != State::Succeeded || ledger.removed.contains(job) {
            continue;
        }
        let succeeded = record.ends.iter();
        let succeeded = succeeded.filter(|(_, outcome)| **outcome == Outcome::Succeeded);
        for (attempt, _) in succeeded {
            let attempt = AttemptId {
                job: *job,
                attempt: *attempt,
            };
            if !ledger.effects_of.contains_key(&attempt) {
                findings.add(Invariant::I23, *job, || {
                    format!("attempt {} succeeded without an effect", attempt.attempt)
                });
            }
        }
    }
}
