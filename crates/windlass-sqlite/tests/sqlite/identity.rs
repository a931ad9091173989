//! A store opens only its own files, and a restore replaces only what it may.
#![expect(clippy::unwrap_used, reason = "what a test may, its helpers may")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use windlass_sqlite::{Existing, SqliteStore, backup, restore};
use windlass_store::StoreError;
use windlass_store::conformance::build::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Returns the content of every file in a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| {
        let name = file.file_name().into_string().unwrap();
        (name, std::fs::read(file.path()).unwrap())
    });
    named.collect()
}

/// Returns the error of opening a file, and checks that nothing in its folder changes.
fn refused(path: &Path) -> StoreError {
    let folder = path.parent().unwrap();
    let before = files(folder);
    let refused = SqliteStore::open(path, at(0), 0).unwrap_err();
    assert!(files(folder) == before, "{refused}: a file changed");
    refused
}

#[test]
fn a_file_of_another_program_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    for text in ["x", &"a text that is long enough to be a header".repeat(99)] {
        std::fs::write(&path, text).unwrap();
        let message = refused(&path).to_string();
        assert!(message.contains("is not a Windlass store"), "{message}");
        assert!(message.contains("jobs.db"), "{message}");
        let backed_up = backup(&path, &folder.path().join("copy")).unwrap_err();
        assert!(matches!(backed_up, StoreError::NotAStore { .. }));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::create_dir(&path).unwrap();
    let message = SqliteStore::open(&path, at(0), 0).unwrap_err().to_string();
    assert!(message.contains("it is a folder"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_database_of_another_program_is_refused_and_left_alone() {
    for (journal, version) in [("delete", 0), ("delete", 1), ("wal", 1), ("wal", 99)] {
        let folder = folder();
        let path = folder.path().join("jobs.db");
        let theirs = rusqlite::Connection::open(&path).unwrap();
        let sql = format!(
            "pragma journal_mode = {journal}; create table jobs (id integer); pragma user_version = {version};"
        );
        theirs.execute_batch(&sql).unwrap();
        drop(theirs);
        let message = refused(&path).to_string();
        assert!(message.contains("is not a Windlass store"), "{message}");
    }
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    drop(SqliteStore::open(&path, at(0), 0).unwrap());
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    std::fs::remove_file(folder.path().join("jobs.db.lock")).unwrap();
    let error = refused(&path);
    let wrong = StoreError::WrongSchema {
        found: 99,
        needed: 2,
    };
    assert_eq!(error.to_string(), wrong.to_string());
}

#[test]
fn an_empty_file_becomes_a_store() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    std::fs::write(&path, "").unwrap();
    drop(SqliteStore::open(&path, at(0), 0).unwrap());
    drop(SqliteStore::open(&path, at(0), 0).unwrap());
}

/// Creates a store with one job, a backup of it, and then another job in the store.
async fn store_and_backup(folder: &Path) {
    let path = folder.join("jobs.db");
    let store = Arc::new(SqliteStore::open(&path, at(0), 0).unwrap());
    let opened: Opened = Arc::clone(&store) as Opened;
    put(&opened, jobs(1..2)).await;
    store.backup(folder.join("copy")).await.unwrap();
    put(&opened, jobs(2..3)).await;
}

async fn jobs_in(path: &Path) -> Vec<bool> {
    let store = SqliteStore::open(path, at(0), 0).unwrap();
    let opened: Opened = Arc::new(store);
    let found = opened.get(&[id(1), id(2)]).await.unwrap();
    found.iter().map(Option::is_some).collect()
}

#[tokio::test]
async fn a_restore_replaces_a_store_and_its_wal() {
    let folder = folder();
    store_and_backup(folder.path()).await;
    let path = folder.path().join("jobs.db");
    let copy = folder.path().join("copy");
    // As a killed process leaves it: the WAL has writes that the file does not have.
    let wal = folder.path().join("jobs.db-wal");
    std::fs::write(&wal, vec![7; 4096]).unwrap();
    std::fs::write(folder.path().join("jobs.db.lock"), "1\nlog in use\n").unwrap();
    let kept = restore(&copy, &path, Existing::Keep).unwrap_err();
    assert!(matches!(kept, StoreError::Exists { .. }), "{kept}");
    assert!(wal.exists(), "nothing changed");
    restore(&copy, &path, Existing::Replace).unwrap();
    assert!(!wal.exists());
    assert_eq!(jobs_in(&path).await, [true, false]);
    let new = folder.path().join("new.db");
    restore(&copy, &new, Existing::Keep).unwrap();
    assert_eq!(jobs_in(&new).await, [true, false]);
}

#[tokio::test]
async fn a_restore_is_refused_while_a_process_has_the_store_open() {
    let folder = folder();
    store_and_backup(folder.path()).await;
    let path = folder.path().join("jobs.db");
    let store = SqliteStore::open(&path, at(0), 0).unwrap();
    let refused = restore(&folder.path().join("copy"), &path, Existing::Replace).unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
    drop(store);
    assert_eq!(jobs_in(&path).await, [true, true]);
}

#[tokio::test]
async fn a_damaged_or_foreign_backup_is_refused_and_nothing_changes() {
    let folder = folder();
    store_and_backup(folder.path()).await;
    let path = folder.path().join("jobs.db");
    let copy = folder.path().join("copy");
    let whole = std::fs::read(&copy).unwrap();
    let mut damaged = whole.clone();
    damaged[8192..2 * 8192].fill(0x55);
    let cut = whole[..whole.len() / 2].to_vec();
    let mut foreign = whole;
    foreign[68] ^= 1;
    for (backup, words) in [
        (damaged, "damaged"),
        (cut, "damaged"),
        (foreign, "is not a Windlass store"),
    ] {
        std::fs::write(&copy, backup).unwrap();
        let before = files(folder.path());
        let refused = restore(&copy, &path, Existing::Replace).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(files(folder.path()) == before, "{refused}: a file changed");
    }
    let nothing = restore(&folder.path().join("nothing"), &path, Existing::Replace);
    assert!(nothing.unwrap_err().to_string().contains("does not exist"));
    assert_eq!(jobs_in(&path).await, [true, true]);
}

#[tokio::test]
async fn a_restore_never_replaces_the_file_of_another_program() {
    let folder = folder();
    store_and_backup(folder.path()).await;
    let theirs = folder.path().join("theirs.txt");
    std::fs::write(&theirs, "mine").unwrap();
    let refused = restore(&folder.path().join("copy"), &theirs, Existing::Replace).unwrap_err();
    assert!(matches!(refused, StoreError::NotAStore { .. }), "{refused}");
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "mine");
}
