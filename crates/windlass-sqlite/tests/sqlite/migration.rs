//! Files of schema version 1: their failed jobs get causes and groups when the store is opened.

use std::sync::Arc;

use windlass_core::{AttemptError, DeadReason, Failure, Fingerprint, Job, Report, State};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::{Change, Filter, GroupFilter, ListedState, Page};

use crate::{recount, version_1};

#[tokio::test]
async fn jobs_of_version_1_get_their_causes_and_groups() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.db");
    let store: Opened = Arc::new(SqliteStore::open(&new, at(0), 0).unwrap());
    version_1::fill(&store, 3000).await;
    let expiring = Job {
        deadline: Some(at(5)),
        ..job(5001)
    };
    put(&store, vec![expiring, job(5002)]).await;
    store.sweep(10, at(6), 0).await.unwrap();
    let before = store
        .get(&(0..5003).map(id).collect::<Vec<_>>())
        .await
        .unwrap();
    drop(store);
    let old = folder.path().join("old.db");
    version_1::downgrade(&new, &old);
    let file = rusqlite::Connection::open(&old).unwrap();
    let broken = format!(
        "update states set last_error = '{{' where id = x'{:032x}'",
        id(7).as_u128()
    );
    file.execute_batch(&broken).unwrap();
    drop(file);
    let store: Opened = Arc::new(SqliteStore::open(&old, at(100), 0).unwrap());
    let after = store
        .get(&(0..5003).map(id).collect::<Vec<_>>())
        .await
        .unwrap();
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        let unreadable = number == 7;
        assert!(
            unreadable == (before.is_some() && after.is_none()),
            "job {number}"
        );
        // Jobs that version 1 finished otherwise have no cause, and it stored no `waiting_since`.
        let Some(before) = before.as_ref().filter(|_| !unreadable) else {
            continue;
        };
        let expected = before
            .fingerprint
            .filter(|_| before.state() != State::Succeeded);
        let after = after.as_ref().unwrap();
        assert_eq!(after.fingerprint, expected, "job {number}");
        assert_eq!(after.interventions, before.interventions);
    }
    assert!(recount::check(&store, at(100)).await > 2000);
    let expired = GroupFilter {
        fingerprint: Some(Fingerprint::without_error(&kind("a"), DeadReason::Expired)),
        ..GroupFilter::default()
    };
    let groups = store
        .failure_groups(&expired, None, 10, at(100))
        .await
        .unwrap();
    assert_eq!((groups[0].dead, groups[0].sample), (1, Some(id(5001))));
    assert_eq!(groups[0].first_seen_at, at(6));
    // The groups are stored: another opening finds them, and counts nothing twice.
    drop(store);
    let store: Opened = Arc::new(SqliteStore::open(&old, at(200), 0).unwrap());
    recount::check(&store, at(200)).await;
    let dead = Filter::state(ListedState::Dead);
    let dead = store.list(&dead, Page::first(100), at(200)).await.unwrap();
    let ids: Vec<_> = dead.jobs.iter().map(|job| job.id).collect();
    store
        .change(&ids, &Change::Purge, None, at(200))
        .await
        .unwrap();
    let running = take_one(&store, at(1_000_000)).await;
    let never = Report::Failed(Failure::unrecoverable(AttemptError::new("never")));
    settle_one(&store, &running, never, at(1_000_000)).await;
    recount::check(&store, at(1_000_000)).await;
}
