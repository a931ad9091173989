//! Two transactions on the same rows, of which one waits for the other.

use std::sync::Arc;

use windlass_core::{Report, State, Verdict};
use windlass_postgres::PostgresStore;
use windlass_store::Settled;
use windlass_store::conformance::build::{Opened, at, claim, id, jobs, put, report};
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
    wait_until_one_waits(&watcher).await;
    canceller.batch_execute("commit").await.unwrap();
    let settled = settle.await.unwrap();
    let verdicts: Vec<Option<Verdict>> = settled.iter().map(Settled::verdict).collect();
    assert_eq!(verdicts, [Some(Verdict::Succeeded); 2], "{settled:?}");
    for job in store.get(&[id(1), id(2)]).await.unwrap() {
        assert_eq!(job.unwrap().state(), State::Succeeded);
    }
}
