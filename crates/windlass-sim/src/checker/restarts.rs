//! Restarts of the store: they end the attempts of dead workers, and change nothing else.

use windlass_core::Outcome;

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{Entry, Event};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    let Event::Restarted {
        lost,
        before,
        after,
    } = &entry.event
    else {
        return;
    };
    for (part, digest) in before {
        if !after.contains(&(part, *digest)) {
            findings.add(Invariant::I24, None, || {
                format!("a restart of the store changed its {part}")
            });
        }
    }
    for (attempt, end) in lost {
        let record = ledger.jobs.get(&attempt.job);
        let is_running = record.is_some_and(|record| record.is_running(attempt.attempt));
        let is_loss = matches!(end.outcome, Outcome::Lost | Outcome::TimedOut);
        if !is_running || !is_loss {
            findings.add(Invariant::I24, attempt.job, || {
                format!(
                    "a restart ended attempt {} as {}",
                    attempt.attempt,
                    end.outcome.name()
                )
            });
        }
    }
}
