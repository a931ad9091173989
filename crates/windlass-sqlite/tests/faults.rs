//! Makes every write and every sync of a short script fail once: nothing acknowledged is lost.
//!
//! `strace` makes the system calls of a child process fail. `./test` installs it if it is missing.
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness prints its own result"
)]

mod child;
mod recount;

use std::path::Path;
use std::process::Command;

/// `strace` counts calls per thread, so the writer must make more calls than opening the store.
const ROUNDS: u64 = 8;

fn main() {
    if child::am_child() {
        return;
    }
    let installed = Command::new("strace")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        installed,
        "strace is not installed; run ./test, which installs it"
    );
    // A write that fails once is retried, and callers see no error. A disk that stays full is an
    // error.
    let once = sweep("pwrite64:error=ENOSPC", "", ExpectedErrors::None);
    let full = sweep(
        "pwrite64:error=ENOSPC",
        "+",
        ExpectedErrors::AnyOf(&["the disk is full", "not available now"]),
    );
    let unsynced = sweep(
        "fsync,fdatasync:error=EIO",
        "",
        ExpectedErrors::AnyOf(&["may or may not have taken effect", "the store stopped"]),
    );
    println!("{once} writes failed once, {full} from then on, {unsynced} syncs failed");
    println!("3 passed, 0 failed");
}

/// The errors that callers of an open store may see.
enum ExpectedErrors {
    None,
    AnyOf(&'static [&'static str]),
}

/// Makes the n-th call fail, or all calls from the n-th on (`+`), for n = 1, 2, … until the script
/// ends before the n-th call. Everything that was acknowledged must still exist, whichever call
/// failed. Returns the number of errors.
fn sweep(fault: &str, from_then_on: &str, expected_errors: ExpectedErrors) -> u64 {
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
        let injected =
            std::fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("(INJECTED)"));
        // A store that could not be opened has acknowledged nothing, and its error may be any.
        let opened = acknowledged.refusals.len() != 1 || !acknowledged.stored.is_empty();
        for why in acknowledged.refusals.iter().filter(|_| opened) {
            let expected = match expected_errors {
                ExpectedErrors::None => false,
                ExpectedErrors::AnyOf(texts) => texts.iter().any(|text| why.contains(text)),
            };
            assert!(expected, "{fault} {n}: {why}");
            refused += 1;
        }
        child::check(&path, &acknowledged);
        if !injected {
            assert_eq!(acknowledged.refusals, [] as [String; 0]);
            assert_eq!(acknowledged.stored.len() as u64, ROUNDS * 5);
            assert!(
                matches!(expected_errors, ExpectedErrors::None) || refused > 0,
                "{fault} never led to an error"
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
    let stdout = process.stdout.take().expect("the stdout of the child");
    let acknowledged = child::read_acknowledged(stdout, |_| ());
    process.wait().expect("it ends");
    acknowledged
}
