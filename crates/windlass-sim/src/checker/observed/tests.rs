//! Each test takes a history without a violation, breaks one thing, and names the invariant.

use windlass_core::retry::AttemptLimit;
use windlass_core::{
    Delivery, FinalState, Finish, Job, JobId, Key, Kind, NewJob, Outcome, StateDetails, Timestamp,
    Unique,
};
use windlass_store::{Attempt, AttemptId};

use super::check_observed;
use crate::checker::Invariant;
use crate::history::{EnqueueAnswer, Entry, Event, Final, History, JobFacts, digest_of};

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(second * 1_000_000).expect("an instant")
}

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

fn job(number: u128, delivery: Delivery) -> Job {
    let mut new = NewJob::new(Kind::new("work").expect("a kind"));
    new.delivery = delivery;
    let mut job = new.into_job(id(number), at(0)).expect("a job");
    job.attempt = 1;
    job.state_details = StateDetails::Finished(Finish {
        finished_at: at(2),
        state: FinalState::Succeeded(None),
    });
    job
}

fn attempt(number: u32, outcome: Outcome, from: i64, to: i64) -> Attempt {
    Attempt {
        attempt: number,
        retry_count: 0,
        outcome,
        started_at: at(from),
        finished_at: at(to),
        worker: None,
        error: None,
        detail: None,
    }
}

/// An at-least-once job 1 and an at-most-once job 2 of one batch. Both ran and succeeded.
fn history() -> History {
    let jobs = vec![job(1, Delivery::AtLeastOnce), job(2, Delivery::AtMostOnce)];
    let facts: Vec<JobFacts> = jobs.iter().map(JobFacts::of).collect();
    let mut events = vec![
        Event::Submitted {
            batch: 0,
            all_or_none: true,
            jobs: facts,
        },
        Event::Answered {
            batch: 0,
            answers: Some(vec![EnqueueAnswer::Created; 2]),
        },
    ];
    for job in &jobs {
        let attempt = AttemptId {
            job: job.id,
            attempt: 1,
        };
        events.push(Event::Started {
            attempt,
            payload: digest_of(job.payload.as_str()),
        });
        events.push(Event::Effect { attempt });
        events.push(Event::Returned { attempt });
        events.push(Event::SettleAcknowledged {
            attempt,
            outcome: Outcome::Succeeded,
        });
    }
    let entry = |event| Entry {
        at: at(1),
        node: 1,
        event,
    };
    History {
        entries: events.into_iter().map(entry).collect(),
        last: Some(Final {
            attempts: vec![vec![attempt(1, Outcome::Succeeded, 1, 2)]; 2],
            jobs,
            ..Final::default()
        }),
    }
}

/// Breaks the history, and expects a violation of this invariant.
fn expect(invariant: Invariant, breaks: impl FnOnce(&mut History, &mut Final)) {
    let mut broken = history();
    let mut last = broken.last.take().expect("a final read");
    breaks(&mut broken, &mut last);
    broken.last = Some(last);
    let found = check_observed(&broken);
    let is_found = found.iter().any(|found| found.invariant == invariant);
    assert!(is_found, "{invariant} is not among {found:?}");
}

fn start(job: u128, attempt: u32, node: u32) -> Entry {
    let attempt = AttemptId {
        job: id(job),
        attempt,
    };
    let payload = digest_of("null");
    Entry {
        at: at(1),
        node,
        event: Event::Started { attempt, payload },
    }
}

#[test]
fn a_clean_history_has_no_violations() {
    assert_eq!(check_observed(&history()), []);
}

#[test]
fn a_job_without_an_answer_may_be_missing() {
    let mut history = history();
    history.entries.drain(1..);
    let Event::Submitted { jobs, .. } = &mut history.entries[0].event else {
        unreachable!("it is the first event")
    };
    jobs[0].id = id(7);
    jobs.truncate(1);
    history.last = Some(Final::default());
    assert_eq!(check_observed(&history), []);
}

#[test]
fn a_lost_job_is_found() {
    expect(Invariant::I1, |_, last| {
        last.jobs.remove(0);
        last.attempts.remove(0);
    });
}

#[test]
fn half_a_batch_is_found() {
    expect(Invariant::I2, |history, last| {
        history.entries.remove(1); // without an answer, the whole batch could be missing
        last.jobs.remove(0);
        last.attempts.remove(0);
    });
}

#[test]
fn a_job_that_no_one_submitted_is_found() {
    expect(Invariant::I2, |_, last| {
        last.jobs.push(job(3, Delivery::AtLeastOnce));
        last.attempts
            .push(vec![attempt(1, Outcome::Succeeded, 1, 2)]);
    });
}

#[test]
fn two_holders_of_a_unique_key_are_found() {
    let unique = Unique {
        key: Key::new("key").expect("a key"),
        unique_for: Some(std::time::Duration::from_secs(60)),
        on_duplicate: windlass_core::OnDuplicate::Keep,
    };
    expect(Invariant::I3, |_, last| {
        for job in &mut last.jobs {
            job.unique = Some(unique.clone());
        }
    });
}

#[test]
fn overlapping_attempts_are_found() {
    expect(Invariant::I5, |_, last| {
        last.jobs[0].attempt = 2;
        last.attempts[0] = vec![
            attempt(1, Outcome::Released, 1, 3),
            attempt(2, Outcome::Succeeded, 2, 4),
        ];
    });
}

#[test]
fn an_attempt_that_starts_twice_is_found() {
    expect(Invariant::I5, |history, _| {
        history.entries.push(start(1, 1, 9))
    });
}

#[test]
fn an_unfinished_job_is_found() {
    expect(Invariant::I6, |_, last| {
        last.jobs[0].state_details = StateDetails::Waiting
    });
}

#[test]
fn an_at_most_once_job_that_starts_again_is_found() {
    expect(Invariant::I6b, |history, last| {
        last.jobs[1].attempt = 2;
        last.attempts[1] = vec![
            attempt(1, Outcome::Released, 1, 2),
            attempt(2, Outcome::Succeeded, 2, 3),
        ];
        history.entries.push(start(2, 2, 9));
    });
}

#[test]
fn an_attempt_after_the_limit_is_found() {
    expect(Invariant::I7, |_, last| {
        last.jobs[0].max_attempts = Some(AttemptLimit::ONE);
        last.jobs[0].attempt = 3;
        last.jobs[0].failures = 2;
        last.attempts[0] = vec![
            attempt(1, Outcome::Lost, 1, 1),
            attempt(2, Outcome::Failed, 1, 1),
            attempt(3, Outcome::Succeeded, 1, 2),
        ];
    });
}

#[test]
fn a_changed_end_is_found() {
    expect(Invariant::I1, |_, last| {
        last.attempts[0][0].outcome = Outcome::Failed
    });
    expect(Invariant::I10, |_, last| {
        last.attempts[0][0].outcome = Outcome::Failed
    });
}

#[test]
fn another_payload_is_found() {
    expect(Invariant::I11, |history, _| {
        let Event::Started { payload, .. } = &mut history.entries[2].event else {
            unreachable!("it is the third event")
        };
        *payload += 1;
    });
}

#[test]
fn a_missing_attempt_is_found() {
    expect(Invariant::I12, |_, last| last.attempts[0].clear());
    expect(Invariant::I12, |history, _| {
        history.entries.push(start(1, 2, 9))
    });
}

#[test]
fn a_missing_effect_is_found() {
    expect(Invariant::I23, |history, _| {
        history.entries.remove(3);
    });
}
