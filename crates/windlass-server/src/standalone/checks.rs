//! Checks of the machine, which a server runs at start and `windlass doctor` on demand.
//!
//! [`Machine::measure`] collects the facts. [`Machine::judge`] is a pure function of them.

mod validity;

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use rustix::fs::statvfs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windlass_core::Timestamp;
use windlass_listen::RESERVE;

use crate::standalone::config::Config;
use crate::standalone::start::STORE_FILE;

pub use validity::check_validity;

/// When this version was released. A clock that shows an earlier time is wrong.
pub const MADE_AT: &str = "2026-11-01T00:00:00Z";
/// Open files other than connections: those of the store, the log, the listener and the runtime.
const OTHER_FILES: u64 = 64;
/// Below this free space, a server without a store does not start.
const SPACE_NEEDED: u64 = 16 * 1024 * 1024;
/// Below this free space, the server warns.
const SPACE_WANTED: u64 = 512 * 1024 * 1024;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No problem.
    Ok,
    /// The server works, but an operator should look at this.
    Warning,
    /// The server cannot work.
    Failure,
}

/// A finished check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// The findings, and what to do about them.
    pub found: String,
}

impl Check {
    /// Creates a check with its result.
    pub fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        let found = found.into();
        Check {
            name,
            verdict,
            found,
        }
    }
}

/// The facts about a machine that matter to a server.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The most files that this process can have open.
    pub files: u64,
    /// The number of open files that HTTP jobs need for their requests.
    pub outgoing: u64,
    /// Free space for the data directory in bytes, if the server uses one.
    pub space: Option<u64>,
    /// Whether the data directory already contains a store.
    pub has_store: bool,
    /// Why the server cannot write to the data directory, if so. Does not cover a full disk, which
    /// shows in `space`.
    pub unwritable: Option<String>,
    /// Whether other users can access the data directory.
    pub open_to_others: bool,
    /// The current time.
    pub now: Timestamp,
}

impl Machine {
    /// Measures this machine. If the data directory does not exist, measures the nearest parent
    /// that does, and creates nothing.
    ///
    /// Raises the limit of open files of this process to the highest allowed value.
    pub fn measure(config: &Config, now: Timestamp) -> Self {
        let data = Some(config.data.as_path()).filter(|_| config.keeps_files());
        Machine {
            files: raise_files(),
            outgoing: if config.http_jobs_run {
                // A connection in use, and one that is closing or idle for the next request.
                config.http_jobs_concurrency.saturating_mul(2)
            } else {
                0
            },
            space: data.and_then(space_left),
            has_store: data.is_some_and(|data| data.join(STORE_FILE).exists()),
            unwritable: data.and_then(unwritable),
            open_to_others: data.is_some_and(open_to_others),
            now,
        }
    }

    /// Judges the machine for a server that allows up to `connections` connections.
    pub fn judge(&self, connections: u64, data: &Path) -> Vec<Check> {
        let data = data.display();
        let files_needed = connections.saturating_add(OTHER_FILES + RESERVE as u64);
        let files_needed = files_needed.saturating_add(self.outgoing);
        let files = match self.files {
            files if files >= files_needed => {
                Check::new("open files", Verdict::Ok, format!("the limit is {files}"))
            }
            files => Check::new(
                "open files",
                Verdict::Warning,
                format!(
                    "the limit is {files}, but {connections} connections need {files_needed}: raise `ulimit -n` or lower `http.connections`"
                ),
            ),
        };
        let made_at: Timestamp = MADE_AT.parse().unwrap_or(Timestamp::UNIX_EPOCH);
        let clock = if self.now >= made_at {
            Check::new("clock", Verdict::Ok, self.now.to_string())
        } else {
            let found = format!(
                "the clock shows {}, before the release of this version on {MADE_AT}: set the clock",
                self.now
            );
            Check::new("clock", Verdict::Failure, found)
        };
        let mut checks = vec![files, clock];
        if let Some(cause) = &self.unwritable {
            let found = format!("cannot write to {data}: {cause}");
            checks.push(Check::new("data directory", Verdict::Failure, found));
        } else if self.open_to_others {
            let found = format!("other users can access {data}: run `chmod 700 {data}`");
            checks.push(Check::new("data directory", Verdict::Warning, found));
        }
        if let Some(space) = self.space {
            let mib = space / (1024 * 1024);
            let (verdict, found) = match space {
                // The store has reserved space, so a server can still start for an operator to
                // purge jobs.
                ..SPACE_NEEDED if self.has_store => (
                    Verdict::Warning,
                    format!("only {mib} MiB free in {data}: free some space or purge jobs"),
                ),
                ..SPACE_NEEDED => (
                    Verdict::Failure,
                    format!("only {mib} MiB free in {data}: free some space"),
                ),
                SPACE_NEEDED..SPACE_WANTED => {
                    (Verdict::Warning, format!("only {mib} MiB free in {data}"))
                }
                _ => (Verdict::Ok, format!("{mib} MiB free in {data}")),
            };
            checks.push(Check::new("space", verdict, found));
        }
        checks
    }

    /// Returns how many of the `wanted` connections the limit of open files allows, at least 1.
    pub fn connections_allowed(&self, wanted: u64) -> u64 {
        // If the limit is low, HTTP jobs get at most a quarter of the files.
        let outgoing = self.outgoing.min(self.files / 4);
        let other_files = OTHER_FILES + RESERVE as u64 + outgoing;
        wanted.min(self.files.saturating_sub(other_files)).max(1)
    }
}

/// The server warns if its certificate expires within this time.
const CERTIFICATE_TIME_WANTED: Duration = Duration::from_secs(14 * 24 * 3600);

/// Checks whether the TLS certificate is valid, if one is configured.
pub fn certificate(config: &Config, now: Timestamp) -> Option<Check> {
    let name = "certificate";
    Some(match check_validity(&config.tls_files()?, now) {
        Err(problem) => Check::new(name, Verdict::Failure, problem.to_string()),
        Ok(until) if until.since(now) < CERTIFICATE_TIME_WANTED => Check::new(
            name,
            Verdict::Warning,
            format!("expires soon, at {until}: renew it"),
        ),
        Ok(until) => Check::new(name, Verdict::Ok, format!("valid until {until}")),
    })
}

/// Disables core dumps of this process, because its memory contains keys and payloads.
pub fn forbid_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Lowering a limit always succeeds.
    let _ = setrlimit(Resource::Core, none);
}

/// Raises the soft limit of open files to the hard limit. Returns the new limit.
fn raise_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    );
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if soft < hard && setrlimit(Resource::Nofile, raised).is_ok() {
        hard
    } else {
        soft
    }
}

/// Creates a directory that only its owner can access, unless it exists.
pub(crate) fn create_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)
}

/// Returns the directory, or its nearest parent that exists.
fn nearest_existing(directory: &Path) -> &Path {
    let existing = directory.ancestors().find(|path| path.exists());
    // The first part of a relative path does not exist: the directory will be created here.
    existing.unwrap_or(Path::new("."))
}

fn space_left(directory: &Path) -> Option<u64> {
    let filesystem = statvfs(nearest_existing(directory)).ok()?;
    Some(filesystem.f_bavail.saturating_mul(filesystem.f_frsize))
}

/// Returns why the directory is not writable, unless the disk is full.
fn unwritable(data: &Path) -> Option<String> {
    let error = write_test(data).err()?;
    let full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    );
    (!full).then(|| error.to_string())
}

/// Writes and removes a file in the directory or its nearest existing parent.
fn write_test(data: &Path) -> std::io::Result<()> {
    let path = nearest_existing(data).join(format!(".write-test-{}", std::process::id()));
    let written = std::fs::write(&path, b"windlass");
    let removed = std::fs::remove_file(&path); // also removes a partial file
    written.and(removed)
}

fn open_to_others(data: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(data).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            files: 10_328,
            outgoing: 200,
            space: Some(10 << 30),
            has_store: false,
            unwritable: None,
            open_to_others: false,
            now: "2027-01-01T00:00:00Z".parse().unwrap(),
        }
    }

    fn worst(machine: &Machine) -> Vec<(&'static str, Verdict)> {
        let checks = machine.judge(10_000, Path::new("/data"));
        let bad = checks.iter().filter(|check| check.verdict > Verdict::Ok);
        bad.map(|check| (check.name, check.verdict)).collect()
    }

    #[test]
    fn each_problem_is_found() {
        use Verdict::{Failure, Warning};
        assert_eq!(worst(&machine()), []);
        let few_files = Machine {
            files: 10_327,
            ..machine()
        };
        assert_eq!(worst(&few_files), [("open files", Warning)]);
        assert_eq!(few_files.connections_allowed(10_000), 9999);
        let very_few = Machine {
            files: 256,
            ..machine()
        };
        assert_eq!(very_few.connections_allowed(10_000), 64);
        assert_eq!(machine().connections_allowed(10_000), 10_000);
        let old_clock = Machine {
            now: Timestamp::UNIX_EPOCH,
            ..machine()
        };
        assert_eq!(worst(&old_clock), [("clock", Failure)]);
        let read_only = Machine {
            unwritable: Some("read-only".into()),
            ..machine()
        };
        assert_eq!(worst(&read_only), [("data directory", Failure)]);
        let open = Machine {
            open_to_others: true,
            ..machine()
        };
        assert_eq!(worst(&open), [("data directory", Warning)]);
        let full = Machine {
            space: Some(SPACE_NEEDED - 1),
            ..machine()
        };
        assert_eq!(worst(&full), [("space", Failure)]);
        let to_clean_up = Machine {
            space: Some(0),
            has_store: true,
            ..machine()
        };
        assert_eq!(worst(&to_clean_up), [("space", Warning)]);
        let nearly_full = Machine {
            space: Some(SPACE_NEEDED),
            ..machine()
        };
        assert_eq!(worst(&nearly_full), [("space", Warning)]);
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_found() {
        assert!(unwritable(Path::new("/proc/nothing/here")).is_some());
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        write_test(&data).unwrap();
        assert!(
            space_left(&data).is_some_and(|bytes| bytes > 0),
            "free space is known before the first start"
        );
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "the check creates and leaves no files");
        create_private(&data).unwrap();
        assert!(!open_to_others(&data), "only the owner can access it");
        assert!(space_left(Path::new("not-there-yet/data")).is_some());
    }
}
