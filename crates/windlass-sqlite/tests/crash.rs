//! A process is killed in the middle of a loaded run, twenty times: every acknowledged job is there, whole and once.
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness tells its own result"
)]

#[path = "support/child.rs"]
mod child;

use std::path::Path;

use windlass_sqlite::SqliteStore;

const KILLS: u64 = 20;

/// Starts a process that uses the store, and kills it when it has told so many lines.
fn live_until(path: &Path, first: u64, lines: usize) -> child::Acknowledged {
    let mut process = child::start(&[], path, first, 100_000);
    let told = process.stdout.take().expect("its stdout");
    let acknowledged = child::listen(told, |heard| {
        if heard == lines {
            process.kill().expect("it is killed");
        }
    });
    process.wait().expect("it is gone");
    acknowledged
}

/// Without its log, a store whose process was killed has lost what was acknowledged last: it must not start as if nothing was.
fn a_missing_log_is_told(path: &Path) {
    live_until(path, 900_000_000, 50);
    let log = path.with_extension("db-wal");
    std::fs::rename(&log, path.with_extension("aside")).expect("there is a log");
    let now = windlass_core::Timestamp::UNIX_EPOCH;
    SqliteStore::open(path, now, 0).expect_err("its log is gone");
    let refused = SqliteStore::open(path, now, 0)
        .expect_err("its log is gone")
        .to_string();
    assert!(refused.contains("is missing"), "{refused}");
    std::fs::rename(path.with_extension("aside"), log).expect("it is put back");
    SqliteStore::open(path, now, 0).expect("it opens with its log");
}

fn main() {
    if child::am_child() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut all = child::Acknowledged::default();
    for kill in 0..KILLS {
        // Longer and shorter lives, each of them ended while it is busy.
        let acknowledged = live_until(&path, kill * 1_000_000, 40 + 97 * (kill as usize % 7));
        assert!(
            acknowledged.refusals.is_empty(),
            "{:?}",
            acknowledged.refusals
        );
        all.stored.extend(acknowledged.stored);
        all.done.extend(acknowledged.done);
        child::check(&path, &all);
    }
    assert!(
        all.stored.len() > 100 && !all.done.is_empty(),
        "it was busy: {} jobs",
        all.stored.len()
    );
    a_missing_log_is_told(&path);
    println!(
        "{} jobs acknowledged and {} done over {KILLS} kills",
        all.stored.len(),
        all.done.len()
    );
    println!("2 passed, 0 failed");
}
