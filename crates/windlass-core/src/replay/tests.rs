use super::*;
use crate::timestamp::at;

const T0: &str = "2026-01-01T00:00:00Z";

fn rules() -> ReplayRules {
    ReplayRules {
        canary_jobs: 10,
        rate: 100,
        min_sample: 50,
        ..ReplayRules::default()
    }
}

fn tally(pending: u64, succeeded: u64, failed: u64, alike: u64) -> ActionTally {
    ActionTally {
        pending,
        recovered: succeeded,
        failed_again: failed + alike,
        first_succeeded: succeeded,
        first_failed: failed,
        first_failed_alike: alike,
        ..ActionTally::default()
    }
}

fn next(progress: &mut ReplayProgress, tally: &ActionTally) -> ReplayStep {
    progress.next(&rules(), tally, false, 10, at(T0))
}

#[test]
fn the_canary_comes_first_and_all_of_it_must_have_an_outcome() {
    let mut progress = ReplayProgress::default();
    assert_eq!(
        next(&mut progress, &tally(0, 0, 0, 0)),
        ReplayStep::Revive(10)
    );
    assert_eq!(
        next(&mut progress, &tally(4, 0, 0, 0)),
        ReplayStep::Revive(6)
    );
    progress.note_revived(at(T0));
    let waiting = ReplayStep::Wait(WaitingFor::Canary);
    assert_eq!(next(&mut progress, &tally(1, 9, 0, 0)), waiting);
    assert_eq!(
        next(&mut progress, &tally(0, 8, 2, 0)),
        ReplayStep::Revive(10)
    );
    assert_eq!(progress.phase, Phase::Rate);
}

#[test]
fn one_failure_with_the_old_cause_stops_the_canary() {
    let mut progress = ReplayProgress::default();
    let stop = ReplayStep::Stop(StopReason::SameFingerprint);
    assert_eq!(next(&mut progress, &tally(9, 0, 0, 1)), stop);
    let tolerant = ReplayRules {
        same_fingerprint: Some(0),
        ..rules()
    };
    let step = progress.next(&tolerant, &tally(9, 0, 0, 1), false, 10, at(T0));
    assert_ne!(step, stop);
}

#[test]
fn a_canary_that_fails_too_often_stops_at_once() {
    let mut progress = ReplayProgress::default();
    progress.note_revived(at(T0));
    let waiting = ReplayStep::Wait(WaitingFor::Canary);
    assert_eq!(
        next(&mut progress, &tally(8, 0, 2, 0)),
        waiting,
        "20 % is the limit"
    );
    let stop = ReplayStep::Stop(StopReason::FailedShare);
    assert_eq!(next(&mut progress, &tally(7, 0, 3, 0)), stop);
}

#[test]
fn a_canary_job_without_an_outcome_counts_as_failed_at_the_timeout() {
    let mut progress = ReplayProgress::default();
    progress.note_revived(at(T0));
    let late = at("2026-01-01T00:05:00Z");
    let step = |progress: &mut ReplayProgress, tally: &ActionTally| {
        progress.next(&rules(), tally, false, 10, late)
    };
    let stop = ReplayStep::Stop(StopReason::CanaryTimeout);
    assert_eq!(step(&mut progress, &tally(3, 7, 0, 0)), stop);
    assert_eq!(
        step(&mut progress, &tally(2, 8, 0, 0)),
        ReplayStep::Revive(10)
    );
}

#[test]
fn a_canary_may_be_smaller_than_planned() {
    let mut progress = ReplayProgress::default();
    let step = progress.next(&rules(), &tally(0, 3, 0, 0), true, 10, at(T0));
    assert_eq!(step, ReplayStep::Finish);
}

#[test]
fn the_rate_phase_keeps_to_its_bounds() {
    let mut progress = ReplayProgress {
        phase: Phase::Rate,
        ..ReplayProgress::default()
    };
    assert_eq!(
        next(&mut progress, &tally(195, 0, 0, 0)),
        ReplayStep::Revive(5)
    );
    let waiting = ReplayStep::Wait(WaitingFor::MaxPending);
    assert_eq!(next(&mut progress, &tally(200, 0, 0, 0)), waiting);
    let walked = |progress: &mut ReplayProgress, pending, now| {
        progress.next(&rules(), &tally(pending, 9, 0, 0), true, 10, now)
    };
    progress.note_revived(at(T0));
    let waiting = ReplayStep::Wait(WaitingFor::LastOutcomes);
    assert_eq!(walked(&mut progress, 1, at(T0)), waiting);
    assert_eq!(walked(&mut progress, 0, at(T0)), ReplayStep::Finish);
    assert_eq!(
        walked(&mut progress, 1, at("2026-01-01T00:05:00Z")),
        ReplayStep::Finish
    );
}

#[test]
fn the_rate_phase_stops_by_the_last_outcomes_not_by_all() {
    let mut progress = ReplayProgress {
        phase: Phase::Rate,
        ..ReplayProgress::default()
    };
    next(&mut progress, &tally(0, 0, 0, 0));
    assert_eq!(
        next(&mut progress, &tally(0, 29, 20, 0)),
        ReplayStep::Revive(10),
        "too few"
    );
    let stop = ReplayStep::Stop(StopReason::FailedShare);
    assert_eq!(next(&mut progress.clone(), &tally(0, 30, 20, 0)), stop);
    // 10,000 successes do not hide that the last jobs fail.
    for succeeded in (100..10_000).step_by(100) {
        assert_eq!(
            next(&mut progress, &tally(0, succeeded, 0, 0)),
            ReplayStep::Revive(10)
        );
    }
    assert!(progress.samples.len() < 10, "{}", progress.samples.len());
    assert_eq!(next(&mut progress, &tally(0, 9_900, 80, 0)), stop);
}

#[test]
fn a_continued_replay_starts_with_another_canary() {
    let mut progress = ReplayProgress::default();
    let stopped = tally(0, 5, 3, 2);
    progress.restart();
    let draining = ReplayStep::Wait(WaitingFor::LastOutcomes);
    assert_eq!(next(&mut progress, &tally(1, 5, 2, 2)), draining);
    assert_eq!(next(&mut progress, &stopped), ReplayStep::Revive(10));
    progress.note_revived(at(T0));
    let waiting = ReplayStep::Wait(WaitingFor::Canary);
    assert_eq!(next(&mut progress, &tally(10, 5, 3, 2)), waiting);
    assert_eq!(
        next(&mut progress, &tally(0, 15, 3, 2)),
        ReplayStep::Revive(10)
    );
}

#[test]
fn a_continued_replay_waits_for_old_jobs_only_for_a_time() {
    let mut progress = ReplayProgress::default();
    progress.restart();
    let old = tally(3, 5, 3, 2);
    assert_eq!(
        next(&mut progress, &old),
        ReplayStep::Wait(WaitingFor::LastOutcomes)
    );
    let late = at("2026-01-01T00:05:00Z");
    let mut step = |tally: &ActionTally| progress.next(&rules(), tally, false, 10, late);
    assert_eq!(step(&old), ReplayStep::Revive(10));
    let waiting = ReplayStep::Wait(WaitingFor::Canary);
    assert_eq!(step(&tally(13, 5, 3, 2)), waiting);
    assert_eq!(
        step(&tally(3, 15, 3, 2)),
        ReplayStep::Revive(10),
        "the canary is over"
    );
}

#[test]
fn a_canary_whose_revival_was_not_written_down_is_waited_for() {
    let mut progress = ReplayProgress::default();
    let waiting = ReplayStep::Wait(WaitingFor::Canary);
    assert_eq!(next(&mut progress, &tally(10, 0, 0, 0)), waiting);
    let late = at("2026-01-01T00:05:00Z");
    let step = progress.next(&rules(), &tally(10, 0, 0, 0), false, 10, late);
    assert_eq!(step, ReplayStep::Stop(StopReason::CanaryTimeout));
}

#[test]
fn the_canary_keeps_to_max_pending() {
    let rules = ReplayRules {
        max_pending: Some(3),
        ..rules()
    };
    let mut progress = ReplayProgress::default();
    let mut step = |tally: &ActionTally| progress.next(&rules, tally, false, 10, at(T0));
    assert_eq!(step(&tally(0, 0, 0, 0)), ReplayStep::Revive(3));
    assert_eq!(
        step(&tally(3, 0, 0, 0)),
        ReplayStep::Wait(WaitingFor::MaxPending)
    );
    assert_eq!(step(&tally(1, 8, 0, 0)), ReplayStep::Revive(1));
}

#[test]
fn rules_are_checked() {
    let wrong = |rules: ReplayRules| rules.check().unwrap_err().field().to_owned();
    assert_eq!(wrong(ReplayRules { rate: 0, ..rules() }), "rate");
    assert_eq!(
        wrong(ReplayRules {
            canary_jobs: 0,
            ..rules()
        }),
        "canary.jobs"
    );
    assert_eq!(
        wrong(ReplayRules {
            canary_timeout_ms: 0,
            ..rules()
        }),
        "canary.timeout"
    );
    assert_eq!(
        wrong(ReplayRules {
            max_pending: Some(0),
            ..rules()
        }),
        "max_pending"
    );
    assert_eq!(
        wrong(ReplayRules {
            min_sample: 0,
            ..rules()
        }),
        "stop.min_sample"
    );
    for share in [-0.1, 1.1, f64::NAN] {
        assert_eq!(
            wrong(ReplayRules {
                failed_share: share,
                ..rules()
            }),
            "stop.failed_share"
        );
    }
    assert!(rules().check().is_ok());
}
