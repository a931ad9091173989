//! What is set about a queue: the limits that the store itself holds it to, and what is kept in a document beside them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::Value;
use windlass::{Client, Error};
use windlass_api::CheckedQueueSettings as QueueSettings;
use windlass_core::fairness::ClaimSettings;
use windlass_core::{Invalid, QueueName, Timestamp};
use windlass_engine::{QUEUE_SETTINGS as COLLECTION, read_claim_settings};
use windlass_store::{
    Expected, PAGE_MAX, QueueLimits, Store, StoreError, Written, compare_and_set,
};

use crate::problem::Problem;

/// What is stored about a queue.
pub(crate) struct Stored {
    /// What is set; the defaults of what cannot be read.
    pub(crate) settings: QueueSettings,
    /// This version cannot read all of it.
    pub(crate) unreadable: bool,
}

/// How a queue is claimed, or why that cannot be read.
type Claims = Result<ClaimSettings, Invalid>;

/// What is set about one queue.
pub(crate) async fn settings_of(
    store: &dyn Store,
    name: &QueueName,
    now: Timestamp,
) -> Result<QueueSettings, Problem> {
    Ok(stored(store, name, now).await?.settings)
}

/// What is stored about one queue.
pub(crate) async fn stored(
    store: &dyn Store,
    name: &QueueName,
    now: Timestamp,
) -> Result<Stored, StoreError> {
    let limits = store.queues().await?.remove(name).unwrap_or_default();
    let claims = read_claim_settings(store, name, now).await?;
    Ok(together(&limits, Some(&claims)))
}

/// What is kept beside the limits, for all queues that have something.
pub(crate) async fn kept(
    store: &dyn Store,
    now: Timestamp,
) -> Result<BTreeMap<QueueName, Claims>, StoreError> {
    let documents = store.documents(COLLECTION, now).await?;
    let named = |name: &str| QueueName::new(name).ok();
    let kept = documents
        .into_iter()
        .filter_map(|one| Some((named(&one.name)?, ClaimSettings::from_stored(&one.value))));
    let mut kept: BTreeMap<QueueName, Claims> = kept.collect();
    // The store leaves out documents that are not JSON, but it names them.
    let mut after = String::new();
    loop {
        let names = store
            .document_names(COLLECTION, &after, PAGE_MAX, now)
            .await?;
        let Some(last) = names.last() else {
            return Ok(kept);
        };
        after.clone_from(last);
        for name in names.iter().filter_map(|name| named(name)) {
            if let Entry::Vacant(missing) = kept.entry(name) {
                let claims = read_claim_settings(store, missing.key(), now).await?;
                missing.insert(claims);
            }
        }
    }
}

/// The limits of a queue and what is kept beside them.
pub(crate) fn together(limits: &QueueLimits, kept: Option<&Claims>) -> Stored {
    let settings = QueueSettings {
        max_depth: limits.max_depth,
        concurrency: limits.concurrency,
        rate: limits.rate,
        claims: kept.and_then(|kept| kept.clone().ok()).unwrap_or_default(),
    };
    Stored {
        settings,
        unreadable: limits.unreadable || kept.is_some_and(Result::is_err),
    }
}

/// Sets all that is set about a queue. A pause stays.
pub(crate) async fn set(
    client: &Client,
    name: &QueueName,
    settings: &QueueSettings,
    now: Timestamp,
) -> Result<(), Error> {
    let (beside, any) = (beside(settings), Expected::Anything);
    let store = windlass::admin::engine_of(client).store();
    store
        .put_document(COLLECTION, name.as_str(), &beside, any, None, now)
        .await?;
    let bounds = windlass::admin::QueueSettings {
        max_depth: settings.max_depth,
        concurrency: settings.concurrency,
        rate: settings.rate.map(|rate| (rate.count, rate.period)),
    };
    client.limit_queue(name.as_str(), &bounds).await
}

/// Sets all that is set about a queue about which nothing was set. A pause stays. Whether nothing
/// was set.
///
/// The document decides which of several requests at once creates the settings. A program that sets
/// limits at the same instant writes no document: where it was faster, the new document goes again.
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
    let contended = || StoreError::Unavailable("others change the limits of this queue".into());
    compare_and_set(contended, || async {
        let before = store.queues().await?.remove(name).unwrap_or_default();
        let unset = QueueLimits {
            paused: before.paused.clone(),
            ..QueueLimits::default()
        };
        if before != unset {
            return Ok(Some(false));
        }
        let limits = QueueLimits {
            paused: before.paused.clone(),
            max_depth: settings.max_depth,
            concurrency: settings.concurrency,
            rate: settings.rate,
            unreadable: false,
        };
        let written = store.put_queue(name, &limits, Some(&before)).await?;
        Ok(written.then_some(true))
    })
    .await
}

/// What is kept beside the limits.
fn beside(settings: &QueueSettings) -> Value {
    Value::Object(settings.claims.to_json())
}
