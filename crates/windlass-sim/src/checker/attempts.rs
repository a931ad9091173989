//! Limits of failures, and backoffs.

use windlass_core::State;

use super::ledger::{Ledger, Record};
use super::{Findings, Invariant};
use crate::history::{EndFacts, Entry, Event, Reported, SettleAnswer};
use windlass_core::Timestamp;

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    match &entry.event {
        Event::Claimed(claim) if !claim.repeated => {
            for claimed in &claim.jobs {
                let job = claimed.facts.id;
                let failures = ledger.jobs.get(&job).map_or(0, |record| record.failures);
                if claimed.failures_max.is_some_and(|max| failures >= max) {
                    findings.add(Invariant::I7, job, || {
                        format!("an attempt started after {failures} failures")
                    });
                }
                let is_revived = ledger.jobs.get(&job).is_none_or(|record| record.is_revived);
                if let Some(expected) = claimed.failures_max_expected
                    && !is_revived
                    && claimed.failures_max != Some(expected)
                {
                    findings.add(Invariant::I7, job, || {
                        let max = claimed.failures_max;
                        format!("the limit of failures is {max:?}, the settings say {expected}")
                    });
                }
            }
        }
        Event::Settled {
            now,
            attempt,
            reported,
            answer: SettleAnswer::Done(end),
        } => {
            if *reported == Reported::Unrecoverable && end.state == State::Waiting {
                findings.add(Invariant::I7, attempt.job, || {
                    "an unrecoverable failure is retried".to_owned()
                });
            }
            if let Some(record) = ledger.jobs.get(&attempt.job) {
                check_backoff(record, end, *now, findings);
            }
        }
        Event::Swept { now, lost, .. } => {
            for (attempt, end) in lost {
                if let Some(record) = ledger.jobs.get(&attempt.job) {
                    check_backoff(record, end, *now, findings);
                }
            }
        }
        _ => {}
    }
}

fn check_backoff(record: &Record, end: &EndFacts, now: Timestamp, findings: &mut Findings) {
    let Some(run_at) = end.run_at.filter(|_| end.state == State::Waiting) else {
        return;
    };
    if !end.outcome.counts_as_failure() {
        return;
    }
    if record.failures_max.is_some_and(|max| end.failures >= max) {
        findings.add(Invariant::I7, record.facts.id, || {
            format!(
                "the job waits for another attempt after {} failures",
                end.failures
            )
        });
    }
    let earliest = now.saturating_add(record.fixed_delay.unwrap_or_default());
    if run_at < earliest {
        findings.add(Invariant::I7, record.facts.id, || {
            format!("the next attempt is due at {run_at}, its backoff ends at {earliest}")
        });
    }
}
