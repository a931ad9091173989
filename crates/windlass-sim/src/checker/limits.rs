//! What a claim may take: due jobs of its queue, within all limits.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::{Key, Timestamp};

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{ClaimFacts, ClaimedJob, Entry, Event};

/// How old the caller's time may be when it sends a claim.
const CLOCK_AGE_MAX: Duration = Duration::from_millis(500);

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    let Event::Claimed(claim) = &entry.event else {
        return;
    };
    let age = claim.sent_at.since(claim.now);
    if age > CLOCK_AGE_MAX {
        findings.add(Invariant::I13, None, || {
            format!("a claim was sent with a time that is {age:?} old")
        });
    }
    if ledger
        .stopping
        .get(&entry.node)
        .is_some_and(|since| claim.first_sent_at > *since && !claim.is_remote)
    {
        findings.add(Invariant::I13, None, || {
            format!("node {} was asked to stop, and claims", entry.node)
        });
    }
    if claim.repeated {
        return;
    }
    if claim.jobs.len() > claim.limit as usize {
        findings.add(Invariant::I13, None, || {
            format!("a claim for {} jobs got {}", claim.limit, claim.jobs.len())
        });
    }
    for claimed in &claim.jobs {
        check_ready(ledger, claim, claimed, findings);
    }
    check_queue(ledger, claim, findings);
    check_keys(ledger, claim, findings);
}

fn check_ready(ledger: &Ledger, claim: &ClaimFacts, claimed: &ClaimedJob, findings: &mut Findings) {
    let Some(record) = ledger.jobs.get(&claimed.facts.id) else {
        return;
    };
    let (facts, at) = (&record.facts, claimed.started_at);
    let problem = if facts.queue != claim.queue {
        Some(format!("it is in queue {}", facts.queue))
    } else if !claim.kinds.is_empty() && !claim.kinds.contains(&facts.kind) {
        Some(format!("it is of kind {}", facts.kind))
    } else if facts.run_at > at {
        Some(format!("it is due at {}", facts.run_at))
    } else if facts.deadline.is_some_and(|deadline| deadline < at) {
        Some("its deadline has passed".to_owned())
    } else if at < claim.now {
        Some(format!("it started before the claim at {}", claim.now))
    } else if at
        > ledger
            .latest
            .map_or(claim.now, |latest| latest.max(claim.now))
    {
        Some("no caller's clock has reached that time".to_owned())
    } else {
        None
    };
    if let Some(problem) = problem {
        findings.add(Invariant::I13, facts.id, || {
            format!(
                "a claim in queue {} at {at} got the job, but {problem}",
                claim.queue
            )
        });
    }
}

fn check_queue(ledger: &Ledger, claim: &ClaimFacts, findings: &mut Findings) {
    let Some(limits) = ledger.limits.get(&claim.queue) else {
        return;
    };
    let Some(first) = claim.jobs.first() else {
        return;
    };
    if limits.paused {
        findings.add(Invariant::I13, first.facts.id, || {
            format!("queue {} is paused", claim.queue)
        });
    }
    let running = ledger.running_by_queue.get(&claim.queue);
    let running = running.copied().unwrap_or(0) as usize + claim.jobs.len();
    if let Some(max) = limits.concurrency.filter(|max| running > *max as usize) {
        findings.add(Invariant::I14, first.facts.id, || {
            format!(
                "{running} jobs run in queue {}, the limit is {max}",
                claim.queue
            )
        });
    }
    if let Some((count, period)) = limits.rate {
        let mut starts = ledger.starts.get(&claim.queue).cloned().unwrap_or_default();
        starts.extend(claim.jobs.iter().map(|claimed| claimed.started_at));
        starts.sort_unstable();
        if let Some((at, in_window)) = over_rate(&starts, count as usize, period) {
            findings.add(Invariant::I14, first.facts.id, || {
                format!(
                    "{in_window} jobs started in the {period:?} up to {at}, the limit is {count}: {starts:?}"
                )
            });
        }
    }
}

/// The first window with more starts than allowed. Looks at the last starts only: earlier windows
/// were checked before.
fn over_rate(starts: &[Timestamp], count: usize, period: Duration) -> Option<(Timestamp, usize)> {
    let last = *starts.last()?;
    let within = |at: &&Timestamp| last.since(**at) < period;
    let in_window = starts.iter().rev().take_while(within).count();
    (in_window > count).then_some((last, in_window))
}

fn check_keys(ledger: &Ledger, claim: &ClaimFacts, findings: &mut Findings) {
    let mut added: BTreeMap<&Key, u32> = BTreeMap::new();
    for claimed in &claim.jobs {
        let record = ledger.jobs.get(&claimed.facts.id);
        let Some((key, limit)) = record.and_then(|record| record.facts.concurrency.as_ref()) else {
            continue;
        };
        let added = added.entry(key).or_default();
        let running = ledger.running_by_key.get(key).copied().unwrap_or(0) + *added;
        if running >= *limit {
            findings.add(Invariant::I14, claimed.facts.id, || {
                format!("the job started while {running} jobs with its key were running")
            });
        }
        *added += 1;
    }
}
