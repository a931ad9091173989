//! Rows that the database refuses, or that this version cannot read.

use std::sync::Arc;

use windlass_core::{JobId, Report};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{Opened, at, claim, id, job, jobs, put, settle_one};
use windlass_store::conformance::refused;
use windlass_store::{Filter, Page, QueueLimits, StoreError};
use windlass_testkit::cluster;

/// Job options that only a newer version can read.
const NEWER: &str = r#"{"retry": {"backoff": {"type": "fibonacci"}}}"#;

async fn store() -> (Opened, String) {
    let url = cluster::database().await;
    let store = PostgresStore::connect(cluster::options(&url)).await;
    (Arc::new(store.expect("it connects")), url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_the_database_refuses_does_not_affect_other_rows() {
    let (store, url) = store().await;
    let ((ends, renewals), text) = (refused::refused(), refused::TEXT);
    let create = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin
             if old.id = '{renewals}' or old.id = '{ends}' and (tg_op = 'DELETE' or new.lease_until is null) then
                 raise exception '{text}';
             end if;
             return case when tg_op = 'DELETE' then old else new end;
         end $$;
         create trigger refuse before update or delete on windlass.jobs for each row execute function refuse()"
    );
    let client = cluster::client(&url).await;
    let refuse = async || client.batch_execute(&create).await.unwrap();
    let drop = "drop trigger refuse on windlass.jobs";
    let accept = async || client.batch_execute(drop).await.unwrap();
    refused::check(&store, refuse, accept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_or_result_that_is_not_json_does_not_affect_other_rows() {
    let (store, url) = store().await;
    let store = &store;
    let client = cluster::client(&url).await;
    put(store, jobs(1..4)).await;
    let (bad, good) = (id(2), id(3));
    let sql = format!("update windlass.jobs set payload = 'sealed:abc' where id = '{bad}'");
    client.batch_execute(&sql).await.unwrap();
    let running = store.claim(&claim(10), at(0)).await.unwrap().jobs;
    let ids: Vec<JobId> = running.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(1), good]);
    assert!(running.iter().all(|job| job.attempt == 1));
    let sql = format!("select unreadable, attempt from windlass.jobs where id = '{bad}'");
    let row = client.query_one(&sql, &[]).await.unwrap();
    let reason: &str = row.get(0);
    assert!(reason.starts_with("the payload is not JSON"), "{reason}");
    assert_eq!(row.get::<_, i32>(1), 0, "it was not started");
    for job in &running {
        settle_one(store, job, Report::Succeeded(None), at(1)).await;
    }
    let sql = format!("update windlass.finished set result = 'nojson' where id = '{good}'");
    client.batch_execute(&sql).await.unwrap();
    let refused = store.get(&[good]).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unreadable { job, .. } if *job == good),
        "{refused:?}"
    );
    let listed = store
        .list(&Filter::default(), Page::first(10), at(2))
        .await
        .unwrap();
    let listed: Vec<JobId> = listed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(listed, [id(1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_attempt_counter_is_at_its_maximum_does_not_affect_other_rows() {
    let (store, url) = store().await;
    let store = &store;
    put(store, jobs(1..4)).await;
    let sql = format!(
        "update windlass.jobs set attempt = 2147483647 where id = '{}'",
        id(2)
    );
    cluster::execute(&url, &sql).await;
    let running = store.claim(&claim(10), at(0)).await.unwrap().jobs;
    let ids: Vec<JobId> = running.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(1), id(3)]);
    let refused = store.get(&[id(2)]).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unreadable { .. }),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_job_keeps_its_slot_only_as_long_as_its_lease() {
    let (store, url) = store().await;
    let store = &store;
    let limits = QueueLimits {
        concurrency: Some(1),
        ..QueueLimits::default()
    };
    let queue = job(1).queue;
    store.put_queue(&queue, &limits, None).await.unwrap();
    put(store, jobs(1..3)).await;
    assert_eq!(store.claim(&claim(5), at(0)).await.unwrap().jobs.len(), 1);
    let sql = format!(
        "update windlass.jobs set extra = '{NEWER}' where id = '{}'",
        id(1)
    );
    cluster::execute(&url, &sql).await;
    let early = store.claim(&claim(5), at(1)).await.unwrap().jobs;
    assert!(early.is_empty(), "it may still run");
    store.sweep(10, at(5_000), 0).await.unwrap();
    let late = store.claim(&claim(5), at(5_000)).await.unwrap().jobs;
    assert_eq!(late.iter().map(|job| job.id).collect::<Vec<_>>(), [id(2)]);
}
