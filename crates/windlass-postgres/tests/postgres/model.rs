//! Random sequences of all verbs: PostgreSQL answers like the memory store.

use std::sync::Arc;

use proptest::prop_assert_eq;
use proptest::test_runner::TestCaseError;
use windlass_memory::MemoryStore;
use windlass_store::conformance::build::Opened;
use windlass_store::conformance::model::{Command, for_random_commands, run};
use windlass_testkit::cluster;

fn compare(commands: &[Command]) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let memory: Opened = Arc::new(MemoryStore::new());
        let store: Opened = Arc::new(cluster::store().await);
        let expected = run(&memory, commands).await;
        let found = run(&store, commands).await;
        for (expected, found) in expected.iter().zip(&found) {
            prop_assert_eq!(found, expected);
        }
        Ok(())
    })
}

#[test]
fn postgres_answers_like_memory() {
    for_random_commands(16, compare);
}
