//! What is set about a queue: the limits that the store itself holds it to, and what is kept in a document beside them.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass::{Client, Error};
use windlass_api::QueueSettings;
use windlass_core::{QueueName, Timestamp};
use windlass_engine::QUEUE_SETTINGS as COLLECTION;
use windlass_store::{Expected, QueueLimits, Store, StoreError};

use crate::problem::Problem;

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
    let beside = QueueSettings {
        max_depth: None,
        concurrency: None,
        rate: None,
        ..settings.clone()
    };
    let (beside, any) = (beside.to_json(), Expected::Anything);
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
