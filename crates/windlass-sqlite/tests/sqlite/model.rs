//! Random sequences of all verbs: the SQLite store answers like the memory store, also after a
//! restart.

use std::sync::Arc;

use proptest::prop_assert_eq;
use proptest::test_runner::TestCaseError;
use windlass_core::{State, Timestamp};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::{Opened, id};
use windlass_store::conformance::model::{Command, for_random_commands, run, run_later};

fn compare(commands: &[Command]) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    runtime.block_on(async {
        let memory: Opened = Arc::new(MemoryStore::new());
        let store: Opened =
            Arc::new(SqliteStore::open(&path, Timestamp::UNIX_EPOCH, 0).expect("it opens"));
        let expected = run(&memory, commands).await;
        let found = run(&store, commands).await;
        for (expected, found) in expected.iter().zip(&found) {
            prop_assert_eq!(found, expected);
        }
        drop(store);
        let again: Opened =
            Arc::new(SqliteStore::open(&path, Timestamp::UNIX_EPOCH, 0).expect("it opens again"));
        let mut any_ran = false;
        for number in 0..12 {
            let before = memory
                .get(&[id(number)])
                .await
                .expect("memory answers")
                .remove(0);
            if before
                .as_ref()
                .is_some_and(|job| job.state() == State::Running)
            {
                any_ran = true;
                continue; // opening the store ended it as lost
            }
            let after = again
                .get(&[id(number)])
                .await
                .expect("the store answers")
                .remove(0);
            prop_assert_eq!(after, before);
        }
        if !any_ran {
            // The order, limits, keys and counts were loaded again, so the same verbs give the same
            // answers.
            let mut after = vec![Command::Pass(1), Command::Counts];
            after.extend(commands.iter().cloned());
            let later = run_later(&memory, &after).await;
            prop_assert_eq!(run_later(&again, &after).await, later);
        }
        Ok(())
    })
}

#[test]
fn a_sqlite_file_answers_like_memory() {
    for_random_commands(4, compare);
}
