//! How far running attempts are: one document for each job, which its running attempt writes.
//!
//! Invariant: an attempt that lost its lease writes nothing, and never overwrites what a later one
//! wrote.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::{Job, JobId};
use windlass_store::{AttemptId, Expected, StoreError, compare_and_set};

use crate::engine::Engine;

/// The collection of documents that hold the progress of running jobs.
pub const PROGRESS: &str = "progress";

/// A report of progress that its attempt does not remove, because its process died, expires after
/// this time. So does the last report of an attempt that runs longer and reports nothing more.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Writes how far an attempt is, if `may` agrees with how the job stands; the version of the
/// document. `busy` is the error if others keep writing the same document.
pub(crate) async fn write<E: From<StoreError>>(
    engine: &Engine,
    of: AttemptId,
    value: &Value,
    may: impl Fn(Option<&Job>) -> Result<(), E>,
    busy: impl FnOnce() -> E,
) -> Result<u64, E> {
    let (store, name) = (engine.store(), of.job.to_string());
    let reported = json!({"attempt": of.attempt, "progress": value});
    compare_and_set(busy, || async {
        let before = store.document(PROGRESS, &name, engine.now()).await?;
        // After the document was read: what a later attempt writes from now on changes its version.
        let job = store.get(&[of.job]).await?.into_iter().next().flatten();
        may(job.as_ref())?;
        let (expected, now) = (Expected::found(before.as_ref()), engine.now());
        let expires_at = Some(now.saturating_add(KEPT));
        let written = store.put_document(PROGRESS, &name, &reported, expected, expires_at, now);
        Ok(written.await?.version())
    })
    .await
}

/// What the running attempt of a job wrote last.
pub(crate) async fn read(engine: &Engine, job: JobId) -> Result<Option<Value>, StoreError> {
    let name = job.to_string();
    let document = engine.store().document(PROGRESS, &name, engine.now());
    let document = document.await?;
    Ok(document.and_then(|document| document.value.get("progress").cloned()))
}

/// Removes what an attempt wrote, unless another has written since.
pub(crate) async fn remove(engine: &Engine, job: JobId, version: u64) -> Result<(), StoreError> {
    let (name, expected) = (job.to_string(), Expected::Version(version));
    let store = engine.store();
    store.remove_document(PROGRESS, &name, expected).await?;
    Ok(())
}
