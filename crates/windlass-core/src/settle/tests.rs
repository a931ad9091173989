//! Examples of what each report leads to, and the laws of settling.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::Random;
use crate::retry::{Backoff, Cap, Jitter, Preset, RetrySettings, WorkerRetry, resolve};
use crate::timestamp::at;

const T0: &str = "2026-01-01T00:00:00Z";

fn limit(n: u32) -> AttemptLimit {
    AttemptLimit::from_max_attempts(n.into()).unwrap().unwrap()
}

fn running(policy: &RetryPolicy) -> Running<'_> {
    Running {
        delivery: Delivery::AtLeastOnce,
        failures: 0,
        snoozes: 0,
        losses_in_a_row: 0,
        policy: Some(policy),
        effective_max: policy.max_attempts().unwrap_or(AttemptLimit::ONE),
        first_started_at: at(T0),
        deadline: None,
        previous_delay: None,
        cancel_requested: false,
    }
}

fn failed() -> Report {
    Report::Failed(Failure::retryable(AttemptError::new("boom")))
}

/// Ends every attempt with `report` until the job stops. Returns the time of each end and the last
/// settlement.
fn run_until_it_stops(mut job: Running<'_>, report: &Report) -> (Vec<Timestamp>, Settlement) {
    let mut random = Random::new(1);
    let mut now = at(T0);
    let mut ends = Vec::new();
    loop {
        let settlement = settle(&job, report.clone(), now, random.bits());
        ends.push(now);
        let Verdict::Waiting { run_at } = settlement.verdict else {
            return (ends, settlement);
        };
        now = run_at;
        job.failures = settlement.failures;
        job.losses_in_a_row = settlement.losses_in_a_row;
        job.previous_delay = settlement.delay;
    }
}

fn seconds_after_t0(ends: &[Timestamp]) -> Vec<u64> {
    ends.iter().map(|end| end.since(at(T0)).as_secs()).collect()
}

/// How many attempts fail before a job with `max_attempts` dies under this worker.
fn attempts(max_attempts: Option<u32>, worker: &WorkerRetry) -> (usize, Settlement) {
    let settings = RetrySettings {
        max_attempts: max_attempts.map(limit),
        ..RetrySettings::default()
    };
    let resolved = resolve(settings, worker);
    let standard = Preset::Standard.policy();
    let job = Running {
        policy: resolved.policy.map(|policy| &**policy),
        effective_max: resolved.effective_max,
        ..running(&standard)
    };
    let (ends, last) = run_until_it_stops(job, &failed());
    (ends.len(), last)
}

fn worker(max_attempts: u32) -> WorkerRetry {
    let policy = Preset::Standard.policy().with_max_attempts(max_attempts);
    WorkerRetry {
        policy: Some(Arc::new(policy.unwrap())),
        cap: Cap::FromPolicy,
    }
}

#[test]
fn the_failure_that_reaches_the_limit_is_the_last() {
    let fail_fast = WorkerRetry {
        policy: None,
        cap: Cap::FromPolicy,
    };
    for (why, job, worker, expected) in [
        ("the job asks for less", Some(5), worker(25), 5),
        ("the default policy", None, WorkerRetry::default(), 25),
        ("the worker allows less", Some(20), worker(10), 10),
        ("the policy has no limit", Some(5), worker(0), 5),
        ("no limit at all is one attempt", None, worker(0), 1),
        ("a worker without a policy", Some(5), fail_fast, 1),
        ("the default caps", Some(100), WorkerRetry::default(), 25),
        ("only one attempt", Some(1), WorkerRetry::default(), 1),
    ] {
        let (count, last) = attempts(job, &worker);
        assert_eq!(count, expected, "{why}");
        assert_eq!(last.failures as usize, expected, "{why}");
        assert_eq!(last.verdict, Verdict::Dead(DeadReason::Exhausted), "{why}");
    }
}

#[test]
fn unrecoverable_is_dead_at_once_with_its_text() {
    let policy = Preset::Standard.policy();
    let report = Report::Failed(Failure::unrecoverable(AttemptError::new("no such user")));
    let settlement = settle(&running(&policy), report, at(T0), 0);
    assert_eq!(settlement.verdict, Verdict::Dead(DeadReason::Unrecoverable));
    assert_eq!(settlement.failures, 1);
    assert_eq!(settlement.error.unwrap().message(), "no such user");
    assert_eq!(settlement.delay, None);
}

#[test]
fn runs_follow_the_backoff() {
    let backoff = Backoff::Exponential {
        base: Duration::from_secs(5),
        multiplier: 2.0,
        max: Duration::from_secs(60),
    };
    let policy = RetryPolicy::new(backoff, Jitter::None).unwrap();
    let policy = policy.with_max_attempts(3).unwrap();
    let (ends, last) = run_until_it_stops(running(&policy), &failed());
    assert_eq!(seconds_after_t0(&ends), [0, 5, 15]);
    assert_eq!(last.verdict, Verdict::Dead(DeadReason::Exhausted));
}

#[test]
fn a_failure_sets_the_error_and_the_next_time() {
    let policy = Preset::Patient.policy();
    let settlement = settle(&running(&policy), failed(), at(T0), 0);
    assert_eq!(settlement.outcome, Outcome::Failed);
    assert_eq!(settlement.failures, 1);
    assert_eq!(settlement.error.unwrap().message(), "boom");
    assert_eq!(settlement.delay, Some(Duration::from_secs(1)));
    let run_at = at("2026-01-01T00:00:01Z");
    assert_eq!(settlement.verdict, Verdict::Waiting { run_at });
}

#[test]
fn full_jitter_makes_four_attempts() {
    let policy = Preset::FullJitter.policy();
    let (ends, last) = run_until_it_stops(running(&policy), &failed());
    assert_eq!(ends.len(), 4);
    assert_eq!(last.verdict, Verdict::Dead(DeadReason::Exhausted));
}

#[test]
fn a_lost_lease_is_retried_by_the_policy() {
    let policy = Preset::Patient.policy();
    let settlement = settle(&running(&policy), Report::Lost, at(T0), 0);
    assert_eq!(settlement.outcome, Outcome::Lost);
    assert_eq!(settlement.failures, 1);
    let run_at = at("2026-01-01T00:00:01Z");
    assert_eq!(settlement.verdict, Verdict::Waiting { run_at });
}

#[test]
fn a_release_counts_nothing_and_is_due_at_once() {
    let policy = Preset::Patient.policy();
    let mut job = running(&policy);
    job.failures = 2;
    for started in [true, false] {
        let settlement = settle(&job, Report::Released { started }, at(T0), 0);
        assert_eq!(settlement.outcome, Outcome::Released);
        assert_eq!(settlement.failures, 2);
        assert_eq!(settlement.verdict, Verdict::Waiting { run_at: at(T0) });
    }
    job.delivery = Delivery::AtMostOnce;
    let settlement = settle(&job, Report::Released { started: true }, at(T0), 0);
    assert_eq!(settlement.outcome, Outcome::Lost);
    assert_eq!(settlement.verdict, Verdict::Dead(DeadReason::Lost));
    let settlement = settle(&job, Report::Released { started: false }, at(T0), 0);
    assert_eq!(settlement.verdict, Verdict::Waiting { run_at: at(T0) });
}

#[test]
fn the_snooze_past_the_limit_is_a_failure() {
    let policy = Preset::Patient.policy();
    let mut job = running(&policy);
    let until = at("2026-02-01T00:00:00Z");
    let mut snoozed = 0;
    loop {
        let settlement = settle(&job, Report::Snoozed { until }, at(T0), 0);
        if settlement.outcome != Outcome::Snoozed {
            assert_eq!(settlement.outcome, Outcome::Failed);
            assert_eq!(settlement.failures, 1);
            assert_eq!(
                settlement.error.unwrap().message(),
                "the job was already snoozed 1000 times, which is the limit"
            );
            break;
        }
        assert_eq!(settlement.failures, 0);
        assert_eq!(settlement.verdict, Verdict::Waiting { run_at: until });
        snoozed += 1;
        job.snoozes = settlement.snoozes;
    }
    assert_eq!(snoozed, 1000);
}

#[test]
fn a_revived_job_that_keeps_its_failures_dies_of_the_next() {
    let policy = Preset::Standard.policy();
    let mut job = running(&policy);
    job.effective_max = limit(5);
    for failures in [5, 700, u32::MAX] {
        job.failures = failures;
        let settlement = settle(&job, failed(), at(T0), 0);
        assert_eq!(settlement.failures, failures.saturating_add(1));
        assert_eq!(settlement.verdict, Verdict::Dead(DeadReason::Exhausted));
    }
}

#[test]
fn at_most_once_never_runs_again() {
    let policy = Preset::Standard.policy();
    let mut job = running(&policy);
    job.delivery = Delivery::AtMostOnce;
    let timeout = Duration::from_secs(30);
    let unknown = Report::Failed(Failure {
        class: FailureClass::Unknown,
        ..Failure::retryable(AttemptError::new("reset"))
    });
    let hopeless = Report::Failed(Failure::unrecoverable(AttemptError::new("x")));
    let until = at(T0);
    for (report, outcome, reason) in [
        (failed(), Outcome::Failed, DeadReason::Exhausted),
        (hopeless, Outcome::Failed, DeadReason::Exhausted),
        (unknown, Outcome::Failed, DeadReason::Lost),
        (
            Report::TimedOut {
                timeout,
                grace: CANCEL_GRACE,
            },
            Outcome::TimedOut,
            DeadReason::Lost,
        ),
        (Report::Lost, Outcome::Lost, DeadReason::Lost),
        (
            Report::Snoozed { until },
            Outcome::Failed,
            DeadReason::Exhausted,
        ),
    ] {
        let settlement = settle(&job, report, at(T0), 0);
        assert_eq!(settlement.outcome, outcome);
        assert_eq!(settlement.verdict, Verdict::Dead(reason));
        assert_eq!(settlement.failures, 1);
    }
}

#[test]
fn an_unknown_outcome_is_retried_where_that_is_allowed() {
    let policy = Preset::Patient.policy();
    let report = Report::Failed(Failure {
        class: FailureClass::Unknown,
        ..Failure::retryable(AttemptError::new("reset"))
    });
    let settlement = settle(&running(&policy), report, at(T0), 0);
    assert_eq!(settlement.delay, Some(Duration::from_secs(1)));
}

#[test]
fn the_retry_of_a_timeout_is_due_after_the_grace_of_its_handler_at_the_earliest() {
    let policy = Preset::Patient.policy(); // a second at first
    for (grace, delay) in [(0, 1), (1, 1), (5, 5)] {
        let report = Report::TimedOut {
            timeout: Duration::from_secs(90),
            grace: Duration::from_secs(grace),
        };
        let settlement = settle(&running(&policy), report, at(T0), 0);
        assert_eq!(settlement.delay, Some(Duration::from_secs(delay)));
    }
}

#[test]
fn a_timeout_says_how_long_it_was() {
    let policy = Preset::Patient.policy();
    let timeout = Duration::from_secs(90);
    let report = Report::TimedOut {
        timeout,
        grace: CANCEL_GRACE,
    };
    let settlement = settle(&running(&policy), report, at(T0), 0);
    assert_eq!(settlement.outcome, Outcome::TimedOut);
    assert!(
        settlement
            .error
            .unwrap()
            .message()
            .ends_with("its timeout of 1m 30s")
    );
}

#[test]
fn no_retry_once_the_deadline_has_passed() {
    let policy = Preset::Patient.policy();
    let mut job = running(&policy);
    job.deadline = Some(at(T0));
    let in_time = settle(&job, failed(), at(T0), 0);
    assert!(matches!(in_time.verdict, Verdict::Waiting { .. }));
    let late = settle(&job, failed(), at("2026-01-01T00:00:00.000001Z"), 0);
    assert_eq!(late.verdict, Verdict::Dead(DeadReason::Expired));
    assert!(!has_expired(None, Timestamp::MAX));
    assert!(!has_expired(Some(at(T0)), at(T0)));
}

#[test]
fn no_retry_once_max_elapsed_has_passed_since_the_first_start() {
    let policy = Preset::Patient.policy();
    let policy = policy.with_max_elapsed(Duration::from_secs(10)).unwrap();
    let job = running(&policy);
    let in_time = settle(&job, failed(), at("2026-01-01T00:00:10Z"), 0);
    assert!(matches!(in_time.verdict, Verdict::Waiting { .. }));
    let late = settle(&job, failed(), at("2026-01-01T00:00:10.000001Z"), 0);
    assert_eq!(late.verdict, Verdict::Dead(DeadReason::Expired));
}

#[test]
fn the_rules_apply_in_their_order() {
    let policy = Preset::None.policy();
    let mut job = running(&policy);
    job.deadline = Some(Timestamp::MIN);
    let hopeless = Report::Failed(Failure::unrecoverable(AttemptError::new("x")));
    let verdict = |job: &Running<'_>, report: Report| settle(job, report, at(T0), 0).verdict;
    assert_eq!(
        verdict(&job, hopeless),
        Verdict::Dead(DeadReason::Unrecoverable)
    );
    assert_eq!(verdict(&job, failed()), Verdict::Dead(DeadReason::Expired));
    job.deadline = None;
    assert_eq!(
        verdict(&job, failed()),
        Verdict::Dead(DeadReason::Exhausted)
    );
}

#[test]
fn retry_after_lengthens_the_delay_and_never_shortens_it() {
    let policy = Preset::Patient.policy();
    let delay_with = |retry_after| {
        let report = Report::Failed(Failure {
            retry_after: Some(retry_after),
            ..Failure::retryable(AttemptError::new("busy"))
        });
        settle(&running(&policy), report, at(T0), 0).delay.unwrap()
    };
    assert_eq!(delay_with(Duration::ZERO), Duration::from_secs(1));
    assert_eq!(
        delay_with(Duration::from_millis(1001)),
        Duration::from_millis(1001)
    );
    assert_eq!(delay_with(Duration::MAX), Duration::from_secs(86_400));
}

#[test]
fn a_delay_that_the_worker_chose_replaces_the_policys() {
    let policy = Preset::Patient.policy();
    let delay_with = |delay, retry_after| {
        let report = Report::Failed(Failure {
            delay: Some(delay),
            retry_after,
            ..Failure::retryable(AttemptError::new("busy"))
        });
        settle(&running(&policy), report, at(T0), 0).delay.unwrap()
    };
    let ms = Duration::from_millis;
    assert_eq!(delay_with(ms(3), None), ms(3), "shorter, too");
    assert_eq!(delay_with(ms(3), Some(ms(9))), ms(9));
    assert_eq!(delay_with(Duration::MAX, None), crate::DURATION_MAX);
}

#[test]
fn retry_after_does_not_pass_the_limit() {
    let policy = Preset::None.policy();
    let report = Report::Failed(Failure {
        retry_after: Some(Duration::from_secs(5)),
        ..Failure::retryable(AttemptError::new("busy"))
    });
    let settlement = settle(&running(&policy), report, at(T0), 0);
    assert_eq!(settlement.verdict, Verdict::Dead(DeadReason::Exhausted));
}

#[test]
fn three_losses_at_the_end_are_poison() {
    let policy = Preset::Patient.policy();
    let (ends, last) = run_until_it_stops(running(&policy), &Report::Lost);
    assert_eq!(ends.len(), 4);
    assert_eq!(last.verdict, Verdict::Dead(DeadReason::Poison));
    let mut job = running(&policy);
    job.failures = 3;
    job.losses_in_a_row = 1;
    let two = settle(&job, Report::Lost, at(T0), 0);
    assert_eq!(two.verdict, Verdict::Dead(DeadReason::Exhausted));
    job.losses_in_a_row = 2;
    let other = settle(&job, failed(), at(T0), 0);
    assert_eq!(other.verdict, Verdict::Dead(DeadReason::Exhausted));
    assert_eq!(other.losses_in_a_row, 0);
}

#[test]
fn a_cancelled_job_ends_cancelled_unless_it_succeeded() {
    let policy = Preset::Patient.policy();
    let mut job = running(&policy);
    let cancelled = settle(&job, Report::Cancelled, at(T0), 0);
    assert_eq!(cancelled.verdict, Verdict::Cancelled);
    assert_eq!(cancelled.failures, 0);
    job.cancel_requested = true;
    for report in [
        failed(),
        Report::Lost,
        Report::Released { started: true },
        Report::Cancelled,
    ] {
        assert_eq!(settle(&job, report, at(T0), 0).verdict, Verdict::Cancelled);
    }
    let done = settle(&job, Report::Succeeded(None), at(T0), 0);
    assert_eq!(done.verdict, Verdict::Succeeded);
    job.delivery = Delivery::AtMostOnce;
    let verdict = |report| settle(&job, report, at(T0), 0).verdict;
    assert_eq!(verdict(failed()), Verdict::Cancelled);
    assert_eq!(
        verdict(Report::Lost),
        Verdict::Dead(DeadReason::Lost),
        "it may have done its work"
    );
}

#[test]
fn success_keeps_the_result() {
    let policy = Preset::Patient.policy();
    let result = Payload::from_serialize(&42, 100).unwrap();
    let report = Report::Succeeded(Some(result.clone()));
    let settlement = settle(&running(&policy), report, at(T0), 0);
    assert_eq!(settlement.verdict, Verdict::Succeeded);
    assert_eq!(settlement.result, Some(result));
    assert_eq!(settlement.failures, 0);
    assert_eq!(settlement.error, None);
}

#[test]
fn outcomes_count_as_the_table_says() {
    let counted: Vec<&str> = Outcome::ALL
        .into_iter()
        .filter(|outcome| outcome.counts_as_failure())
        .map(Outcome::name)
        .collect();
    assert_eq!(counted, ["failed", "timed_out", "lost"]);
    let others = [
        Outcome::Succeeded,
        Outcome::Snoozed,
        Outcome::Released,
        Outcome::Cancelled,
    ];
    assert_eq!(
        others.map(Outcome::name),
        ["succeeded", "snoozed", "released", "cancelled"]
    );
}

fn seconds() -> impl Strategy<Value = Option<Duration>> {
    proptest::option::of(any::<u64>().prop_map(Duration::from_secs))
}

fn any_report() -> impl Strategy<Value = Report> {
    let class = prop_oneof![
        Just(FailureClass::Retryable),
        Just(FailureClass::Unrecoverable),
        Just(FailureClass::Unknown),
    ];
    prop_oneof![
        Just(Report::Succeeded(None)),
        (class, seconds(), seconds()).prop_map(|(class, retry_after, delay)| {
            Report::Failed(Failure {
                class,
                retry_after,
                delay,
                ..Failure::retryable(AttemptError::new("boom"))
            })
        }),
        any::<u64>().prop_map(|seconds| Report::TimedOut {
            timeout: Duration::from_secs(seconds),
            grace: Duration::from_secs(seconds % 10),
        }),
        Just(Report::Lost),
        any::<u32>().prop_map(|seconds| Report::Snoozed {
            until: Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(seconds.into())),
        }),
        any::<bool>().prop_map(|started| Report::Released { started }),
        Just(Report::Cancelled),
    ]
}

proptest! {
    #[test]
    fn the_laws_hold_for_every_end(
        report in any_report(), failures in any::<u32>(), snoozes in 0u32..1100, losses in any::<u32>(),
        max in 1u32..=1000, preset in proptest::sample::select(&Preset::ALL[..]), at_most_once in any::<bool>(),
        cancel_requested in any::<bool>(), seconds in 0u64..10_000_000_000, random in any::<u64>(),
    ) {
        let policy = preset.policy();
        let delivery = if at_most_once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce };
        let now = at(T0).saturating_add(Duration::from_secs(seconds));
        let job = Running {
            delivery, failures, snoozes, losses_in_a_row: losses, effective_max: limit(max), cancel_requested,
            ..running(&policy)
        };
        let started = !matches!(report, Report::Released { started: false });
        let settlement = settle(&job, report, now, random);
        prop_assert!(settlement.failures >= failures);
        prop_assert!(settlement.failures - failures <= 1);
        prop_assert_eq!(settlement.error.is_some(), settlement.outcome.counts_as_failure());
        if let Verdict::Waiting { run_at } = settlement.verdict {
            if settlement.outcome.counts_as_failure() {
                prop_assert!(settlement.failures < max, "the failure that reaches the limit is the last");
                prop_assert!(run_at >= now);
            }
            prop_assert!(!at_most_once || !started, "an at-most-once job that started never runs again");
            prop_assert!(!cancel_requested);
        }
        prop_assert_eq!(settlement.delay.is_some(),
            settlement.outcome.counts_as_failure() && matches!(settlement.verdict, Verdict::Waiting { .. }));
    }
}
