//! Windlass jobs in an embedded SQLite file: durable, with nothing to install.
//!
//! One thread writes, in groups: what is acknowledged is on disk. The order of waiting jobs is kept in memory, the truth on
//! disk. One process owns the file.

mod checkpoint;
mod error;
mod group;
mod identity;
mod index;
mod lock;
mod names;
mod reader;
mod reserve;
mod restore;
mod row;
mod schema;
mod store;
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
use group::{Request, RequestClass, WriteRequest};
use lock::FileLock;
use reader::Reader;
use reserve::Reserve;
use writer::{Answer, Writer};

pub use restore::{Existing, restore};
pub use schema::PAGE_BYTES;
pub use writer::Stats;

/// So many threads read.
const READERS: usize = 2;

/// So many requests may wait for the writer; further ones wait to be taken.
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
    refusals: Refusals,
}

type ReadRequest = Box<dyn FnOnce(&mut Reader) + Send>;

impl SqliteStore {
    /// Opens the file, which is made if it is not there, readable for its owner only. A file that
    /// is not a Windlass store is refused and left as it is.
    ///
    /// The attempts of workers that lived in a former process are ended as lost: nobody runs them
    /// any more. `random` draws the jitter of their retries. Those of workers elsewhere go on.
    pub fn open(path: impl AsRef<Path>, now: Timestamp, random: u64) -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| error::cannot_open(path.as_ref(), &error);
        let path = lock::resolve(path.as_ref()).map_err(failed)?;
        let mut lock = FileLock::take(&path)?;
        if let Err(refused) = identity::check(&path) {
            lock.remove_if_new();
            return Err(refused);
        }
        Reserve::of(&path).release_if_full();
        lock::private_file(&path).map_err(failed)?;
        lock.check_wal()?;
        let opened = schema::open_writer(&path);
        let connection = opened.map_err(|error| error::while_opening(&path, error))?;
        let changes = watch::Sender::new(0);
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let (reads, questions) = mpsc::channel(REQUESTS_MAX);
        let (opened, is_open) = std::sync::mpsc::sync_channel(1);
        let (file, announce) = (path.clone(), changes.clone());
        let writing = spawn("windlass-writer", move || {
            let mut lock = lock; // let go after all else
            let connection = connection;
            match open_writer(&connection, &file, &mut lock, now, random) {
                Ok((mut writer, lost)) => {
                    let _ = opened.send(Ok(lost)); // no one waits for it any longer
                    group::serve(&mut writer, inbox, &announce);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        })?;
        let opened = is_open.recv().unwrap_or_else(|_| Err(stopped()));
        let lost_at_opening = match opened {
            Ok(lost) => lost,
            Err(error) => {
                let _ = writing.join(); // so that the file can be opened again at once
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
            refusals: Refusals::default(),
        };
        let questions = Arc::new(Mutex::new(questions));
        for _ in 0..READERS {
            let reader = Reader::open(&store.path).map_err(DriverError::into_store_error)?;
            let questions = Arc::clone(&questions);
            store.reading.push(spawn("windlass-reader", move || {
                answer_reads(reader, &questions);
            })?);
        }
        Ok(store)
    }

    /// How many attempts of a former process were ended as lost when the store was opened.
    pub fn lost_at_opening(&self) -> usize {
        self.lost_at_opening
    }

    /// What the writer has done so far.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.write(RequestClass::Read, 0, |writer| Ok(Ok(writer.stats()?)))
            .await
    }

    /// Makes a copy of the store while it is in use, whole as of one moment.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<(), StoreError> {
        let (from, to) = (self.path.clone(), to.as_ref().to_owned());
        let (reply, answer) = oneshot::channel();
        spawn("windlass-backup", move || {
            let _ = reply.send(back_up(&from, &to)); // nobody waits for it any more
        })?;
        answer.await.map_err(|_| stopped())?
    }

    /// Runs a verb on the writer; answers when it is on disk.
    async fn write<T, F>(&self, class: RequestClass, rows: usize, verb: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Writer<'_>) -> Answer<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task = WriteRequest {
            class,
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

    /// Reads what was committed.
    async fn read<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Fn(&mut Reader) -> DriverResult<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let question: ReadRequest = Box::new(move |reader| {
            let found = reader.read(read).map_err(DriverError::into_store_error);
            let _ = reply.send(found); // nobody waits for it any more
        });
        let reads = self.reads.as_ref().ok_or_else(stopped)?;
        reads.send(question).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for SqliteStore {
    /// Waits for what was asked to be written, so that the file can be opened again at once. The reader goes first: the last
    /// to close folds the log back, which a reader cannot.
    fn drop(&mut self) {
        self.reads = None;
        for reading in self.reading.drain(..) {
            let _ = reading.join(); // a panic was told on stderr already
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

/// Reads the order of the jobs, and ends the attempts of a former process; how many there were.
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

/// Answers questions until nobody can ask any more. One reader waits for the next one, the others for their turn.
fn answer_reads(mut reader: Reader, questions: &Mutex<mpsc::Receiver<ReadRequest>>) {
    loop {
        let next = questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        let Some(question) = next else { return };
        question(&mut reader);
    }
}

/// Copies a store, also while another process uses it; the copy must not be there yet. Not for a
/// store that this process has open: [`SqliteStore::backup`] is.
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
        let _ = std::fs::remove_file(to); // half a copy is none
    }
    copied
}

/// SQLite's own way: `vacuum into` reads one picture of the file and writes a whole new one.
fn copy(from: &Path, to: &Path) -> DriverResult<()> {
    let connection = schema::open_reader(from)?;
    let to = to
        .to_str()
        .ok_or_else(|| DriverError::damaged("the path of the backup is no text"))?;
    connection.execute("vacuum into ?1", [to])?;
    Ok(())
}

fn stopped() -> StoreError {
    StoreError::Stopped("the store's thread is gone".into())
}
