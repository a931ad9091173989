use super::*;
use crate::job::Lane;
use crate::retry::{AttemptLimit, Preset};
use crate::timestamp::at;
use crate::{
    AttemptError, Delivery, Failure, JobId, Key, Kind, NewJob, OnDuplicate, Unique, WorkerName,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const T0: &str = "2026-01-01T00:00:00Z";

fn job() -> Job {
    let new = NewJob::new(Kind::new("email:send").unwrap());
    new.into_job(JobId::new(at(T0), 1), at(T0)).unwrap()
}

fn claim(job: &mut Job, preset: Preset, now: Timestamp) -> Result<(), Conflict> {
    let policy = preset.policy();
    let lease = Lease {
        until: now.saturating_add(Duration::from_secs(30)),
        effective_max: policy.max_attempts().unwrap_or(AttemptLimit::ONE),
        policy: Some(Arc::new(policy)),
        cancel_requested: false,
    };
    job.claim(WorkerName::new("w1").unwrap(), lease, now)
}

fn running(preset: Preset) -> Job {
    let mut job = job();
    claim(&mut job, preset, at(T0)).unwrap();
    job
}

fn settle(job: &mut Job, report: Report, now: Timestamp) {
    let settlement = job.decide(report, now, 0).unwrap();
    job.settle(settlement, now).unwrap();
}

fn failed() -> Report {
    Report::Failed(Failure::retryable(AttemptError::new("boom")))
}

#[test]
fn a_job_is_ready_from_its_run_at_on() {
    let mut job = job();
    assert!(job.is_ready(at(T0)));
    assert_eq!(job.lane(), Lane::Fresh);
    claim(&mut job, Preset::Patient, at(T0)).unwrap();
    assert!(!job.is_ready(at(T0)));
    settle(&mut job, failed(), at(T0));
    assert_eq!(job.last_error.as_ref().unwrap().message(), "boom");
    assert_eq!(job.failed_at, Some(at(T0)));
    assert_eq!(job.state_details, StateDetails::Waiting);
    assert_eq!(job.run_at, at("2026-01-01T00:00:01Z"));
    assert!(!job.is_ready(at("2026-01-01T00:00:00.999999Z")));
    assert!(job.is_ready(at("2026-01-01T00:00:01Z")));
    assert_eq!(job.lane(), Lane::Retry);
}

#[test]
fn two_counters_count_claims_and_failures() {
    let mut job = running(Preset::Patient);
    assert_eq!((job.attempt, job.failures), (1, 0));
    settle(&mut job, Report::Released { started: true }, at(T0));
    assert_eq!((job.attempt, job.failures), (1, 0));
    claim(&mut job, Preset::Patient, at(T0)).unwrap();
    settle(&mut job, failed(), at(T0));
    assert_eq!((job.attempt, job.failures), (2, 1));
    assert_eq!(job.previous_delay, Some(Duration::from_secs(1)));
}

#[test]
fn a_dead_job_is_never_claimed_and_can_be_revived() {
    let mut job = running(Preset::None);
    settle(&mut job, failed(), at(T0));
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    let refused = claim(&mut job, Preset::None, at(T0)).unwrap_err();
    assert_eq!(refused.event, Event::Claimed);
    assert_eq!(refused.state, State::Dead(DeadReason::Exhausted));
    let mut kept = job.clone();
    kept.revive(
        Revival {
            failures: FailureCount::Keep,
            ..Revival::default()
        },
        None,
        at(T0),
    )
    .unwrap();
    assert_eq!((kept.failures, kept.attempt), (1, 1));
    assert!(kept.first_started_at.is_some());
    let payload = Payload::from_serialize(&7, 10).unwrap();
    let run_at = at("2027-01-01T00:00:00Z");
    let revival = Revival {
        run_at: Some(run_at),
        payload: Some(payload.clone()),
        ..Revival::default()
    };
    job.revive(revival, None, at(T0)).unwrap();
    assert_eq!((job.failures, job.attempt), (0, 1));
    assert_eq!((job.run_at, &job.payload), (run_at, &payload));
    assert_eq!((job.first_started_at, job.previous_delay), (None, None));
}

#[test]
fn a_lease_that_was_cut_at_the_timeout_times_out() {
    let mut job = running(Preset::Standard);
    job.timeout = Timeout::After(Duration::from_secs(5));
    let until = job.lease_until_max().unwrap();
    assert_eq!(until, at("2026-01-01T00:00:06Z"));
    let outcome = |job: &Job| job.decide(Report::Lost, until, 0).unwrap().outcome;
    assert_eq!(outcome(&job), Outcome::Lost, "this lease was not cut");
    job.renew(until).unwrap();
    assert_eq!(outcome(&job), Outcome::TimedOut);
    job.timeout = Timeout::None;
    assert_eq!(
        (job.lease_until_max(), outcome(&job)),
        (None, Outcome::Lost)
    );
}

#[test]
fn a_lost_at_most_once_job_needs_force_or_is_resolved() {
    let mut job = running(Preset::Standard);
    job.delivery = Delivery::AtMostOnce;
    settle(&mut job, Report::Lost, at(T0));
    assert_eq!(job.state(), State::Dead(DeadReason::Lost));
    assert!(
        job.clone()
            .revive(Revival::default(), None, at(T0))
            .is_err()
    );
    let force = Revival {
        consent: Consent::MayRunTwice,
        ..Revival::default()
    };
    assert!(job.clone().revive(force, None, at(T0)).is_ok());
    job.resolve(at(T0)).unwrap();
    assert_eq!(job.state(), State::Succeeded);
    assert!(job.resolve(at(T0)).is_err());
}

#[test]
fn cancelling_ends_a_waiting_job_and_asks_a_running_one() {
    let mut waiting = job();
    waiting.cancel(at(T0)).unwrap();
    assert_eq!(waiting.state(), State::Cancelled);
    assert!(waiting.cancel(at(T0)).is_err());
    let mut job = running(Preset::Patient);
    job.cancel(at(T0)).unwrap();
    assert_eq!(job.state(), State::Running);
    settle(&mut job, failed(), at(T0));
    assert_eq!(job.state(), State::Cancelled);
}

#[test]
fn success_keeps_result_and_time() {
    let mut job = running(Preset::Patient);
    let result = Payload::from_serialize(&"done", 10).unwrap();
    let later = at("2026-01-01T00:00:09Z");
    settle(&mut job, Report::Succeeded(Some(result.clone())), later);
    let end = Finish {
        finished_at: later,
        state: FinalState::Succeeded(Some(result)),
    };
    assert_eq!(job.state_details, StateDetails::Finished(end));
    assert_eq!(job.decide(failed(), later, 0), None);
}

#[test]
fn a_lease_is_renewed_only_while_the_job_runs() {
    let mut job = running(Preset::Patient);
    let until = at("2026-01-01T01:00:00Z");
    job.renew(until).unwrap();
    assert!(matches!(&job.state_details, StateDetails::Running(lease) if lease.until == until));
    settle(&mut job, failed(), at(T0));
    assert!(job.renew(until).is_err());
}

#[test]
fn run_now_brings_a_retry_forward_and_keeps_its_failures() {
    let mut job = running(Preset::Patient);
    assert!(job.run_now(at(T0)).is_err());
    settle(&mut job, failed(), at(T0));
    job.run_now(at(T0)).unwrap();
    assert_eq!((job.run_at, job.failures), (at(T0), 1));
    job.run_now(at("2030-01-01T00:00:00Z")).unwrap();
    assert_eq!(job.run_at, at(T0), "a due job keeps its place in the order");
}

#[test]
fn an_edit_changes_what_it_names_on_a_waiting_job() {
    let mut job = job();
    let before = job.clone();
    job.edit(Edit::default()).unwrap();
    assert_eq!(job, before);
    let edit = Edit {
        payload: Some(Payload::from_serialize(&1, 10).unwrap()),
        priority: Some(-3),
        run_at: Some(at("2027-01-01T00:00:00Z")),
        queue: Some(QueueName::new("other").unwrap()),
    };
    job.edit(edit.clone()).unwrap();
    assert_eq!((job.payload.as_str(), job.priority), ("1", -3));
    assert_eq!(
        (job.run_at, job.queue.as_str()),
        (at("2027-01-01T00:00:00Z"), "other")
    );
    claim(&mut job, Preset::Patient, at("2027-01-01T00:00:00Z")).unwrap();
    assert!(job.edit(edit).is_err());
}

#[test]
fn a_unique_key_is_held_while_the_job_is_active_and_for_unique_for() {
    let mut job = job();
    let unique = |hold| {
        let key = Key::new("k").unwrap();
        Some(Unique {
            key,
            unique_for: hold,
            on_duplicate: OnDuplicate::Keep,
        })
    };
    let hour = Duration::from_secs(3600);
    let later = at("2026-01-01T01:00:00Z");
    assert!(!job.holds_key(at(T0)), "it has no key");
    job.unique = unique(None);
    assert!(job.holds_key(later));
    claim(&mut job, Preset::None, at(T0)).unwrap();
    assert!(job.holds_key(later));
    let mut dead = job.clone();
    settle(&mut dead, failed(), at(T0));
    dead.unique = unique(Some(hour));
    assert!(!dead.holds_key(at(T0)), "a dead job frees its key");
    settle(&mut job, Report::Succeeded(None), at(T0));
    assert!(!job.holds_key(at(T0)));
    job.unique = unique(Some(hour));
    assert!(job.holds_key(at("2026-01-01T00:59:59Z")));
    assert!(!job.holds_key(later));
}

#[test]
fn a_passed_deadline_kills_a_waiting_job_and_a_revival_removes_it() {
    let mut job = job();
    job.deadline = Some(at(T0));
    let later = at("2026-01-02T00:00:00Z");
    job.expire(later).unwrap();
    assert_eq!(job.state(), State::Dead(DeadReason::Expired));
    assert!(job.expire(later).is_err());
    job.revive(Revival::default(), None, later).unwrap();
    assert_eq!(job.deadline, None);
    job.deadline = Some(at("2027-01-01T00:00:00Z"));
    job.cancel(later).unwrap();
    job.revive(Revival::default(), None, later).unwrap();
    assert!(job.deadline.is_some(), "a deadline in the future stays");
}

#[test]
fn the_first_start_is_remembered_over_attempts() {
    let mut job = running(Preset::Patient);
    settle(&mut job, failed(), at(T0));
    let later = at("2026-01-01T00:00:01Z");
    claim(&mut job, Preset::Patient, later).unwrap();
    assert_eq!(job.first_started_at, Some(at(T0)));
}

#[test]
fn delivery_parses_from_its_word() {
    for delivery in [Delivery::AtLeastOnce, Delivery::AtMostOnce] {
        assert_eq!(delivery.to_string().parse(), Ok(delivery));
    }
}

#[test]
fn claims_go_by_priority_then_time_then_age() {
    let order = |priority, run_at, id| {
        let mut job = job();
        (job.priority, job.run_at, job.id) = (priority, at(run_at), JobId::from_u128(id));
        job.claim_order()
    };
    let late = "2026-06-01T00:00:00Z";
    let mut orders = [
        order(0, T0, 2),
        order(0, T0, 1),
        order(0, late, 0),
        order(9, late, 9),
    ];
    orders.sort();
    let ids = orders.map(|(_, _, id)| id.as_u128());
    assert_eq!(ids, [9, 1, 2, 0]);
}

#[test]
fn no_attempt_starts_before_its_time_or_after_its_deadline() {
    let mut job = job();
    job.run_at = at("2026-01-01T00:00:05Z");
    job.deadline = Some(at("2026-01-01T00:00:10Z"));
    assert!(claim(&mut job, Preset::None, at("2026-01-01T00:00:04.999999Z")).is_err());
    assert!(claim(&mut job, Preset::None, at("2026-01-01T00:00:10.000001Z")).is_err());
    assert_eq!(
        (job.attempt, job.due_at()),
        (0, Some(at("2026-01-01T00:00:05Z")))
    );
    let now = at("2026-01-01T00:00:10Z");
    claim(&mut job, Preset::None, now).unwrap();
    assert_eq!(
        (job.started_at, job.worker.as_ref().unwrap().as_str()),
        (Some(now), "w1")
    );
    settle(&mut job, failed(), now);
    assert_eq!(job.due_at(), None, "a dead job is not due");
    assert_eq!((job.started_at, job.finished_at()), (Some(now), Some(now)));
}

proptest! {
    /// Methods of a job and the state machine agree after any sequence of events.
    #[test]
    fn the_state_machine_alone_says_what_comes_next(steps in proptest::collection::vec(0usize..12, 1..60)) {
        let mut job = job();
        let now = at(T0);
        for step in steps {
            let before = job.clone();
            let report = match step {
                0 => Report::Succeeded(None),
                1 => failed(),
                2 => Report::Lost,
                3 => Report::Released { started: true },
                4 => Report::Cancelled,
                _ => Report::Snoozed { until: now },
            };
            let consent = if step == 9 { Consent::MayRunTwice } else { Consent::NotGiven };
            let (event, done) = match step {
                0..=5 => match job.decide(report, now, 0) {
                    Some(settlement) => {
                        (Event::Settled(settlement.verdict), job.settle(settlement, now))
                    }
                    None => continue,
                },
                6 => (Event::Claimed, claim(&mut job, Preset::Immediate, now)),
                7 => (Event::CancelRequested, job.cancel(now)),
                8 | 9 => (Event::Revived(consent), job.revive(Revival { consent, ..Revival::default() }, None, now).map_err(|_| Conflict { event: Event::Revived(consent), state: before.state() })),
                10 => (Event::Expired, job.expire(now)),
                _ => (Event::Resolved, job.resolve(now)),
            };
            match before.state().after(event) {
                Some(next) => {
                    prop_assert_eq!(done, Ok(()));
                    // Immediate retries are due at once, so a claim is never too early here.
                    prop_assert_eq!(job.state(), next);
                }
                None => {
                    prop_assert!(done.is_err());
                    prop_assert_eq!(&job, &before, "a refusal changes nothing");
                }
            }
            prop_assert!(job.attempt >= before.attempt);
        }
    }
}
