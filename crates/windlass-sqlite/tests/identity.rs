//! A store opens its own files only.
#![expect(clippy::unwrap_used, reason = "what a test may, its helpers may")]

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;
use windlass_sqlite::{SqliteStore, backup};
use windlass_store::StoreError;
use windlass_store::conformance::build::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Every file in a folder with what it holds.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| {
        let name = file.file_name().into_string().unwrap();
        (name, std::fs::read(file.path()).unwrap())
    });
    named.collect()
}

/// What opening a file is refused with; nothing in its folder changes.
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
        let told = refused(&path).to_string();
        assert!(told.contains("is not a Windlass store"), "{told}");
        assert!(told.contains("jobs.db"), "{told}");
        let backed_up = backup(&path, &folder.path().join("copy")).unwrap_err();
        assert!(matches!(backed_up, StoreError::NotAStore { .. }));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::create_dir(&path).unwrap();
    let told = SqliteStore::open(&path, at(0), 0).unwrap_err().to_string();
    assert!(told.contains("it is a folder"), "{told}");
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
        let told = refused(&path).to_string();
        assert!(told.contains("is not a Windlass store"), "{told}");
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
        needed: 1,
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
