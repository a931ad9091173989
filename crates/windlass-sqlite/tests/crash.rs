//! A process is killed in the middle of a loaded run, twenty times: every acknowledged job is there, whole and once.
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness tells its own result"
)]

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

/// A log that is cut, or damaged anywhere but in its last group, is told; its last group may have been torn by the crash.
fn a_damaged_log_is_told(path: &Path) {
    live_until(path, 910_000_000, 50);
    let log = path.with_extension("db-wal");
    let whole = std::fs::read(&log).expect("there is a log");
    let now = windlass_core::Timestamp::UNIX_EPOCH;
    let flipped = |byte: usize| {
        let mut damaged = whole.clone();
        let byte = damaged.get_mut(byte).expect("the log is that long");
        *byte ^= 4;
        damaged
    };
    let page = windlass_sqlite::PAGE_BYTES as usize;
    let (half, _) = whole.split_at(whole.len() / 2);
    for (damaged, expected) in [
        (flipped(17), "has a damaged header"),
        (flipped(32 + 24 + 100), "is damaged in frame 1,"),
        (flipped(32 + 24 + page + 9), "is damaged in frame 2,"),
        (half.to_vec(), "is shorter than it was"),
    ] {
        std::fs::write(&log, damaged).expect("it is changed");
        let refused = SqliteStore::open(path, now, 0)
            .expect_err("its log is damaged")
            .to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    std::fs::write(&log, whole).expect("it is put back");
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
    a_damaged_log_is_told(&path);
    println!(
        "{} jobs acknowledged and {} done over {KILLS} kills",
        all.stored.len(),
        all.done.len()
    );
    println!("3 passed, 0 failed");
}
