//! Checks the checker: damages copies of the history of a run, and looks whether it is found.

use std::collections::BTreeMap;

use windlass_core::{Delivery, JobId, Outcome, State};

use crate::checker::{Invariant, check_observed};
use crate::history::{EnqueueAnswer, Event, History};

/// Damages a history, if it has something to damage. Returns which invariant must not hold then.
type Damage = fn(&mut History) -> Option<Invariant>;

const DAMAGES: [(&str, Damage); 6] = [
    ("an acknowledged job is lost", lose_job),
    ("a job is stored twice", store_twice),
    ("an effect is lost", lose_effect),
    ("an at-most-once job starts twice", start_twice),
    ("the end of an attempt is lost", lose_attempt),
    ("an acknowledged end is another one", change_end),
];

/// Which damages the checker found. A damage that does not apply to the history is left out.
pub(super) fn find_planted(history: &History) -> BTreeMap<String, bool> {
    let found = DAMAGES.iter().filter_map(|(name, damage)| {
        let mut damaged = history.clone();
        let invariant = damage(&mut damaged)?;
        let violations = check_observed(&damaged);
        let is_found = violations.iter().any(|found| found.invariant == invariant);
        Some(((*name).to_owned(), is_found))
    });
    found.collect()
}

fn lose_job(history: &mut History) -> Option<Invariant> {
    let calls: BTreeMap<u64, JobId> = history
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Submitted { batch, jobs, .. } => Some((*batch, jobs.first()?.id)),
            _ => None,
        })
        .collect();
    let id = history
        .entries
        .iter()
        .find_map(|entry| match &entry.event {
            Event::Answered {
                batch,
                answers: Some(answers),
            } if answers.first() == Some(&EnqueueAnswer::Created) => calls.get(batch).copied(),
            _ => None,
        })?;
    let last = history.last.as_mut()?;
    let index = last.jobs.iter().position(|job| job.id == id)?;
    last.jobs.remove(index);
    last.attempts.remove(index);
    Some(Invariant::I1)
}

fn store_twice(history: &mut History) -> Option<Invariant> {
    let last = history.last.as_mut()?;
    let mut job = last
        .jobs
        .iter()
        .find(|job| job.occurrence.is_none())?
        .clone();
    job.id = JobId::from_u128(u128::MAX);
    last.jobs.push(job);
    last.attempts.push(Vec::new());
    Some(Invariant::I2)
}

fn lose_effect(history: &mut History) -> Option<Invariant> {
    let last = history.last.as_ref()?;
    let mut jobs = last.jobs.iter();
    let id = jobs.find(|job| job.state() == State::Succeeded)?.id;
    let is_effect = |event: &Event| matches!(event, Event::Effect { attempt } if attempt.job == id);
    history.entries.retain(|entry| !is_effect(&entry.event));
    Some(Invariant::I23)
}

fn start_twice(history: &mut History) -> Option<Invariant> {
    let last = history.last.as_ref()?;
    let is_limited = |id: JobId| {
        let mut jobs = last.jobs.iter().filter(|job| job.id == id);
        jobs.any(|job| job.delivery == Delivery::AtMostOnce)
    };
    let start = history.entries.iter().find(
        |entry| matches!(&entry.event, Event::Started { attempt, .. } if is_limited(attempt.job)),
    );
    let mut second = start?.clone();
    second.node = u32::MAX;
    history.entries.push(second);
    Some(Invariant::I6b)
}

fn lose_attempt(history: &mut History) -> Option<Invariant> {
    let last = history.last.as_mut()?;
    last.attempts.iter_mut().find_map(Vec::pop)?;
    Some(Invariant::I12)
}

fn change_end(history: &mut History) -> Option<Invariant> {
    let end = history
        .entries
        .iter_mut()
        .find_map(|entry| match &mut entry.event {
            Event::SettleAcknowledged { outcome, .. } => Some(outcome),
            _ => None,
        })?;
    *end = if *end == Outcome::Succeeded {
        Outcome::Failed
    } else {
        Outcome::Succeeded
    };
    Some(Invariant::I1)
}
