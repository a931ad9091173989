//! Hooks in the store, and the loop that makes their reports.
//!
//! A hook is a document. Reports are ordinary HTTP jobs in a queue of their own, with a tag that
//! names the hook.

mod new_groups;
mod progress;
mod watcher;

use std::sync::Arc;

use windlass_core::{
    Filter, HOOKS_MAX, Hook, HookDefinition, HookName, Invalid, Job, JobId, Timestamp, hook_queue,
};
use windlass_store::{Document, EnqueueMode, Expected, Page, StoreError, Written, compare_and_set};

use crate::engine::Engine;

pub(crate) use new_groups::NewGroups;
pub use watcher::{HookWatcher, HookWatcherConfig};

/// The collection of the hooks.
const HOOKS: &str = "hooks";

/// Why a hook could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// A value breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such hook.
    #[error("no hook has the name {0}")]
    NotFound(HookName),
    /// A hook of this name exists, and only a new one was wanted.
    #[error("hook {0} already exists")]
    Exists(HookName),
    /// The store has too many hooks.
    #[error("the store has {HOOKS_MAX} hooks, which is the most; delete one first")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads, changes and tests the hooks of a store.
#[derive(Debug, Clone)]
pub struct StoredHooks {
    engine: Arc<Engine>,
}

impl StoredHooks {
    /// The hooks of the engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        StoredHooks { engine }
    }

    /// Returns all hooks by name. A hook that a newer version wrote and this one cannot read is left
    /// out.
    pub async fn list(&self) -> Result<Vec<Hook>, StoreError> {
        let documents = self.engine.store().documents(HOOKS, self.engine.now());
        let hooks = documents.await?.into_iter();
        let mut hooks: Vec<Hook> = hooks.filter_map(|one| read(&one).ok()).collect();
        hooks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(hooks)
    }

    /// Returns a hook.
    pub async fn get(&self, name: &HookName) -> Result<Hook, HookError> {
        let document = self.document(name).await?;
        let document = document.ok_or_else(|| HookError::NotFound(name.clone()))?;
        Ok(read(&document)?)
    }

    /// Creates a hook, or replaces the hook of this name. `Expected::Absent` only creates. Returns
    /// the hook, and whether it is new.
    pub async fn put(
        &self,
        name: &HookName,
        definition: &HookDefinition,
        expected: Expected,
    ) -> Result<(Hook, bool), HookError> {
        definition.check()?;
        let store = self.engine.store();
        compare_and_set(contended, || async {
            let document = self.document(name).await?;
            if document.is_some() && expected == Expected::Absent {
                return Err(HookError::Exists(name.clone()));
            }
            let now = self.engine.now();
            if document.is_none() && self.list().await?.len() >= HOOKS_MAX {
                return Err(HookError::TooMany);
            }
            // A stored hook that this version cannot read is replaced as a whole.
            let stored = document.as_ref().and_then(|one| read(one).ok());
            let hook = Hook::put(name.clone(), definition.clone(), stored.as_ref(), now);
            let value =
                serde_json::to_value(&hook).expect("a hook has only names, texts and times");
            let as_read = Expected::as_read(document.as_ref());
            let written = store.put_document(HOOKS, name.as_str(), &value, as_read, None, now);
            Ok(written.await?.version().map(|_| (hook, document.is_none())))
        })
        .await
    }

    /// Removes a hook. Reports that are enqueued already are still sent.
    pub async fn remove(&self, name: &HookName) -> Result<(), HookError> {
        let store = self.engine.store();
        let removed = store.remove_document(HOOKS, name.as_str(), Expected::Any);
        match removed.await? {
            Written::Version(_) => Ok(()),
            Written::Conflict(_) => Err(HookError::NotFound(name.clone())),
        }
    }

    /// Enqueues a report of the event `test`, also for a paused hook. Returns its job.
    pub async fn test(&self, name: &HookName) -> Result<Job, HookError> {
        let now = self.engine.now();
        self.test_as(name, self.engine.ids().job(now), now).await
    }

    /// Like [`StoredHooks::test`], with a given id and time. The same id again enqueues nothing.
    pub async fn test_as(
        &self,
        name: &HookName,
        id: JobId,
        now: Timestamp,
    ) -> Result<Job, HookError> {
        let hook = self.get(name).await?;
        let job = hook.test_job(now).into_stored_job(id, now);
        let jobs = vec![job.clone()];
        self.engine.enqueue(jobs, EnqueueMode::AllOrNone).await?;
        Ok(job)
    }

    /// Returns the jobs of the last reports of a hook, newest first, at most `limit`.
    pub async fn reports(&self, name: &HookName, limit: usize) -> Result<Vec<Job>, StoreError> {
        let filter = Filter {
            queue: Some(hook_queue()),
            tag: Some(Hook::tag(name)),
            ..Filter::default()
        };
        let store = self.engine.store();
        // One bounded step: a hook without reports among many others costs no long search.
        let listed = store.list(&filter, Page::first(limit), self.engine.now());
        Ok(listed.await?.jobs)
    }

    async fn document(&self, name: &HookName) -> Result<Option<Document>, StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        store.document(HOOKS, name.as_str(), now).await
    }
}

fn read(document: &Document) -> Result<Hook, StoreError> {
    serde_json::from_value(document.value.clone()).map_err(|error| StoreError::Damaged {
        what: format!("hook {}", document.name),
        cause: Some(error.into()),
    })
}

fn contended() -> HookError {
    let reason = "other writers keep changing the hook; try again";
    HookError::Store(StoreError::Unavailable(reason.into()))
}

/// The id and the job of a report.
type Report = (JobId, windlass_core::NewJob);
