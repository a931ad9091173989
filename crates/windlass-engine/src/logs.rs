//! The logs of attempts while they run: one document per attempt.
//!
//! When an attempt is settled, its lines go into its history entry and the document is removed. The
//! document of an attempt that was lost stays: it is all that is left of its log. The janitor removes
//! it with the job.
//!
//! Invariant: only a running attempt writes its document, so a late line never changes the log of an
//! ended attempt.

use windlass_core::{AttemptLog, Job, JobId};
use windlass_store::{Attempt, AttemptId, Expected, PAGE_MAX, StoreError, compare_and_set};

use crate::engine::Engine;

/// The collection of documents that hold the logs of attempts.
const LOGS: &str = "attempt-logs";

/// Lines that a remote worker adds to the log of an attempt.
#[derive(Debug, Clone, Default)]
pub struct ReportedLines {
    /// The texts of the lines.
    pub lines: Vec<String>,
    /// The number of the first line, counted from 1 in the log of the attempt. Lines that the log
    /// already has are not added again, so that a worker may repeat a report.
    pub first: Option<u64>,
}

impl ReportedLines {
    /// Returns the lines that the log does not have yet.
    fn new_lines(&self, log: &AttemptLog) -> &[String] {
        let next = log.last_number().saturating_add(1);
        let known = self.first.map_or(0, |first| next.saturating_sub(first));
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        self.lines.get(known..).unwrap_or_default()
    }
}

/// Writes the log of an attempt that runs in this process, which is the only writer.
pub(crate) async fn write(
    engine: &Engine,
    attempt_id: AttemptId,
    log: &AttemptLog,
) -> Result<(), StoreError> {
    let (name, value) = (name_of(attempt_id), log.to_json().into());
    let (store, now) = (engine.store(), engine.now());
    let written = store.put_document(LOGS, &name, &value, Expected::Any, None, now);
    written.await?;
    Ok(())
}

/// Appends lines to the log of an attempt. Several nodes may do so at once.
///
/// `check` sees the current job and decides whether the attempt may write. `busy` makes the error
/// for the case that other writers keep changing the document.
pub(crate) async fn append<E: From<StoreError>>(
    engine: &Engine,
    attempt_id: AttemptId,
    lines: &ReportedLines,
    check: impl Fn(Option<&Job>) -> Result<(), E>,
    busy: impl FnOnce() -> E,
) -> Result<(), E> {
    let (store, name) = (engine.store(), name_of(attempt_id));
    compare_and_set(busy, || async {
        let before = store.document(LOGS, &name, engine.now()).await?;
        // Read the job after the document: when the attempt is settled after this point, the
        // document is removed, and the write below fails.
        let jobs = store.get(&[attempt_id.job]).await?;
        check(jobs.into_iter().next().flatten().as_ref())?;
        let stored = before.as_ref().map(|document| &document.value);
        let mut log = stored.map(AttemptLog::from_json).unwrap_or_default();
        let now = engine.now();
        for line in lines.new_lines(&log) {
            log.push(now, line);
        }
        let (expected, value) = (Expected::as_read(before.as_ref()), log.to_json().into());
        let written = store.put_document(LOGS, &name, &value, expected, None, now);
        Ok(written.await?.version().map(|_| ()))
    })
    .await
}

/// Returns what an attempt has logged in its document.
pub(crate) async fn read(engine: &Engine, attempt_id: AttemptId) -> Result<AttemptLog, StoreError> {
    let name = name_of(attempt_id);
    let document = engine.store().document(LOGS, &name, engine.now()).await?;
    let value = document.map(|document| document.value);
    Ok(value
        .as_ref()
        .map(AttemptLog::from_json)
        .unwrap_or_default())
}

/// Removes the document of an attempt.
pub(crate) async fn remove(engine: &Engine, attempt_id: AttemptId) -> Result<(), StoreError> {
    let name = name_of(attempt_id);
    let store = engine.store();
    store.remove_document(LOGS, &name, Expected::Any).await?;
    Ok(())
}

/// Removes documents whose job no longer exists: examines up to `limit` documents after the name
/// `after`, and returns the name to continue after, or `None` at the end.
pub(crate) async fn remove_orphans(
    engine: &Engine,
    after: &str,
    limit: usize,
) -> Result<Option<String>, StoreError> {
    let store = engine.store();
    let names = store.document_names(LOGS, after, limit, engine.now());
    let names = names.await?;
    let job = |name: &String| name.split_once('/')?.0.parse::<JobId>().ok();
    let known: Vec<JobId> = names.iter().filter_map(job).collect();
    let jobs = store.get(&known).await?;
    let gone = known.iter().zip(&jobs).filter(|(_, job)| job.is_none());
    for (id, _) in gone {
        // A batch leaves out a job that this version cannot read. Its log must stay.
        if !matches!(store.get(&[*id]).await, Ok(found) if found.iter().all(Option::is_none)) {
            continue;
        }
        for name in names.iter().filter(|name| job(name) == Some(*id)) {
            store.remove_document(LOGS, name, Expected::Any).await?;
        }
    }
    let is_last = names.len() < limit;
    Ok(names.into_iter().next_back().filter(|_| !is_last))
}

impl Engine {
    /// Returns the attempts of a job that have lines outside of their history entries, at most 1000:
    /// running, lost, or reported through several nodes.
    pub async fn attempts_with_log(&self, job: JobId) -> Result<Vec<u32>, StoreError> {
        let prefix = format!("{job}/");
        let names = self
            .store()
            .document_names(LOGS, &prefix, PAGE_MAX, self.now());
        let names = names.await?;
        let own = names.iter().map_while(|name| name.strip_prefix(&prefix));
        Ok(own.filter_map(|attempt| attempt.parse().ok()).collect())
    }

    /// Returns what an attempt has logged so far. `entry` is its history entry, if it has ended.
    pub async fn attempt_log(
        &self,
        attempt_id: AttemptId,
        entry: Option<&Attempt>,
    ) -> Result<AttemptLog, StoreError> {
        let reported = read(self, attempt_id).await?;
        let detail = entry.and_then(|entry| entry.detail.as_ref());
        let kept = detail.map(AttemptLog::from_json).unwrap_or_default();
        Ok(reported.continued(kept))
    }
}

fn name_of(attempt_id: AttemptId) -> String {
    // Zeros keep the attempts of a job in order.
    format!("{}/{:010}", attempt_id.job, attempt_id.attempt)
}
