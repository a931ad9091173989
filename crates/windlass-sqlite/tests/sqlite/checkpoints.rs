//! Checkpoints while requests arrive: every request gets its answer, and the WAL starts again.

use std::collections::BTreeMap;

use windlass_core::{ActionId, Edit, Job};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::{ActionStep, Change, Changed, Enqueue, Store};

/// About 4 MiB per batch, so that a checkpoint is due after about 16 batches.
const BATCH: u64 = 8;
const PAYLOAD_BYTES: usize = 500_000;
/// Far more batches than three checkpoints need.
const BATCHES_MAX: u64 = 200;

#[tokio::test]
async fn requests_and_steps_of_bulk_actions_are_answered_across_checkpoints() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("jobs.db"), at(0), 0).expect("it opens");
    let large = payload(&format!("\"{}\"", "x".repeat(PAYLOAD_BYTES)));
    let first = Enqueue::all(vec![job(1)]);
    store.enqueue(first, at(0)).await.unwrap();
    let change = Change::Edit(Edit {
        priority: Some(5),
        ..Edit::default()
    });
    for batch in 1..=BATCHES_MAX {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        let jobs = numbers.map(|number| Job {
            payload: large.clone(),
            ..job(number)
        });
        let step = ActionStep {
            action: ActionId::from_u128(batch.into()),
            frozen_at: at(0),
            is_replay: false,
            seen: BTreeMap::new(),
        };
        let ids = [id(1)];
        let (enqueued, changed) = tokio::join!(
            store.enqueue(Enqueue::all(jobs.collect()), at(0)),
            store.change(&ids, &change, Some(&step), at(0)),
        );
        assert_eq!(enqueued.unwrap().len(), 8);
        assert!(matches!(changed.unwrap()[..], [Changed::Now(_)]));
        if store.stats().await.unwrap().checkpoints >= 3 {
            return;
        }
    }
    panic!("fewer than 3 checkpoints after {BATCHES_MAX} batches");
}
