//! Schedules: every occurrence once, or recorded as skipped.
//!
//! The occurrences of a schedule with a fixed interval are computed here by multiplication, not
//! with the code of `core`.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_core::Timestamp;

use super::ledger::{Ledger, ScheduleRecord};
use super::{Findings, Invariant};
use crate::history::{Entry, Event, FireFacts, History};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    let Event::Fired(fire) = &entry.event else {
        return;
    };
    if fire.created.is_none() {
        return;
    }
    let Some(record) = ledger.schedules.get(&fire.schedule) else {
        findings.add(Invariant::I17, None, || {
            format!("schedule {} fired, which does not exist", fire.schedule)
        });
        return;
    };
    if record.facts.version != fire.version {
        findings.add(Invariant::I17, None, || {
            let current = record.facts.version;
            format!(
                "version {} of a schedule fired, the current one is {current}",
                fire.version
            )
        });
    }
    if fire.jobs.len() > record.facts.catch_up_max as usize {
        findings.add(Invariant::I16, None, || {
            let max = record.facts.catch_up_max;
            format!(
                "{} occurrences fired at once, the limit is {max}",
                fire.jobs.len()
            )
        });
    }
    check_fired(record, fire, findings);
}

fn check_fired(record: &ScheduleRecord, fire: &FireFacts, findings: &mut Findings) {
    let created = fire.created.as_deref().unwrap_or_default();
    for facts in &fire.jobs {
        let Some((_, at)) = facts.occurrence else {
            continue;
        };
        if record.fired.contains(&at) && created.contains(&facts.id) {
            findings.add(Invariant::I15, facts.id, || {
                format!("the occurrence at {at} fired twice")
            });
        }
        let must_exist = facts.unique.is_none() && !record.fired.contains(&at);
        if must_exist && !created.contains(&facts.id) {
            findings.add(Invariant::I15, facts.id, || {
                format!("the occurrence at {at} fired, but has no job")
            });
        }
        if at > fire.now {
            findings.add(Invariant::I15, facts.id, || {
                format!("the occurrence at {at} fired at {}, too early", fire.now)
            });
        }
        if !is_occurrence(record, at) {
            findings.add(Invariant::I15, facts.id, || {
                format!("{at} is no occurrence of the schedule")
            });
        }
    }
}

fn is_occurrence(record: &ScheduleRecord, at: Timestamp) -> bool {
    let Some(every) = record.facts.every else {
        return true;
    };
    let since = at.since(record.facts.created_at).as_micros();
    since > 0
        && since.is_multiple_of(every.as_micros().max(1))
        && record.facts.ends_at.is_none_or(|end| at <= end)
}

/// The most occurrences of one schedule that are checked.
const OCCURRENCES_MAX: usize = 10_000;

pub(super) fn check_last(ledger: &Ledger, history: &History, findings: &mut Findings) {
    let Some(last) = &history.last else { return };
    for (id, record) in &ledger.schedules {
        let stored = last.schedules.iter().find(|schedule| schedule.id == *id);
        let Some(stored) = stored else { continue };
        let (Some(every), Some(until)) = (record.facts.every, stored.last_at) else {
            continue;
        };
        for at in occurrences(record, every, until) {
            let is_fired = record.fired.contains(&at);
            let is_skipped = |range: &(Timestamp, Timestamp)| range.0 <= at && at <= range.1;
            let is_skipped = record.skipped.iter().any(is_skipped);
            if !is_fired && !is_skipped {
                findings.add(Invariant::I15, None, || {
                    format!("the occurrence of {id} at {at} neither fired nor was it skipped")
                });
            }
            if is_fired && is_skipped {
                findings.add(Invariant::I15, None, || {
                    format!("the occurrence of {id} at {at} fired, and is recorded as skipped")
                });
            }
        }
        let ends_at = record.facts.ends_at;
        let next = until.saturating_add(every);
        if stored.next_at.is_none() && ends_at.is_some_and(|end| next <= end) {
            findings.add(Invariant::I15, None, || {
                format!("schedule {id} stopped after {until}, before its end")
            });
        }
    }
}

fn occurrences(record: &ScheduleRecord, every: Duration, until: Timestamp) -> BTreeSet<Timestamp> {
    let mut at = record.facts.created_at.saturating_add(every);
    let mut found = BTreeSet::new();
    while at <= until
        && record.facts.ends_at.is_none_or(|end| at <= end)
        && found.len() < OCCURRENCES_MAX
    {
        found.insert(at);
        at = at.saturating_add(every);
    }
    found
}
