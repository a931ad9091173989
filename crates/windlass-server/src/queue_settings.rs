//! What is set about a queue: the limits that the store itself holds it to, and what is kept in a document beside them.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass::{Client, Error};
use windlass_api::QueueSettings;
use windlass_core::{QueueName, Timestamp};
use windlass_engine::QUEUE_SETTINGS as COLLECTION;
use windlass_store::{Expected, QueueLimits, Store, StoreError, Written};

use crate::problem::Problem;

/// How often a change is tried that meets a pause or a resume.
const TRIES: usize = 10;

/// What is set about one queue.
pub(crate) async fn settings_of(
    store: &dyn Store,
    name: &QueueName,
    now: Timestamp,
) -> Result<QueueSettings, Problem> {
    let limits = store.queues().await?.remove(name).unwrap_or_default();
    let document = store.document(COLLECTION, name.as_str(), now).await?;
    together(&limits, document.as_ref().map(|one| &one.value))
}

/// What is kept beside the limits, for all queues that have something.
pub(crate) async fn kept(
    store: &dyn Store,
    now: Timestamp,
) -> Result<BTreeMap<QueueName, Value>, StoreError> {
    let documents = store.documents(COLLECTION, now).await?;
    let named = |name: &str| QueueName::new(name).ok();
    let kept = documents
        .into_iter()
        .filter_map(|one| Some((named(&one.name)?, one.value)));
    Ok(kept.collect())
}

/// The limits of a queue and what is kept beside them.
pub(crate) fn together(
    limits: &QueueLimits,
    kept: Option<&Value>,
) -> Result<QueueSettings, Problem> {
    let kept = kept
        .and_then(Value::as_object)
        .map(QueueSettings::from_fields)
        .transpose();
    let kept = kept.map_err(|error| Problem::internal(&error))?;
    Ok(QueueSettings {
        max_depth: limits.max_depth,
        concurrency: limits.concurrency,
        rate: limits.rate,
        ..kept.unwrap_or_default()
    })
}

/// Sets all that is set about a queue. A pause stays.
pub(crate) async fn set(
    client: &Client,
    name: &QueueName,
    settings: &QueueSettings,
    now: Timestamp,
) -> Result<(), Error> {
    let (beside, any) = (beside(settings), Expected::Anything);
    let store = client.engine().store();
    store
        .put_document(COLLECTION, name.as_str(), &beside, any, None, now)
        .await?;
    let bounds = windlass::QueueSettings {
        max_depth: settings.max_depth,
        concurrency: settings.concurrency,
        rate: settings.rate.map(|rate| (rate.count, rate.period)),
    };
    client.limit_queue(name.as_str(), &bounds).await
}

/// Sets all that is set about a queue about which nothing was set. A pause stays. Whether nothing was set.
///
/// The document decides which of several requests at once creates the settings. A program that sets limits at the same instant
/// writes no document: where it was faster, the new document goes again.
pub(crate) async fn create(
    store: &dyn Store,
    name: &QueueName,
    settings: &QueueSettings,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (beside, absent) = (beside(settings), Expected::Absent);
    let put = store.put_document(COLLECTION, name.as_str(), &beside, absent, None, now);
    let Written::Version(version) = put.await? else {
        return Ok(false);
    };
    if create_limits(store, name, settings).await? {
        return Ok(true);
    }
    let ours = Expected::Version(version);
    let removed = store.remove_document(COLLECTION, name.as_str(), ours).await;
    removed.map(|_| false)
}

/// Sets the limits of a queue that has none. Whether it had none.
async fn create_limits(
    store: &dyn Store,
    name: &QueueName,
    settings: &QueueSettings,
) -> Result<bool, StoreError> {
    for _ in 0..TRIES {
        let before = store.queues().await?.remove(name).unwrap_or_default();
        let unset = QueueLimits {
            paused: before.paused.clone(),
            ..QueueLimits::default()
        };
        if before != unset {
            return Ok(false);
        }
        let limits = QueueLimits {
            paused: before.paused.clone(),
            max_depth: settings.max_depth,
            concurrency: settings.concurrency,
            rate: settings.rate,
        };
        if store.put_queue(name, &limits, Some(&before)).await? {
            return Ok(true);
        }
    }
    Ok(false) // others set something all the time
}

/// What is kept beside the limits.
fn beside(settings: &QueueSettings) -> Value {
    let beside = QueueSettings {
        max_depth: None,
        concurrency: None,
        rate: None,
        ..settings.clone()
    };
    beside.to_json()
}
