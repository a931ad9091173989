//! The contract of a store, on a SQLite file.

use std::sync::Arc;

use tempfile::TempDir;
use windlass_core::Timestamp;
use windlass_sqlite::SqliteStore;
use windlass_store::Store;

async fn open() -> (Arc<dyn Store>, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("jobs.db"), Timestamp::UNIX_EPOCH, 0)
        .expect("an empty store opens");
    (Arc::new(store), folder)
}

windlass_store::conformance!(crate::conformance::open);
