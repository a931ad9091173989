//! Many nodes at once: no job runs twice, limits hold, and no one waits forever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::{Credit, Guards, Pool, Rate, Slots};
use windlass_core::{Concurrency, Job, JobId, QueueName, Report};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{
    Opened, at, at_micros, attempt_of, claim, enqueue_one, fail_once, id, job, jobs, key, put,
    ratio, report, unique,
};
use windlass_store::conformance::schedule::{lose_a_zone, unreadable_schedules_stand_aside};
use windlass_store::conformance::unreadable;
use windlass_store::{Change, Claim, Enqueue, Enqueued, QueueLimits, Renewed, Settled, StoreError};
use windlass_testkit::cluster;

async fn nodes(count: usize) -> (Vec<Opened>, String) {
    let url = cluster::database().await;
    let mut nodes: Vec<Opened> = Vec::new();
    for _ in 0..count {
        let options = cluster::options(&format!("{url}?pool_size=4"));
        nodes.push(Arc::new(
            PostgresStore::connect(options).await.expect("it connects"),
        ));
    }
    (nodes, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_workers_on_eight_nodes_share_ten_thousand_jobs() {
    let (nodes, _) = nodes(8).await;
    for first in [0, 5000] {
        let batch = Enqueue::all(jobs(first..first + 5000));
        nodes[0].enqueue(batch, at(0)).await.unwrap();
    }
    let workers = (0..64).map(|worker| {
        let node = Arc::clone(&nodes[worker % 8]);
        tokio::spawn(async move {
            let (mut got, mut empty) = (Vec::new(), 0);
            while empty < 3 {
                let claimed = node.claim(&claim(37), at(0)).await.unwrap().jobs;
                assert!(claimed.len() <= 37, "never more than asked for");
                empty = if claimed.is_empty() { empty + 1 } else { 0 };
                got.extend(claimed.iter().map(attempt_of));
            }
            got
        })
    });
    let mut all = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        all.extend(worker.await.unwrap());
    }
    let given: BTreeSet<JobId> = all.iter().map(|of| of.job).collect();
    assert_eq!((all.len(), given.len()), (10_000, 10_000), "each once");
    assert!(all.iter().all(|of| of.attempt == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_enqueues_with_one_key_make_one_job() {
    let (nodes, _) = nodes(4).await;
    let enqueues = (0..100_u64).map(|number| {
        let node = Arc::clone(&nodes[number as usize % 4]);
        let job = Job {
            unique: unique("k"),
            payload: job(0).payload,
            ..job(number)
        };
        tokio::spawn(async move { enqueue_one(&node, job, at(0)).await.unwrap() })
    });
    let mut created = BTreeSet::new();
    let mut answered = BTreeSet::new();
    for enqueue in enqueues.collect::<Vec<_>>() {
        match enqueue.await.unwrap() {
            Enqueued::Created(id) => {
                created.insert(id);
                answered.insert(id);
            }
            Enqueued::Duplicate {
                id,
                payload_differs: false,
            } => drop(answered.insert(id)),
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(created.len(), 1);
    assert_eq!(answered, created);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_never_runs_more_than_its_limit_and_a_crash_gives_the_slot_back() {
    let (nodes, _) = nodes(4).await;
    let keyed = |number| Job {
        concurrency: Some(Concurrency {
            key: key(if number % 2 == 0 { "even" } else { "odd" }),
            limit: 3,
        }),
        ..job(number)
    };
    let batch = (0..200).map(keyed).collect();
    nodes[0].enqueue(Enqueue::all(batch), at(0)).await.unwrap();
    for round in 0..5 {
        let now = at(round * 100);
        let claims = nodes.iter().cycle().take(16).map(|node| {
            let node = Arc::clone(node);
            tokio::spawn(async move {
                let (mut jobs, mut last) = (Vec::new(), 1);
                // Next to another claim with the same keys, a claim may find fewer jobs.
                while last > 0 {
                    let claimed = node.claim(&claim(5), now).await.unwrap().jobs;
                    last = claimed.len();
                    jobs.extend(claimed);
                }
                jobs
            })
        });
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for claimed in claims.collect::<Vec<_>>() {
            for job in claimed.await.unwrap() {
                let key = job.concurrency.unwrap().key.to_string();
                *running.entry(key).or_default() += 1;
            }
        }
        let full = BTreeMap::from([("even".to_owned(), 3), ("odd".to_owned(), 3)]);
        assert_eq!(running, full, "round {round}");
        // All workers crash. When their leases expire, the slots are free again.
        let swept = nodes[1].sweep(1000, at(round * 100 + 50), 0).await.unwrap();
        assert_eq!(swept.lost.len(), 6, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_together_respect_the_concurrency_of_a_queue() {
    let (nodes, _) = nodes(4).await;
    let limits = QueueLimits {
        concurrency: Some(7),
        ..QueueLimits::default()
    };
    nodes[0]
        .put_queue(&job(1).queue, &limits, None)
        .await
        .unwrap();
    nodes[0]
        .enqueue(Enqueue::all(jobs(1..100)), at(0))
        .await
        .unwrap();
    let claims = nodes.iter().cycle().take(12).map(|node| {
        let node = Arc::clone(node);
        tokio::spawn(async move { node.claim(&claim(3), at(0)).await.unwrap().jobs.len() })
    });
    let mut running = 0;
    for claimed in claims.collect::<Vec<_>>() {
        running += claimed.await.unwrap();
    }
    assert_eq!(running, 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_together_respect_the_retries_in_flight_of_a_queue() {
    const RETRIES_MAX: usize = 5;
    let (nodes, _) = nodes(4).await;
    put(&nodes[0], jobs(0..60)).await;
    fail_once(&nodes[0], 0..60).await;
    put(&nodes[0], jobs(100..400)).await;
    let guards = Guards {
        max_inflight_retries: Some(5),
        ..ratio(Some(0.5))
    };
    let slots = Slots {
        total: 10,
        free: 10,
        retries_running: 0,
    };
    for round in 0..10 {
        let claims = (0..12_u64).map(|number| {
            let node = Arc::clone(&nodes[number as usize % 4]);
            let plan = guards.plan(Pool::Main, slots, Credit::default());
            // The clocks of the nodes differ by up to three seconds.
            let now = at(100 + 10 * round + number % 4);
            let claim = Claim { plan, ..claim(10) };
            tokio::spawn(async move { node.claim(&claim, now).await.unwrap() })
        });
        let mut retries = Vec::new();
        for claimed in claims.collect::<Vec<_>>() {
            let jobs = claimed.await.unwrap().jobs.into_iter();
            retries.extend(jobs.filter(|job| job.failures > 0));
        }
        assert_eq!(retries.len(), RETRIES_MAX, "round {round}");
        // The fresh jobs go on; only the retries end and make room for others.
        let reports = retries
            .iter()
            .map(|job| report(job, Report::Succeeded(None)));
        let settled = nodes[1].settle(reports.collect(), at(109 + 10 * round));
        assert_eq!(settled.await.unwrap().len(), RETRIES_MAX);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_together_respect_the_max_depth_of_a_queue() {
    let (nodes, _) = nodes(4).await;
    let limits = QueueLimits {
        max_depth: Some(100),
        ..QueueLimits::default()
    };
    nodes[0]
        .put_queue(&job(1).queue, &limits, None)
        .await
        .unwrap();
    let before = Enqueue::all(jobs(0..95));
    nodes[0].enqueue(before, at(0)).await.unwrap();
    let enqueues = (100..120_u64).map(|number| {
        let node = Arc::clone(&nodes[number as usize % 4]);
        tokio::spawn(async move { enqueue_one(&node, job(number), at(0)).await })
    });
    let mut stored = 0;
    for enqueue in enqueues.collect::<Vec<_>>() {
        match enqueue.await.unwrap() {
            Ok(Enqueued::Created(_)) => stored += 1,
            Err(StoreError::QueueFull { max_depth: 100, .. }) => {}
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(stored, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_outlasts_its_purged_job_still_finds_duplicates() {
    let (nodes, url) = nodes(1).await;
    let keyed = |number| Job {
        unique: unique("k").map(|unique| windlass_core::Unique {
            unique_for: Some(Duration::from_secs(1000)),
            ..unique
        }),
        ..job(number)
    };
    enqueue_one(&nodes[0], keyed(1), at(0)).await.unwrap();
    let running = nodes[0].claim(&claim(1), at(0)).await.unwrap().jobs;
    let reports = running
        .iter()
        .map(|job| report(job, Report::Succeeded(None)));
    nodes[0].settle(reports.collect(), at(1)).await.unwrap();
    cluster::execute(&url, "delete from windlass.finished").await;
    let answer = enqueue_one(&nodes[0], keyed(2), at(2)).await.unwrap();
    let first = Enqueued::Duplicate {
        id: id(1),
        payload_differs: false,
    };
    assert_eq!(answer, first);
    let answer = enqueue_one(&nodes[0], keyed(2), at(2000)).await.unwrap();
    assert_eq!(answer, Enqueued::Created(id(2)), "its time is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_on_the_same_jobs_do_not_deadlock() {
    let (nodes, _) = nodes(4).await;
    nodes[0]
        .enqueue(Enqueue::all(jobs(0..50)), at(0))
        .await
        .unwrap();
    let claimed = nodes[0].claim(&claim(50), at(0)).await.unwrap().jobs;
    for round in 0..10 {
        let steps = nodes.iter().enumerate().map(|(number, node)| {
            let (node, mut attempts) = (
                Arc::clone(node),
                claimed.iter().map(attempt_of).collect::<Vec<_>>(),
            );
            if number % 2 == 1 {
                attempts.reverse();
            }
            let ids: Vec<JobId> = attempts.iter().map(|of| of.job).collect();
            tokio::spawn(async move {
                let lease = Duration::from_secs(60);
                let renewed = node.renew(&attempts, lease, at(round)).await.unwrap();
                assert!(renewed.iter().all(|renewed| *renewed != Renewed::LeaseLost));
                node.change(&ids, &Change::Cancel, None, at(round))
                    .await
                    .unwrap();
            })
        });
        for step in steps.collect::<Vec<_>>() {
            step.await.unwrap();
        }
    }
    // Two nodes send the same reports: one of them ends each attempt.
    let ends = nodes.iter().take(2).enumerate().map(|(number, node)| {
        let (node, mut claimed) = (Arc::clone(node), claimed.clone());
        if number == 1 {
            claimed.reverse();
        }
        tokio::spawn(async move {
            let reports = claimed.iter().map(|job| report(job, Report::Cancelled));
            node.settle(reports.collect(), at(20)).await.unwrap()
        })
    });
    let mut done = 0;
    for end in ends.collect::<Vec<_>>() {
        let settled = end.await.unwrap();
        done += settled
            .iter()
            .filter(|settled| matches!(settled, Settled::Done(_)))
            .count();
    }
    assert_eq!(done, 50);
}

/// The transactions that wait for a lock: process and start.
async fn waiting(watcher: &tokio_postgres::Client) -> Vec<(i32, String)> {
    let sql = "select pid, xact_start::text from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock'";
    let rows = watcher.query(sql, &[]).await.expect("the cluster runs");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_timeout_is_retried() {
    let url = cluster::database().await;
    let options = cluster::options(&format!("{url}?lock_timeout=100ms"));
    let watcher = cluster::client(&url).await;
    let store: Opened = Arc::new(PostgresStore::connect(options).await.unwrap());
    store
        .enqueue(Enqueue::all(vec![job(1)]), at(0))
        .await
        .unwrap();
    let claimed = store.claim(&claim(1), at(0)).await.unwrap().jobs;
    let other = cluster::client(&url).await;
    other
        .batch_execute("begin; select * from windlass.jobs for update")
        .await
        .unwrap();
    let node = Arc::clone(&store);
    let settle = tokio::spawn(async move {
        let reports = claimed
            .iter()
            .map(|job| report(job, Report::Succeeded(None)));
        node.settle(reports.collect(), at(1)).await
    });
    // The second transaction that waits is the one after the timeout.
    let mut waited = BTreeSet::new();
    let seen_twice = async {
        while waited.len() < 2 {
            waited.extend(waiting(&watcher).await);
        }
    };
    let seen_twice = tokio::time::timeout(Duration::from_secs(60), seen_twice).await;
    assert!(seen_twice.is_ok(), "never tried again: {waited:?}");
    other.batch_execute("rollback").await.unwrap();
    let settled = settle.await.unwrap().expect("it was tried again");
    assert!(
        matches!(settled.as_slice(), [Settled::Done(_)]),
        "{settled:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settles_and_renewals_work_when_all_other_connections_are_busy() {
    let url = cluster::database().await;
    let options = cluster::options(&format!(
        "{url}?pool_size=2&lock_timeout=1s&statement_timeout=5s"
    ));
    let store: Opened = Arc::new(PostgresStore::connect(options).await.unwrap());
    store
        .enqueue(Enqueue::all(vec![job(1)]), at(0))
        .await
        .unwrap();
    let running = store.claim(&claim(1), at(0)).await.unwrap().jobs;
    let other = cluster::client(&url).await;
    // Claims block, and with them all connections of the main pool.
    other
        .batch_execute("begin; lock table windlass.claims")
        .await
        .unwrap();
    let stuck: Vec<_> = (0..4)
        .map(|_| {
            let node = Arc::clone(&store);
            tokio::spawn(async move { node.claim(&claim(1), at(1)).await })
        })
        .collect();
    let watcher = cluster::client(&url).await;
    let all_wait = async {
        // Both connections of the main pool.
        while waiting(&watcher).await.len() < 2 {}
    };
    let all_wait = tokio::time::timeout(Duration::from_secs(60), all_wait).await;
    assert!(all_wait.is_ok(), "the claims do not wait for the table");
    let attempts: Vec<_> = running.iter().map(attempt_of).collect();
    let renewed = store
        .renew(&attempts, Duration::from_secs(60), at(1))
        .await
        .unwrap();
    assert!(matches!(renewed.as_slice(), [Renewed::Until { .. }]));
    store
        .beat("n1", &serde_json::json!({}), at(1))
        .await
        .unwrap();
    let mut refused = 0;
    for claim in stuck {
        match claim.await.unwrap() {
            Err(StoreError::Unavailable(_)) => refused += 1,
            other => assert!(other.is_ok(), "{other:?}"),
        }
    }
    assert!(
        refused >= 2,
        "claims without a connection get an error: {refused}"
    );
    other.batch_execute("rollback").await.unwrap();
    store.claim(&claim(1), at(2)).await.expect("it goes on");
    assert_eq!(id(1), running[0].id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_with_an_unknown_time_zone_stops_alone() {
    let (nodes, url) = nodes(1).await;
    let (lost, kept) = lose_a_zone(&nodes[0], async || {
        let sql = "update windlass.schedules set definition = replace(definition, 'Europe/Berlin', 'Mars/Olympus') where name = 'lost'";
        cluster::client(&url).await.batch_execute(sql).await.unwrap();
    })
    .await;
    unreadable_schedules_stand_aside(&nodes[0], &lost, &kept).await;
}

/// Job options that only a newer version can read.
const NEWER: &str = r#"{"retry": {"backoff": {"type": "fibonacci"}}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_a_newer_version_does_not_affect_other_rows() {
    let (nodes, url) = nodes(1).await;
    unreadable::prepare(&nodes[0]).await;
    let client = cluster::client(&url).await;
    let ids = unreadable::damaged().map(|id| format!("'{id}'")).join(", ");
    let attempt = id(unreadable::ATTEMPT);
    let (policy, queue) = (unreadable::CLAIM_POLICY, unreadable::QUEUE);
    // The claims of this test are older than an hour, and the node that connects below would delete
    // them while it answers.
    let mut sql = format!(
        "create rule keep as on delete to windlass.claims do instead nothing;
         update windlass.attempts set outcome = 'melted' where job = '{attempt}' and attempt = 1;
         update windlass.settings set json = replace(json, '{policy}', '\"many\"');
         update windlass.queues set limits = '{{\"concurrency\": \"moon\"}}' where name = '{queue}';
         update windlass.nodes set about = '{{' where about like '%bad%';
         update windlass.documents set value = '{{' where value like '%bad%';
         update windlass.records set value = '{{' where value like '%bad%';"
    );
    for table in ["jobs", "finished"] {
        sql += &format!("update windlass.{table} set extra = '{NEWER}' where id in ({ids});");
    }
    client.batch_execute(&sql).await.unwrap();
    // Another node, whose cache does not have the settings of the claims.
    let options = cluster::options(&url);
    let other: Opened = Arc::new(PostgresStore::connect(options).await.unwrap());
    unreadable::check(&other).await;
    let sql =
        "select id::text, unreadable from windlass.jobs where unreadable is not null order by id";
    let rows = client.query(sql, &[]).await.unwrap();
    let unreadable_jobs: Vec<(String, String)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let ids: Vec<&str> = unreadable_jobs.iter().map(|(id, _)| id.as_str()).collect();
    let expected = [3, 21, 25, 41].map(|number| id(number).to_string());
    assert_eq!(ids, expected, "{unreadable_jobs:?}");
    assert!(
        unreadable_jobs[0].1.contains("backoff"),
        "the reason is stored: {unreadable_jobs:?}"
    );
    // A version that can read the rows finds the jobs again.
    let repair = "update windlass.jobs set extra = null where unreadable is not null";
    client.batch_execute(repair).await.unwrap();
    let newer = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let newer: Opened = Arc::new(newer);
    let mut found = Vec::new();
    for _ in 0..1000 {
        found = newer.claim(&claim(5), at(2000)).await.unwrap().jobs;
        if !found.is_empty() {
            break;
        }
    }
    let found: Vec<JobId> = found.iter().map(|job| job.id).collect();
    assert_eq!(found, [id(3)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_jobs_at_the_front_do_not_block_a_claim_of_one() {
    let (nodes, url) = nodes(1).await;
    let batch = Enqueue::all(jobs(1..12));
    nodes[0].enqueue(batch, at(0)).await.unwrap();
    let last = id(11);
    let sql = format!("update windlass.jobs set extra = '{NEWER}' where id <> '{last}'");
    cluster::client(&url)
        .await
        .batch_execute(&sql)
        .await
        .unwrap();
    let claimed = nodes[0].claim(&claim(1), at(0)).await.unwrap().jobs;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [last]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_claim_made_on_two_nodes_at_once_leases_one_set_of_jobs() {
    let (nodes, _) = nodes(2).await;
    let batch = Enqueue::all(jobs(0..1000));
    nodes[0].enqueue(batch, at(0)).await.unwrap();
    for round in 0..40 {
        let asked = claim(5);
        let (one, two) = tokio::join!(nodes[0].claim(&asked, at(0)), nodes[1].claim(&asked, at(0)));
        let ids = |claimed: windlass_store::Claimed| -> BTreeSet<JobId> {
            claimed.jobs.iter().map(|job| job.id).collect()
        };
        let (one, two) = (ids(one.unwrap()), ids(two.unwrap()));
        assert_eq!(one.len(), 5, "round {round}");
        assert_eq!(one, two, "round {round}");
    }
    let counts = nodes[0].counts(at(0)).await.unwrap();
    assert_eq!(counts[&job(1).queue].running, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_different_clocks_respect_the_rate_of_a_queue() {
    let (nodes, _) = nodes(4).await;
    let (count, period) = (10, Duration::from_secs(2));
    let limits = QueueLimits {
        rate: Some(Rate { count, period }),
        ..QueueLimits::default()
    };
    let queue = job(1).queue;
    nodes[0].put_queue(&queue, &limits, None).await.unwrap();
    let batch = Enqueue::all(jobs(0..900));
    nodes[0].enqueue(batch, at(0)).await.unwrap();
    // Ten start, then nodes claim a few each, up to 2.4 s apart and in any order.
    for round in 0..40_u64 {
        let start = 10_000_000 + round * 10_000_000;
        nodes[0].claim(&claim(10), at_micros(start)).await.unwrap();
        let claims = (0..8_u64).map(|number| {
            let node = Arc::clone(&nodes[number as usize % 4]);
            let late = [2_500_000, 1_000_000, 100_000, 1_900_000];
            let now = at_micros(start + late[number as usize % 4]);
            tokio::spawn(async move { node.claim(&claim(1), now).await.unwrap() })
        });
        for claimed in claims.collect::<Vec<_>>() {
            claimed.await.unwrap();
        }
    }
    let ids: Vec<JobId> = (0..900).map(id).collect();
    let found = nodes[0].get(&ids).await.unwrap();
    let mut starts: Vec<_> = found
        .iter()
        .flatten()
        .filter_map(|job| job.started_at)
        .collect();
    starts.sort_unstable();
    assert!(starts.len() >= 40, "{} started", starts.len());
    for window in starts.windows(11) {
        assert!(window[10].since(window[0]) >= period, "{starts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_with_a_field_of_a_newer_version_hold_and_can_be_changed() {
    let (nodes, url) = nodes(1).await;
    let (store, name) = (&nodes[0], QueueName::new("default").unwrap());
    let limits = |concurrency| QueueLimits {
        concurrency: Some(concurrency),
        ..QueueLimits::default()
    };
    store.put_queue(&name, &limits(1), None).await.unwrap();
    let sql = "update windlass.queues set limits = jsonb_set(limits::jsonb, '{burst}', '5')::text";
    cluster::client(&url)
        .await
        .batch_execute(sql)
        .await
        .unwrap();
    let batch = Enqueue::all(jobs(1..4));
    store.enqueue(batch, at(0)).await.unwrap();
    let claimed = store.claim(&claim(3), at(0)).await.unwrap().jobs;
    assert_eq!(claimed.len(), 1, "the limit holds");
    let put = |limits: QueueLimits, expected: QueueLimits| {
        let name = name.clone();
        async move {
            store
                .put_queue(&name, &limits, Some(&expected))
                .await
                .unwrap()
        }
    };
    assert!(!put(limits(2), limits(3)).await, "they are not these");
    assert!(put(limits(2), limits(1)).await);
    assert_eq!(store.queues().await.unwrap()[&name], limits(2));
}
