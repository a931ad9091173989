//! Signals of operators to workers.
//!
//! Every claim and renewal asks for the signal to its remote worker. A cache answers, so these
//! requests do not read the store. Workers of Rust programs read their own documents
//! (`worker_state.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;
use windlass_core::{Timestamp, WorkerName};
use windlass_store::{Document, Expected, StoreError};

use crate::engine::Engine;
use crate::failure_lines::FailureLines;
use crate::poison::lock;

/// The collection of the signal documents: one per worker, with the worker's name as its key.
pub(crate) const SIGNALS: &str = "worker-signals";
/// The maximum age of the cache. A signal that was sent through another process arrives within this
/// time.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// What an operator wants a worker to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Claim no jobs until the operator resumes the worker.
    PauseClaims,
    /// Finish the running jobs and exit.
    Stop,
}

impl Signal {
    /// The name of the signal.
    pub fn name(self) -> &'static str {
        match self {
            Signal::PauseClaims => "pause_claims",
            Signal::Stop => "stop",
        }
    }

    fn parse(value: &Value) -> Option<Self> {
        let all = [Signal::PauseClaims, Signal::Stop];
        all.into_iter().find(|signal| value == signal.name())
    }
}

/// The signal in a document of [`SIGNALS`]. `None` if a newer version wrote it.
pub(crate) fn signal_of(document: &Document) -> Option<Signal> {
    Signal::parse(&document.value)
}

type SignalsByWorker = BTreeMap<String, Signal>;

/// The signals to all workers.
#[derive(Debug)]
pub struct Signals {
    engine: Arc<Engine>,
    cache: Mutex<CachedSignals>,
    reading: tokio::sync::Mutex<()>,
    /// Held by the one waiting request that keeps reading the signals for all others.
    watching: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct CachedSignals {
    signals: Arc<SignalsByWorker>,
    read_at: Option<Timestamp>,
    /// How often this process has changed a signal. A read that started before a change must not
    /// overwrite the cache after it.
    writes: u64,
}

impl Signals {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Signals {
            engine: Arc::clone(engine),
            cache: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            watching: tokio::sync::Mutex::default(),
            changes: watch::Sender::default(),
        }
    }

    /// Returns the signal to a worker.
    pub(super) async fn get(
        &self,
        worker: Option<&WorkerName>,
    ) -> Result<Option<Signal>, StoreError> {
        let Some(worker) = worker else {
            return Ok(None);
        };
        Ok(self.all().await?.get(worker.as_str()).copied())
    }

    /// Returns all signals, by the names of their workers.
    pub async fn all(&self) -> Result<Arc<BTreeMap<String, Signal>>, StoreError> {
        if let Some(signals) = self.fresh(self.engine.now()) {
            return Ok(signals);
        }
        // One caller reads; those that wait meanwhile use its result.
        let _reading = self.reading.lock().await;
        match self.fresh(self.engine.now()) {
            Some(signals) => Ok(signals),
            None => self.read().await,
        }
    }

    /// Sends a signal to a worker, or withdraws it.
    pub(super) async fn put(
        &self,
        worker: &WorkerName,
        signal: Option<Signal>,
    ) -> Result<(), StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let (name, any) = (worker.as_str(), Expected::Any);
        match signal {
            Some(signal) => {
                store
                    .put_document(SIGNALS, name, &json!(signal.name()), any, None, now)
                    .await?
            }
            None => store.remove_document(SIGNALS, name, any).await?,
        };
        let mut cache = self.cache();
        (cache.read_at, cache.writes) = (None, cache.writes + 1);
        drop(cache);
        self.notify();
        self.engine.signals_changed().notify_waiters();
        Ok(())
    }

    /// A receiver that is notified when a signal may have changed.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until a signal may have changed. One of the waiting requests reads the signals
    /// regularly for all of them.
    pub(super) async fn changed(&self, changes: &mut watch::Receiver<u64>) {
        let watch = async {
            let _watching = self.watching.lock().await;
            let mut failures = FailureLines::default();
            loop {
                self.engine.clock().sleep(FRESH_FOR).await;
                if let Err(error) = self.all().await
                    && let Some(suppressed) = failures.admit(self.engine.clock().elapsed())
                {
                    warn!(%error, suppressed, "reading worker signals failed; retrying");
                }
            }
        };
        tokio::select! {
            biased;
            _ = changes.changed() => {}
            () = watch => {}
        }
    }

    async fn read(&self) -> Result<Arc<SignalsByWorker>, StoreError> {
        let (now, writes) = (self.engine.now(), self.cache().writes);
        let documents = self.engine.store().documents(SIGNALS, now).await?;
        let read = documents
            .into_iter()
            .filter_map(|one| Some((signal_of(&one)?, one.name)))
            .map(|(signal, worker)| (worker, signal));
        let signals: Arc<SignalsByWorker> = Arc::new(read.collect());
        let mut cache = self.cache();
        let changed = cache.signals != signals;
        if cache.writes == writes {
            (cache.signals, cache.read_at) = (Arc::clone(&signals), Some(now));
        }
        drop(cache);
        if changed {
            self.notify();
        }
        Ok(signals)
    }

    fn fresh(&self, now: Timestamp) -> Option<Arc<SignalsByWorker>> {
        let cache = self.cache();
        let read_at = cache.read_at?;
        let fresh = now.since(read_at) < FRESH_FOR;
        fresh.then(|| Arc::clone(&cache.signals))
    }

    fn notify(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    fn cache(&self) -> MutexGuard<'_, CachedSignals> {
        lock(&self.cache)
    }
}
