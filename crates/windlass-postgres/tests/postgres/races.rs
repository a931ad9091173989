//! Two transactions on the same rows, of which one waits for the other.

use std::sync::Arc;

use windlass_core::{
    AttemptError, Edit, Failure, Fingerprint, GROUPS_MAX, Report, State, Verdict, fixed_hash,
};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{Opened, at, claim, failed, id, jobs, put, queue, report};
use windlass_store::{Change, FailureGroup, GroupFilter, Settled};
use windlass_testkit::cluster;

use crate::migration::wait_until_one_waits;

async fn connect(url: &str) -> Opened {
    let options = cluster::options(url);
    Arc::new(PostgresStore::connect(options).await.expect("it connects"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_counts_although_a_bulk_cancel_was_faster() {
    let url = cluster::database().await;
    let store = connect(&url).await;
    put(&store, jobs(1..3)).await;
    let running = store.claim(&claim(2), at(0)).await.unwrap().jobs;
    assert_eq!(running.len(), 2);
    let (canceller, watcher) = (cluster::client(&url).await, cluster::client(&url).await);
    let sql = format!(
        "begin; update windlass.jobs set cancel_requested = true, interventions = '{{}}' where id = '{}'",
        id(1)
    );
    canceller.batch_execute(&sql).await.unwrap();
    let node = Arc::clone(&store);
    let settle = tokio::spawn(async move {
        let reports = running
            .iter()
            .map(|job| report(job, Report::Succeeded(None)));
        node.settle(reports.collect(), at(1)).await.unwrap()
    });
    // It waits for the row, so its snapshot is older than the cancel.
    wait_until_one_waits(&watcher).await;
    canceller.batch_execute("commit").await.unwrap();
    let settled = settle.await.unwrap();
    let verdicts: Vec<Option<Verdict>> = settled.iter().map(Settled::verdict).collect();
    assert_eq!(verdicts, [Some(Verdict::Succeeded); 2], "{settled:?}");
    for job in store.get(&[id(1), id(2)]).await.unwrap() {
        assert_eq!(job.unwrap().state(), State::Succeeded);
    }
}

async fn move_to(store: &Opened, name: &str) {
    let edit = Change::Edit(Edit {
        queue: Some(queue(name)),
        ..Edit::default()
    });
    let changed = store.change(&[id(1)], &edit, None, at(5)).await;
    changed.expect("it answers");
}

/// Returns the groups of the default queue.
async fn groups(store: &Opened) -> Vec<FailureGroup> {
    let filter = GroupFilter {
        queue: Some(queue("default")),
        ..GroupFilter::default()
    };
    store
        .failure_groups(&filter, None, 10, at(9))
        .await
        .expect("it answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_returns_to_a_trimmed_group_brings_its_error() {
    let url = cluster::database().await;
    let (store, other_node) = (connect(&url).await, connect(&url).await);
    put(&store, jobs(1..2)).await;
    let running = store.claim(&claim(1), at(0)).await.unwrap().jobs;
    let reports = vec![report(&running[0], failed())];
    store.settle(reports, at(1)).await.unwrap();
    move_to(&store, "other").await;
    // A group that a transaction uses stays.
    let client = cluster::client(&url).await;
    client
        .batch_execute("begin; select from windlass.failure_groups for key share")
        .await
        .unwrap();
    other_node.trim_tallies(at(100), at(0)).await.unwrap();
    assert_eq!(groups(&store).await.len(), 1);
    client.batch_execute("rollback").await.unwrap();
    other_node.trim_tallies(at(100), at(0)).await.unwrap();
    assert_eq!(groups(&store).await.len(), 0);
    move_to(&store, "default").await;
    let found = groups(&store).await;
    let [group] = found.as_slice() else {
        unreachable!("{found:?}");
    };
    assert_eq!((group.error.as_str(), group.retrying), ("boom", 1));
    assert_eq!((group.first_seen_at, group.last_seen_at), (at(1), at(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_remembers_for_seconds_that_there_is_no_space_for_groups() {
    let url = cluster::database().await;
    let store = connect(&url).await;
    let client = cluster::client(&url).await;
    let sql = format!(
        "insert into windlass.failure_groups (queue, kind, fingerprint, first_seen_at, last_seen_at, error)
         select 'default', 'a', n, '1970-01-01', '1970-01-01', '' from generate_series(1, {GROUPS_MAX}) as n"
    );
    client.batch_execute(&sql).await.unwrap();
    put(&store, jobs(0..3)).await;
    let running = store.claim(&claim(3), at(0)).await.unwrap().jobs;
    let causes = ["apple", "pear", "plum"].map(AttemptError::new);
    let reports = running
        .iter()
        .zip(causes)
        .map(|(job, error)| vec![report(job, Report::Failed(Failure::unrecoverable(error)))]);
    let mut reports = reports.collect::<Vec<_>>().into_iter();
    let mut settle = |now| {
        let (node, reports) = (Arc::clone(&store), reports.next().unwrap());
        tokio::spawn(async move {
            match node.settle(reports, now).await.unwrap().as_slice() {
                [Settled::Done(settlement)] => settlement.fingerprint,
                other => unreachable!("{other:?}"),
            }
        })
    };
    assert_eq!(settle(at(1)).await.unwrap(), Some(Fingerprint::OTHER));
    // Only a node that does not know that there is no space takes the lock, and counts.
    let lock = fixed_hash(b"group default a").cast_signed();
    let sql = format!("begin; select pg_advisory_xact_lock({lock})");
    client.batch_execute(&sql).await.unwrap();
    assert_eq!(settle(at(5)).await.unwrap(), Some(Fingerprint::OTHER));
    let counts = settle(at(6));
    wait_until_one_waits(&cluster::client(&url).await).await;
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(counts.await.unwrap(), Some(Fingerprint::OTHER));
}
