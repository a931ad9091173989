//! The stores under the simulated nodes.
//!
//! The threads of SQLite would make the order of events depend on the machine. So every call waits
//! for its answer on the spot, before any other task of the simulation runs.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use tempfile::TempDir;
use windlass_core::Timestamp;
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{Store, StoreError, Wrapper};

use super::plan::Driver;
use super::world::beginning;

/// A store, and the directory that it needs.
pub(crate) struct OpenedStore {
    pub(crate) store: Arc<dyn Store>,
    folder: Option<TempDir>,
}

const FILE: &str = "sim.db";

impl OpenedStore {
    /// Opens what a process leaves behind that ends at once: the files as they are now. `None` if
    /// nothing is left.
    ///
    /// The write-ahead log is copied before the file: a checkpoint that runs meanwhile moves pages
    /// from the first to the second, and both copies together have all of them.
    pub(crate) fn crash(
        &self,
        now: Timestamp,
        seed: u64,
    ) -> Option<Result<OpenedStore, StoreError>> {
        let folder = self.folder.as_ref()?;
        let copied = temporary().and_then(|copy| {
            let mut files: Vec<_> = std::fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
            files.sort_by_key(|file| file.file_name() == FILE);
            for file in files {
                std::fs::copy(file.path(), copy.path().join(file.file_name()))?;
            }
            Ok(copy)
        });
        Some(match copied {
            Ok(copy) => open_sqlite(copy, now, seed),
            Err(error) => Err(StoreError::Unavailable(error.into())),
        })
    }
}

pub(crate) fn open(driver: Driver, seed: u64) -> Result<OpenedStore, StoreError> {
    match driver {
        Driver::Memory => Ok(OpenedStore {
            store: Arc::new(MemoryStore::new()),
            folder: None,
        }),
        Driver::Sqlite => {
            let folder = temporary().map_err(|error| StoreError::Unavailable(error.into()))?;
            open_sqlite(folder, beginning(), seed)
        }
    }
}

fn open_sqlite(folder: TempDir, now: Timestamp, seed: u64) -> Result<OpenedStore, StoreError> {
    let store = SqliteStore::open(folder.path().join(FILE), now, seed)?;
    Ok(OpenedStore {
        store: Arc::new(OnTheSpot(store)),
        folder: Some(folder),
    })
}

/// A directory in memory if the machine has one: the simulation needs no real disk.
fn temporary() -> std::io::Result<TempDir> {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir())
    } else {
        tempfile::tempdir()
    }
}

/// Waits for every answer on the spot.
#[derive(Debug)]
struct OnTheSpot(SqliteStore);

impl Wrapper for OnTheSpot {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    async fn around<T: Send>(
        &self,
        _verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        // Without this, the budget of the task could make a call wait for another poll.
        block_on(tokio::task::unconstrained(call))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            return answer;
        }
        std::thread::park();
    }
}
