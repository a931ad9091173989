//! Durability of the file: restarts, backups, a second process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use windlass_core::fairness::Rate;
use windlass_core::retry::Preset;
use windlass_core::{Delivery, Job, Outcome, Report, State, Unique};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::{Change, Claim, Enqueued, QueueLimits, Settled, StoreError, WorkerLocation};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn open(folder: &Path) -> Opened {
    Arc::new(SqliteStore::open(folder.join("jobs.db"), at(100), 0).expect("it opens"))
}

#[tokio::test]
async fn acknowledged_changes_survive_a_restart() {
    let folder = folder();
    let store = open(folder.path());
    let held = Unique {
        unique_for: Some(Duration::from_secs(10_000)),
        ..unique("held").unwrap()
    };
    put(
        &store,
        vec![
            job(1),
            Job {
                unique: unique("k"),
                ..job(2)
            },
            Job {
                run_at: at(500),
                ..job(3)
            },
        ],
    )
    .await;
    put(
        &store,
        vec![Job {
            unique: Some(held),
            priority: 9,
            ..job(4)
        }],
    )
    .await;
    let running = take_one(&store, at(0)).await;
    settle_one(
        &store,
        &running,
        Report::Succeeded(Some(payload("[7]"))),
        at(1),
    )
    .await;
    fail_once(&store, 1..2).await;
    let before = store.get(&[id(1), id(2), id(3), id(4)]).await.unwrap();
    let counts = store.counts(at(100)).await.unwrap();
    drop(store);
    let store = open(folder.path());
    assert_eq!(
        store.get(&[id(1), id(2), id(3), id(4)]).await.unwrap(),
        before
    );
    assert_eq!(store.counts(at(100)).await.unwrap(), counts);
    let again = Job {
        unique: unique("k"),
        payload: job(2).payload,
        ..job(5)
    };
    let answer = enqueue_one(&store, again, at(101)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(2),
            payload_differs: false
        },
        "keys are held again"
    );
    let again = Job {
        unique: unique("held"),
        payload: job(4).payload,
        ..job(6)
    };
    let answer = enqueue_one(&store, again, at(101)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(4),
            payload_differs: false
        },
        "also those that outlast a job"
    );
    let order: Vec<_> = take(&store, 9, at(600))
        .await
        .iter()
        .map(|job| job.id)
        .collect();
    assert_eq!(order, [id(1), id(2), id(3)]);
}

#[tokio::test]
async fn attempts_of_the_previous_process_are_lost() {
    let folder = folder();
    let store = open(folder.path());
    put(&store, jobs(1..3)).await;
    take_one(&store, at(0)).await;
    drop(store);
    let store = SqliteStore::open(folder.path().join("jobs.db"), at(5), 0).unwrap();
    assert_eq!(store.lost_at_opening(), 1);
    let store: Opened = Arc::new(store);
    let lost = store.sweep(10, at(5), 0).await.unwrap().lost;
    assert_eq!(lost.len(), 1, "the first sweep reports them");
    assert_eq!(lost[0].0.job, id(1));
    assert_eq!(store.sweep(10, at(5), 0).await.unwrap().lost, []);
    let lost = find(&store, id(1)).await;
    assert_eq!(
        (lost.state(), lost.failures, lost.run_at),
        (State::Waiting, 1, at(6))
    );
    assert_eq!(
        store.attempts(id(1), 5).await.unwrap()[0].outcome,
        Outcome::Lost
    );
    assert_eq!(state_of(&store, id(2)).await, State::Waiting);
}

#[tokio::test]
async fn attempts_of_remote_workers_survive_a_restart() {
    let folder = folder();
    let store = open(folder.path());
    put(&store, jobs(1..4)).await;
    let asked = Claim {
        worker_location: WorkerLocation::Remote,
        retry: worker(Preset::Standard.policy()),
        ..claim(2)
    };
    let claimed = store.claim(&asked, at(0)).await.unwrap().jobs;
    store
        .change(&[id(2)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    take_one(&store, at(1)).await;
    drop(store);
    let store = SqliteStore::open(folder.path().join("jobs.db"), at(5), 0).unwrap();
    assert_eq!(store.lost_at_opening(), 1, "the one of this process");
    let store: Opened = Arc::new(store);
    let again = store.claim(&asked, at(5)).await.unwrap().jobs;
    assert_eq!(
        again[0], claimed[0],
        "with its lease, its policy and its limit"
    );
    assert!(again[1].lease().unwrap().cancel_requested);
    assert_eq!(again.len(), 2);
    let settled = settle_one(&store, &again[0], failed(), at(6)).await;
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    assert_eq!(store.sweep(9, at(6), 0).await.unwrap().lost.len(), 1);
    let lost = store.sweep(9, at(31), 0).await.unwrap().lost;
    assert_eq!(lost[0].0.job, id(2), "its lease ends as usual");
    // An attempt of a worker in this process belongs to this process.
    let retried = take(&store, 9, at(100)).await;
    assert_eq!(retried.len(), 2);
    drop(store);
    let store = SqliteStore::open(folder.path().join("jobs.db"), at(100), 0).unwrap();
    assert_eq!(store.lost_at_opening(), 2);
}

#[tokio::test]
async fn a_second_owner_is_refused() {
    let folder = folder();
    let store = open(folder.path());
    let refused = SqliteStore::open(folder.path().join("jobs.db"), at(0), 0).unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused:?}");
    assert!(
        refused
            .to_string()
            .contains(&std::process::id().to_string())
    );
    drop(store);
    open(folder.path());
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let store = open(folder.path());
    put(&store, jobs(1..2)).await;
    let files: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap())
        .collect();
    assert!(files.len() >= 3, "the file, its WAL and its lock");
    for file in files {
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.path().display());
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_name_of_the_file_is_refused_too() {
    let folder = folder();
    let _store = open(folder.path());
    let other = folder.path().join("other.db");
    std::os::unix::fs::symlink(folder.path().join("jobs.db"), &other).unwrap();
    let refused = SqliteStore::open(&other, at(0), 0).unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_resolved_job_holds_its_key_across_a_restart() {
    let folder = folder();
    let store = open(folder.path());
    let held = Unique {
        unique_for: Some(Duration::from_secs(10_000)),
        ..unique("k").unwrap()
    };
    put(
        &store,
        vec![Job {
            unique: Some(held),
            delivery: Delivery::AtMostOnce,
            ..job(1)
        }],
    )
    .await;
    take_one(&store, at(0)).await;
    store.sweep(10, at(40), 0).await.unwrap();
    store
        .change(&[id(1)], &Change::Resolve, None, at(41))
        .await
        .unwrap();
    drop(store);
    let store = open(folder.path());
    let again = Job {
        unique: unique("k"),
        payload: job(1).payload,
        ..job(2)
    };
    let answer = enqueue_one(&store, again, at(101)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: false
        }
    );
}

#[tokio::test]
async fn a_backup_never_replaces_a_file() {
    let folder = folder();
    let store = SqliteStore::open(folder.path().join("jobs.db"), at(0), 0).unwrap();
    let there = folder.path().join("there");
    std::fs::write(&there, "").unwrap();
    assert!(store.backup(&there).await.is_err());
    assert!(store.backup(folder.path().join("jobs.db")).await.is_err());
    store.backup(folder.path().join("new")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_read_does_not_block_the_writer() {
    let folder = folder();
    let store = open(folder.path());
    put(&store, jobs(1..2)).await;
    let reader = rusqlite::Connection::open(folder.path().join("jobs.db")).unwrap();
    reader.execute_batch("begin; select * from jobs").unwrap();
    let large = payload(&format!("\"{}\"", "x".repeat(999_990)));
    for number in 10..90 {
        put(
            &store,
            vec![Job {
                payload: large.clone(),
                ..job(number)
            }],
        )
        .await;
    }
    reader.execute_batch("rollback").unwrap();
    put(
        &store,
        vec![Job {
            payload: large,
            ..job(100)
        }],
    )
    .await;
    assert_eq!(store.get(&[id(100)]).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_consistent() {
    let folder = folder();
    let store = Arc::new(SqliteStore::open(folder.path().join("jobs.db"), at(0), 0).unwrap());
    let opened: Opened = Arc::clone(&store) as Opened;
    put(&opened, jobs(0..500)).await;
    let busy = tokio::spawn(async move {
        for number in 500..1500 {
            put(&opened, vec![job(number)]).await;
        }
    });
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    store.backup(copy.join("jobs.db")).await.unwrap();
    busy.await.unwrap();
    let restored = open(&copy);
    let numbers: Vec<_> = (0..1500).map(id).collect();
    let found = restored.get(&numbers).await.unwrap();
    let there = found.iter().take_while(|job| job.is_some()).count();
    assert!(there >= 500, "everything enqueued before the backup");
    assert!(
        found[there..].iter().all(Option::is_none),
        "one moment: nothing later without what came before"
    );
    let counts = restored.counts(at(1)).await.unwrap();
    assert_eq!(counts[&queue("default")].ready, there as u64);
}

#[tokio::test]
async fn the_wal_is_bounded() {
    let folder = folder();
    let store = open(folder.path());
    let large = payload(&format!("\"{}\"", "x".repeat(999_990)));
    let mut largest = 0;
    for number in 0..300 {
        put(
            &store,
            vec![Job {
                payload: large.clone(),
                ..job(number)
            }],
        )
        .await;
        let log = std::fs::metadata(folder.path().join("jobs.db-wal")).map_or(0, |file| file.len());
        largest = largest.max(log);
    }
    let mebibyte = 1024 * 1024;
    assert!(largest < 136 * mebibyte, "{} MiB", largest / mebibyte);
}

#[tokio::test]
async fn a_rate_limit_holds_across_a_restart() {
    let folder = folder();
    let store = open(folder.path());
    let rate = Rate {
        count: 3,
        period: Duration::from_secs(10),
    };
    let limits = QueueLimits {
        rate: Some(rate),
        ..QueueLimits::default()
    };
    store
        .put_queue(&queue("default"), &limits, None)
        .await
        .unwrap();
    put(&store, jobs(1..10)).await;
    assert_eq!(take(&store, 5, at(100)).await.len(), 3);
    drop(store);
    let store = open(folder.path());
    assert!(take(&store, 5, at(109)).await.is_empty());
    assert_eq!(take(&store, 5, at(110)).await.len(), 3);
}

#[test]
fn an_open_error_names_the_path_and_the_reason() {
    let folder = folder();
    let missing = folder.path().join("missing").join("jobs.db");
    for (path, words) in [
        (
            missing.as_path(),
            "missing does not exist; create the folder",
        ),
        (folder.path(), "it is a folder; name a file"),
    ] {
        let refused = SqliteStore::open(path, at(0), 0).unwrap_err();
        assert!(
            matches!(refused, StoreError::CannotOpen { .. }),
            "{refused:?}"
        );
        let message = refused.to_string();
        let path = path.display().to_string();
        assert!(
            message.contains(words) && message.contains(&path),
            "{message}"
        );
    }
}
