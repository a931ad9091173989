//! Crashes and faults of the disk at every call of a script of 200 operations.
//!
//! Every check compares everything in the store with the store in memory, on which the script ran
//! too. Without `WINDLASS_TEST_LONG`, a sample of the calls is tested.
#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a test without a harness prints its own result, and what a test may, its helpers may"
)]

mod crash;
mod disk;
mod dump;
mod faults;
mod journal;
mod killed;
mod script;
mod session;
mod upgrade;
#[path = "../version_1/mod.rs"]
mod version_1;

use std::process::ExitCode;

use disk::Disk;

/// How many problems are printed. The first one usually explains the others.
const PROBLEMS_SHOWN: usize = 10;

fn main() -> ExitCode {
    let Some(disk) = Disk::of_this_process() else {
        return disk::start();
    };
    if killed::is_child(&disk) {
        return ExitCode::SUCCESS;
    }
    let depth = match std::env::var_os("WINDLASS_TEST_LONG") {
        None => Depth::SHORT,
        Some(_) => Depth::LONG,
    };
    let recording = crash::record(&disk);
    println!("{} calls", recording.records.len());
    let killed = killed::some_points(&recording, depth.process_every);
    println!("{killed} killed processes left what the model says");
    let mut checker = crash::Checker::new();
    let problems = crash::every_point(&recording, &mut checker, depth);
    println!("{} crashes of the script", checker.checked);
    assert_none(&problems);
    let (crashes, problems) = upgrade::every_point(&disk, depth);
    println!("{crashes} crashes of an upgrade");
    assert_none(&problems);
    let lies = crash::lie(&recording, &mut checker, depth);
    println!("{lies:?}");
    assert!(
        lies.wal > 5 && lies.wal == lies.wal_found,
        "each lost operation is found"
    );
    assert!(
        lies.pages_found * 2 > lies.pages,
        "most torn pages are found"
    );
    let syncs = faults::every_sync(&disk, &mut checker, depth);
    println!("{syncs} syncs failed");
    let runs = faults::every_write_of_opening(&disk, depth);
    println!("{runs} openings had a failed write");
    let (failed, refused) = faults::every_write(&disk, depth);
    println!("{failed} writes failed, {refused} operations got an error and were repeated");
    assert!(
        syncs > 30 && runs > 50 && refused > 200,
        "the script writes and syncs"
    );
    println!("7 passed, 0 failed");
    ExitCode::SUCCESS
}

/// How many of the points are tested. Every check runs at every n-th point; the numbers have no
/// common divisor with the pairs of calls that write one page, so that all kinds of calls count.
#[derive(Debug, Clone, Copy)]
struct Depth {
    kill_every: usize,
    power_loss_every: usize,
    /// How many power losses with different survivors.
    power_losses: u64,
    failed_sync_every: usize,
    lie_every: usize,
    /// Real processes, which only confirm the model.
    process_every: usize,
    /// Whether every write fails in all ways, or in one of them.
    fails_in_all_ways: bool,
}

impl Depth {
    const SHORT: Depth = Depth {
        kill_every: 13,
        power_loss_every: 9,
        power_losses: 1,
        failed_sync_every: 7,
        lie_every: 10,
        process_every: 199,
        fails_in_all_ways: false,
    };
    const LONG: Depth = Depth {
        kill_every: 1,
        power_loss_every: 1,
        power_losses: 3,
        failed_sync_every: 1,
        lie_every: 1,
        process_every: 23,
        fails_in_all_ways: true,
    };
}

fn assert_none(problems: &[String]) {
    for problem in problems.iter().take(PROBLEMS_SHOWN) {
        println!("{problem}");
    }
    assert!(problems.is_empty(), "{} problems", problems.len());
}
