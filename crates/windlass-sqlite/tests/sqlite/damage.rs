//! Damage: flipped bits, rows of a newer version and rows that the database refuses affect only
//! themselves.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use windlass_core::{AttemptError, Failure, Job, JobId, Report, Revival, State};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::conformance::schedule::{lose_a_zone, unreadable_schedules_stand_aside};
use windlass_store::conformance::{refused, unreadable};
use windlass_store::{Change, Changed, Filter, ListOrder, ListedState, Page, StoreError};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn open(folder: &Path) -> Opened {
    Arc::new(SqliteStore::open(folder.join("jobs.db"), at(100), 0).expect("it opens"))
}

#[tokio::test]
async fn a_payload_with_a_flipped_bit_is_an_error_and_never_claimed() {
    let folder = folder();
    let store = open(folder.path());
    put(
        &store,
        vec![
            Job {
                payload: payload("\"the marker of this payload\""),
                ..job(1)
            },
            job(2),
        ],
    )
    .await;
    drop(store);
    let path = folder.path().join("jobs.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let marker = b"the marker";
    let position = bytes
        .windows(marker.len())
        .position(|window| window == marker)
        .unwrap();
    bytes[position] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = open(folder.path());
    let damaged = store.get(&[id(1)]).await.unwrap_err();
    assert!(
        matches!(damaged, StoreError::Unreadable { .. }),
        "{damaged:?}"
    );
    let claimed = take(&store, 5, at(200)).await;
    assert_eq!(claimed.len(), 1, "it does not block others");
    assert_eq!(claimed[0].payload, job(2).payload);
    assert!(take(&store, 5, at(200)).await.is_empty());
}

#[tokio::test]
async fn text_that_is_no_longer_utf8_is_reported_as_damage() {
    let folder = folder();
    let store = open(folder.path());
    let marked = payload("\"the marker of this payload\"");
    put(
        &store,
        vec![Job {
            payload: marked,
            ..job(1)
        }],
    )
    .await;
    drop(store);
    let path = folder.path().join("jobs.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let position = bytes
        .windows(10)
        .position(|window| window == b"the marker")
        .unwrap();
    bytes[position] ^= 0x80;
    std::fs::write(&path, bytes).unwrap();
    let damaged = open(folder.path()).get(&[id(1)]).await.unwrap_err();
    assert!(
        matches!(damaged, StoreError::Unreadable { .. }),
        "{damaged:?}"
    );
}

#[tokio::test]
async fn a_schedule_with_an_unknown_time_zone_stops_alone() {
    let folder = folder();
    let store = open(folder.path());
    let (lost, kept) = lose_a_zone(&store, async || {
        let file = rusqlite::Connection::open(folder.path().join("jobs.db")).unwrap();
        let sql = "update schedules set definition = replace(definition, 'Europe/Berlin', 'Mars/Olympus') where name = 'lost'";
        assert_eq!(file.execute(sql, []).unwrap(), 1);
    })
    .await;
    unreadable_schedules_stand_aside(&store, &lost, &kept).await;
}

#[tokio::test]
async fn a_row_that_the_database_refuses_does_not_affect_other_rows() {
    let folder = folder();
    let store = open(folder.path());
    let path = folder.path().join("jobs.db");
    let execute = async |sql: String| {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute_batch(&sql).unwrap();
    };
    let hex = |id: JobId| format!("x'{:032x}'", id.as_u128());
    let (ends, renewals) = refused::refused();
    let (ends, renewals, text) = (hex(ends), hex(renewals), refused::TEXT);
    let create = |verb: &str| {
        format!(
            "create trigger refuse_{verb} before {verb} on states
             when new.id = {renewals} or new.id = {ends} and new.state <> 1
             begin select raise(abort, '{text}'); end;"
        )
    };
    let create = create("insert") + &create("update");
    let drop = "drop trigger refuse_insert; drop trigger refuse_update".to_owned();
    refused::check(
        &store,
        async || execute(create).await,
        async || {
            execute(drop).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_store_opens_even_if_the_database_refuses_to_end_an_attempt() {
    let folder = folder();
    let store = open(folder.path());
    put(&store, jobs(1..4)).await;
    assert_eq!(take(&store, 3, at(0)).await.len(), 3);
    drop(store);
    let file = rusqlite::Connection::open(folder.path().join("jobs.db")).unwrap();
    let refuse = format!(
        "create trigger refuse before update on states when new.id = x'{:032x}' and new.state <> 1
         begin select raise(abort, 'no'); end",
        id(2).as_u128()
    );
    file.execute_batch(&refuse).unwrap();
    drop(file);
    let store = open(folder.path());
    let lost = store.sweep(10, at(1), 0).await.unwrap().lost;
    let lost: Vec<JobId> = lost.iter().map(|(of, _)| of.job).collect();
    assert_eq!(lost, [id(1), id(3)]);
    assert_eq!(state_of(&store, id(2)).await, State::Running);
}

#[tokio::test]
async fn a_row_of_a_newer_version_does_not_affect_other_rows() {
    let folder = folder();
    let store = open(folder.path());
    unreadable::prepare(&store).await;
    drop(store);
    let file = rusqlite::Connection::open(folder.path().join("jobs.db")).unwrap();
    let hex = |id: JobId| format!("x'{:032x}'", id.as_u128());
    let ids = unreadable::damaged().map(hex).join(", ");
    let attempt = hex(id(unreadable::ATTEMPT));
    let (policy, queue) = (unreadable::CLAIM_POLICY, unreadable::QUEUE);
    let newer = r#"{"retry": {"backoff": {"type": "fibonacci"}}}"#;
    let sql = format!(
        "update jobs set extra = '{newer}' where id in ({ids});
         update attempts set outcome = 99 where id = {attempt} and attempt = 1;
         update policies set json = replace(json, '{policy}', '\"many\"');
         update queues set limits = '{{\"concurrency\": \"moon\"}}' where name = '{queue}';
         update nodes set about = '{{' where about like '%bad%';
         update documents set value = '{{' where value like '%bad%';
         update records set value = '{{' where value like '%bad%';"
    );
    file.execute_batch(&sql).unwrap();
    drop(file);
    let store = open(folder.path());
    unreadable::check(&store).await;
    drop(store);
    // A version that can read the rows finds the jobs again.
    let file = rusqlite::Connection::open(folder.path().join("jobs.db")).unwrap();
    let repair = format!("update jobs set extra = null where id in ({ids})");
    file.execute_batch(&repair).unwrap();
    drop(file);
    let found = take(&open(folder.path()), 5, at(2000)).await;
    let found: Vec<JobId> = found.iter().map(|job| job.id).collect();
    assert_eq!(found, [id(3)]);
}

#[tokio::test]
async fn unreadable_interventions_make_only_their_job_unreadable() {
    let folder = folder();
    let store = open(folder.path());
    put(&store, jobs(1..6)).await;
    let dies = Report::Failed(Failure::unrecoverable(AttemptError::new("boom")));
    for running in take(&store, 4, at(1)).await {
        settle_one(&store, &running, dies.clone(), at(1)).await;
    }
    let revive = Change::Revive(Revival::default());
    let ids = [id(1), id(2), id(3)];
    store.change(&ids, &revive, None, at(2)).await.unwrap();
    drop(store);
    let file = rusqlite::Connection::open(folder.path().join("jobs.db")).unwrap();
    let damage = format!(
        "update states set interventions = '{{\"revived\": 7}}' where id in (x'{:032x}', x'{:032x}')",
        id(1).as_u128(),
        id(4).as_u128()
    );
    file.execute_batch(&damage).unwrap();
    drop(file);
    let store = open(folder.path());
    let damaged = store.get(&[id(4)]).await.unwrap_err();
    assert!(
        matches!(damaged, StoreError::Unreadable { .. }),
        "{damaged:?}"
    );
    let ids = [id(1), id(4), id(2)];
    let changed = store.change(&ids, &Change::Cancel, None, at(101)).await;
    let expected = [
        Changed::Unreadable,
        Changed::Unreadable,
        Changed::Now(State::Cancelled),
    ];
    assert_eq!(changed.unwrap(), expected);
    let claimed = take(&store, 9, at(2000)).await;
    let mut claimed: Vec<JobId> = claimed.iter().map(|job| job.id).collect();
    claimed.sort();
    assert_eq!(claimed, [id(3), id(5)]);
    let dead = Filter::state(ListedState::Dead);
    let page = Page {
        order: ListOrder::Finished,
        ..Page::first(9)
    };
    let listed = store.list(&dead, page, at(2000)).await.unwrap();
    assert_eq!((listed.jobs.len(), listed.examined), (0, 2));
}
