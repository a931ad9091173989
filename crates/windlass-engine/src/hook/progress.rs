//! How far the nodes of a store have looked for events.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windlass_core::{QueueName, Timestamp};
use windlass_store::{Expected, StoreError};

use crate::engine::Engine;

const COLLECTION: &str = "hook-progress";
const NAME: &str = "watch";

/// Shared by all nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Progress {
    /// Reports of all events up to here are enqueued, except those that were written later.
    pub(super) seen_to: Option<Timestamp>,
    /// When the starts of queues were last looked at.
    pub(super) starts_seen_at: Option<Timestamp>,
    /// Since when queues have ready jobs and start none.
    pub(super) idle_since: BTreeMap<QueueName, Timestamp>,
}

/// Reads the progress, and what a write must replace. Progress that cannot be read starts again.
pub(super) async fn read(engine: &Engine) -> Result<(Progress, Expected), StoreError> {
    let document = engine.store().document(COLLECTION, NAME, engine.now());
    let document = match document.await {
        Err(StoreError::Damaged { .. }) => return Ok((Progress::default(), Expected::Any)),
        document => document?,
    };
    let value = document.as_ref().map(|document| document.value.clone());
    let progress = value.and_then(|value| serde_json::from_value(value).ok());
    let expected = Expected::as_read(document.as_ref());
    Ok((progress.unwrap_or_default(), expected))
}

/// Writes the progress, unless another node did so since it was read: that node looked as far.
pub(super) async fn write(
    engine: &Engine,
    progress: &Progress,
    expected: Expected,
) -> Result<(), StoreError> {
    let value = serde_json::to_value(progress).expect("progress has only names and times");
    let (store, now) = (engine.store(), engine.now());
    let written = store.put_document(COLLECTION, NAME, &value, expected, None, now);
    written.await.map(|_| ())
}
