//! The contract of a store, on a real PostgreSQL server.

use std::sync::Arc;

use windlass_store::conformance::build::Opened;
use windlass_testkit::cluster;

async fn open() -> (Opened, ()) {
    (Arc::new(cluster::store().await), ())
}

windlass_store::conformance!(crate::conformance::open);
