//! What operators set about queues while workers run: read from the store, and followed by every
//! worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_core::fairness::{ClaimSettings, Guards, Rate};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, QueueName, Timestamp};
use windlass_store::{Store, StoreError};

use crate::engine::Engine;
use crate::fetcher::Fetcher;
use crate::watchdog::Pulse;

/// The collection of the documents, one for each queue about which something is set.
pub const QUEUE_SETTINGS: &str = "queue-settings";

/// A worker looks this often whether something was changed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How a queue is to be claimed, by its document; `Ok(Err(…))` says why this version cannot read
/// the document.
pub async fn read_claim_settings(
    store: &dyn Store,
    queue: &QueueName,
    now: Timestamp,
) -> Result<Result<ClaimSettings, Invalid>, StoreError> {
    match store.document(QUEUE_SETTINGS, queue.as_str(), now).await {
        Ok(None) => Ok(Ok(ClaimSettings::default())),
        Ok(Some(document)) => Ok(ClaimSettings::from_stored(&document.value)),
        Err(StoreError::Damaged { what, .. }) => Ok(Err(Invalid::new("", what))),
        Err(error) => Err(error),
    }
}

/// The queues whose settings could not be read at the last look, so that each is logged once.
#[derive(Debug, Default)]
pub(crate) struct UnreadableSettings(Mutex<BTreeSet<QueueName>>);

impl UnreadableSettings {
    /// What was read; the defaults where it could not be read.
    fn or_default(&self, queue: &QueueName, read: Result<ClaimSettings, Invalid>) -> ClaimSettings {
        let mut unreadable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = match read {
            Ok(set) => {
                unreadable.remove(queue);
                return set;
            }
            Err(problem) => problem,
        };
        if unreadable.insert(queue.clone()) {
            warn!(%queue, %problem, "the settings of a queue cannot be read; its defaults hold");
        }
        ClaimSettings::default()
    }
}

impl Engine {
    /// How a queue is to be claimed. One whose settings this version cannot read is at its
    /// defaults.
    pub(crate) async fn claim_settings(
        &self,
        queue: &QueueName,
    ) -> Result<ClaimSettings, StoreError> {
        let read = read_claim_settings(self.store(), queue, self.now()).await?;
        Ok(self.unreadable_settings().or_default(queue, read))
    }

    /// What is set about a queue, for workers that have no rules of their own.
    pub(crate) async fn set_rules(&self, queue: &QueueName) -> Result<SetRules, StoreError> {
        let limits = self.store().queues().await?.remove(queue);
        let set = self.claim_settings(queue).await?;
        Ok(SetRules {
            guards: set.over(Guards::default()),
            weight: set.weight,
            retry: set.retry,
            rate: limits.and_then(|limits| limits.rate),
        })
    }
}

/// What is set about a queue, for workers that have no rules of their own.
#[derive(Debug)]
pub(crate) struct SetRules {
    pub(crate) guards: Guards,
    /// Instead of the weight that the worker asks for.
    pub(crate) weight: Option<u32>,
    pub(crate) retry: Option<Arc<RetryPolicy>>,
    pub(crate) rate: Option<Rate>,
}

/// Keeps the rules of a worker's queues at what operators set.
#[derive(Debug)]
pub(crate) struct Following {
    engine: Arc<Engine>,
    fetcher: Arc<Fetcher>,
}

impl Following {
    pub(crate) fn new(engine: Arc<Engine>, fetcher: Arc<Fetcher>) -> Self {
        Following { engine, fetcher }
    }

    /// Reads what is set once: about the queues that the worker names, or, if it discovers queues,
    /// about all queues in one step.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        let sources = self.fetcher.sources();
        let mut set = BTreeMap::new();
        if sources.discovered.is_empty() {
            for queue in sources.queues.iter().map(|queue| &queue.name) {
                let of_queue = self.engine.claim_settings(queue).await?;
                set.insert(queue.clone(), of_queue);
            }
        } else {
            let (store, now) = (self.engine.store(), self.engine.now());
            for document in store.documents(QUEUE_SETTINGS, now).await? {
                let Ok(queue) = document.name.parse() else {
                    continue;
                };
                let read = ClaimSettings::from_stored(&document.value);
                let of_queue = self.engine.unreadable_settings().or_default(&queue, read);
                set.insert(queue, of_queue);
            }
        }
        self.fetcher.follow(set);
        Ok(())
    }

    /// Looks every few seconds until it is stopped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        while !stop.is_cancelled() {
            pulse.busy(clock.now());
            if let Err(error) = self.pass().await {
                warn!(%error, "reading the settings of queues failed; trying again");
            }
            pulse.rest();
            tokio::select! {
                () = stop.cancelled() => {}
                () = clock.sleep(LOOK_EVERY) => {}
            }
        }
    }
}
