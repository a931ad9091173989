//! The disk fails at every write and every sync of a short script: nothing acknowledged is lost.
//!
//! `strace` makes a system call of the child fail; where it is not installed, `./test` installs it.
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness tells its own result"
)]

mod child;

use std::path::Path;
use std::process::Command;

/// Calls are counted for each thread: the writer must make more of them than the opening does.
const ROUNDS: u64 = 8;

fn main() {
    if child::am_child() {
        return;
    }
    let installed = Command::new("strace")
        .arg("-V")
        .output()
        .is_ok_and(|told| told.status.success());
    assert!(
        installed,
        "strace is not installed: run ./test, which installs it"
    );
    // A write that fails once is tried again and nobody notices; a disk that stays full is told.
    let once = sweep("pwrite64:error=ENOSPC", "", Told::Never);
    let full = sweep(
        "pwrite64:error=ENOSPC",
        "+",
        Told::As(&["the disk is full", "not available now"]),
    );
    let unsynced = sweep(
        "fsync,fdatasync:error=EIO",
        "",
        Told::As(&["may or may not have taken effect", "the store stopped"]),
    );
    println!("{once} writes failed once, {full} from then on, {unsynced} syncs failed");
    println!("3 passed, 0 failed");
}

/// What a store says of a fault, once it is open.
enum Told {
    Never,
    As(&'static [&'static str]),
}

/// Lets the n-th such call fail, or all from the n-th on (`+`), for n = 1, 2, … until the script runs through without meeting
/// the fault. What was acknowledged must be there whatever failed.
fn sweep(fault: &str, from_then_on: &str, told: Told) -> u64 {
    let mut refused = 0;
    for n in 1.. {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.db");
        let trace = folder.path().join("trace");
        let acknowledged = run_with(
            &format!("inject={fault}:when={n}{from_then_on}"),
            &path,
            &trace,
        );
        let met = std::fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("(INJECTED)"));
        // A store that could not even be opened has promised nothing, and may say so in any words.
        let opened = acknowledged.refusals.len() != 1 || !acknowledged.stored.is_empty();
        for why in acknowledged.refusals.iter().filter(|_| opened) {
            let expected = match told {
                Told::Never => false,
                Told::As(words) => words.iter().any(|word| why.contains(word)),
            };
            assert!(expected, "{fault} {n}: {why}");
            refused += 1;
        }
        child::check(&path, &acknowledged);
        if !met {
            assert_eq!(acknowledged.refusals, [] as [String; 0]);
            assert_eq!(acknowledged.stored.len() as u64, ROUNDS * 5);
            assert!(
                matches!(told, Told::Never) || refused > 0,
                "no {fault} was ever told"
            );
            return n - 1;
        }
    }
    unreachable!("the script ends")
}

fn run_with(inject: &str, path: &Path, trace: &Path) -> child::Acknowledged {
    let call = inject
        .trim_start_matches("inject=")
        .split(':')
        .next()
        .expect("a call");
    let calls = format!("trace={call}");
    let trace = trace.to_str().expect("a path that is text");
    let wrapper = [
        "strace", "-f", "-q", "-o", trace, "-e", &calls, "-e", inject,
    ];
    let mut process = child::start(&wrapper, path, 0, ROUNDS);
    let told = process.stdout.take().expect("its stdout");
    let acknowledged = child::listen(told, |_| ());
    process.wait().expect("it ends");
    acknowledged
}
