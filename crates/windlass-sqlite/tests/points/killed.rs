//! Real kills: they leave exactly what `crash.rs` computes.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use crate::crash::Recording;
use crate::disk::{self, Disk};
use crate::journal::{self, Files, is_same, read_image};
use crate::script::steps;
use crate::session::{Session, fill_once, runtime, start};

const SIGKILL: i32 = 9;
const CHILD: &str = "killed";

/// Kills processes before the n-th call of the script, for some n. Compares the files they leave
/// with the model. Returns how many.
pub(crate) fn some_points(recording: &Recording, stride: usize) -> usize {
    let points = (1..recording.records.len() + 1).step_by(stride);
    let count = points.len();
    for call in points {
        let (folder, about) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let mut child = disk::this_program(about.path());
        child.arg(CHILD).arg(folder.path()).arg(call.to_string());
        let status = child.status().expect("it starts");
        assert_eq!(status.signal(), Some(SIGKILL), "killed at call {call}");
        let recorded = std::fs::read(about.path().join("records")).expect("the records");
        let records = journal::parse(&recorded);
        let mut files = Files::default();
        for record in &records {
            files.apply(record);
        }
        let found = read_image(folder.path());
        assert!(
            is_same(&found, &files.after_kill()),
            "killed at call {call}"
        );
    }
    count
}

/// Runs the part of the killed process, if this is one.
pub(crate) fn is_child(disk: &Disk) -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, word, folder, call] = arguments.as_slice() else {
        return false;
    };
    if word != CHILD {
        return false;
    }
    let mut session = Session::new(Path::new(folder));
    disk.watch(Path::new(folder), true);
    disk.kill_at(call.parse().expect("a number"));
    session.open(start()).expect("it opens");
    runtime().block_on(async {
        for step in steps() {
            fill_once(disk, &step);
            session.run(&step).await.expect("it is acknowledged");
            disk.heal();
        }
    });
    true
}
