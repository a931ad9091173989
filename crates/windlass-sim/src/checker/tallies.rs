//! Numbers that the store keeps, compared with a recount.

use std::collections::BTreeMap;

use windlass_core::{
    ActionId, ActionTally, GroupKey, GroupMember, Job, QueueName, RevivalResult, State,
};
use windlass_store::Counts;

use super::ledger::Ledger;
use super::{Findings, Invariant};
use crate::history::{Final, History};

pub(super) fn check_last(ledger: &Ledger, history: &History, findings: &mut Findings) {
    let Some(last) = &history.last else { return };
    check_counts(last, findings);
    check_groups(last, findings);
    for (action, tally) in &last.tallies {
        check_tally(ledger, last, *action, *tally, findings);
    }
}

fn check_counts(last: &Final, findings: &mut Findings) {
    let Some(counts) = &last.counts else { return };
    let mut expected: BTreeMap<QueueName, [u64; 5]> = BTreeMap::new();
    for job in &last.jobs {
        let [waiting, running, succeeded, dead, cancelled] =
            expected.entry(job.queue.clone()).or_default();
        match job.state() {
            State::Waiting => *waiting += 1,
            State::Running => *running += 1,
            State::Succeeded => *succeeded += 1,
            State::Dead(_) => *dead += 1,
            State::Cancelled => *cancelled += 1,
        }
    }
    let found = counts.iter().map(|(queue, counts)| {
        let Counts {
            scheduled, ready, ..
        } = counts;
        let numbers = [
            scheduled + ready,
            counts.running,
            counts.succeeded,
            counts.dead,
            counts.cancelled,
        ];
        (queue.clone(), numbers)
    });
    let found: BTreeMap<QueueName, [u64; 5]> =
        found.filter(|(_, numbers)| *numbers != [0; 5]).collect();
    if found != expected {
        findings.add(Invariant::I19, None, || {
            format!(
                "the counts (waiting, running, succeeded, dead, cancelled) are {found:?}, a recount gives {expected:?}"
            )
        });
    }
}

fn check_groups(last: &Final, findings: &mut Findings) {
    let Some(found) = &last.groups else { return };
    let mut expected: BTreeMap<GroupKey, (u64, u64)> = BTreeMap::new();
    for (key, member) in last.jobs.iter().filter_map(Job::group) {
        let (dead, retrying) = expected.entry(key).or_default();
        match member {
            GroupMember::Dead => *dead += 1,
            GroupMember::Retrying => *retrying += 1,
        }
    }
    if *found != expected {
        findings.add(Invariant::I19, None, || {
            format!(
                "the failure groups (dead, retrying) are {found:?}, a recount gives {expected:?}"
            )
        });
    }
}

/// An action changed as many jobs as the history says, and their results are those of the jobs. A
/// job that another action or an operator revived later counts in the number of changed jobs only.
fn check_tally(
    ledger: &Ledger,
    last: &Final,
    action: ActionId,
    tally: ActionTally,
    findings: &mut Findings,
) {
    let changed = ledger.actions.iter();
    let changed = changed.filter(|(id, _)| *id == action.as_u128()).count() as u64;
    if tally.changed() != changed {
        findings.add(Invariant::I19, None, || {
            format!("action {action} counts {tally:?}, but changed {changed} jobs")
        });
    }
    let results = last.jobs.iter().filter_map(Job::revival_result);
    let results: Vec<RevivalResult> = results
        .filter(|(id, _)| *id == action)
        .map(|(_, result)| result)
        .collect();
    for (result, found) in [
        (RevivalResult::Pending, tally.pending),
        (RevivalResult::Recovered, tally.recovered),
        (RevivalResult::FailedAgain, tally.failed_again),
    ] {
        let expected = results.iter().filter(|one| **one == result).count() as u64;
        let is_equal = match result {
            // A removed job, or one that was revived again, keeps the result that it had.
            RevivalResult::Recovered | RevivalResult::FailedAgain => found >= expected,
            RevivalResult::Pending | RevivalResult::Gone => found == expected,
        };
        if !is_equal {
            findings.add(Invariant::I19, None, || {
                format!("action {action} counts {tally:?}, a recount finds {expected} {result:?}")
            });
        }
    }
}
