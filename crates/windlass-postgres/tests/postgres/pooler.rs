//! The contract of a store behind pgbouncer in transaction mode.

use std::sync::Arc;

use windlass_store::conformance::build::Opened;
use windlass_testkit::pooler::pooler;

async fn open() -> (Opened, ()) {
    (Arc::new(pooler().store().await), ())
}

windlass_store::conformance!(crate::pooler::open);
