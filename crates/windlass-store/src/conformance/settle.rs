//! Cases of settling: attempts that end by report.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_core::retry::{AttemptLimit, Backoff, Jitter, Preset, RetryPolicy};
use windlass_core::{
    AttemptError, DeadReason, Delivery, Failure, FailureCount, Job, Outcome, Report, Revival,
    State, Verdict,
};

use super::build::*;
use crate::{AttemptReport, Change, Changed, Claim, Settled};

fn limited(number: u64, attempts: i64) -> Job {
    Job {
        max_attempts: AttemptLimit::from_max_attempts(attempts).unwrap(),
        ..job(number)
    }
}

pub async fn success_keeps_the_result(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(1)).await;
    let detail = Some(json!({"status": 200}));
    let end = AttemptReport {
        detail: detail.clone(),
        ..report(&running, Report::Succeeded(Some(payload("42"))))
    };
    let settled = store.settle(vec![end], at(3)).await.unwrap();
    assert_eq!(settled[0].verdict(), Some(Verdict::Succeeded));
    let done = find(store, id(1)).await;
    assert_eq!(
        (done.state(), done.finished_at(), done.failures),
        (State::Succeeded, Some(at(3)), 0)
    );
    let mut expected = running.clone();
    let settlement = running
        .decide(Report::Succeeded(Some(payload("42"))), at(3), 0)
        .unwrap();
    expected.settle(settlement, at(3)).unwrap();
    assert_eq!(done, expected, "result included");
    let history = store.attempts(id(1), 10).await.unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(
        (
            history[0].attempt,
            history[0].retry_count,
            history[0].outcome
        ),
        (1, 0, Outcome::Succeeded)
    );
    assert_eq!(
        (history[0].started_at, history[0].finished_at),
        (at(1), at(3))
    );
    assert_eq!(
        (
            history[0].worker.as_ref().unwrap().as_str(),
            &history[0].error,
            &history[0].detail
        ),
        ("w1", &None, &detail)
    );
}

pub async fn a_failure_waits_by_its_policy(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    let settled = settle_one(store, &running, failed(), at(2)).await;
    assert_eq!(settled.verdict(), Some(Verdict::Waiting { run_at: at(3) }));
    let waiting = find(store, id(1)).await;
    assert_eq!((waiting.state(), waiting.run_at), (State::Waiting, at(3)));
    assert_eq!((waiting.attempt, waiting.failures), (1, 1));
    assert_eq!(waiting.last_error, Some(AttemptError::new("boom")));
    assert_eq!((waiting.failed_at, waiting.lease()), (Some(at(2)), None));
    assert!(
        take(store, 1, at_micros(2_999_999)).await.is_empty(),
        "not 1 µs before"
    );
    let again = take_one(store, at(3)).await;
    assert_eq!((again.attempt, again.failures), (2, 1));
}

pub async fn the_failure_that_reaches_the_limit_is_the_last(store: &Opened) {
    put(store, vec![limited(1, 3)]).await;
    let request = || Claim {
        retry: worker(Preset::Standard.policy()),
        ..claim(1)
    };
    let mut calls = 0;
    for now in (0..1000).step_by(10) {
        let Some(running) = store.claim(&request(), at(now)).await.unwrap().jobs.pop() else {
            break;
        };
        calls += 1;
        settle_one(store, &running, failed(), at(now)).await;
    }
    let dead = find(store, id(1)).await;
    assert_eq!(
        (calls, dead.failures, dead.state()),
        (3, 3, State::Dead(DeadReason::Exhausted))
    );
}

pub async fn attempts_follow_the_backoff(store: &Opened) {
    let second = Duration::from_secs(1);
    let backoff = Backoff::Exponential {
        base: 5 * second,
        multiplier: 2.0,
        max: 60 * second,
    };
    let policy = RetryPolicy::new(backoff, Jitter::None)
        .unwrap()
        .with_max_attempts(3)
        .unwrap();
    put(
        store,
        vec![Job {
            retry: Some(Arc::new(policy)),
            ..job(1)
        }],
    )
    .await;
    let mut starts = Vec::new();
    for now in 0..30 {
        for running in take(store, 1, at(now)).await {
            starts.push(now);
            settle_one(store, &running, failed(), at(now)).await;
        }
    }
    assert_eq!(starts, [0, 5, 15]);
    assert_eq!(
        state_of(store, id(1)).await,
        State::Dead(DeadReason::Exhausted)
    );
}

pub async fn history_counts_retries(store: &Opened) {
    put(store, vec![job(1)]).await;
    let request = || Claim {
        retry: worker(Preset::FullJitter.policy()),
        ..claim(1)
    };
    for now in [0, 100, 200, 300] {
        let running = store
            .claim(&request(), at(now))
            .await
            .unwrap()
            .jobs
            .pop()
            .unwrap();
        settle_one(store, &running, failed(), at(now)).await;
    }
    let history = store.attempts(id(1), 10).await.unwrap();
    let counts: Vec<u32> = history.iter().map(|row| row.retry_count).collect();
    assert_eq!(counts, [3, 2, 1, 0], "newest first");
    assert!(
        history
            .iter()
            .all(|row| row.error == Some(AttemptError::new("boom")))
    );
    assert_eq!(
        state_of(store, id(1)).await,
        State::Dead(DeadReason::Exhausted)
    );
}

pub async fn a_release_counts_nothing(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    let settled = settle_one(store, &running, Report::Released { started: true }, at(1)).await;
    assert_eq!(settled.verdict(), Some(Verdict::Waiting { run_at: at(1) }));
    let again = take_one(store, at(1)).await;
    assert_eq!((again.attempt, again.failures), (2, 0));
    let history = store.attempts(id(1), 10).await.unwrap();
    assert_eq!(history[0].outcome, Outcome::Released);
}

pub async fn a_snoozed_job_waits_until_the_given_time(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, Report::Snoozed { until: at(50) }, at(1)).await;
    assert!(take(store, 1, at(49)).await.is_empty());
    let again = take_one(store, at(50)).await;
    assert_eq!((again.attempt, again.failures, again.snoozes), (2, 0, 1));
}

pub async fn an_unrecoverable_failure_is_dead_at_once(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    let end = Report::Failed(Failure::unrecoverable(AttemptError::new("no such user")));
    settle_one(store, &running, end, at(1)).await;
    let dead = find(store, id(1)).await;
    assert_eq!(
        (dead.state(), dead.failures),
        (State::Dead(DeadReason::Unrecoverable), 1)
    );
    assert_eq!(dead.last_error, Some(AttemptError::new("no such user")));
}

pub async fn at_most_once_never_runs_again(store: &Opened) {
    put(
        store,
        (1..4)
            .map(|n| Job {
                delivery: Delivery::AtMostOnce,
                ..job(n)
            })
            .collect(),
    )
    .await;
    let running = take(store, 3, at(0)).await;
    let timeout = Duration::from_secs(30);
    for (job, end, reason) in [
        (&running[0], failed(), DeadReason::Exhausted),
        (
            &running[1],
            Report::TimedOut {
                timeout,
                grace: windlass_core::CANCEL_GRACE,
            },
            DeadReason::Lost,
        ),
        (
            &running[2],
            Report::Released { started: true },
            DeadReason::Lost,
        ),
    ] {
        settle_one(store, job, end, at(1)).await;
        assert_eq!(state_of(store, job.id).await, State::Dead(reason));
    }
    assert!(take(store, 10, at(100_000)).await.is_empty());
}

pub async fn the_same_report_again_changes_nothing(store: &Opened) {
    put(store, jobs(1..3)).await;
    let running = take(store, 2, at(0)).await;
    for (job, end) in [
        (&running[0], Report::Succeeded(None)),
        (&running[1], failed()),
    ] {
        settle_one(store, job, end.clone(), at(1)).await;
        let before = find(store, job.id).await;
        assert_eq!(settle_one(store, job, end, at(5)).await, Settled::Repeated);
        assert_eq!(find(store, job.id).await, before);
        assert_eq!(store.attempts(job.id, 10).await.unwrap().len(), 1);
    }
}

pub async fn a_repeated_report_is_recognized_under_its_changed_outcome(store: &Opened) {
    let once = |number| Job {
        delivery: Delivery::AtMostOnce,
        ..job(number)
    };
    put(store, vec![once(1), once(2), job(3)]).await;
    let running = take(store, 3, at(0)).await;
    for (job, end) in [
        (&running[0], Report::Snoozed { until: at(9) }),
        (&running[1], Report::Released { started: true }),
        (&running[2], Report::Released { started: true }),
    ] {
        settle_one(store, job, end.clone(), at(1)).await;
        let before = find(store, job.id).await;
        assert_eq!(settle_one(store, job, end, at(5)).await, Settled::Repeated);
        assert_eq!(find(store, job.id).await, before);
    }
}

pub async fn another_report_of_an_ended_attempt_is_refused(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    let before = find(store, id(1)).await;
    assert_eq!(
        settle_one(store, &running, failed(), at(2)).await,
        Settled::LeaseLost
    );
    assert_eq!(find(store, id(1)).await, before);
}

pub async fn an_old_attempt_changes_nothing(store: &Opened) {
    put(store, vec![job(1)]).await;
    let zombie = take_one(store, at(0)).await;
    store.sweep(10, at(30), 0).await.unwrap();
    let second = take_one(store, at(40)).await;
    assert_eq!(second.attempt, 2);
    for end in [
        Report::Succeeded(None),
        failed(),
        Report::Released { started: true },
    ] {
        assert_eq!(
            settle_one(store, &zombie, end, at(41)).await,
            Settled::LeaseLost
        );
    }
    assert_eq!(find(store, id(1)).await, second, "no field changed");
    let settled = settle_one(store, &second, Report::Succeeded(None), at(42)).await;
    assert_eq!(settled.verdict(), Some(Verdict::Succeeded));
}

pub async fn an_unknown_attempt_is_refused(store: &Opened) {
    put(store, vec![job(1)]).await;
    assert_eq!(
        settle_one(store, &job(1), failed(), at(1)).await,
        Settled::LeaseLost,
        "never claimed"
    );
    let future = Job {
        attempt: 7,
        ..job(1)
    };
    assert_eq!(
        settle_one(store, &future, failed(), at(1)).await,
        Settled::LeaseLost
    );
    assert_eq!(
        settle_one(store, &job(9), failed(), at(1)).await,
        Settled::LeaseLost,
        "unknown"
    );
    assert_eq!(find(store, id(1)).await, job(1));
}

pub async fn an_expired_lease_can_still_be_settled(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    let settled = settle_one(store, &running, Report::Succeeded(None), at(1000)).await;
    assert_eq!(settled.verdict(), Some(Verdict::Succeeded));
}

pub async fn priority_is_kept_through_retries(store: &Opened) {
    put(
        store,
        vec![Job {
            priority: 9,
            ..job(1)
        }],
    )
    .await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, failed(), at(0)).await;
    assert_eq!(take_one(store, at(1)).await.priority, 9);
}

pub async fn a_batch_is_answered_in_order(store: &Opened) {
    put(store, jobs(1..4)).await;
    let running = take(store, 3, at(0)).await;
    let reports = vec![
        report(&running[2], failed()),
        report(&job(9), failed()),
        report(&running[0], Report::Succeeded(None)),
        report(&running[0], Report::Succeeded(None)),
    ];
    let settled = store.settle(reports, at(1)).await.unwrap();
    assert_eq!(
        settled[0].verdict(),
        Some(Verdict::Waiting { run_at: at(2) })
    );
    assert_eq!(settled[1], Settled::LeaseLost);
    assert_eq!(settled[2].verdict(), Some(Verdict::Succeeded));
    assert_eq!(settled[3], Settled::Repeated);
    assert_eq!(state_of(store, running[1].id).await, State::Running);
}

pub async fn a_revived_job_that_keeps_its_failures_dies_of_the_next(store: &Opened) {
    put(store, vec![limited(1, 1)]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, failed(), at(0)).await;
    let keep = Revival {
        failures: FailureCount::Keep,
        ..Revival::default()
    };
    let revived = store
        .change(&[id(1)], &Change::Revive(keep.clone()), None, at(1))
        .await
        .unwrap();
    assert_eq!(revived, [Changed::Now(State::Waiting)]);
    let running = take_one(store, at(1)).await;
    assert_eq!((running.attempt, running.failures), (2, 1));
    settle_one(store, &running, failed(), at(1)).await;
    let dead = find(store, id(1)).await;
    assert_eq!(
        (dead.failures, dead.state()),
        (2, State::Dead(DeadReason::Exhausted))
    );
}

pub async fn two_workers_with_one_name_are_not_confused(store: &Opened) {
    put(store, jobs(1..3)).await;
    let (first, second) = (take_one(store, at(0)).await, take_one(store, at(0)).await);
    assert_eq!(first.worker, second.worker);
    settle_one(store, &first, Report::Succeeded(None), at(1)).await;
    assert_eq!(state_of(store, second.id).await, State::Running);
}
