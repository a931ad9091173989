//! Single rows that the database refuses, or that this version cannot read.

#[path = "support/cluster.rs"]
mod cluster;

use std::sync::Arc;

use windlass_core::{JobId, Report};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{Opened, at, claim, id, job, jobs, put, settle_one};
use windlass_store::conformance::refused;
use windlass_store::{Filter, Page, QueueLimits, StoreError};

/// Options that only a newer version knows.
const NEWER: &str = r#"{"retry": {"backoff": {"type": "fibonacci"}}}"#;

async fn store() -> (Opened, String) {
    let url = cluster::database().await;
    let store = PostgresStore::connect(cluster::options(&url)).await;
    (Arc::new(store.expect("it connects")), url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_the_database_refuses_costs_its_neighbours_nothing() {
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
