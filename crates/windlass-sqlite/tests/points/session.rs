//! Runs the script on a store, and says what a store holds after each of its operations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_core::Timestamp;
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::StoreError;
use windlass_store::conformance::build::{Opened, at};

use crate::disk::{Disk, ENOSPC, Fault, WRITE};
use crate::dump::{claim_all, dump};
use crate::script::{Step, steps};

/// Later than all leases, retries and snoozes of the script.
pub(crate) fn later() -> Timestamp {
    at(100_000)
}

pub(crate) fn start() -> Timestamp {
    at(0)
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime")
}

/// A store in a file, while the script runs on it.
pub(crate) struct Session {
    path: PathBuf,
    store: Option<Opened>,
}

impl Session {
    pub(crate) fn new(folder: &Path) -> Self {
        Session {
            path: folder.join("jobs.db"),
            store: None,
        }
    }

    pub(crate) fn open(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.store = None;
        self.store = Some(Arc::new(SqliteStore::open(&self.path, now, 0)?));
        Ok(())
    }

    pub(crate) async fn run(&mut self, step: &Step) -> Result<String, StoreError> {
        if step.is_restart() {
            return self.open(step.at).map(|()| "()".to_owned());
        }
        step.run(self.store()).await
    }

    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.store.as_ref()
    }

    pub(crate) fn store(&self) -> &Opened {
        self.opened().expect("it is open")
    }
}

/// Makes the disk full for the first write of an operation, if the script says so. The store retries
/// the operation, after a checkpoint that lets the WAL start again.
pub(crate) fn fill_once(disk: &Disk, step: &Step) {
    if step.is_full_once {
        disk.fail(Fault {
            kinds: WRITE,
            from: 1,
            count: 1,
            error: ENOSPC,
            tears: false,
        });
    }
}

pub(crate) fn memory() -> Opened {
    Arc::new(MemoryStore::new())
}

/// What a store holds some time after the first operations, according to the store in memory.
pub(crate) fn expected(count: usize, repeated: Option<&Step>) -> Vec<String> {
    let memory = memory();
    runtime().block_on(async {
        for step in steps().iter().take(count) {
            step.run(&memory).await.expect("memory answers");
        }
        settled_dump(&memory, repeated).await
    })
}

/// Everything in a store, once all attempts are over and a client has repeated an operation. The
/// jobs that can run again are claimed.
async fn settled_dump(store: &Opened, repeated: Option<&Step>) -> Vec<String> {
    let swept = store.sweep(1000, later(), 0).await;
    swept.expect("it sweeps");
    let mut lines = Vec::new();
    if let Some(step) = repeated {
        let repeated = Step {
            at: later(),
            ..step.clone()
        };
        lines.push(repeated.run(store).await.expect("it is repeated"));
    }
    lines.extend(dump(store, later()).await);
    lines.extend(claim_all(store, later()).await);
    lines
}

/// Opens the store in a folder, and compares it with what it may hold. Returns which it is.
pub(crate) fn check_folder(
    folder: &Path,
    allowed: &[&Vec<String>],
    repeated: Option<&Step>,
) -> Result<usize, String> {
    let found = read_folder(folder, repeated)?;
    let matching = allowed.iter().position(|allowed| **allowed == found);
    matching.ok_or_else(|| describe_difference(&found, allowed))
}

/// Opens the store in a folder and reads everything. Says what is wrong with the store.
pub(crate) fn read_folder(folder: &Path, repeated: Option<&Step>) -> Result<Vec<String>, String> {
    let mut session = Session::new(folder);
    let opened = session.open(later());
    opened.map_err(|error| format!("the store does not open: {error}"))?;
    let read = || runtime().block_on(settled_dump(session.store(), repeated));
    let found = catch_unwind(AssertUnwindSafe(read)).map_err(|panic| {
        let text = panic.downcast_ref::<String>();
        format!("a read failed: {}", text.map_or("", String::as_str))
    })?;
    drop(session);
    check_integrity(folder)?;
    Ok(found)
}

fn check_integrity(folder: &Path) -> Result<(), String> {
    let file = rusqlite::Connection::open(folder.join("jobs.db"));
    let verdict = file.and_then(|file| {
        file.query_row("pragma integrity_check", [], |row| row.get::<_, String>(0))
    });
    match verdict.as_deref() {
        Ok("ok") => Ok(()),
        _ => Err(format!("the file is damaged: {verdict:?}")),
    }
}

fn describe_difference(found: &[String], allowed: &[&Vec<String>]) -> String {
    let mut text = "the store holds something else".to_owned();
    for (number, allowed) in allowed.iter().enumerate() {
        let missing = allowed.iter().find(|line| !found.contains(line));
        let extra = found.iter().find(|line| !allowed.contains(line));
        text.push_str(&format!(
            "\n  compared with {number}: missing {missing:?}\n  and instead {extra:?}"
        ));
    }
    text
}
