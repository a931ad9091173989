//! Unique keys: one active job for each key of a queue.

use windlass_core::{JobId, State, Timestamp};

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{ChangeAnswer, ChangeFacts, EnqueueAnswer, Entry, Event, JobFacts};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    match &entry.event {
        Event::Enqueued { now, jobs } => {
            for (index, (facts, answer)) in jobs.iter().enumerate() {
                // An earlier job of the same batch may hold the key.
                let earlier = jobs.iter().take(index);
                let in_batch = earlier.filter(|(other, answer)| {
                    *answer == EnqueueAnswer::Created
                        && other.queue == facts.queue
                        && other.unique.as_ref().map(|unique| &unique.key)
                            == facts.unique.as_ref().map(|unique| &unique.key)
                });
                let in_batch: Vec<JobId> = in_batch.map(|(other, _)| other.id).collect();
                check_enqueue(ledger, facts, *answer, &in_batch, *now, findings);
            }
        }
        Event::Fired(fire) => {
            let created = fire.created.as_deref().unwrap_or_default();
            for facts in fire.jobs.iter().filter(|facts| created.contains(&facts.id)) {
                check_created(ledger, facts, fire.now, findings);
            }
        }
        Event::Changed {
            now,
            job,
            change: ChangeFacts::Revive { .. },
            answer: ChangeAnswer::Now(_, facts),
            ..
        } => {
            let record = ledger.jobs.get(job).map(|record| &record.facts);
            if let Some(facts) = facts.as_ref().or(record) {
                check_created(ledger, facts, *now, findings);
            }
        }
        _ => {}
    }
}

fn check_enqueue(
    ledger: &Ledger,
    facts: &JobFacts,
    answer: EnqueueAnswer,
    in_batch: &[JobId],
    now: Timestamp,
    findings: &mut Findings,
) {
    match answer {
        EnqueueAnswer::Created => {
            check_created(ledger, facts, now, findings);
            if let (Some(_), Some(first)) = (&facts.unique, in_batch.first()) {
                findings.add(Invariant::I3, facts.id, || {
                    format!("job {first} of the same batch holds its key")
                });
            }
        }
        EnqueueAnswer::Duplicate(id) if id != facts.id && !in_batch.contains(&id) => {
            let holder = ledger.jobs.get(&id);
            let holds = holder.is_some_and(|holder| {
                holder.holds_key(now) || ledger.removed.contains(&id) || holder.facts.id == facts.id
            });
            if !holds {
                findings.add(Invariant::I3, facts.id, || {
                    format!("the enqueue was refused for job {id}, which does not hold the key")
                });
            }
        }
        EnqueueAnswer::Replaced(id) if !in_batch.contains(&id) => {
            let holder = ledger.jobs.get(&id);
            if !holder.is_some_and(|holder| holder.state == State::Waiting) {
                findings.add(Invariant::I3, id, || {
                    "a replaced job must be waiting".to_owned()
                });
            }
        }
        _ => {}
    }
}

/// No other job may hold the key of a job that starts to wait.
fn check_created(ledger: &Ledger, facts: &JobFacts, now: Timestamp, findings: &mut Findings) {
    let Some(unique) = &facts.unique else { return };
    let key = (facts.queue.clone(), unique.key.clone());
    // The call may have been on its way for long, and its time may be old: a hold that has expired
    // for another caller has expired.
    let now = ledger.latest.map_or(now, |latest| latest.max(now));
    for id in ledger.keys.get(&key).into_iter().flatten() {
        let other = ledger.jobs.get(id).filter(|_| *id != facts.id);
        let holds = other.filter(|_| !ledger.removed.contains(id));
        if holds.is_some_and(|other| other.holds_key(now)) {
            findings.add(Invariant::I3, facts.id, || {
                format!("job {id} holds its unique key already")
            });
        }
    }
}
