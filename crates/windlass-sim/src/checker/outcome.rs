//! States and outcomes: legal steps, one end for each attempt, and nothing that no step explains.

use windlass_core::{DeadReason, Delivery, Outcome, State, Verdict};

use super::ledger::{Ledger, Record};
use super::{Findings, Invariant};
use crate::history::{
    ChangeAnswer, ChangeFacts, EndFacts, Entry, Event, Final, History, Reported, SettleAnswer,
};

pub(super) fn check(ledger: &Ledger, entry: &Entry, findings: &mut Findings) {
    match &entry.event {
        Event::Settled {
            attempt,
            reported,
            answer: SettleAnswer::Done(end),
            ..
        } => {
            let Some(record) = ledger.jobs.get(&attempt.job) else {
                return;
            };
            if record.ends.contains_key(&attempt.attempt) {
                findings.add(Invariant::I10, attempt.job, || {
                    format!("attempt {} ended twice", attempt.attempt)
                });
            }
            if !may_end_as(*reported, end.outcome, record.facts.delivery) {
                findings.add(Invariant::I10, attempt.job, || {
                    format!(
                        "{reported:?} was reported, {} was stored",
                        end.outcome.name()
                    )
                });
            }
            check_end(record, end, findings);
        }
        Event::Swept { lost, expired, now } => {
            for (attempt, end) in lost {
                if let Some(record) = ledger.jobs.get(&attempt.job) {
                    check_end(record, end, findings);
                }
            }
            for job in expired {
                let record = ledger.jobs.get(job);
                let is_due = record.is_some_and(|record| {
                    let has_passed = record.facts.deadline.is_some_and(|end| end < *now);
                    record.state == State::Waiting && has_passed
                });
                if !is_due {
                    findings.add(Invariant::I4, *job, || {
                        format!("a sweep at {now} expired a job whose deadline has not passed")
                    });
                }
            }
        }
        Event::Changed {
            job,
            change,
            action,
            answer,
            ..
        } => {
            if let Some(record) = ledger.jobs.get(job) {
                check_change(record, *change, answer, findings);
            }
            if let Some(action) = action
                && *answer != ChangeAnswer::Unchanged
                && ledger.actions.contains(&(*action, *job))
            {
                findings.add(Invariant::I4, *job, || {
                    "one action changed the job twice".to_owned()
                });
            }
        }
        _ => {}
    }
}

/// Which outcomes may follow from a report.
fn may_end_as(reported: Reported, outcome: Outcome, delivery: Delivery) -> bool {
    match reported {
        Reported::Succeeded => outcome == Outcome::Succeeded,
        Reported::Failed | Reported::Unrecoverable => outcome == Outcome::Failed,
        Reported::TimedOut => outcome == Outcome::TimedOut,
        Reported::Lost => matches!(outcome, Outcome::Lost | Outcome::TimedOut),
        Reported::Snoozed => matches!(outcome, Outcome::Snoozed | Outcome::Failed),
        Reported::Released => {
            outcome == Outcome::Released
                || (outcome == Outcome::Lost && delivery == Delivery::AtMostOnce)
        }
        Reported::Cancelled => outcome == Outcome::Cancelled,
    }
}

/// The end of an attempt leads to a state that fits its outcome.
fn check_end(record: &Record, end: &EndFacts, findings: &mut Findings) {
    let job = record.facts.id;
    let fits = match end.outcome {
        Outcome::Succeeded => end.state == State::Succeeded,
        Outcome::Cancelled => end.state == State::Cancelled,
        Outcome::Snoozed | Outcome::Released => {
            matches!(
                end.state,
                State::Waiting | State::Cancelled | State::Dead(_)
            )
        }
        Outcome::Failed | Outcome::TimedOut | Outcome::Lost => end.state != State::Succeeded,
    };
    if !fits {
        findings.add(Invariant::I4, job, || {
            format!("{} led to {}", end.outcome.name(), end.state)
        });
    }
    let failures = record.failures + u32::from(end.outcome.counts_as_failure());
    if end.failures != failures {
        findings.add(Invariant::I10, job, || {
            format!("{} failures became {}", record.failures, end.failures)
        });
    }
    let counts = end.outcome.counts_as_failure();
    if counts && record.facts.delivery == Delivery::AtMostOnce && end.state == State::Waiting {
        findings.add(Invariant::I6b, job, || {
            format!(
                "an at-most-once job waits again after {}",
                end.outcome.name()
            )
        });
    }
    let verdict = match (end.state, end.run_at) {
        (State::Waiting, Some(run_at)) => Verdict::Waiting { run_at },
        (State::Succeeded, _) => Verdict::Succeeded,
        (State::Dead(reason), _) => Verdict::Dead(reason),
        (State::Cancelled, _) => Verdict::Cancelled,
        (State::Waiting, None) | (State::Running, _) => {
            findings.add(Invariant::I4, job, || {
                format!("an end led to {}", end.state)
            });
            return;
        }
    };
    if record.state == State::Running && verdict.state() != end.state {
        findings.add(Invariant::I4, job, || {
            "the state does not follow".to_owned()
        });
    }
}

fn check_change(
    record: &Record,
    change: ChangeFacts,
    answer: &ChangeAnswer,
    findings: &mut Findings,
) {
    let before = record.state;
    let is_legal = match answer {
        ChangeAnswer::Unchanged => true,
        ChangeAnswer::Removed => change == ChangeFacts::Purge && before.is_final(),
        ChangeAnswer::Now(after, _) => match change {
            ChangeFacts::Cancel => match before {
                State::Waiting => *after == State::Cancelled,
                State::Running => *after == State::Running,
                _ => false,
            },
            ChangeFacts::Revive { consent, .. } => {
                let may_run = consent || before != State::Dead(DeadReason::Lost);
                let is_over = matches!(before, State::Dead(_) | State::Cancelled);
                may_run && is_over && *after == State::Waiting
            }
            ChangeFacts::RunNow | ChangeFacts::Edit => {
                before == State::Waiting && *after == State::Waiting
            }
            ChangeFacts::Patch => before != State::Running && *after == before,
            ChangeFacts::Resolve => *after == State::Succeeded,
            ChangeFacts::Purge => false,
        },
    };
    if !is_legal {
        findings.add(Invariant::I4, record.facts.id, || {
            format!("{change:?} of a job that is {before} led to {answer:?}")
        });
    }
}

pub(super) fn check_last(ledger: &Ledger, history: &History, findings: &mut Findings) {
    let Some(last) = &history.last else { return };
    check_final_jobs(ledger, last, findings);
}

fn check_final_jobs(ledger: &Ledger, last: &Final, findings: &mut Findings) {
    for (job, attempts) in last.jobs.iter().zip(&last.attempts) {
        let Some(record) = ledger.jobs.get(&job.id) else {
            continue;
        };
        let expected = (record.state, record.attempt, record.failures);
        let found = (job.state(), job.attempt, job.failures);
        if expected != found {
            findings.add(Invariant::I9, job.id, || {
                format!(
                    "(state, attempt, failures) should be {expected:?}, the store has {found:?}"
                )
            });
        }
        let numbers: Vec<u32> = attempts.iter().map(|row| row.attempt).collect();
        let all: Vec<u32> = (1..=job.attempt).collect();
        let running = u32::from(job.state() == State::Running);
        let ended: Vec<u32> = (1..=job.attempt.saturating_sub(running)).collect();
        if numbers != all && numbers != ended {
            findings.add(Invariant::I12, job.id, || {
                format!(
                    "{} attempts were claimed, these have an end: {numbers:?}",
                    job.attempt
                )
            });
        }
        for row in attempts {
            let expected = record.ends.get(&row.attempt);
            if expected.is_some_and(|expected| *expected != row.outcome) {
                findings.add(Invariant::I10, job.id, || {
                    format!(
                        "attempt {} ended as {expected:?}, stored {:?}",
                        row.attempt, row.outcome
                    )
                });
            }
        }
    }
}
