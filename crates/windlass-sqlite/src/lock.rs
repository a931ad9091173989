//! One process owns the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use windlass_store::StoreError;

/// Held as long as the store is open; the operating system frees it when the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock beside the file, or tells who has it.
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| StoreError::Unavailable(error.into());
        let mut file = private_file(&lock_path(path)).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner); // without it, the owner is just not named
                let owner = owner.trim();
                return Err(StoreError::InUse {
                    path: path.display().to_string(),
                    owner: if owner.is_empty() { "unknown" } else { owner }.to_owned(),
                });
            }
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(failed)?;
        Ok(Lock { _file: file })
    }
}

/// Opens or makes a file that only its owner can read.
pub(crate) fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_told_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let first = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        drop(first);
        Lock::take(&path).unwrap();
    }
}
