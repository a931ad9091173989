//! Crashes after every call of the opening that upgrades a file of schema version 1.

use std::sync::Arc;

use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::Opened;

use crate::Depth;
use crate::crash::{each_crash, written};
use crate::disk::Disk;
use crate::journal::{Files, Image, read_image};
use crate::session::{Session, check_folder, later, read_folder, runtime, start};
use crate::version_1;

/// Few jobs, so that every call can be a crash point. `tests/crash.rs` upgrades thousands, in many
/// transactions.
const JOBS: u64 = 60;

/// Kills the process and cuts the power after every call. Returns the number of crashes, and what
/// is wrong: the next opening must finish the upgrade, and count no job twice.
pub(crate) fn every_point(disk: &Disk, depth: Depth) -> (usize, Vec<String>) {
    let old = old_file();
    let every_call = Depth {
        kill_every: 1,
        power_loss_every: 1,
        ..depth
    };
    let whole = read_folder(written(&old).path(), None).expect("it is upgraded");
    let folder = written(&old);
    disk.watch(folder.path(), true);
    let mut session = Session::new(folder.path());
    session.open(later()).expect("it opens");
    drop(session);
    let records = disk.records();
    disk.stop_watching();
    let (mut count, mut problems) = (0, Vec::new());
    each_crash(Files::from_image(&old), &records, every_call, |crash| {
        count += 1;
        let checked = check_folder(written(&crash.image).path(), &[&whole], None);
        let problem = checked.err();
        problems.extend(problem.map(|problem| format!("{}: {problem}", crash.about)));
    });
    (count, problems)
}

fn old_file() -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    let new = folder.path().join("new.db");
    let store = SqliteStore::open(&new, start(), 0).expect("it opens");
    let store: Opened = Arc::new(store);
    runtime().block_on(version_1::fill(&store, JOBS));
    drop(store);
    let old = tempfile::tempdir().expect("a folder");
    version_1::downgrade(&new, &old.path().join("jobs.db"));
    read_image(old.path())
}
