//! The test disk: counts, records and fails the calls of this process that change files.
//!
//! `disk.c` is between SQLite and the kernel. It is C because a program without `unsafe` cannot
//! replace functions of the C library. This program compiles it, and starts itself again with it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::journal::{self, Record};

const CONTROL: &str = "WINDLASS_TEST_DISK";
const RECORDS: &str = "WINDLASS_TEST_DISK_RECORDS";
const FOLDER_AT: u64 = 256;
const CONTROL_BYTES: u64 = 4096;

/// The kinds of calls, as bits.
pub(crate) const WRITE: u64 = 1;
pub(crate) const TRUNCATE: u64 = 2;
pub(crate) const SYNC: u64 = 4;
pub(crate) const CREATE: u64 = 8;
pub(crate) const UNLINK: u64 = 16;
pub(crate) const FAILED_SYNC: u64 = 32;

pub(crate) const EPERM: u64 = 1;
pub(crate) const EIO: u64 = 5;
pub(crate) const ENOSPC: u64 = 28;

/// The numbers that this program shares with `disk.c`, in the order of its `struct control`.
#[derive(Clone, Copy)]
enum Number {
    Watches,
    Records,
    Lies,
    Calls,
    FaultyKinds,
    FaultyFrom,
    FaultyCount,
    Error,
    Matched,
    Failed,
    ReserveError,
    Tears,
    KilledAt,
}

/// Which calls fail, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) kinds: u64,
    /// The first of these calls that fails, counted from 1.
    pub(crate) from: u64,
    pub(crate) count: u64,
    /// The error number.
    pub(crate) error: u64,
    /// Whether the first call that fails writes half of its data.
    pub(crate) tears: bool,
}

pub(crate) struct Disk {
    control: File,
    records: PathBuf,
}

impl Disk {
    /// The disk of this process, if it was started with one.
    pub(crate) fn of_this_process() -> Option<Disk> {
        let path = std::env::var_os(CONTROL)?;
        let control = File::options().read(true).write(true).open(path);
        let disk = Disk {
            control: control.expect("the control file"),
            records: std::env::var_os(RECORDS)?.into(),
        };
        // The tests drop writes themselves, so nothing has to reach a real disk.
        disk.set(Number::Lies, 1);
        disk.with_space();
        Some(disk)
    }

    /// Starts to watch a folder, with all counts at zero and without faults.
    pub(crate) fn watch(&self, folder: &Path, records: bool) {
        self.set(Number::Watches, 0);
        let mut path = folder.to_str().expect("a path that is text").to_owned();
        path.push('\0');
        let written = self.control.write_all_at(path.as_bytes(), FOLDER_AT);
        written.expect("the control file");
        File::create(&self.records).expect("the records"); // makes it empty
        self.set(Number::Records, records.into());
        self.set(Number::Calls, 0);
        self.heal();
        self.set(Number::Watches, 1);
    }

    pub(crate) fn stop_watching(&self) {
        self.set(Number::Watches, 0);
    }

    /// Makes calls fail from now on.
    pub(crate) fn fail(&self, fault: Fault) {
        self.heal();
        self.set(Number::FaultyFrom, fault.from);
        self.set(Number::FaultyCount, fault.count);
        self.set(Number::Error, fault.error);
        self.set(Number::Tears, fault.tears.into());
        let is_full = fault.error == ENOSPC && fault.count > 1;
        self.set(Number::ReserveError, if is_full { ENOSPC } else { EPERM });
        self.set(Number::FaultyKinds, fault.kinds);
    }

    /// Kills this process instead of its n-th call.
    pub(crate) fn kill_at(&self, call: u64) {
        self.set(Number::KilledAt, call);
    }

    /// Ends the faults. Returns how many calls matched and how many failed.
    pub(crate) fn heal(&self) -> (u64, u64) {
        self.set(Number::FaultyKinds, 0);
        self.with_space();
        let counts = (self.get(Number::Matched), self.get(Number::Failed));
        self.set(Number::Matched, 0);
        self.set(Number::Failed, 0);
        counts
    }

    /// Where the store cannot allocate its reserve for another reason than a full disk, it works
    /// without one. That saves the tests most of their time.
    fn with_space(&self) {
        self.set(Number::ReserveError, EPERM);
    }

    /// How many calls there were.
    pub(crate) fn calls(&self) -> usize {
        usize::try_from(self.get(Number::Calls)).expect("a small number")
    }

    /// The calls so far, in order.
    pub(crate) fn records(&self) -> Vec<Record> {
        let bytes = std::fs::read(&self.records).expect("the records");
        let records = journal::parse(&bytes);
        assert_eq!(records.len(), self.calls(), "every call was recorded");
        records
    }

    fn set(&self, number: Number, value: u64) {
        let done = self
            .control
            .write_all_at(&value.to_ne_bytes(), number as u64 * 8);
        done.expect("the control file");
    }

    fn get(&self, number: Number) -> u64 {
        let mut bytes = [0; 8];
        let done = self.control.read_exact_at(&mut bytes, number as u64 * 8);
        done.expect("the control file");
        u64::from_ne_bytes(bytes)
    }
}

/// Makes a command that runs this program on a disk of its own, whose files are in `folder`.
pub(crate) fn this_program(folder: &Path) -> Command {
    let control = folder.join("control");
    let records = folder.join("records");
    let file = File::create(&control).expect("the control file");
    file.set_len(CONTROL_BYTES).expect("the control file");
    File::create(&records).expect("the records");
    let library = match std::env::var_os(CONTROL) {
        Some(_) => std::env::var_os("LD_PRELOAD").expect("it is preloaded"),
        None => compile().into(),
    };
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env("LD_PRELOAD", library);
    command.env(CONTROL, control).env(RECORDS, records);
    command
}

/// Runs this program again on a test disk.
pub(crate) fn start() -> ExitCode {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = this_program(folder.path());
    let status = command.args(std::env::args_os().skip(1)).status();
    let status = status.expect("this program starts");
    println!("the test ended with {status}");
    match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Compiles `disk.c` with the compiler that compiles SQLite.
fn compile() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/points/disk.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("points-disk.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args([
        "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
    ]);
    let status = command.arg(&library).arg(source).arg("-ldl").status();
    assert!(status.expect("a C compiler").success(), "disk.c compiles");
    library
}
