//! Crashes of the server, and connections that are cut at the worst moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::{JobId, Report, State};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{at, attempt_of, claim, id, job, jobs, report};
use windlass_store::{Enqueue, Enqueued, Renewed, Settled, Store, StoreError};
use windlass_testkit::cluster;
use windlass_testkit::proxy::{Proxy, Wire};

/// Returns a store behind a proxy that can cut its connections.
async fn behind_proxy(parameters: &str) -> (PostgresStore, Proxy) {
    let url = cluster::database().await;
    let (_, database) = url.rsplit_once('/').expect("a database");
    let proxy = Proxy::to(cluster::shared().port).await;
    let url = format!(
        "postgres://windlass@127.0.0.1:{}/{database}?{parameters}",
        proxy.port
    );
    let store = PostgresStore::connect(cluster::options(&url)).await;
    (store.expect("it connects"), proxy)
}

async fn stored(store: &PostgresStore) -> u64 {
    let counts = store.counts(at(0)).await.expect("it counts");
    counts
        .values()
        .map(|counts| counts.ready + counts.running + counts.succeeded)
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_whose_commit_result_is_lost_is_looked_up() {
    let (store, proxy) = behind_proxy("").await;
    proxy.set(Wire::CutAtCommitOf("windlass.enqueue_v1"));
    let answers = store
        .enqueue(Enqueue::all(jobs(1..4)), at(0))
        .await
        .expect("it is found out");
    assert!(proxy.is_whole(), "it was cut");
    assert_eq!(
        answers,
        [1, 2, 3].map(|number| Enqueued::Created(id(number)))
    );
    assert_eq!(stored(&store).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_claim_whose_commit_result_was_lost_gets_the_same_leases() {
    let (store, proxy) = behind_proxy("").await;
    store
        .enqueue(Enqueue::all(jobs(1..11)), at(0))
        .await
        .expect("stored");
    let first = claim(4);
    store
        .claim(&claim(1), at(0))
        .await
        .expect("what claims say is known");
    proxy.set(Wire::CutAtCommitOf("windlass.claim_v2"));
    let refused = store
        .claim(&first, at(0))
        .await
        .expect_err("the result is unknown");
    assert!(
        matches!(refused, StoreError::Indeterminate(_)),
        "{refused:?}"
    );
    let again = store.claim(&first, at(0)).await.expect("the same leases");
    assert_eq!(again.jobs.len(), 4);
    assert!(
        again.jobs.iter().all(|job| job.attempt == 1),
        "no job started twice"
    );
    let others = store.claim(&claim(100), at(0)).await.expect("the rest");
    assert_eq!(others.jobs.len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_and_a_renewal_whose_commit_result_was_lost_can_be_repeated() {
    let (store, proxy) = behind_proxy("").await;
    store
        .enqueue(Enqueue::all(jobs(1..3)), at(0))
        .await
        .expect("stored");
    let claimed = store.claim(&claim(2), at(0)).await.expect("claimed").jobs;
    let attempts: Vec<_> = claimed.iter().map(attempt_of).collect();
    let lease = Duration::from_secs(60);
    proxy.set(Wire::CutAtCommitOf("windlass.renew_v1"));
    let refused = store
        .renew(&attempts, lease, at(1))
        .await
        .expect_err("the result is unknown");
    assert!(
        matches!(refused, StoreError::Indeterminate(_)),
        "{refused:?}"
    );
    let renewed = store.renew(&attempts, lease, at(1)).await.expect("again");
    assert!(renewed.iter().all(|renewed| *renewed != Renewed::LeaseLost));
    let reports = || {
        claimed
            .iter()
            .map(|job| report(job, Report::Succeeded(None)))
            .collect()
    };
    proxy.set(Wire::CutAtCommitOf("windlass.succeed_keyed_v1"));
    let refused = store
        .settle(reports(), at(2))
        .await
        .expect_err("the result is unknown");
    assert!(
        matches!(refused, StoreError::Indeterminate(_)),
        "{refused:?}"
    );
    let again = store.settle(reports(), at(3)).await.expect("again");
    assert_eq!(again, [Settled::Repeated, Settled::Repeated]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_cut_in_the_middle_is_stored_completely_or_not_at_all() {
    let (store, proxy) = behind_proxy("").await;
    for (round, bytes) in [0, 1, 300, 5_000, 40_000, 100_000].into_iter().enumerate() {
        let first = round as u64 * 10_000;
        let batch = jobs(first..first + 1000);
        let before = stored(&store).await;
        proxy.set(Wire::CutAfter(bytes));
        let answers = store.enqueue(Enqueue::all(batch), at(0)).await;
        proxy.set(Wire::Whole);
        let more = stored(&store).await - before;
        match answers {
            Ok(answers) => {
                assert!(
                    answers
                        .iter()
                        .all(|answer| matches!(answer, Enqueued::Created(_)))
                );
                assert_eq!(more, 1000, "cut after {bytes} bytes");
            }
            Err(error) => assert!(
                more == 0 || more == 1000,
                "cut after {bytes} bytes: {more}, {error:?}"
            ),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_answers_leads_to_a_timeout() {
    let (store, proxy) =
        behind_proxy("statement_timeout=300ms&lock_timeout=200ms&connect_timeout=1").await;
    store
        .enqueue(Enqueue::all(vec![job(1)]), at(0))
        .await
        .expect("stored");
    proxy.set(Wire::Dead);
    let (one, ids) = (claim(1), [id(1)]);
    let calls = tokio::join!(
        store.enqueue(Enqueue::all(vec![job(2)]), at(0)),
        store.claim(&one, at(0)),
        store.get(&ids),
        store.sweep(10, at(0), 0),
    );
    assert!(calls.0.is_err() && calls.1.is_err() && calls.2.is_err() && calls.3.is_err());
    proxy.set(Wire::Whole);
    let found = store.get(&[id(1)]).await.expect("it goes on");
    assert!(matches!(found.as_slice(), [Some(_)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_nothing_and_the_store_reconnects() {
    let mut server = cluster::Cluster::start(&[]);
    let options = cluster::options(&server.url("postgres"));
    PostgresStore::migrate(&options).await.expect("the schema");
    let store = Arc::new(PostgresStore::connect(options).await.expect("it connects"));
    let mut acknowledged: BTreeSet<JobId> = BTreeSet::new();
    let mut done: BTreeSet<JobId> = BTreeSet::new();
    for round in 0..120_u64 {
        if round % 40 == 20 {
            server.crash();
        }
        let batch = jobs(round * 10..round * 10 + 10);
        if store
            .enqueue(Enqueue::all(batch.clone()), at(0))
            .await
            .is_ok()
        {
            acknowledged.extend(batch.iter().map(|job| job.id));
        }
        let Ok(claimed) = store.claim(&claim(7), at(0)).await else {
            continue;
        };
        let reports = || {
            claimed
                .jobs
                .iter()
                .map(|job| report(job, Report::Succeeded(None)))
                .collect()
        };
        for _ in 0..10 {
            if store.settle(reports(), at(0)).await.is_ok() {
                done.extend(claimed.jobs.iter().map(|job| job.id));
                break;
            }
        }
    }
    let mut after = store.claim(&claim(1), at(0)).await;
    for _ in 0..50 {
        if after.is_ok() {
            break;
        }
        after = store.claim(&claim(1), at(0)).await;
    }
    after.expect("it serves again");
    assert!(acknowledged.len() > 500, "{} came in", acknowledged.len());
    let ids: Vec<JobId> = acknowledged.iter().copied().collect();
    let found = store.get(&ids).await.expect("it answers");
    for (id, found) in ids.iter().zip(found) {
        let job = found.expect("what was acknowledged is there");
        let succeeded = job.state() == State::Succeeded;
        assert!(!done.contains(id) || succeeded, "{job:?}");
        assert!(job.attempt <= 1, "{job:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_recovers_when_a_read_only_server_accepts_writes_again() {
    let url = cluster::database().await;
    let store = PostgresStore::connect(cluster::options(&url))
        .await
        .expect("it connects");
    store
        .enqueue(Enqueue::all(vec![job(1)]), at(0))
        .await
        .expect("stored");
    let (_, database) = url.rsplit_once('/').expect("a database");
    let admin = cluster::client(&cluster::shared().url("postgres")).await;
    let demote = format!("alter database {database} set default_transaction_read_only = on");
    admin.batch_execute(&demote).await.expect("it is demoted");
    let end = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'"
    );
    admin.batch_execute(&end).await.expect("its sessions end");
    let refused = store
        .enqueue(Enqueue::all(vec![job(2)]), at(0))
        .await
        .expect_err("it only reads");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    let sql = format!("alter database {database} set default_transaction_read_only = off");
    admin.batch_execute(&sql).await.expect("it is promoted");
    store
        .enqueue(Enqueue::all(vec![job(2)]), at(0))
        .await
        .expect("it writes again");
}
