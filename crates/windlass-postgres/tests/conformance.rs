//! The contract, sentence by sentence, on a real server.

#[path = "support/cluster.rs"]
mod cluster;

use std::sync::Arc;

use windlass_store::conformance::build::Opened;

async fn open() -> (Opened, ()) {
    (Arc::new(cluster::store().await), ())
}

windlass_store::conformance!(crate::open);
