//! Cases of renewing and sweeping leases.

use std::time::Duration;

use windlass_core::retry::Preset;
use windlass_core::{DeadReason, Delivery, Job, Outcome, Report, State, Verdict};

use super::build::*;
use crate::{AttemptId, Change, Claim, Renewed, Settled, Swept};

const LEASE: Duration = Duration::from_secs(30);

pub async fn an_expired_lease_is_lost(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    assert_eq!(
        store.sweep(10, at_micros(29_999_999), 0).await.unwrap(),
        Swept::default()
    );
    let swept = store.sweep(10, at(30), 0).await.unwrap();
    assert_eq!(swept.lost.len(), 1);
    let (attempt, settlement) = &swept.lost[0];
    assert_eq!(
        (*attempt, settlement.outcome),
        (attempt_of(&running), Outcome::Lost)
    );
    let waiting = find(store, id(1)).await;
    assert_eq!(
        (waiting.failures, waiting.run_at),
        (1, at(31)),
        "1 s after the sweep noticed it"
    );
    let history = store.attempts(id(1), 10).await.unwrap();
    assert_eq!(
        (
            history[0].outcome,
            history[0].worker.as_ref().unwrap().as_str()
        ),
        (Outcome::Lost, "w1")
    );
    assert!(history[0].error.is_some());
}

pub async fn a_renewed_lease_is_not_swept(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    for now in (10..=300).step_by(10) {
        let renewed = store
            .renew(&[attempt_of(&running)], LEASE, at(now))
            .await
            .unwrap();
        assert_eq!(
            renewed,
            [Renewed::Until {
                until: at(now + 30),
                cancel_requested: false
            }]
        );
        assert_eq!(store.sweep(10, at(now), 0).await.unwrap(), Swept::default());
    }
    assert_eq!(find(store, id(1)).await.lease().unwrap().until, at(330));
    assert_eq!(
        store.sweep(10, at(330), 0).await.unwrap().lost.len(),
        1,
        "one lease after renewals stop"
    );
}

pub async fn an_expired_lease_can_be_renewed_until_it_is_swept(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    let renewed = store
        .renew(&[attempt_of(&running)], LEASE, at(100))
        .await
        .unwrap();
    assert_eq!(
        renewed,
        [Renewed::Until {
            until: at(130),
            cancel_requested: false
        }]
    );
    assert_eq!(store.sweep(10, at(129), 0).await.unwrap(), Swept::default());
}

pub async fn a_renewal_reports_a_cancel_request(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    store
        .change(&[id(1)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    let renewed = store
        .renew(&[attempt_of(&running)], LEASE, at(2))
        .await
        .unwrap();
    assert_eq!(
        renewed,
        [Renewed::Until {
            until: at(32),
            cancel_requested: true
        }]
    );
}

pub async fn a_renewal_of_an_ended_attempt_is_refused(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, failed(), at(1)).await;
    let unknown = AttemptId {
        job: id(9),
        attempt: 1,
    };
    let request = [attempt_of(&running), unknown];
    let before = find(store, id(1)).await;
    assert_eq!(
        store.renew(&request, LEASE, at(2)).await.unwrap(),
        [Renewed::LeaseLost, Renewed::LeaseLost]
    );
    assert_eq!(find(store, id(1)).await, before);
}

pub async fn a_settled_attempt_is_not_swept(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, Report::Succeeded(None), at(30)).await;
    assert_eq!(store.sweep(10, at(31), 0).await.unwrap(), Swept::default());
    assert_eq!(state_of(store, id(1)).await, State::Succeeded);
}

pub async fn a_swept_attempt_writes_nothing_more(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    store.sweep(10, at(30), 0).await.unwrap();
    let before = find(store, id(1)).await;
    for end in [Report::Succeeded(None), failed()] {
        assert_eq!(
            settle_one(store, &running, end, at(31)).await,
            Settled::LeaseLost
        );
    }
    assert_eq!(
        store
            .renew(&[attempt_of(&running)], LEASE, at(31))
            .await
            .unwrap(),
        [Renewed::LeaseLost]
    );
    assert_eq!(find(store, id(1)).await, before);
}

pub async fn a_sweep_is_bounded(store: &Opened) {
    put(store, jobs(0..10)).await;
    take(store, 10, at(0)).await;
    assert_eq!(store.sweep(4, at(100), 0).await.unwrap().lost.len(), 4);
    assert_eq!(store.sweep(100, at(100), 0).await.unwrap().lost.len(), 6);
    assert_eq!(
        store.sweep(100, at(100), 0).await.unwrap(),
        Swept::default()
    );
}

pub async fn overdue_jobs_become_dead(store: &Opened) {
    put(
        store,
        vec![
            Job {
                deadline: Some(at(10)),
                run_at: at(50),
                ..job(1)
            },
            job(2),
        ],
    )
    .await;
    assert_eq!(store.sweep(10, at(10), 0).await.unwrap(), Swept::default());
    let swept = store.sweep(10, at(11), 0).await.unwrap();
    assert_eq!(swept.expired.len(), 1);
    assert_eq!(swept.expired[0].job, id(1));
    assert_eq!(
        state_of(store, id(1)).await,
        State::Dead(DeadReason::Expired)
    );
    assert_eq!(state_of(store, id(2)).await, State::Waiting);
}

pub async fn three_losses_are_poison(store: &Opened) {
    put(store, vec![job(1)]).await;
    for now in [0, 100, 200, 300] {
        take_one(store, at(now)).await;
        store.sweep(10, at(now + 30), 0).await.unwrap();
    }
    let dead = find(store, id(1)).await;
    assert_eq!(
        (dead.failures, dead.state()),
        (4, State::Dead(DeadReason::Poison))
    );
}

pub async fn a_lost_at_most_once_job_waits_for_a_person(store: &Opened) {
    put(
        store,
        vec![Job {
            delivery: Delivery::AtMostOnce,
            ..job(1)
        }],
    )
    .await;
    take_one(store, at(0)).await;
    let swept = store.sweep(10, at(30), 0).await.unwrap();
    assert_eq!(swept.lost[0].1.verdict, Verdict::Dead(DeadReason::Lost));
    assert!(take(store, 10, at(1000)).await.is_empty());
}

pub async fn a_lost_job_is_retried_by_the_policy_of_its_claim(store: &Opened) {
    put(store, vec![job(1)]).await;
    let quick = Claim {
        retry: worker(Preset::Immediate.policy()),
        ..claim(1)
    };
    store.claim(&quick, at(0)).await.unwrap();
    let swept = store.sweep(10, at(30), 0).await.unwrap();
    assert_eq!(swept.lost[0].1.delay, Some(Duration::ZERO));
}
