//! The background maintenance of nodes.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;
use windlass_postgres::PostgresStore;
use windlass_store::Claim;
use windlass_store::Store as _;
use windlass_store::conformance::build::{at, claim, id, job, put};
use windlass_testkit::cluster;

/// Waits until a node has done the maintenance: it creates the partitions of the next days last.
async fn wait_until_maintained(client: &Client) {
    let found = "select from pg_inherits where inhparent = 'windlass.attempts'::regclass offset 3";
    for _ in 0..600 {
        let rows = client.query(found, &[]).await;
        if !rows.expect("the server answers").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("no node did the maintenance");
}

/// The clock of the store differs from that of the server by years.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_kept_for_an_hour_of_the_clock_of_the_store() {
    let url = cluster::database().await;
    let client = cluster::client(&url).await;
    let connect = async || {
        PostgresStore::connect(cluster::options(&url))
            .await
            .unwrap()
    };
    let first = Arc::new(connect().await);
    wait_until_maintained(&client).await;
    put(&(Arc::clone(&first) as _), vec![job(1), job(2), job(3)]).await;
    let claims = [at(0), at(3500), at(3700)].map(|now| (now, claim(1)));
    for (now, claim) in &claims {
        assert_eq!(first.claim(claim, *now).await.unwrap().jobs.len(), 1);
    }
    // The next node that is opened does the maintenance at once.
    let drop_days = "do $$ declare day regclass; begin
         for day in select inhrelid::regclass from pg_inherits where inhparent = 'windlass.attempts'::regclass
             and pg_get_expr((select relpartbound from pg_class where oid = inhrelid), inhrelid) <> 'DEFAULT'
         loop execute format('drop table %s', day); end loop; end $$";
    client.batch_execute(drop_days).await.unwrap();
    let second = connect().await;
    wait_until_maintained(&client).await;
    let kept = "select at from windlass.claims";
    assert_eq!(
        client.query(kept, &[]).await.unwrap().len(),
        2,
        "the first is too old"
    );
    let (now, Claim { .. }) = (at(3700), &claims[1].1);
    let again = second.claim(&claims[1].1, now).await.unwrap();
    assert_eq!(again.jobs.first().map(|job| job.id), Some(id(2)));
}
