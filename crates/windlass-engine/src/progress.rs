//! How far running attempts are: one document for each job, which its running attempt writes.
//!
//! Invariant: an attempt that lost its lease writes nothing, and never overwrites what a later one
//! wrote.

use serde_json::{Value, json};
use windlass_core::{Job, JobId};
use windlass_store::{AttemptId, Expected, StoreError, Written};

use crate::engine::Engine;

/// The collection of documents that hold the progress of running jobs.
pub const PROGRESS: &str = "progress";

/// Where others write the same document, it is tried this often.
const TRIES_MAX: usize = 10;

/// Writes how far an attempt is, if `may` agrees with how the job stands; the version of the
/// document. `None` if others keep writing the same document.
pub(crate) async fn write<E: From<StoreError>>(
    engine: &Engine,
    of: AttemptId,
    value: &Value,
    mut may: impl FnMut(Option<&Job>) -> Result<(), E>,
) -> Result<Option<u64>, E> {
    let (store, name) = (engine.store(), of.job.to_string());
    let reported = json!({"attempt": of.attempt, "progress": value});
    for _ in 0..TRIES_MAX {
        let before = store.document(PROGRESS, &name, engine.now()).await?;
        // After the document was read: what a later attempt writes from now on changes its version.
        let job = store.get(&[of.job]).await?.into_iter().next().flatten();
        may(job.as_ref())?;
        let expected = before.map_or(Expected::Absent, |one| Expected::Version(one.version));
        let now = engine.now();
        let written = store.put_document(PROGRESS, &name, &reported, expected, None, now);
        if let Written::Version(version) = written.await? {
            return Ok(Some(version));
        }
    }
    Ok(None)
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
