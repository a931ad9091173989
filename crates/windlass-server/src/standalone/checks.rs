//! What a server looks at before it starts, and `windlass doctor` on demand.
//!
//! Measuring and judging are apart: [`Machine::measure`] looks, [`Machine::judge`] is a pure function.

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

/// When this version was made: a clock that is behind it is wrong.
pub const MADE_AT: &str = "2026-11-01T00:00:00Z";
/// Files that are open beside connections: the store's, the log, the listener, the runtime's own.
const FILES_BESIDE: u64 = 64;
/// With less room the server does not start.
const SPACE_NEEDED: u64 = 16 * 1024 * 1024;
/// With less room it says so.
const SPACE_WANTED: u64 = 512 * 1024 * 1024;

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All is well.
    Ok,
    /// It works, and should be looked at.
    Warning,
    /// It cannot work.
    Failure,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found, and what to do about it.
    pub found: String,
}

impl Check {
    /// A check with its result.
    pub fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        let found = found.into();
        Check {
            name,
            verdict,
            found,
        }
    }
}

/// The machine, as far as it matters.
#[derive(Debug, Clone)]
pub struct Machine {
    /// How many files may be open at once.
    pub files: u64,
    /// How many of them HTTP jobs want for their requests.
    pub outgoing: u64,
    /// Room in the data directory, in bytes, if it is used at all.
    pub space: Option<u64>,
    /// Whether the data directory holds a store already.
    pub has_store: bool,
    /// Why the data directory cannot be written to, if it is used and cannot; a full disk is a
    /// matter of `space`.
    pub unwritable: Option<String>,
    /// Whether others may look into the data directory.
    pub open_to_others: bool,
    /// What time it is.
    pub now: Timestamp,
}

impl Machine {
    /// Looks at this machine, and makes nothing: where the data directory is not there yet, the one that it will be made in is
    /// looked at. Raises the number of files that may be open as far as is allowed.
    pub fn measure(config: &Config, now: Timestamp) -> Self {
        let data = Some(config.data.as_path()).filter(|_| config.keeps_files());
        Machine {
            files: raise_files(),
            outgoing: match config.http_jobs_run {
                // One that is in use, and one that is closed or kept for the next request.
                true => config.http_jobs_concurrency.saturating_mul(2),
                false => 0,
            },
            space: data.and_then(space_left),
            has_store: data.is_some_and(|data| data.join(STORE_FILE).exists()),
            unwritable: data.and_then(unwritable),
            open_to_others: data.is_some_and(open_to_others),
            now,
        }
    }

    /// What that means for a server of so many connections.
    pub fn judge(&self, connections: u64, data: &Path) -> Vec<Check> {
        let data = data.display();
        let files_needed = connections.saturating_add(FILES_BESIDE + RESERVE as u64);
        let files_needed = files_needed.saturating_add(self.outgoing);
        let files = match self.files {
            files if files >= files_needed => {
                Check::new("open files", Verdict::Ok, format!("{files} may be open"))
            }
            files => Check::new(
                "open files",
                Verdict::Warning,
                format!(
                    "only {files} may be open, {files_needed} are needed for {connections} connections: raise `ulimit -n`, or lower `http.connections`"
                ),
            ),
        };
        let made_at: Timestamp = MADE_AT.parse().unwrap_or(Timestamp::UNIX_EPOCH);
        let clock = match self.now >= made_at {
            true => Check::new("clock", Verdict::Ok, self.now.to_string()),
            false => Check::new(
                "clock",
                Verdict::Failure,
                format!(
                    "it says {}, and this version was made on {MADE_AT}: set the clock",
                    self.now
                ),
            ),
        };
        let mut checks = vec![files, clock];
        if let Some(cause) = &self.unwritable {
            let found = format!("{data} cannot be written to: {cause}");
            checks.push(Check::new("data directory", Verdict::Failure, found));
        } else if self.open_to_others {
            let found = format!("others may look into {data}: `chmod 700 {data}`");
            checks.push(Check::new("data directory", Verdict::Warning, found));
        }
        if let Some(space) = self.space {
            let mib = space / (1024 * 1024);
            let (verdict, found) = match space {
                // A store gives up the space that it holds back, so that an operator can clean up.
                ..SPACE_NEEDED if self.has_store => (
                    Verdict::Warning,
                    format!("only {mib} MiB are left in {data}; free some space, or purge jobs"),
                ),
                ..SPACE_NEEDED => (
                    Verdict::Failure,
                    format!("{mib} MiB are left in {data}: free some"),
                ),
                SPACE_NEEDED..SPACE_WANTED => (
                    Verdict::Warning,
                    format!("only {mib} MiB are left in {data}"),
                ),
                _ => (Verdict::Ok, format!("{mib} MiB are left in {data}")),
            };
            checks.push(Check::new("space", verdict, found));
        }
        checks
    }

    /// So many connections the files that may be open allow.
    pub fn connections_allowed(&self, wanted: u64) -> u64 {
        // Where there are few files, HTTP jobs get by with a part.
        let outgoing = self.outgoing.min(self.files / 4);
        let beside = FILES_BESIDE + RESERVE as u64 + outgoing;
        wanted.min(self.files.saturating_sub(beside)).max(1)
    }
}

/// With less time left, a certificate is warned about.
const CERTIFICATE_TIME_WANTED: Duration = Duration::from_secs(14 * 24 * 3600);

/// Whether the certificate of TLS is valid, where there is one.
pub fn certificate(config: &Config, now: Timestamp) -> Option<Check> {
    let name = "certificate";
    Some(match check_validity(&config.tls_files()?, now) {
        Err(problem) => Check::new(name, Verdict::Failure, problem.to_string()),
        Ok(until) if until.since(now) < CERTIFICATE_TIME_WANTED => Check::new(
            name,
            Verdict::Warning,
            format!("it expires soon, at {until}; renew it"),
        ),
        Ok(until) => Check::new(name, Verdict::Ok, format!("valid until {until}")),
    })
}

/// From now on this process leaves no picture of its memory behind, which has keys and payloads in it.
pub fn forbid_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Less is always allowed.
    let _ = setrlimit(Resource::Core, none);
}

/// Raises the soft limit of open files to the hard one; what it is then.
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
    match soft < hard && setrlimit(Resource::Nofile, raised).is_ok() {
        true => hard,
        false => soft,
    }
}

/// Makes a directory that is not there yet, for its owner alone.
pub(crate) fn make_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)
}

/// The directory itself, or the nearest one above it that is there.
fn nearest(directory: &Path) -> &Path {
    let above = directory.ancestors().find(|above| above.exists());
    // A relative path whose first part is not there yet will be made right here.
    above.unwrap_or(Path::new("."))
}

fn space_left(directory: &Path) -> Option<u64> {
    let about = statvfs(nearest(directory)).ok()?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Why a directory cannot be written to for another reason than a full disk.
fn unwritable(data: &Path) -> Option<String> {
    let error = write_test(data).err()?;
    let full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    );
    (!full).then(|| error.to_string())
}

/// Writes something where the directory is, or will be.
fn write_test(data: &Path) -> std::io::Result<()> {
    let path = nearest(data).join(format!(".write-test-{}", std::process::id()));
    let written = std::fs::write(&path, b"windlass");
    let removed = std::fs::remove_file(&path); // what a full disk left of it too
    written.and(removed)
}

fn open_to_others(data: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(data).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
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
    fn each_thing_that_is_wrong_is_found() {
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
    fn a_directory_that_cannot_be_made_is_found() {
        assert!(unwritable(Path::new("/proc/nothing/here")).is_some());
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        write_test(&data).unwrap();
        assert!(
            space_left(&data).is_some_and(|bytes| bytes > 0),
            "the room is known before the first start"
        );
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "nothing is made, and nothing is left of the test");
        make_private(&data).unwrap();
        assert!(!open_to_others(&data), "it was made for its owner alone");
        assert!(space_left(Path::new("not-there-yet/data")).is_some());
    }
}
