//! How to reach the owner of a store: an address and a token in the lock file.
//!
//! A program that owns a store can serve it to other processes of the same user. It writes where it
//! listens, and the token that it accepts, behind the lines of `lock.rs`. Those lines never change
//! meanwhile: a process that is killed at any instant leaves a valid record of its WAL.
//!
//! Invariant: a token is written only to a file that no other user can read. It is useless after
//! the process that wrote it has ended.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use windlass_store::StoreError;

use crate::lock::{resolve, sibling};

const TOKEN: &str = "token ";
const URL: &str = "url ";

/// The most bytes that a reader reads of a lock file.
const BYTES_MAX: u64 = 4096;

/// The part of the lock file that says how to reach the owner. Clones share it.
#[derive(Debug, Clone)]
pub struct OwnerNote(Arc<NoteState>);

#[derive(Debug)]
struct NoteState {
    /// Weak, because the lock is held as long as the file is open.
    file: Weak<File>,
    path: PathBuf,
    /// Where the note begins.
    start: u64,
    is_published: Mutex<bool>,
}

impl OwnerNote {
    /// The note of a store whose lock file is complete.
    pub(crate) fn new(file: &Arc<File>, store: &Path) -> std::io::Result<Self> {
        Ok(OwnerNote(Arc::new(NoteState {
            file: Arc::downgrade(file),
            path: sibling(store, ".lock"),
            start: file.metadata()?.len(),
            is_published: Mutex::default(),
        })))
    }

    /// Writes the URL of this process, and the token that it accepts, until the returned value is
    /// dropped.
    ///
    /// # Errors
    ///
    /// Refuses to write a token that other users could read, and a second note.
    pub fn publish(&self, url: &str, token: Option<&str>) -> Result<PublishedNote, StoreError> {
        let failed = |error: Error| StoreError::Unavailable(error.into());
        let note = &self.0;
        let file = note.file.upgrade().ok_or_else(crate::stopped)?;
        let mut is_published = note.is_published();
        if *is_published {
            return Err(StoreError::CannotOpen {
                reason: format!("{} already has the address of a listener", self.shown()),
                next: "bind one listener for each store",
            });
        }
        if token.is_some() && !is_private(&file.metadata().map_err(failed)?) {
            return Err(StoreError::CannotOpen {
                reason: format!(
                    "{} must not have a token: other users can read it",
                    self.shown()
                ),
                next: "stop this process, run `chmod 600` on the file as its owner, and start again",
            });
        }
        let token = token.map(|token| format!("{TOKEN}{token}\n"));
        // The URL comes last and ends with a newline, so a reader knows whether it has all lines.
        let text = format!("{}{URL}{url}\n", token.unwrap_or_default());
        let mut file = &*file;
        let written = file.seek(SeekFrom::Start(note.start));
        written
            .and_then(|_| file.write_all(text.as_bytes()))
            .map_err(failed)?;
        *is_published = true;
        Ok(PublishedNote(self.clone()))
    }

    fn shown(&self) -> String {
        self.0.path.display().to_string()
    }
}

impl NoteState {
    fn is_published(&self) -> std::sync::MutexGuard<'_, bool> {
        self.is_published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A note in the lock file. Dropping it removes the note.
#[derive(Debug)]
#[must_use = "dropping it removes the note"]
pub struct PublishedNote(OwnerNote);

impl Drop for PublishedNote {
    fn drop(&mut self) {
        let OwnerNote(note) = &self.0;
        let mut is_published = note.is_published();
        if let Some(file) = note.file.upgrade() {
            let _ = file.set_len(note.start); // if it fails, the token stays, but no one accepts it
        }
        *is_published = false;
    }
}

/// The process that owns a store, as its lock file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process id.
    pub process: String,
    /// Where it serves the store, if it does.
    pub url: Option<String>,
    /// The token that it accepts.
    pub token: Option<String>,
}

/// Reads who owns the store at a path, and how to reach that process. Says nothing about whether
/// the process still runs: if the store can be opened, the lock file is stale.
///
/// # Errors
///
/// `PermissionDenied` if the store belongs to another user, or if the lock file does not belong to
/// the owner of the store or others can read it: anyone could have written it.
pub fn owner(store: &Path) -> std::io::Result<Owner> {
    let store = resolve(store)?;
    let file = File::open(sibling(&store, ".lock"))?;
    let mut content = String::new();
    (&file).take(BYTES_MAX).read_to_string(&mut content)?;
    let owner = parse(&content);
    if owner.url.is_some() && !is_trusted(&file.metadata()?, &store.metadata()?) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(owner)
}

fn parse(content: &str) -> Owner {
    let lines = || content.split_inclusive('\n');
    let complete = |prefix: &str| {
        let line = lines().find_map(|line| line.strip_prefix(prefix)?.strip_suffix('\n'));
        line.map(str::to_owned)
    };
    Owner {
        process: lines().next().unwrap_or_default().trim().to_owned(),
        url: complete(URL),
        token: complete(TOKEN),
    }
}

/// Whether only this process's user can read a file.
#[cfg(unix)]
fn is_private(file: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    file.mode() & 0o077 == 0 && file.uid() == rustix::process::geteuid().as_raw()
}

/// Whether the owner of the store wrote the lock file.
#[cfg(unix)]
fn is_trusted(lock: &Metadata, store: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    lock.mode() & 0o077 == 0 && lock.uid() == store.uid()
}

#[cfg(not(unix))]
fn is_private(_: &Metadata) -> bool {
    false // no portable way to know
}

#[cfg(not(unix))]
fn is_trusted(_: &Metadata, _: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use windlass_core::Timestamp;

    use super::*;
    use crate::SqliteStore;

    fn open(path: &Path) -> SqliteStore {
        SqliteStore::open(path, Timestamp::UNIX_EPOCH, 0).unwrap()
    }

    fn lock_file(path: &Path) -> String {
        std::fs::read_to_string(sibling(path, ".lock")).unwrap()
    }

    #[test]
    fn a_note_is_read_until_it_is_dropped_and_changes_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let store = open(&path);
        let before = lock_file(&path);
        let me = std::process::id().to_string();
        let silent = Owner {
            process: me.clone(),
            url: None,
            token: None,
        };
        assert_eq!(owner(&path).unwrap(), silent);
        let note = store.owner_note().publish("http://127.0.0.1:1", Some("t1"));
        let note = note.unwrap();
        assert!(lock_file(&path).starts_with(&before), "{before}");
        let found = owner(&path).unwrap();
        assert_eq!(found.url.as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(found.token.as_deref(), Some("t1"));
        let second = store.owner_note().publish("http://127.0.0.1:2", None);
        let second = second.unwrap_err().to_string();
        assert!(second.contains("bind one listener"), "{second}");
        drop(note);
        assert_eq!(lock_file(&path), before);
        let again = store.owner_note().publish("http://127.0.0.1:3", None);
        let again = again.unwrap();
        assert_eq!(owner(&path).unwrap().token, None);
        drop(store);
        assert_eq!(owner(&path).unwrap(), silent, "a clean end removes it");
        drop(again);
    }

    #[cfg(unix)]
    #[test]
    fn no_token_is_written_where_others_could_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let store = open(&path);
        let lock = sibling(&path, ".lock");
        let mode = |mode| std::fs::set_permissions(&lock, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(
            std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let before = lock_file(&path);
        for readable in [0o640, 0o604, 0o660] {
            mode(readable);
            let refused = store.owner_note().publish("http://127.0.0.1:1", Some("t1"));
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("other users can read it"), "{refused}");
            assert_eq!(lock_file(&path), before);
        }
        let _note = store
            .owner_note()
            .publish("http://127.0.0.1:1", None)
            .unwrap();
        let planted = owner(&path).unwrap_err();
        assert_eq!(planted.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_half_written_note_has_no_url() {
        for (content, url) in [
            ("7\nlog in use\ntoken a\nurl http://b\n", Some("http://b")),
            ("7\nlog in use\ntoken a\nurl http://", None),
            ("7\nlog in use\n", None),
            ("", None),
        ] {
            assert_eq!(parse(content).url.as_deref(), url, "{content:?}");
        }
        assert_eq!(parse("7\nlog in use\n").process, "7");
    }
}
