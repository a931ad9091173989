//! Runs the conformance suite on the memory store.

use std::sync::Arc;

use windlass_memory::MemoryStore;
use windlass_store::Store;

async fn open() -> (Arc<dyn Store>, ()) {
    (Arc::new(MemoryStore::new()), ())
}

windlass_store::conformance!(crate::open);
