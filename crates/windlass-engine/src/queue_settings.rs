//! What operators set about queues while workers run: read from the store, and followed by every worker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_core::fairness::{ClaimSettings, Guards, Rate};
use windlass_core::fields::Fields;
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, QueueName, Timestamp};
use windlass_store::{Store, StoreError};

use crate::engine::Engine;
use crate::fetcher::{Fetcher, QueueConfig, QueueRules};
use crate::watchdog::Pulse;

/// The collection of the documents, one for each queue about which something is set.
pub const QUEUE_SETTINGS: &str = "queue-settings";

/// A worker looks this often whether something was changed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How a queue is to be claimed, by its document.
async fn claim_settings(
    store: &dyn Store,
    queue: &QueueName,
    now: Timestamp,
) -> Result<Result<ClaimSettings, Invalid>, StoreError> {
    let document = store.document(QUEUE_SETTINGS, queue.as_str(), now).await?;
    let value = document.map_or(Value::Null, |document| document.value);
    // Other settings stand beside these: what is not asked for is not refused.
    Ok(match &value {
        Value::Object(map) => ClaimSettings::read(&mut Fields::of(map)),
        _ => Ok(ClaimSettings::default()),
    })
}

/// What is set about a queue, for workers that have no rules of their own.
#[derive(Debug)]
pub(crate) struct SetRules {
    pub(crate) guards: Guards,
    pub(crate) retry: Option<Arc<RetryPolicy>>,
    pub(crate) rate: Option<Rate>,
}

/// Reads what is set about a queue.
pub(crate) async fn set_rules(
    store: &dyn Store,
    queue: &QueueName,
    now: Timestamp,
) -> Result<Result<SetRules, Invalid>, StoreError> {
    let limits = store.queues().await?.remove(queue).unwrap_or_default();
    let set = claim_settings(store, queue, now).await?;
    Ok(set.map(|set| SetRules {
        guards: set.over(Guards::default()),
        retry: set.retry,
        rate: limits.rate,
    }))
}

/// Keeps the rules of a worker's queues at what operators set.
#[derive(Debug)]
pub(crate) struct Following {
    engine: Arc<Engine>,
    queues: Vec<QueueConfig>,
    fetcher: Arc<Fetcher>,
}

impl Following {
    pub(crate) fn new(
        engine: Arc<Engine>,
        queues: Vec<QueueConfig>,
        fetcher: Arc<Fetcher>,
    ) -> Self {
        Following {
            engine,
            queues,
            fetcher,
        }
    }

    /// Looks at every queue once. What cannot be read, or does not fit the worker, changes nothing.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        for of in &self.queues {
            let queue = &of.name;
            let set = match claim_settings(self.engine.store(), queue, self.engine.now()).await? {
                Ok(set) => set,
                Err(problem) => {
                    warn!(%queue, %problem, "the settings of a queue cannot be read");
                    continue;
                }
            };
            let retry = set.retry.clone().or_else(|| of.retry.clone());
            let rules = |guards| QueueRules {
                guards,
                retry: retry.clone(),
            };
            let followed = self.fetcher.set_rules(queue, rules(set.over(of.guards)));
            if let Err(problem) = followed {
                warn!(%queue, %problem, "the guards of a queue do not fit this worker");
                // Its own guards fit, and the policy holds all the same.
                let _ = self.fetcher.set_rules(queue, rules(of.guards));
            }
        }
        Ok(())
    }

    /// Looks every few seconds until it is told to stop.
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
