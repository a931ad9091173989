//! Windlass jobs in an embedded SQLite file: durable, with nothing to install.
//!
//! One thread writes, many requests in one transaction (`group.rs`); an answer means that the data
//! is on disk. The claim order of waiting jobs is kept in memory (`index.rs`) and rebuilt from the
//! file at every start. Two more threads read. One process at a time owns the file (`lock.rs`).

mod checkpoint;
mod error;
mod group;
mod identity;
mod index;
mod lock;
mod names;
mod owner_note;
mod reader;
mod reserve;
mod restore;
mod row;
mod schema;
mod store;
mod tallies;
mod undo_map;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};
use windlass_core::Timestamp;
use windlass_store::StoreError;
use windlass_store::refused::Refusals;

use error::{DriverError, DriverResult};
use group::{Request, RequestClass, Urgency, WriteRequest};
use identity::PathContents;
use lock::FileLock;
use reader::Reader;
use reserve::Reserve;
use writer::{Answer, Writer};

pub use owner_note::{Owner, OwnerNote, PublishedNote, owner};
pub use restore::{Existing, restore};
pub use schema::PAGE_BYTES;
pub use writer::Stats;

/// The number of threads that read.
const READERS: usize = 2;

/// The most requests in the channel of the writer or the readers; further callers wait to send.
const REQUESTS_MAX: usize = 1024;

/// A store in a SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    requests: Option<mpsc::Sender<Box<dyn Request>>>,
    reads: Option<mpsc::Sender<ReadRequest>>,
    changes: watch::Sender<u64>,
    reading: Vec<JoinHandle<()>>,
    writing: Option<JoinHandle<()>>,
    lost_at_opening: usize,
    owner_note: OwnerNote,
    refusals: Refusals,
}

type ReadRequest = Box<dyn FnOnce(&mut Reader) + Send>;

impl SqliteStore {
    /// Opens the file. Creates it if it does not exist, readable only by its owner.
    ///
    /// Attempts of workers that ran in a previous process are ended as lost, because that process
    /// has ended; `random` draws the jitter of their retries. Attempts of remote workers continue.
    ///
    /// # Errors
    ///
    /// Refuses a file that is not a Windlass store, and does not change it. Refuses a store that
    /// another process has open, that a newer version wrote, or whose write-ahead log is damaged.
    pub fn open(path: impl AsRef<Path>, now: Timestamp, random: u64) -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| error::cannot_open(path.as_ref(), &error);
        let path = lock::resolve(path.as_ref()).map_err(failed)?;
        let mut lock = FileLock::take(&path)?;
        match identity::check(&path) {
            Ok(PathContents::Nothing) => lock.mark_unfinished().map_err(failed)?,
            Ok(PathContents::Store) => {}
            Err(StoreError::NotAStore { .. }) if lock.can_create_again() => {}
            Err(refused) => {
                lock.remove_if_new();
                return Err(refused);
            }
        }
        Reserve::next_to(&path).release_if_full();
        lock::private_file(&path).map_err(failed)?;
        lock.check_wal()?;
        let opened = schema::open_writer(&path);
        let connection = opened.map_err(|error| error::while_opening(&path, error))?;
        let changes = watch::Sender::new(0);
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let (reads, read_requests) = mpsc::channel(REQUESTS_MAX);
        let (opened, is_open) = std::sync::mpsc::sync_channel(1);
        let (file, announce) = (path.clone(), changes.clone());
        let writing = spawn("windlass-writer", move || {
            let mut lock = lock; // declared first, so that it is released last
            let connection = connection;
            let is_wal_copied = match open_writer(&connection, &file, &mut lock, now, random) {
                Ok((mut writer, lost)) => {
                    let note = lock.owner_note();
                    let _ = opened.send(note.map(|note| (lost, note))); // `open` waits for it
                    group::serve(&mut writer, inbox, &announce);
                    writer.checkpoint_to_close() && lock.mark_wal_copied().is_ok()
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                    false
                }
            };
            if !is_wal_copied {
                schema::keep_wal(&connection);
            }
        })?;
        let opened = is_open.recv().unwrap_or_else(|_| Err(stopped()));
        let (lost_at_opening, owner_note) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = writing.join(); // releases the lock, so that the caller can open again
                return Err(error);
            }
        };
        let mut store = SqliteStore {
            path,
            requests: Some(requests),
            reads: Some(reads),
            changes,
            reading: Vec::new(),
            writing: Some(writing),
            lost_at_opening,
            owner_note,
            refusals: Refusals::default(),
        };
        let read_requests = Arc::new(Mutex::new(read_requests));
        for _ in 0..READERS {
            let reader = Reader::open(&store.path).map_err(DriverError::into_store_error)?;
            let read_requests = Arc::clone(&read_requests);
            store.reading.push(spawn("windlass-reader", move || {
                answer_reads(reader, &read_requests);
            })?);
        }
        Ok(store)
    }

    /// Returns how many attempts of a previous process were ended as lost when the store was
    /// opened.
    pub fn lost_at_opening(&self) -> usize {
        self.lost_at_opening
    }

    /// Returns the part of the lock file that says how to reach this process.
    pub fn owner_note(&self) -> &OwnerNote {
        &self.owner_note
    }

    /// Returns statistics of the writer since the store was opened.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.write(RequestClass::Read, 0, |writer| Ok(Ok(writer.stats()?)))
            .await
    }

    /// Writes a consistent copy of the store to a new file, while the store is in use.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<(), StoreError> {
        let (from, to) = (self.path.clone(), to.as_ref().to_owned());
        let (reply, answer) = oneshot::channel();
        spawn("windlass-backup", move || {
            let _ = reply.send(back_up(&from, &to)); // fails if the caller no longer waits
        })?;
        answer.await.map_err(|_| stopped())?
    }

    /// Runs a verb on the writer thread. Returns when its changes are on disk.
    async fn write<T, F>(&self, class: RequestClass, rows: usize, verb: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Writer<'_>) -> Answer<T> + Send + 'static,
    {
        self.write_with(Urgency::Foreground, class, rows, verb)
            .await
    }

    /// Runs a verb on the writer thread with an urgency. Returns when its changes are on disk.
    async fn write_with<T, F>(
        &self,
        urgency: Urgency,
        class: RequestClass,
        rows: usize,
        verb: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Writer<'_>) -> Answer<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task = WriteRequest {
            class,
            urgency,
            rows,
            verb,
            result: None,
            reply,
        };
        let requests = self.requests.as_ref().ok_or_else(stopped)?;
        requests.send(Box::new(task)).await.map_err(|_| stopped())?;
        let (answer, _verb) = answer.await.map_err(|_| stopped())?;
        answer
    }

    /// Runs a read on a reader thread. It sees all committed changes.
    async fn read<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Fn(&mut Reader) -> DriverResult<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let request: ReadRequest = Box::new(move |reader| {
            let result = reader.read(read).map_err(DriverError::into_store_error);
            let _ = reply.send(result); // fails if the caller no longer waits
        });
        let reads = self.reads.as_ref().ok_or_else(stopped)?;
        reads.send(request).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for SqliteStore {
    /// Waits for pending writes, so that the file can be opened again at once. The readers close
    /// first: the last connection to close runs the final checkpoint, which a read-only one cannot.
    fn drop(&mut self) {
        self.reads = None;
        for reading in self.reading.drain(..) {
            let _ = reading.join(); // a panic was already printed to stderr
        }
        self.requests = None;
        let _ = self.writing.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({})", self.path.display())
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(work)
        .map_err(|error| StoreError::Unavailable(error.into()))
}

/// Opens the writer and ends the attempts of a previous process. Returns how many it ended.
fn open_writer<'c>(
    connection: &'c Connection,
    path: &Path,
    lock: &mut FileLock,
    now: Timestamp,
    random: u64,
) -> Result<(Writer<'c>, usize), StoreError> {
    let mut writer = Writer::open(connection, path)?;
    let lost = writer.end_lost_attempts(now, random)?;
    writer.group_while_opening(Writer::create_wal)?;
    lock.mark_wal_in_use()?;
    writer.take_reserve();
    Ok((writer, lost))
}

/// Serves read requests until the store is dropped. One reader waits for the next request while the
/// other waits for the mutex.
fn answer_reads(mut reader: Reader, read_requests: &Mutex<mpsc::Receiver<ReadRequest>>) {
    loop {
        let next = read_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        let Some(request) = next else { return };
        request(&mut reader);
    }
}

/// Writes a consistent copy of a store to a new file, even while another process uses the store.
///
/// For a store that this process has open, use [`SqliteStore::backup`] instead.
///
/// # Errors
///
/// Refuses a source that is not a store, and a target that already exists.
pub fn backup(from: &Path, to: &Path) -> Result<(), StoreError> {
    identity::check_store(from)?;
    back_up(from, to)
}

fn back_up(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::Unavailable(error.into());
    lock::new_private_file(to).map_err(failed)?;
    let copied = copy(from, to).map_err(DriverError::into_store_error);
    let copied = copied.and_then(|()| lock::sync(to).map_err(failed));
    if copied.is_err() {
        let _ = std::fs::remove_file(to); // a partial copy is useless
    }
    copied
}

/// Copies with `vacuum into`, which reads one snapshot of the file and writes a new, compact one.
fn copy(from: &Path, to: &Path) -> DriverResult<()> {
    let connection = schema::open_reader(from)?;
    let to = to
        .to_str()
        .ok_or_else(|| DriverError::damaged("the path of the backup is not valid UTF-8"))?;
    connection.execute("vacuum into ?1", [to])?;
    Ok(())
}

fn stopped() -> StoreError {
    StoreError::Stopped("the thread of the store has ended".into())
}
