//! Cases of claiming.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::{Credit, Pool, Slots};
use windlass_core::retry::{AttemptLimit, Preset};
use windlass_core::{Job, JobId, Lane, Report, State, Verdict, WorkerName};

use super::build::*;
use crate::{Claim, Claimed, Kinds, Pause, QueueLimits, Settled};

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

pub async fn goes_by_priority_then_time_then_age(store: &Opened) {
    put(
        store,
        vec![
            job(1),
            Job {
                priority: 5,
                run_at: at(2),
                ..job(2)
            },
            Job {
                priority: -5,
                ..job(3)
            },
            Job {
                priority: 5,
                run_at: at(1),
                ..job(4)
            },
            job(5),
        ],
    )
    .await;
    let mut order = Vec::new();
    for _ in 0..5 {
        order.push(take_one(store, at(10)).await.id);
    }
    assert_eq!(order, [4, 2, 1, 5, 3].map(id));
    assert!(take(store, 10, at(10)).await.is_empty());
}

pub async fn gives_no_job_before_its_run_at(store: &Opened) {
    put(
        store,
        vec![
            Job {
                run_at: at(10),
                ..job(1)
            },
            Job {
                run_at: at(10),
                priority: 9,
                ..job(2)
            },
        ],
    )
    .await;
    assert!(take(store, 5, at_micros(9_999_999)).await.is_empty());
    assert_eq!(ids(&take(store, 5, at(10)).await), [id(2), id(1)]);
}

pub async fn counts_the_attempt_and_sets_the_lease(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(5)).await;
    assert_eq!(
        (running.attempt, running.failures, running.state()),
        (1, 0, State::Running)
    );
    let lease = running.lease().unwrap();
    assert_eq!((running.started_at, lease.until), (Some(at(5)), at(35)));
    assert_eq!(
        (
            running.worker.as_ref().unwrap().as_str(),
            lease.cancel_requested
        ),
        ("w1", false)
    );
    assert_eq!(lease.policy.as_deref(), Some(&Preset::Patient.policy()));
    assert_eq!(lease.effective_max.get(), 4);
    assert_eq!(running.first_started_at, Some(at(5)));
    assert_eq!(
        find(store, id(1)).await,
        running,
        "what was handed out is what is stored"
    );
}

pub async fn one_job_goes_to_one_of_a_hundred(store: &Opened) {
    put(store, vec![job(1)]).await;
    let claims: Vec<_> = (0..100)
        .map(|_| {
            let store = Arc::clone(store);
            tokio::spawn(async move { take(&store, 1, at(0)).await })
        })
        .collect();
    let mut got = Vec::new();
    for claim in claims {
        got.extend(claim.await.unwrap());
    }
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].attempt, 1);
}

pub async fn many_claimers_share_a_queue_without_overlap(store: &Opened) {
    put(store, jobs(0..1000)).await;
    let claimers: Vec<_> = (0..16)
        .map(|_| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let mut got = Vec::new();
                for _ in 0..=1000 {
                    let jobs = take(&store, 7, at(0)).await;
                    assert!(jobs.len() <= 7);
                    if jobs.is_empty() {
                        return got;
                    }
                    got.extend(ids(&jobs));
                }
                panic!("one claimer got more jobs than exist");
            })
        })
        .collect();
    let mut got = Vec::new();
    for claimer in claimers {
        got.extend(claimer.await.unwrap());
    }
    let distinct: BTreeSet<JobId> = got.iter().copied().collect();
    assert_eq!((got.len(), distinct.len()), (1000, 1000));
}

pub async fn takes_only_the_given_kinds(store: &Opened) {
    put(
        store,
        vec![
            Job {
                kind: kind("b"),
                priority: 9,
                ..job(1)
            },
            job(2),
            Job {
                kind: kind("c"),
                ..job(3)
            },
        ],
    )
    .await;
    let request = Claim {
        kinds: Kinds::Only(BTreeSet::from([kind("a"), kind("c")])),
        ..claim(10)
    };
    assert_eq!(
        ids(&store.claim(&request, at(0)).await.unwrap().jobs),
        [id(2), id(3)]
    );
    let none = Claim {
        kinds: Kinds::Only(BTreeSet::new()),
        ..claim(10)
    };
    assert!(store.claim(&none, at(0)).await.unwrap().jobs.is_empty());
    assert_eq!(state_of(store, id(1)).await, State::Waiting);
}

pub async fn leaves_the_excepted_jobs(store: &Opened) {
    put(store, (1..=5).map(job).collect()).await;
    let request = |limit, except: &[u64], jobs: Option<&[u64]>| Claim {
        except: except.iter().copied().map(id).collect(),
        jobs: jobs.map(|jobs| jobs.iter().copied().map(id).collect()),
        ..claim(limit)
    };
    let claimed =
        |request: Claim| async move { ids(&store.claim(&request, at(0)).await.unwrap().jobs) };
    assert_eq!(claimed(request(2, &[1, 3], None)).await, [id(2), id(4)]);
    assert_eq!(claimed(request(9, &[1], Some(&[1, 3]))).await, [id(3)]);
    assert!(claimed(request(9, &[1, 5], None)).await.is_empty());
    assert_eq!(claimed(request(9, &[], None)).await, [id(1), id(5)]);
}

pub async fn leaves_the_excluded_kinds(store: &Opened) {
    let strange = |number| Job {
        kind: kind("b"),
        priority: 9,
        ..job(number)
    };
    put(store, vec![strange(1), job(2), strange(3), job(4)]).await;
    fail_once(store, 3..5).await;
    let request = |limit| Claim {
        kinds: Kinds::AllExcept(BTreeSet::from([kind("b")])),
        ..claim(limit)
    };
    let named = Claim {
        jobs: Some(BTreeSet::from([id(1), id(3)])),
        ..request(10)
    };
    assert!(store.claim(&named, at(9)).await.unwrap().jobs.is_empty());
    let claimed = store.claim(&request(10), at(9)).await.unwrap().jobs;
    let claimed: BTreeSet<JobId> = claimed.iter().map(|job| job.id).collect();
    assert_eq!(claimed, BTreeSet::from([id(2), id(4)]), "in both lanes");
    assert_eq!(state_of(store, id(1)).await, State::Waiting);
    assert_eq!(state_of(store, id(3)).await, State::Waiting);
    // The skipped jobs of another kind do not hide a job that comes before them.
    put(
        store,
        vec![Job {
            run_at: at(1),
            ..job(5)
        }],
    )
    .await;
    assert_eq!(
        ids(&store.claim(&request(1), at(9)).await.unwrap().jobs),
        [id(5)]
    );
}

pub async fn takes_only_the_given_jobs(store: &Opened) {
    put(store, jobs(1..5)).await;
    let request = Claim {
        jobs: Some(BTreeSet::from([id(4), id(2), id(9)])),
        ..claim(10)
    };
    assert_eq!(
        ids(&store.claim(&request, at(0)).await.unwrap().jobs),
        [id(2), id(4)]
    );
}

pub async fn leaves_other_queues_alone(store: &Opened) {
    put(
        store,
        vec![Job {
            queue: queue("other"),
            ..job(1)
        }],
    )
    .await;
    assert!(take(store, 10, at(0)).await.is_empty());
    let request = Claim {
        queue: queue("other"),
        ..claim(10)
    };
    assert_eq!(store.claim(&request, at(0)).await.unwrap().jobs.len(), 1);
}

pub async fn gives_no_finished_or_running_job(store: &Opened) {
    put(
        store,
        vec![
            Job {
                max_attempts: Some(AttemptLimit::ONE),
                ..job(1)
            },
            job(2),
            job(3),
        ],
    )
    .await;
    let first = take_one(store, at(0)).await;
    settle_one(store, &first, failed(), at(0)).await;
    let second = take_one(store, at(0)).await;
    settle_one(store, &second, Report::Succeeded(None), at(0)).await;
    take_one(store, at(0)).await;
    let before = store.get(&[id(1), id(2), id(3)]).await.unwrap();
    let request = Claim {
        jobs: Some(BTreeSet::from([id(1), id(2), id(3)])),
        ..claim(10)
    };
    assert!(
        store
            .claim(&request, at(1_000_000))
            .await
            .unwrap()
            .jobs
            .is_empty()
    );
    assert_eq!(
        store.get(&[id(1), id(2), id(3)]).await.unwrap(),
        before,
        "nothing changed"
    );
}

/// Each row: due retries, future retries, fresh; limit and ratio; retries and fresh that are
/// claimed.
pub async fn mixes_lanes_by_ratio(store: &Opened) {
    let rows = [
        (5, 0, 20, 10, 0.2, (2, 8)),
        (10, 0, 10, 10, 0.5, (5, 5)),
        (1, 0, 4, 4, 0.2, (1, 3)),
        (20, 0, 0, 10, 0.2, (10, 0)),
        (5, 1, 2, 6, 0.2, (4, 2)),
        (0, 9, 3, 10, 0.2, (0, 3)),
    ];
    for (row, (due, future, fresh, limit, share, expected)) in rows.into_iter().enumerate() {
        let first = row as u64 * 1000;
        let name = queue(&format!("row{row}"));
        let in_queue = |number| Job {
            queue: name.clone(),
            ..job(number)
        };
        put(store, (first..first + due + future).map(in_queue).collect()).await;
        let request = Claim {
            queue: name.clone(),
            ..claim(100)
        };
        let running = store.claim(&request, at(0)).await.unwrap().jobs;
        let (now, later) = running.split_at(due as usize);
        store
            .settle(now.iter().map(|job| report(job, failed())).collect(), at(0))
            .await
            .unwrap();
        store
            .settle(
                later.iter().map(|job| report(job, failed())).collect(),
                at(50),
            )
            .await
            .unwrap();
        put(
            store,
            (first + 500..first + 500 + fresh).map(in_queue).collect(),
        )
        .await;
        let slots = Slots {
            total: limit,
            free: limit,
            retries_running: 0,
        };
        let plan = ratio(Some(share)).plan(Pool::Main, slots, Credit::default());
        let claimed = store
            .claim(
                &Claim {
                    queue: name,
                    plan,
                    ..claim(limit)
                },
                at(10),
            )
            .await
            .unwrap();
        let taken = claimed.taken();
        assert_eq!((taken.retries, taken.fresh), expected, "row {row}");
        assert_eq!(taken.both_lanes_ready, due > 0 && fresh > 0, "row {row}");
    }
}

pub async fn shares_single_slots_by_ratio(store: &Opened) {
    put(store, jobs(0..40)).await;
    fail_once(store, 0..40).await;
    put(store, jobs(100..150)).await;
    let guards = ratio(Some(0.2));
    let mut credit = Credit::default();
    let mut lanes = Vec::new();
    for _ in 0..50 {
        let slots = Slots {
            total: 1,
            free: 1,
            retries_running: 0,
        };
        let plan = guards.plan(Pool::Main, slots, credit);
        let claimed = store
            .claim(&Claim { plan, ..claim(1) }, at(10))
            .await
            .unwrap();
        credit = guards.credit_after(credit, &plan, claimed.taken());
        lanes.push(claimed.jobs[0].lane());
    }
    let retries = lanes.iter().filter(|lane| **lane == Lane::Retry).count();
    assert_eq!(retries, 10);
    assert!(
        lanes.windows(6).all(|six| six.contains(&Lane::Retry)),
        "never 6 fresh in a row"
    );
}

pub async fn strict_priority_mixes_both_lanes(store: &Opened) {
    put(
        store,
        vec![Job {
            priority: 9,
            ..job(1)
        }],
    )
    .await;
    fail_once(store, 1..2).await;
    put(store, jobs(2..5)).await;
    let slots = Slots {
        total: 1,
        free: 1,
        retries_running: 0,
    };
    let plan = ratio(None).plan(Pool::Main, slots, Credit::default());
    let before = store
        .claim(&Claim { plan, ..claim(1) }, at_micros(999_999))
        .await
        .unwrap();
    assert_eq!(ids(&before.jobs), [id(2)], "the urgent retry is not due");
    let due = store
        .claim(&Claim { plan, ..claim(1) }, at(1))
        .await
        .unwrap();
    assert_eq!(ids(&due.jobs), [id(1)]);
}

pub async fn a_paused_queue_gives_nothing(store: &Opened) {
    put(store, jobs(1..3)).await;
    let running = take_one(store, at(0)).await;
    let paused = Some(Pause {
        by: "ann".into(),
        at: at(1),
        reason: None,
    });
    let limits = QueueLimits {
        paused,
        ..QueueLimits::default()
    };
    store
        .put_queue(&queue("default"), &limits, None)
        .await
        .unwrap();
    assert!(take(store, 5, at(2)).await.is_empty());
    let settled = settle_one(store, &running, Report::Succeeded(None), at(2)).await;
    assert_eq!(
        settled.verdict(),
        Some(Verdict::Succeeded),
        "running jobs finish"
    );
    store
        .put_queue(&queue("default"), &QueueLimits::default(), None)
        .await
        .unwrap();
    assert_eq!(take(store, 5, at(3)).await.len(), 1);
}

pub async fn a_passed_deadline_is_not_started(store: &Opened) {
    put(
        store,
        vec![
            Job {
                deadline: Some(at(10)),
                ..job(1)
            },
            Job {
                deadline: Some(at(10)),
                ..job(2)
            },
        ],
    )
    .await;
    assert_eq!(
        take(store, 1, at(10)).await.len(),
        1,
        "the deadline itself is in time"
    );
    assert!(take(store, 1, at_micros(10_000_001)).await.is_empty());
}

pub async fn the_same_claim_again_gives_the_same_leases(store: &Opened) {
    put(store, jobs(1..10)).await;
    let request = claim(3);
    // Claims that got nothing do not push others out of the memory of claims.
    for _ in 0..1100 {
        let nothing = Claim {
            queue: queue("empty"),
            ..claim(1)
        };
        store.claim(&nothing, at(0)).await.unwrap();
    }
    let first = store.claim(&request, at(0)).await.unwrap();
    assert!(!first.repeated);
    let first = first.jobs;
    let again = store.claim(&request, at(1)).await.unwrap();
    assert_eq!((again.jobs, again.repeated), (first.clone(), true));
    for job in &first {
        settle_one(store, job, Report::Succeeded(None), at(2)).await;
        let repeated = store.claim(&request, at(3)).await.unwrap();
        let left = first.iter().filter(|other| other.id > job.id).cloned();
        assert_eq!((repeated.jobs, repeated.repeated), (left.collect(), true));
    }
}

pub async fn two_concurrent_claims_with_one_id_lease_one_set(store: &Opened) {
    put(store, jobs(0..200)).await;
    for round in 0..20 {
        let request = claim(5);
        let (one, two) = tokio::join!(store.claim(&request, at(0)), store.claim(&request, at(0)));
        let ids = |claimed: Claimed| -> BTreeSet<JobId> {
            claimed.jobs.iter().map(|job| job.id).collect()
        };
        let (one, two) = (ids(one.unwrap()), ids(two.unwrap()));
        assert_eq!((one.len(), &one), (5, &two), "round {round}");
    }
    let counts = store.counts(at(0)).await.unwrap();
    assert_eq!(counts[&queue("default")].running, 100);
}

pub async fn stores_the_policy_of_the_claiming_worker(store: &Opened) {
    let three = AttemptLimit::from_max_attempts(3).unwrap();
    put(
        store,
        vec![Job {
            max_attempts: three,
            ..job(1)
        }],
    )
    .await;
    let other = Claim {
        retry: worker(Preset::Immediate.policy()),
        worker: WorkerName::new("w2").unwrap(),
        lease: Duration::from_secs(5),
        ..claim(1)
    };
    let running = store
        .claim(&other, at(0))
        .await
        .unwrap()
        .jobs
        .pop()
        .unwrap();
    let Settled::Done(settlement) = settle_one(store, &running, failed(), at(0)).await else {
        panic!("it runs");
    };
    assert_eq!(
        settlement.delay,
        Some(Duration::ZERO),
        "the delay of the worker that claimed it"
    );
    let running = take_one(store, at(0)).await;
    assert_eq!(
        running.lease().unwrap().effective_max.get(),
        3,
        "the job's own limit"
    );
}
