//! Checks a history that has no steps of the store: only what clients and handlers saw, and the
//! final read. That is what can be known of real processes that are killed.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::retry::AttemptLimit;
use windlass_core::{Delivery, Job, JobId, Outcome, State};
use windlass_store::{Attempt, AttemptId};

use super::ledger::Ledger;
use super::{Findings, Invariant, Violation, delivery, effects};
use crate::history::{Event, Final, History, JobFacts, digest_of};

/// Checks the invariants that need no steps of the store. Returns the violations.
///
/// A job whose enqueue has no answer may be in the store or not. All jobs must be finished.
pub fn check_observed(history: &History) -> Vec<Violation> {
    let (mut ledger, mut findings) = (Ledger::default(), Findings::default());
    for (index, entry) in history.entries.iter().enumerate() {
        let before = findings.0.len();
        effects::check_handlers(&ledger, entry, &mut findings);
        for violation in findings.0.iter_mut().skip(before) {
            violation.events.push(index);
        }
        ledger.apply(entry);
    }
    if let Some(last) = &history.last {
        check_last(&ledger, history, last, &mut findings);
    }
    for violation in &mut findings.0 {
        violation.show_events(history);
    }
    findings.0
}

fn check_last(ledger: &Ledger, history: &History, last: &Final, findings: &mut Findings) {
    let jobs: BTreeMap<JobId, &Job> = last.jobs.iter().map(|job| (job.id, job)).collect();
    let exists = |id: JobId| jobs.contains_key(&id);
    delivery::check_answers(ledger, history, &exists, findings);
    delivery::check_acknowledged(ledger, last, findings);
    check_batches(history, &exists, findings);
    check_payloads(ledger, history, findings);
    check_keys(last, findings);
    check_occurrences(last, findings);
    for (job, attempts) in last.jobs.iter().zip(&last.attempts) {
        if !job.queue.is_reserved() {
            check_origin(ledger, job, findings);
            check_attempts(job, attempts, findings);
            check_end(ledger, job, attempts, findings);
        }
    }
    check_starts(ledger, &jobs, findings);
}

/// A batch that is all or none is stored as a whole. Jobs with a unique key may be duplicates.
fn check_batches(history: &History, exists: &impl Fn(JobId) -> bool, findings: &mut Findings) {
    let submitted = history
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Submitted {
                batch,
                all_or_none: true,
                jobs,
            } => Some((batch, jobs)),
            _ => None,
        });
    for (batch, jobs) in submitted {
        let jobs = jobs.iter().filter(|facts| facts.unique.is_none());
        let (stored, missing): (Vec<&JobFacts>, Vec<&JobFacts>) =
            jobs.partition(|facts| exists(facts.id));
        if let (Some(facts), false) = (stored.first(), missing.is_empty()) {
            let (stored, missing) = (stored.len(), missing.len());
            findings.add(Invariant::I2, facts.id, || {
                format!("{stored} jobs of batch {batch} are stored, {missing} are not")
            });
        }
    }
}

/// What a handler got is what was submitted.
fn check_payloads(ledger: &Ledger, history: &History, findings: &mut Findings) {
    for entry in &history.entries {
        let Event::Started { attempt, payload } = &entry.event else {
            continue;
        };
        let submitted = ledger.submitted.get(&attempt.job);
        if submitted.is_some_and(|facts| facts.payload != *payload) {
            findings.add(Invariant::I11, attempt.job, || {
                "the handler got another payload".to_owned()
            });
        }
    }
}

/// One unique key belongs to one job, for as long as the job holds it. A dead job does not.
fn check_keys(last: &Final, findings: &mut Findings) {
    let mut holders: BTreeMap<_, Vec<&Job>> = BTreeMap::new();
    for job in &last.jobs {
        let is_dead = matches!(job.state(), State::Dead(_));
        if let Some(unique) = job.unique.as_ref().filter(|_| !is_dead) {
            let key = (&job.queue, &unique.key);
            holders.entry(key).or_default().push(job);
        }
    }
    for jobs in holders.values_mut() {
        jobs.sort_by_key(|job| (job.created_at, job.id));
        for pair in jobs.windows(2) {
            let [first, second] = pair else { continue };
            if first.key_until() > Some(second.created_at) {
                findings.add(Invariant::I3, second.id, || {
                    format!("job {} holds its unique key already", first.id)
                });
            }
        }
    }
}

/// Every occurrence of a schedule has one job, and none is missing between the first and the last.
///
/// The schedules must have a fixed interval and must catch up with everything that they missed.
fn check_occurrences(last: &Final, findings: &mut Findings) {
    for schedule in &last.schedules {
        let mut fired = BTreeSet::new();
        for job in &last.jobs {
            let Some(occurrence) = job.occurrence else {
                continue;
            };
            let is_new =
                occurrence.schedule_id != schedule.id || fired.insert(occurrence.scheduled_for);
            if !is_new {
                findings.add(Invariant::I15, job.id, || {
                    let at = occurrence.scheduled_for;
                    format!("the occurrence at {at} has two jobs")
                });
            }
        }
        let gaps = fired.iter().zip(fired.iter().skip(1));
        let gaps = gaps.map(|(at, next)| (next.since(*at), *at));
        let gaps: Vec<_> = gaps.collect();
        let shortest = gaps.iter().map(|(gap, _)| *gap).min();
        for (gap, at) in &gaps {
            if Some(*gap) != shortest {
                findings.add(Invariant::I15, None, || {
                    let name = &schedule.definition.name;
                    format!(
                        "{gap:?} after {at}, schedule {name} fired again; it should be {shortest:?}"
                    )
                });
            }
        }
        if fired.last() != schedule.last_at.as_ref() {
            findings.add(Invariant::I15, None, || {
                let (name, at) = (&schedule.definition.name, schedule.last_at);
                let last = fired.last();
                format!("the last job of schedule {name} is for {last:?}, the schedule says {at:?}")
            });
        }
    }
}

/// Someone submitted the job, or a schedule fired it.
fn check_origin(ledger: &Ledger, job: &Job, findings: &mut Findings) {
    match ledger.submitted.get(&job.id) {
        Some(facts) if facts.payload != digest_of(job.payload.as_str()) => {
            findings.add(Invariant::I2, job.id, || {
                "the stored payload is another one".to_owned()
            });
        }
        None if job.occurrence.is_none() => findings.add(Invariant::I2, job.id, || {
            "the store has a job that no one submitted, or one submission is there twice".to_owned()
        }),
        _ => {}
    }
}

/// The history of attempts is complete and in order, and stops at the limits.
fn check_attempts(job: &Job, attempts: &[Attempt], findings: &mut Findings) {
    let numbers: Vec<u32> = attempts.iter().map(|row| row.attempt).collect();
    let all: Vec<u32> = (1..=job.attempt).collect();
    if numbers != all {
        findings.add(Invariant::I12, job.id, || {
            let claimed = job.attempt;
            format!("{claimed} attempts were claimed, these have an end: {numbers:?}")
        });
    }
    for pair in attempts.windows(2) {
        let [before, after] = pair else { continue };
        if after.started_at < before.finished_at {
            findings.add(Invariant::I5, job.id, || {
                let (number, end) = (after.attempt, before.finished_at);
                let start = after.started_at;
                format!("attempt {number} started at {start}, the one before ended at {end}")
            });
        }
        if before.outcome == Outcome::Succeeded {
            findings.add(Invariant::I4, job.id, || {
                format!("attempt {} follows a success", after.attempt)
            });
        }
    }
    let failures = attempts.iter();
    let failures = failures
        .filter(|row| row.outcome.counts_as_failure())
        .count();
    if failures != job.failures as usize {
        findings.add(Invariant::I10, job.id, || {
            format!(
                "{failures} attempts failed, the job counts {}",
                job.failures
            )
        });
    }
    let limit = job.max_attempts.map(AttemptLimit::get);
    if limit.is_some_and(|limit| failures > limit as usize) {
        findings.add(Invariant::I7, job.id, || {
            format!("{failures} attempts failed, the limit is {limit:?}")
        });
    }
}

/// The job is finished in a way that fits its last attempt, and a success had its effect.
fn check_end(ledger: &Ledger, job: &Job, attempts: &[Attempt], findings: &mut Findings) {
    let last = attempts.last();
    let outcome = last.map(|row| row.outcome);
    match job.state() {
        State::Waiting | State::Running => findings.add(Invariant::I6, job.id, || {
            format!("the job is {} after the drain", job.state())
        }),
        State::Succeeded if outcome != Some(Outcome::Succeeded) => {
            findings.add(Invariant::I10, job.id, || {
                format!("the job succeeded, its last attempt ended as {outcome:?}")
            });
        }
        State::Dead(_) | State::Cancelled if outcome == Some(Outcome::Succeeded) => {
            findings.add(Invariant::I10, job.id, || {
                format!("the last attempt succeeded, the job is {}", job.state())
            });
        }
        State::Succeeded => {
            let has_effect = last.is_some_and(|row| {
                ledger.effects_of.contains_key(&AttemptId {
                    job: job.id,
                    attempt: row.attempt,
                })
            });
            if !has_effect {
                findings.add(Invariant::I23, job.id, || {
                    "the attempt that succeeded had no effect".to_owned()
                });
            }
        }
        State::Dead(_) | State::Cancelled => {}
    }
}

/// Every start belongs to an attempt in the store. An at-most-once job starts and acts once.
fn check_starts(ledger: &Ledger, jobs: &BTreeMap<JobId, &Job>, findings: &mut Findings) {
    let mut starts: BTreeMap<JobId, u32> = BTreeMap::new();
    for (attempt, count) in &ledger.starts_of {
        *starts.entry(attempt.job).or_default() += count;
        let job = jobs.get(&attempt.job);
        if job.is_none_or(|job| job.attempt < attempt.attempt) {
            findings.add(Invariant::I12, attempt.job, || {
                format!(
                    "attempt {} started, the store has no such attempt",
                    attempt.attempt
                )
            });
        }
    }
    let mut effects: BTreeMap<JobId, u32> = BTreeMap::new();
    for (attempt, count) in &ledger.effects_of {
        *effects.entry(attempt.job).or_default() += count;
    }
    for (id, job) in jobs
        .iter()
        .filter(|(_, job)| job.delivery == Delivery::AtMostOnce)
    {
        let starts = starts.get(id).copied().unwrap_or(0);
        let effects = effects.get(id).copied().unwrap_or(0);
        if starts > 1 || effects > 1 {
            findings.add(Invariant::I6b, job.id, || {
                format!("an at-most-once job started {starts} times and had {effects} effects")
            });
        }
    }
}

#[cfg(test)]
mod tests;
