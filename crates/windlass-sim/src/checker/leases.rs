//! Leases: one at a time, growing numbers, nothing from an old attempt.

use windlass_core::State;

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{ClaimFacts, Entry, Event, SettleAnswer};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    match &entry.event {
        Event::Claimed(claim) => check_claim(ledger, claim, findings),
        Event::Renewed {
            attempt,
            until: Some(_),
            ..
        } => {
            let record = ledger.jobs.get(&attempt.job);
            if !record.is_some_and(|record| record.is_running(attempt.attempt)) {
                findings.add(Invariant::I8, attempt.job, || {
                    format!(
                        "the store renewed attempt {}, which is not running",
                        attempt.attempt
                    )
                });
            }
        }
        Event::Settled {
            attempt,
            answer: SettleAnswer::Done(_),
            ..
        } => {
            let record = ledger.jobs.get(&attempt.job);
            if !record.is_some_and(|record| record.is_running(attempt.attempt)) {
                findings.add(Invariant::I8, attempt.job, || {
                    format!(
                        "the store accepted the end of attempt {}, which is not running",
                        attempt.attempt
                    )
                });
            }
        }
        Event::Swept { now, lost, .. } => {
            for (attempt, _) in lost {
                let record = ledger.jobs.get(&attempt.job);
                let Some(record) = record.filter(|record| record.is_running(attempt.attempt))
                else {
                    findings.add(Invariant::I8, attempt.job, || {
                        format!(
                            "the sweep ended attempt {}, which is not running",
                            attempt.attempt
                        )
                    });
                    continue;
                };
                if record.lease_until > *now {
                    findings.add(Invariant::I5, attempt.job, || {
                        let until = record.lease_until;
                        format!("the sweep at {now} ended a lease that lasts until {until}")
                    });
                }
            }
        }
        _ => {}
    }
}

fn check_claim(ledger: &Ledger, claim: &ClaimFacts, findings: &mut Findings) {
    for claimed in &claim.jobs {
        let job = claimed.facts.id;
        let Some(record) = ledger.jobs.get(&job) else {
            findings.add(Invariant::I2, job, || {
                "a claim got an unknown job".to_owned()
            });
            continue;
        };
        if claim.repeated {
            if !record.is_running(claimed.attempt) {
                findings.add(Invariant::I5, job, || {
                    "a repeated claim returned a lease that has ended".to_owned()
                });
            }
            continue;
        }
        if record.state != State::Waiting {
            findings.add(Invariant::I5, job, || {
                format!("a claim got a job that is {}", record.state)
            });
        }
        if claimed.attempt != record.attempt + 1 {
            findings.add(Invariant::I5, job, || {
                format!(
                    "attempt {} follows attempt {}",
                    claimed.attempt, record.attempt
                )
            });
        }
        if claimed.lease_until > claimed.started_at.saturating_add(claim.lease)
            || claimed.lease_until <= claimed.started_at
        {
            findings.add(Invariant::I5, job, || {
                format!("the lease lasts until {}", claimed.lease_until)
            });
        }
        if claim.except.contains(&job) {
            findings.add(Invariant::I5, job, || {
                "the claim got a job whose earlier handler still runs".to_owned()
            });
        }
    }
}
