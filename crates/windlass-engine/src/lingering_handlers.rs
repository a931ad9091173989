//! Handlers that still run although their attempt has ended: after a timeout, a lost lease or a
//! release.
//!
//! This process does not claim the job again until the old handler has returned. Other processes
//! may claim it: they see the job in the heartbeat of this process and log a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass_core::JobId;
use windlass_store::Node;

use crate::poison::lock;

/// The heartbeat field in which a node lists the jobs whose old handlers it still runs.
pub(crate) const LINGERING: &str = "lingering";

/// The number of jobs that a heartbeat lists.
const LISTED_MAX: usize = 100;

/// The lingering handlers of this process, and those that other nodes list in their heartbeats.
#[derive(Debug, Default)]
pub(crate) struct LingeringHandlers {
    here: Mutex<BTreeMap<JobId, usize>>,
    elsewhere: Mutex<BTreeMap<JobId, String>>,
}

impl LingeringHandlers {
    /// The jobs whose old handlers run in this process.
    pub(crate) fn here(&self) -> BTreeSet<JobId> {
        lock(&self.here).keys().copied().collect()
    }

    /// The list for the heartbeat, or `None` if it is empty.
    pub(crate) fn listed(&self) -> Option<Value> {
        let here = lock(&self.here);
        let ids = here.keys().take(LISTED_MAX).map(JobId::to_string);
        (!here.is_empty()).then(|| ids.collect())
    }

    /// Stores the lists of the other nodes.
    pub(crate) fn learn(&self, nodes: &[Node], own: &str) {
        let others = nodes.iter().filter(|node| node.name != own);
        let listed = others.flat_map(|node| {
            let ids = lingering_jobs(&node.about);
            ids.map(|id| (id, node.name.clone()))
        });
        *lock(&self.elsewhere) = listed.collect();
    }

    /// Returns the name of the node that still runs an old handler of the job.
    pub(crate) fn elsewhere(&self, job: JobId) -> Option<String> {
        lock(&self.elsewhere).get(&job).cloned()
    }
}

/// The jobs whose old handlers a node still runs, according to its heartbeat.
pub fn lingering_jobs(about: &Value) -> impl Iterator<Item = JobId> + '_ {
    let listed = about.get(LINGERING).and_then(Value::as_array);
    let listed = listed.into_iter().flatten().take(LISTED_MAX);
    listed.filter_map(|id| id.as_str()?.parse().ok())
}

/// The work of one attempt. Everything that still works for the attempt holds a reference; the work
/// lingers from the end of the attempt until the last reference is dropped.
#[derive(Debug)]
pub(crate) struct AttemptWork {
    job: JobId,
    ended: AtomicBool,
    handlers: Arc<LingeringHandlers>,
}

impl AttemptWork {
    pub(crate) fn new(job: JobId, handlers: Arc<LingeringHandlers>) -> Self {
        AttemptWork {
            job,
            ended: AtomicBool::new(false),
            handlers,
        }
    }

    /// The attempt has ended. Work that is still running lingers.
    pub(crate) fn mark_ended(&self) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            *lock(&self.handlers.here).entry(self.job).or_default() += 1;
        }
    }
}

impl Drop for AttemptWork {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::SeqCst) {
            return;
        }
        let mut here = lock(&self.handlers.here);
        if let Some(count) = here.get_mut(&self.job) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.job);
            }
        }
    }
}
