//! The progress of running attempts: one document per job, written by its running attempt.
//!
//! Invariant: an attempt that lost its lease writes nothing, so it never overwrites the progress of
//! a later attempt.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::{Job, JobId};
use windlass_store::{AttemptId, Expected, StoreError, compare_and_set};

use crate::engine::Engine;

/// The collection of documents that hold the progress of running jobs.
pub const PROGRESS: &str = "progress";

/// How long a progress document lives after its last report. An attempt removes its document when
/// it ends; the expiry is for attempts whose process died.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Writes the progress of an attempt and returns the version of the document.
///
/// `check` sees the current job and decides whether the attempt may write. `busy` makes the error
/// for the case that other writers keep changing the document.
pub(crate) async fn write<E: From<StoreError>>(
    engine: &Engine,
    attempt_id: AttemptId,
    value: &Value,
    check: impl Fn(Option<&Job>) -> Result<(), E>,
    busy: impl FnOnce() -> E,
) -> Result<u64, E> {
    let (store, name) = (engine.store(), attempt_id.job.to_string());
    let reported = json!({"attempt": attempt_id.attempt, "progress": value});
    compare_and_set(busy, || async {
        let before = store.document(PROGRESS, &name, engine.now()).await?;
        // Read the job after the document: if a later attempt writes after this point, it changes
        // the document's version, and the write below fails.
        let jobs = store.get(&[attempt_id.job]).await?;
        let job = jobs.into_iter().next().flatten();
        check(job.as_ref())?;
        let (expected, now) = (Expected::as_read(before.as_ref()), engine.now());
        let expires_at = Some(now.saturating_add(KEPT));
        let written = store.put_document(PROGRESS, &name, &reported, expected, expires_at, now);
        Ok(written.await?.version())
    })
    .await
}

/// Returns the last progress report of a job.
pub(crate) async fn read(engine: &Engine, job: JobId) -> Result<Option<Value>, StoreError> {
    let name = job.to_string();
    let document = engine.store().document(PROGRESS, &name, engine.now());
    let document = document.await?;
    Ok(document.and_then(|document| document.value.get("progress").cloned()))
}

/// Removes the progress report of an attempt, unless another attempt has written a new one.
pub(crate) async fn remove(engine: &Engine, job: JobId, version: u64) -> Result<(), StoreError> {
    let (name, expected) = (job.to_string(), Expected::Version(version));
    let store = engine.store();
    store.remove_document(PROGRESS, &name, expected).await?;
    Ok(())
}
