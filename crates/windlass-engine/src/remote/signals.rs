//! Signals to workers, from a cache: waiting and renewing workers cost no read of the store each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;
use windlass_core::{Timestamp, WorkerName};
use windlass_store::{Expected, StoreError};

use crate::engine::Engine;

/// The collection of signals to workers.
const SIGNALS: &str = "worker-signals";
/// What is known of signals is never older: one that another process sent arrives after this time
/// at the latest.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// What an operator wants of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Claim nothing more for now.
    Quiet,
    /// Finish and end.
    Stop,
}

impl Signal {
    /// The signal in one word.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Quiet => "quiet",
            Signal::Stop => "stop",
        }
    }

    fn named(value: &Value) -> Option<Self> {
        let all = [Signal::Quiet, Signal::Stop];
        all.into_iter().find(|signal| value == signal.name())
    }
}

type Words = BTreeMap<String, Signal>;

/// The signals to all workers.
#[derive(Debug)]
pub struct Signals {
    engine: Arc<Engine>,
    known: Mutex<Known>,
    reading: tokio::sync::Mutex<()>,
    /// Held by the one of all that wait for a change who reads the signals again.
    watching: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Known {
    words: Arc<Words>,
    read_at: Option<Timestamp>,
    /// How often this process itself changed a signal: what was read before a change is not kept
    /// after it.
    writes: u64,
}

impl Signals {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Signals {
            engine: Arc::clone(engine),
            known: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            watching: tokio::sync::Mutex::default(),
            changes: watch::Sender::default(),
        }
    }

    /// The signal to a worker, if there is one.
    pub(super) async fn get(
        &self,
        worker: Option<&WorkerName>,
    ) -> Result<Option<Signal>, StoreError> {
        let Some(worker) = worker else {
            return Ok(None);
        };
        Ok(self.all().await?.get(worker.as_str()).copied())
    }

    /// The signals by the names of their workers.
    pub async fn all(&self) -> Result<Arc<BTreeMap<String, Signal>>, StoreError> {
        if let Some(words) = self.fresh(self.engine.now()) {
            return Ok(words);
        }
        // One reads, those that come meanwhile take what it read.
        let _reading = self.reading.lock().await;
        match self.fresh(self.engine.now()) {
            Some(words) => Ok(words),
            None => self.read().await,
        }
    }

    /// Sends a signal to a worker, or takes it back.
    pub(super) async fn put(
        &self,
        worker: &WorkerName,
        signal: Option<Signal>,
    ) -> Result<(), StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let (name, any) = (worker.as_str(), Expected::Anything);
        match signal {
            Some(signal) => {
                store
                    .put_document(SIGNALS, name, &json!(signal.name()), any, None, now)
                    .await?
            }
            None => store.remove_document(SIGNALS, name, any).await?,
        };
        let mut known = self.known();
        (known.read_at, known.writes) = (None, known.writes + 1);
        drop(known);
        self.ring();
        Ok(())
    }

    /// What changes with the signals.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Ends when a signal may have changed. One of all that wait here reads the signals again, again and again.
    pub(super) async fn changed(&self, changes: &mut watch::Receiver<u64>) {
        let watch = async {
            let _watching = self.watching.lock().await;
            loop {
                self.engine.clock().sleep(FRESH_FOR).await;
                if let Err(error) = self.all().await {
                    warn!(%error, "reading the signals to workers failed, trying again");
                }
            }
        };
        tokio::select! {
            _ = changes.changed() => {}
            () = watch => {}
        }
    }

    async fn read(&self) -> Result<Arc<Words>, StoreError> {
        let (now, writes) = (self.engine.now(), self.known().writes);
        let documents = self.engine.store().documents(SIGNALS, now).await?;
        let read = documents
            .into_iter()
            .filter_map(|one| Some((one.name, Signal::named(&one.value)?)));
        let words: Arc<Words> = Arc::new(read.collect());
        let mut known = self.known();
        let changed = known.words != words;
        if known.writes == writes {
            (known.words, known.read_at) = (Arc::clone(&words), Some(now));
        }
        drop(known);
        if changed {
            self.ring();
        }
        Ok(words)
    }

    fn fresh(&self, now: Timestamp) -> Option<Arc<Words>> {
        let known = self.known();
        let read_at = known.read_at?;
        let fresh = now.since(read_at) < FRESH_FOR;
        fresh.then(|| Arc::clone(&known.words))
    }

    fn ring(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
