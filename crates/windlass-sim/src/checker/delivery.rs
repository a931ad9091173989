//! Nothing acknowledged is lost, nothing is invented, and everything ends.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::JobId;

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{EnqueueAnswer, Entry, Event, Final, History, digest_of};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    match &entry.event {
        Event::Started { attempt, payload } => {
            let record = ledger.jobs.get(&attempt.job);
            let expected = record.map(|record| record.facts.payload);
            if expected.is_some_and(|expected| expected != *payload) {
                findings.add(Invariant::I11, attempt.job, || {
                    "the handler got another payload".to_owned()
                });
            }
        }
        Event::Enqueued { jobs, .. } => {
            let created = |(_, answer): &(_, _)| *answer == EnqueueAnswer::Created;
            let full = |(_, answer): &(_, _)| *answer == EnqueueAnswer::Full;
            let first = jobs.iter().find(|job| created(job));
            // With `AllOrNone`, a full queue is an error of the whole enqueue.
            let is_whole = first.is_none() || !jobs.iter().any(full);
            if let Some((facts, _)) = first.filter(|_| !is_whole) {
                findings.add(Invariant::I2, facts.id, || {
                    "only a part of a batch was stored".to_owned()
                });
            }
            for (facts, _) in jobs {
                let submitted = ledger.submitted.get(&facts.id);
                let is_reserved = facts.queue.is_reserved();
                if !is_reserved
                    && submitted.is_none_or(|submitted| submitted.payload != facts.payload)
                {
                    findings.add(Invariant::I2, facts.id, || {
                        "the store got a job that no one submitted".to_owned()
                    });
                }
            }
        }
        _ => {}
    }
}

pub(super) fn check_last(ledger: &Ledger, history: &History, findings: &mut Findings) {
    let Some(last) = &history.last else { return };
    let jobs: BTreeSet<JobId> = last.jobs.iter().map(|job| job.id).collect();
    let exists = |id: JobId| jobs.contains(&id) || ledger.removed.contains(&id);
    check_answers(ledger, history, &exists, findings);
    check_acknowledged(ledger, last, findings);
    check_jobs(ledger, last, findings);
    for (id, record) in &ledger.jobs {
        if !exists(*id) {
            findings.add(Invariant::I1, *id, || {
                format!("the store lost a job that was {}", record.state)
            });
        }
    }
}

/// Every job that an answer names is in the store.
pub(super) fn check_answers(
    ledger: &Ledger,
    history: &History,
    exists: &impl Fn(JobId) -> bool,
    findings: &mut Findings,
) {
    for entry in &history.entries {
        let Event::Answered {
            batch,
            answers: Some(answers),
        } = &entry.event
        else {
            continue;
        };
        let ids = ledger.batches.get(batch).into_iter().flatten();
        for (id, answer) in ids.zip(answers) {
            let id = match answer {
                EnqueueAnswer::Created => *id,
                EnqueueAnswer::Duplicate(other) | EnqueueAnswer::Replaced(other) => *other,
                EnqueueAnswer::Full => continue,
            };
            if !exists(id) {
                findings.add(Invariant::I1, id, || {
                    "the client got an answer that names this job; the store has no such job"
                        .to_owned()
                });
            }
        }
    }
}

/// Every end of an attempt that the store confirmed is in the store.
pub(super) fn check_acknowledged(ledger: &Ledger, last: &Final, findings: &mut Findings) {
    let attempts: BTreeMap<JobId, _> = last
        .jobs
        .iter()
        .map(|job| job.id)
        .zip(&last.attempts)
        .collect();
    for (attempt, outcome) in &ledger.acknowledged {
        let Some(rows) = attempts.get(&attempt.job) else {
            continue;
        };
        let row = rows.iter().find(|row| row.attempt == attempt.attempt);
        if row.map(|row| row.outcome) != Some(*outcome) {
            findings.add(Invariant::I1, attempt.job, || {
                let (number, outcome) = (attempt.attempt, outcome.name());
                format!("the store confirmed to the worker that attempt {number} ended as {outcome}, but has {row:?}")
            });
        }
    }
}

fn check_jobs(ledger: &Ledger, last: &Final, findings: &mut Findings) {
    for job in &last.jobs {
        if job.queue.is_reserved() {
            continue;
        }
        let Some(record) = ledger.jobs.get(&job.id) else {
            findings.add(Invariant::I2, job.id, || {
                "the store has a job that no one stored".to_owned()
            });
            continue;
        };
        if record.facts.payload != digest_of(job.payload.as_str()) {
            findings.add(Invariant::I2, job.id, || {
                "the stored payload is another one".to_owned()
            });
        }
        if !job.state().is_final() {
            findings.add(Invariant::I6, job.id, || {
                format!("the job is {} after the drain", job.state())
            });
        }
    }
}
