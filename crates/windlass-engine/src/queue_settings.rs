//! The queue settings that operators change at run time. Every worker reads them from the store and
//! follows changes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_core::fairness::{ClaimSettings, Guards, Rate};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, QueueName, Timestamp};
use windlass_store::{PAGE_MAX, Store, StoreError};

use crate::engine::Engine;
use crate::failure_lines::FailureLines;
use crate::fetcher::Fetcher;
use crate::poison::lock;
use crate::watchdog::Pulse;

/// The collection of the settings documents: one per queue that has settings.
pub const QUEUE_SETTINGS: &str = "queue-settings";

/// How often a worker reads the settings.
pub(crate) const READ_EVERY: Duration = Duration::from_secs(5);

/// Reads how to claim from a queue. `Ok(Err(…))` means that the document exists but this version
/// cannot read it.
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

/// Reads the settings of all queues that have any.
pub async fn read_all_claim_settings(
    store: &dyn Store,
    now: Timestamp,
) -> Result<BTreeMap<QueueName, Result<ClaimSettings, Invalid>>, StoreError> {
    let mut settings = BTreeMap::new();
    for document in store.documents(QUEUE_SETTINGS, now).await? {
        if let Ok(queue) = document.name.parse() {
            settings.insert(queue, ClaimSettings::from_stored(&document.value));
        }
    }
    // The store leaves out documents that are not JSON, but it names them.
    let mut after = String::new();
    loop {
        let names = store
            .document_names(QUEUE_SETTINGS, &after, PAGE_MAX, now)
            .await?;
        let Some(last) = names.last() else {
            return Ok(settings);
        };
        after.clone_from(last);
        for queue in names.iter().filter_map(|name| name.parse().ok()) {
            if let Entry::Vacant(missing) = settings.entry(queue) {
                let read = read_claim_settings(store, missing.key(), now).await?;
                missing.insert(read);
            }
        }
    }
}

/// The queues whose settings could not be read last time, so that each problem is logged once.
#[derive(Debug, Default)]
pub(crate) struct UnreadableSettings(Mutex<BTreeSet<QueueName>>);

impl UnreadableSettings {
    /// Returns the settings, or the defaults if they could not be read.
    fn or_default(&self, queue: &QueueName, read: Result<ClaimSettings, Invalid>) -> ClaimSettings {
        let mut unreadable = lock(&self.0);
        let problem = match read {
            Ok(settings) => {
                unreadable.remove(queue);
                return settings;
            }
            Err(problem) => problem,
        };
        if unreadable.insert(queue.clone()) {
            warn!(%queue, %problem, "cannot read the settings of a queue; using the defaults");
        }
        ClaimSettings::default()
    }
}

impl Engine {
    /// Returns how to claim from a queue: the defaults if this version cannot read its settings.
    pub(crate) async fn claim_settings(
        &self,
        queue: &QueueName,
    ) -> Result<ClaimSettings, StoreError> {
        let read = read_claim_settings(self.store(), queue, self.now()).await?;
        Ok(self.unreadable_settings().or_default(queue, read))
    }

    /// Returns the operator settings of a queue, for workers that have no rules of their own.
    pub(crate) async fn operator_settings(
        &self,
        queue: &QueueName,
    ) -> Result<OperatorSettings, StoreError> {
        let limits = self.store().queues().await?.remove(queue);
        let settings = self.claim_settings(queue).await?;
        Ok(OperatorSettings {
            guards: settings.over(Guards::default()),
            weight: settings.weight,
            retry: settings.retry,
            rate: limits.and_then(|limits| limits.rate),
        })
    }
}

/// The operator settings of a queue, for workers that have no rules of their own.
#[derive(Debug)]
pub(crate) struct OperatorSettings {
    pub(crate) guards: Guards,
    /// Overrides the weight that the worker asks for.
    pub(crate) weight: Option<u32>,
    pub(crate) retry: Option<Arc<RetryPolicy>>,
    pub(crate) rate: Option<Rate>,
}

/// Applies the operators' settings to the queues of one worker.
#[derive(Debug)]
pub(crate) struct SettingsFollower {
    engine: Arc<Engine>,
    fetcher: Arc<Fetcher>,
}

impl SettingsFollower {
    pub(crate) fn new(engine: Arc<Engine>, fetcher: Arc<Fetcher>) -> Self {
        SettingsFollower { engine, fetcher }
    }

    /// Reads the settings once. A worker that names its queues reads those queues only; a worker
    /// that discovers queues reads all settings in one call.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        let sources = self.fetcher.sources();
        let mut by_queue = BTreeMap::new();
        if sources.discovered.is_empty() {
            for queue in sources.queues.iter().map(|queue| &queue.name) {
                let settings = self.engine.claim_settings(queue).await?;
                by_queue.insert(queue.clone(), settings);
            }
        } else {
            let (store, now) = (self.engine.store(), self.engine.now());
            for document in store.documents(QUEUE_SETTINGS, now).await? {
                let Ok(queue) = document.name.parse() else {
                    continue;
                };
                let read = ClaimSettings::from_stored(&document.value);
                let settings = self.engine.unreadable_settings().or_default(&queue, read);
                by_queue.insert(queue, settings);
            }
        }
        self.fetcher.apply_settings(by_queue);
        Ok(())
    }

    /// Reads the settings every 5 s until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut failures = FailureLines::default();
        while !stop.is_cancelled() {
            pulse.busy(clock.now());
            if let Err(error) = self.pass().await
                && let Some(suppressed) = failures.admit(clock.elapsed())
            {
                warn!(%error, suppressed, "reading queue settings failed; retrying");
            }
            pulse.rest();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = clock.sleep(READ_EVERY) => {}
            }
        }
    }
}
