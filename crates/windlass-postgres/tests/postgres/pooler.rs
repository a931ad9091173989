//! The contract of a store behind pgbouncer in transaction mode.

use std::sync::Arc;

use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::Opened;
use windlass_testkit::cluster;
use windlass_testkit::pooler::pooler;

async fn open() -> (Opened, ()) {
    let url = cluster::database().await;
    let (_, database) = url.rsplit_once('/').expect("a database");
    let url = format!(
        "postgres://windlass@127.0.0.1:{}/{database}?pool_size=2",
        pooler().port
    );
    let store = PostgresStore::connect(cluster::options(&url)).await;
    (Arc::new(store.expect("it connects through the pooler")), ())
}

windlass_store::conformance!(crate::pooler::open);
