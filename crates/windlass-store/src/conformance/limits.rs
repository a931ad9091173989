//! Cases of limits: concurrency, rates, and retries in flight.

use std::time::Duration;

use windlass_core::fairness::{Credit, Guards, Pool, Rate, Slots};
use windlass_core::{AttemptError, Concurrency, Edit, Failure, Job, Report, State};

use super::build::*;
use crate::{Change, Changed, Claim, Kinds, QueueLimits};

async fn limit(store: &Opened, limits: QueueLimits) {
    store
        .put_queue(&queue("default"), &limits, None)
        .await
        .unwrap();
}

fn keyed(number: u64, limit: u32) -> Job {
    let concurrency = Some(Concurrency {
        key: key("c"),
        limit,
    });
    Job {
        concurrency,
        ..job(number)
    }
}

pub async fn retries_in_flight_are_capped(store: &Opened) {
    put(store, jobs(0..100)).await;
    fail_once(store, 0..100).await;
    put(store, jobs(200..220)).await;
    let guards = Guards {
        max_inflight_retries: Some(5),
        ..ratio(Some(0.2))
    };
    let slots = Slots {
        total: 50,
        free: 50,
        retries_running: 0,
    };
    let plan = guards.plan(Pool::Main, slots, Credit::default());
    let first = store
        .claim(&Claim { plan, ..claim(50) }, at(10))
        .await
        .unwrap();
    assert_eq!((first.taken().retries, first.taken().fresh), (5, 20));
    let full = store
        .claim(&Claim { plan, ..claim(50) }, at(10))
        .await
        .unwrap();
    assert!(full.jobs.is_empty());
    let retry = first.jobs.iter().find(|job| job.failures > 0).unwrap();
    settle_one(store, retry, Report::Succeeded(None), at(11)).await;
    let one = store
        .claim(&Claim { plan, ..claim(50) }, at(11))
        .await
        .unwrap();
    assert_eq!(one.taken().retries, 1, "its slot came back");
}

pub async fn a_queue_runs_no_more_than_its_concurrency(store: &Opened) {
    limit(
        store,
        QueueLimits {
            concurrency: Some(3),
            ..QueueLimits::default()
        },
    )
    .await;
    put(store, jobs(0..10)).await;
    let running = take(store, 2, at(0)).await;
    assert_eq!(running.len(), 2);
    assert_eq!(take(store, 5, at(0)).await.len(), 1);
    assert!(take(store, 5, at(0)).await.is_empty());
    settle_one(store, &running[0], Report::Succeeded(None), at(1)).await;
    assert_eq!(take(store, 5, at(1)).await.len(), 1);
}

/// While a limit lets `at_once` jobs run at a time, retries get one of five starts.
async fn starts_are_shared(store: &Opened, at_once: usize) {
    let guards = ratio(Some(0.2));
    let slots = Slots {
        total: 20,
        free: 20,
        retries_running: 0,
    };
    let (mut credit, mut retries) = (Credit::default(), 0);
    for number in 0..25 {
        let plan = guards.plan(Pool::Main, slots, credit);
        let claimed = store.claim(&Claim { plan, ..claim(20) }, at(10)).await;
        let claimed = claimed.unwrap();
        credit = guards.credit_after(credit, &plan, claimed.taken());
        assert_eq!(claimed.jobs.len(), at_once, "claim {number}");
        retries += claimed.taken().retries as usize;
        for job in &claimed.jobs {
            settle_one(store, job, Report::Succeeded(None), at(10)).await;
        }
    }
    assert_eq!(retries, 5 * at_once);
}

pub async fn the_concurrency_of_a_queue_does_not_change_the_share_of_retries(store: &Opened) {
    put(store, jobs(0..50)).await;
    fail_once(store, 0..50).await;
    put(store, jobs(100..200)).await;
    for at_once in [1, 3] {
        limit(
            store,
            QueueLimits {
                concurrency: Some(at_once),
                ..QueueLimits::default()
            },
        )
        .await;
        starts_are_shared(store, at_once as usize).await;
    }
}

pub async fn a_concurrency_key_does_not_change_the_share_of_retries(store: &Opened) {
    for number in 0..10 {
        put(store, vec![keyed(number, 1)]).await;
        fail_once(store, number..number + 1).await;
    }
    put(store, (100..130).map(|number| keyed(number, 1)).collect()).await;
    starts_are_shared(store, 1).await;
}

pub async fn a_concurrency_key_for_several_jobs_does_not_change_the_share_of_retries(
    store: &Opened,
) {
    for number in 0..20 {
        put(store, vec![keyed(number, 3)]).await;
        fail_once(store, number..number + 1).await;
    }
    put(store, (100..200).map(|number| keyed(number, 3)).collect()).await;
    starts_are_shared(store, 3).await;
}

pub async fn a_queue_starts_no_more_than_its_rate(store: &Opened) {
    let rate = Some(Rate {
        count: 3,
        period: Duration::from_secs(10),
    });
    limit(
        store,
        QueueLimits {
            rate,
            ..QueueLimits::default()
        },
    )
    .await;
    put(store, jobs(0..20)).await;
    assert_eq!(take(store, 2, at(0)).await.len(), 2);
    assert_eq!(take(store, 9, at(4)).await.len(), 1);
    let until = async |now| store.counts(now).await.unwrap()[&queue("default")].rate_until;
    assert_eq!(
        until(at(4)).await,
        Some(at(10)),
        "the first two started at 0"
    );
    assert!(take(store, 9, at_micros(9_999_999)).await.is_empty());
    assert_eq!(until(at(10)).await, None);
    assert_eq!(
        take(store, 9, at(10)).await.len(),
        2,
        "the first two are a period ago"
    );
    assert_eq!(take(store, 9, at(14)).await.len(), 1);
}

pub async fn a_late_claim_keeps_to_the_rate(store: &Opened) {
    let (count, period) = (10, Duration::from_secs(2));
    limit(
        store,
        QueueLimits {
            rate: Some(Rate { count, period }),
            ..QueueLimits::default()
        },
    )
    .await;
    put(store, jobs(0..40)).await;
    assert_eq!(take(store, 10, at(10)).await.len(), 10);
    assert_eq!(take(store, 5, at_micros(12_500_000)).await.len(), 5);
    // The clock of this claimer is behind, or the claim had to wait.
    take(store, 20, at(11)).await;
    let ids: Vec<_> = (0..40).map(id).collect();
    let found = store.get(&ids).await.unwrap().into_iter().flatten();
    let mut starts: Vec<_> = found.filter_map(|job| job.started_at).collect();
    starts.sort_unstable();
    assert!(starts.len() >= 15, "{starts:?}");
    for window in starts.windows(11) {
        assert!(window[10].since(window[0]) >= period, "{starts:?}");
    }
}

pub async fn a_claim_that_starts_nothing_forgets_no_start(store: &Opened) {
    let (count, period) = (2, Duration::from_secs(10));
    limit(
        store,
        QueueLimits {
            rate: Some(Rate { count, period }),
            ..QueueLimits::default()
        },
    )
    .await;
    put(store, jobs(0..2)).await;
    assert_eq!(take(store, 5, at(0)).await.len(), 2);
    assert!(take(store, 5, at(12)).await.is_empty(), "no job waits");
    put(store, jobs(2..6)).await;
    // The clock of this claimer is behind, or the claim had to wait.
    assert!(take(store, 5, at(3)).await.is_empty());
    assert_eq!(take(store, 5, at(12)).await.len(), 2);
}

pub async fn a_concurrency_key_limits_running_jobs(store: &Opened) {
    put(store, (0..10).map(|n| keyed(n, 2)).collect()).await;
    let running = take(store, 10, at(0)).await;
    assert_eq!(running.len(), 2);
    assert!(take(store, 10, at(0)).await.is_empty());
    settle_one(store, &running[0], failed(), at(0)).await;
    assert_eq!(take(store, 10, at(0)).await.len(), 1);
}

pub async fn a_concurrency_key_counts_across_all_queues(store: &Opened) {
    put(
        store,
        vec![
            keyed(1, 1),
            Job {
                queue: queue("other"),
                ..keyed(2, 1)
            },
        ],
    )
    .await;
    let first = take_one(store, at(0)).await;
    let other = || Claim {
        queue: queue("other"),
        ..claim(5)
    };
    assert!(store.claim(&other(), at(0)).await.unwrap().jobs.is_empty());
    settle_one(store, &first, Report::Succeeded(None), at(1)).await;
    assert_eq!(store.claim(&other(), at(1)).await.unwrap().jobs.len(), 1);
}

pub async fn a_blocked_job_does_not_block_those_behind_it(store: &Opened) {
    put(
        store,
        (0..5)
            .map(|n| Job {
                priority: 9,
                ..keyed(n, 1)
            })
            .collect(),
    )
    .await;
    put(store, jobs(10..13)).await;
    let running = take(store, 3, at(0)).await;
    let keyed = running
        .iter()
        .filter(|job| job.concurrency.is_some())
        .count();
    assert_eq!((running.len(), keyed), (3, 1));
}

pub async fn an_overdue_job_does_not_block_its_concurrency_key(store: &Opened) {
    let overdue = |number| Job {
        deadline: Some(at(5)),
        priority: 9,
        ..keyed(number, 1)
    };
    put(store, vec![keyed(1, 1)]).await;
    let running = take_one(store, at(0)).await;
    put(store, vec![overdue(2), overdue(3), keyed(4, 1)]).await;
    assert!(take(store, 5, at(1)).await.is_empty(), "the key is full");
    settle_one(store, &running, Report::Succeeded(None), at(2)).await;
    let next = take(store, 5, at(10)).await;
    assert_eq!(
        next.len(),
        1,
        "overdue jobs that are not swept yet do not block it"
    );
    assert_eq!(next[0].id, id(4));
}

pub async fn a_lost_lease_gives_its_slot_back(store: &Opened) {
    put(store, (0..3).map(|n| keyed(n, 1)).collect()).await;
    take_one(store, at(0)).await;
    assert!(take(store, 5, at(29)).await.is_empty());
    let swept = store.sweep(10, at(30), 0).await.unwrap();
    assert_eq!(swept.lost.len(), 1);
    assert_eq!(take(store, 5, at(30)).await.len(), 1);
}

pub async fn each_job_brings_its_own_limit(store: &Opened) {
    put(
        store,
        vec![keyed(1, 1), keyed(2, 3), keyed(3, 2), keyed(4, 3)],
    )
    .await;
    let running = take(store, 10, at(0)).await;
    let numbers: Vec<u32> = running
        .iter()
        .map(|job| job.concurrency.as_ref().unwrap().limit)
        .collect();
    // With one running, the second may start (1 < 3), the third not (2 ≥ 2), the fourth may (2 <
    // 3).
    assert_eq!(numbers, [1, 3, 3]);
}

pub async fn every_end_of_an_attempt_frees_its_concurrency_key(store: &Opened) {
    let ends = [
        Report::Succeeded(None),
        failed(),
        Report::Failed(Failure::unrecoverable(AttemptError::new("never"))),
        Report::Released { started: true },
        Report::Snoozed { until: at(1000) },
        Report::Cancelled,
    ];
    // The first one runs, and a claim meets the others while the key is full.
    let count = ends.len() as u64;
    let last = Job {
        priority: -1,
        ..keyed(count, 1)
    };
    put(
        store,
        (0..count).map(|n| keyed(n, 1)).chain([last]).collect(),
    )
    .await;
    let mut running = take_one(store, at(0)).await;
    for (end, number) in ends.into_iter().zip(1..) {
        assert!(take(store, 5, at(0)).await.is_empty(), "the key is full");
        // A released job waits at the front again, so it goes to the end of the order.
        let is_released = matches!(end, Report::Released { .. });
        settle_one(store, &running, end, at(0)).await;
        if is_released {
            let cancelled = store
                .change(&[running.id], &Change::Cancel, None, at(0))
                .await;
            assert_eq!(cancelled.unwrap(), [Changed::Now(State::Cancelled)]);
        }
        running = take_one(store, at(0)).await;
        assert_eq!(running.id, id(number));
    }
}

pub async fn a_blocked_job_starts_when_the_one_before_it_is_changed(store: &Opened) {
    let overdue = Job {
        deadline: Some(at(5)),
        ..keyed(4, 1)
    };
    let waiting = [keyed(1, 1), keyed(2, 1), keyed(3, 1), overdue, keyed(5, 1)];
    put(store, waiting.into()).await;
    let running = take_one(store, at(0)).await;
    assert!(take(store, 5, at(0)).await.is_empty(), "the key is full");
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    // The next one may start, but does not.
    let changed = store.change(&[id(2)], &Change::Cancel, None, at(1)).await;
    assert_eq!(changed.unwrap(), [Changed::Now(State::Cancelled)]);
    let moved = Edit {
        queue: Some(queue("other")),
        ..Edit::default()
    };
    let changed = edit_one(store, id(3), &moved, at(1)).await;
    assert_eq!(changed, Changed::Now(State::Waiting));
    let swept = store.sweep(10, at(6), 0).await.unwrap();
    assert_eq!(swept.expired.len(), 1);
    assert_eq!(take_one(store, at(6)).await.id, id(5));
}

pub async fn a_blocked_job_can_be_changed(store: &Opened) {
    let urgent = Job {
        priority: 9,
        ..keyed(1, 1)
    };
    let waiting = [urgent, keyed(2, 1), keyed(3, 1), keyed(4, 1), keyed(5, 1)];
    put(store, waiting.into()).await;
    let running = take_one(store, at(0)).await;
    assert!(take(store, 5, at(0)).await.is_empty(), "the key is full");
    assert_eq!(find(store, id(3)).await.state(), State::Waiting);
    let counts = store.counts(at(0)).await.unwrap();
    assert_eq!(counts[&queue("default")].ready, 4, "they wait as before");
    let changed = store.change(&[id(2)], &Change::Cancel, None, at(1)).await;
    assert_eq!(changed.unwrap(), [Changed::Now(State::Cancelled)]);
    let moved = Edit {
        queue: Some(queue("other")),
        ..Edit::default()
    };
    edit_one(store, id(3), &moved, at(1)).await;
    let first = Edit {
        priority: Some(5),
        ..Edit::default()
    };
    edit_one(store, id(5), &first, at(1)).await;
    assert!(take(store, 5, at(1)).await.is_empty(), "the key is full");
    settle_one(store, &running, Report::Succeeded(None), at(2)).await;
    let next = take_one(store, at(2)).await;
    assert_eq!(next.id, id(5));
    settle_one(store, &next, Report::Succeeded(None), at(3)).await;
    let other = Claim {
        queue: queue("other"),
        ..claim(5)
    };
    let next = store.claim(&other, at(3)).await.unwrap().jobs;
    assert_eq!(next.iter().map(|job| job.id).collect::<Vec<_>>(), [id(3)]);
    settle_one(store, &next[0], Report::Succeeded(None), at(4)).await;
    assert_eq!(take_one(store, at(4)).await.id, id(4));
}

pub async fn a_blocked_job_can_be_claimed_by_id(store: &Opened) {
    put(store, (1..6).map(|n| keyed(n, 1)).collect()).await;
    let running = take_one(store, at(0)).await;
    assert!(take(store, 5, at(0)).await.is_empty(), "the key is full");
    let named = || Claim {
        jobs: Some([id(4), id(5)].into()),
        ..claim(5)
    };
    assert!(store.claim(&named(), at(0)).await.unwrap().jobs.is_empty());
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    let found = store.claim(&named(), at(1)).await.unwrap().jobs;
    assert_eq!(found.iter().map(|job| job.id).collect::<Vec<_>>(), [id(4)]);
    settle_one(store, &found[0], Report::Succeeded(None), at(2)).await;
    assert_eq!(take_one(store, at(2)).await.id, id(2));
}

pub async fn a_job_of_another_kind_does_not_block_its_concurrency_key(store: &Opened) {
    let other = |number| Job {
        kind: kind("other"),
        ..keyed(number, 1)
    };
    put(store, vec![keyed(1, 1), other(2), keyed(3, 1), other(4)]).await;
    let running = take_one(store, at(0)).await;
    assert!(take(store, 5, at(0)).await.is_empty(), "the key is full");
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    let known = Claim {
        kinds: Kinds::Only([keyed(1, 1).kind].into()),
        ..claim(5)
    };
    let found = store.claim(&known, at(1)).await.unwrap().jobs;
    assert_eq!(found.iter().map(|job| job.id).collect::<Vec<_>>(), [id(3)]);
    settle_one(store, &found[0], Report::Succeeded(None), at(2)).await;
    assert_eq!(take_one(store, at(2)).await.id, id(2));
}

pub async fn a_free_key_starts_as_many_jobs_as_it_allows(store: &Opened) {
    put(store, (0..20).map(|n| keyed(n, 4)).collect()).await;
    for round in 0..5_u64 {
        let running = take(store, 10, at(round)).await;
        let ids: Vec<_> = running.iter().map(|job| job.id).collect();
        assert_eq!(ids, (4 * round..4 * round + 4).map(id).collect::<Vec<_>>());
        assert!(
            take(store, 10, at(round)).await.is_empty(),
            "the key is full"
        );
        let reports = running
            .iter()
            .map(|job| report(job, Report::Succeeded(None)));
        store.settle(reports.collect(), at(round)).await.unwrap();
    }
    assert!(take(store, 10, at(9)).await.is_empty());
}
