//! Kills a busy process twenty times: every acknowledged job still exists, intact and only once.
//! With `WINDLASS_TEST_LONG`, it is killed a hundred times.
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness prints its own result"
)]

mod child;
mod recount;
mod version_1;

use std::path::Path;
use std::sync::Arc;

use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::{Opened, at};

/// How often the process is killed.
fn kills() -> u64 {
    match std::env::var_os("WINDLASS_TEST_LONG") {
        None => 20,
        Some(_) => 100,
    }
}

/// Starts a process that uses the store, and kills it after it has printed `lines` lines.
fn run_until_killed(path: &Path, first: u64, lines: usize) -> child::Acknowledged {
    let mut process = child::start(&[], path, first, 100_000);
    let stdout = process.stdout.take().expect("the stdout of the child");
    let acknowledged = child::read_acknowledged(stdout, |printed| {
        if printed == lines {
            process.kill().expect("the child is killed");
        }
    });
    process.wait().expect("the child has ended");
    acknowledged
}

/// The latest acknowledged writes of a killed process are only in its WAL. Without the WAL the
/// store must refuse to open.
fn a_store_without_its_wal_is_refused(path: &Path) {
    run_until_killed(path, 900_000_000, 50);
    let wal = path.with_extension("db-wal");
    std::fs::rename(&wal, path.with_extension("aside")).expect("the WAL exists");
    let now = windlass_core::Timestamp::UNIX_EPOCH;
    SqliteStore::open(path, now, 0).expect_err("the WAL is missing");
    let refused = SqliteStore::open(path, now, 0)
        .expect_err("the WAL is missing")
        .to_string();
    assert!(refused.contains("is missing"), "{refused}");
    std::fs::rename(path.with_extension("aside"), wal).expect("the WAL is back");
    SqliteStore::open(path, now, 0).expect("the store opens with its WAL");
}

/// A WAL that is truncated, or damaged before its last transaction, is refused. The crash may have
/// torn the last one.
fn a_damaged_wal_is_refused(path: &Path) {
    run_until_killed(path, 910_000_000, 50);
    let wal = path.with_extension("db-wal");
    let whole = std::fs::read(&wal).expect("the WAL exists");
    let now = windlass_core::Timestamp::UNIX_EPOCH;
    let flipped = |byte: usize| {
        let mut damaged = whole.clone();
        let byte = damaged.get_mut(byte).expect("the WAL is longer");
        *byte ^= 4;
        damaged
    };
    let page = windlass_sqlite::PAGE_BYTES as usize;
    let (half, _) = whole.split_at(whole.len() / 2);
    for (damaged, expected) in [
        (flipped(17), "has a damaged header"),
        (flipped(32 + 24 + 100), "is damaged at frame 1,"),
        (flipped(32 + 24 + page + 9), "is damaged at frame 2,"),
        (half.to_vec(), "was truncated"),
    ] {
        std::fs::write(&wal, damaged).expect("the WAL is changed");
        let refused = SqliteStore::open(path, now, 0)
            .expect_err("the WAL is damaged")
            .to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    std::fs::write(&wal, whole).expect("the WAL is back");
    SqliteStore::open(path, now, 0).expect("the store opens with its WAL");
}

/// Kills processes while they upgrade a file of version 1: the next one continues, and counts no
/// job twice.
fn a_killed_upgrade_continues(folder: &Path) {
    const PAGES: [u64; 6] = [1, 20, 60, 100, 150, 200];
    let (new, old) = (folder.join("new.db"), folder.join("old.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let open = |path: &Path| -> Opened {
        Arc::new(SqliteStore::open(path, at(100), 0).expect("it opens"))
    };
    runtime.block_on(async { version_1::fill(&open(&new), 9000).await });
    version_1::downgrade(&new, &old);
    let wal = old.with_extension("db-wal");
    let mut partial = 0;
    for pages in PAGES {
        let mut process = child::start(&[], &old, 0, 0);
        // Kills the process once it has written some pages, or has ended.
        let written = || std::fs::metadata(&wal).map_or(0, |wal| wal.len());
        while written() < pages * u64::from(windlass_sqlite::PAGE_BYTES)
            && process.try_wait().expect("a child").is_none()
        {
            std::thread::yield_now();
        }
        process.kill().expect("the child is killed");
        process.wait().expect("the child has ended");
        // Only reads: closing another connection would remove the WAL.
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let file = rusqlite::Connection::open_with_flags(&old, flags).expect("the file");
        let left = "select count(*) from backfill where last_id > x''";
        partial += file
            .query_row(left, [], |row| row.get::<_, u32>(0))
            .unwrap_or(0);
    }
    assert!(
        partial > 0,
        "no process was killed in the middle of the upgrade"
    );
    runtime.block_on(async {
        let grouped = recount::check(&open(&old), at(100)).await;
        let expected = recount::check(&open(&new), at(100)).await;
        assert_eq!(grouped, expected);
    });
}

fn main() {
    if child::am_child() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut all = child::Acknowledged::default();
    let kills = kills();
    for kill in 0..kills {
        // Runs of different lengths, each killed while the process is busy.
        let acknowledged = run_until_killed(&path, kill * 1_000_000, 40 + 97 * (kill as usize % 7));
        assert!(
            acknowledged.refusals.is_empty(),
            "{:?}",
            acknowledged.refusals
        );
        all.stored.extend(acknowledged.stored);
        all.done.extend(acknowledged.done);
        all.purging.extend(acknowledged.purging);
        child::check(&path, &all);
    }
    assert!(
        all.stored.len() > 100 && !all.done.is_empty() && !all.purging.is_empty(),
        "it was busy: {} jobs",
        all.stored.len()
    );
    a_store_without_its_wal_is_refused(&path);
    a_damaged_wal_is_refused(&path);
    a_killed_upgrade_continues(folder.path());
    println!(
        "{} jobs acknowledged and {} done over {kills} kills",
        all.stored.len(),
        all.done.len()
    );
    println!("4 passed, 0 failed");
}
