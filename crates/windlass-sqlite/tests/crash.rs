//! A process is killed in the middle of a loaded run, twenty times: every acknowledged job is there, whole and once.
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness tells its own result"
)]

#[path = "support/child.rs"]
mod child;

use std::time::Duration;

const KILLS: u64 = 20;

fn main() {
    if child::am_child() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut all = child::Acknowledged::default();
    for kill in 0..KILLS {
        let mut process = child::start(&[], &path, kill * 1_000_000, 100_000);
        let told = process.stdout.take().expect("its stdout");
        let listener = std::thread::spawn(move || child::listen(told));
        // Longer and shorter lives; what matters is that it is busy when it dies.
        std::thread::sleep(Duration::from_millis(60 + 17 * (kill % 7)));
        process.kill().expect("it is killed");
        process.wait().expect("it is gone");
        let acknowledged = listener.join().expect("what it told");
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
    println!(
        "{} jobs acknowledged and {} done over {KILLS} kills",
        all.stored.len(),
        all.done.len()
    );
    println!("1 passed, 0 failed");
}
