//! Handlers that still run although their attempt has ended: after a timeout, a lost lease or a release.
//!
//! This process does not claim such a job until the old handler is gone. Others may: they learn of it from the heartbeats of
//! this one, and log a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use windlass_core::JobId;
use windlass_store::Node;

/// Where a node lists, with its heartbeat, the jobs whose old handlers it still runs.
pub(crate) const LINGERING: &str = "lingering";

/// At most this many are listed.
const LISTED_MAX: usize = 100;

/// The old handlers of this process, and those that other nodes list.
#[derive(Debug, Default)]
pub(crate) struct Lingering {
    here: Mutex<BTreeMap<JobId, usize>>,
    elsewhere: Mutex<BTreeMap<JobId, String>>,
}

impl Lingering {
    /// The jobs whose old handlers run here.
    pub(crate) fn here(&self) -> BTreeSet<JobId> {
        lock(&self.here).keys().copied().collect()
    }

    /// What a heartbeat says about them.
    pub(crate) fn listed(&self) -> Option<Value> {
        let here = lock(&self.here);
        let ids = here.keys().take(LISTED_MAX).map(JobId::to_string);
        (!here.is_empty()).then(|| ids.collect())
    }

    /// Takes in what the other nodes list.
    pub(crate) fn learn(&self, nodes: &[Node], own: &str) {
        let others = nodes.iter().filter(|node| node.name != own);
        let listed = others.flat_map(|node| {
            let ids = lingering_of(&node.about);
            ids.map(|id| (id, node.name.clone()))
        });
        *lock(&self.elsewhere) = listed.collect();
    }

    /// The node that still runs an old handler of a job.
    pub(crate) fn elsewhere(&self, job: JobId) -> Option<String> {
        lock(&self.elsewhere).get(&job).cloned()
    }
}

/// The jobs whose old handlers a node still runs, as it says about itself.
pub fn lingering_of(about: &Value) -> impl Iterator<Item = JobId> + '_ {
    let listed = about.get(LINGERING).and_then(Value::as_array);
    let listed = listed.into_iter().flatten().take(LISTED_MAX);
    listed.filter_map(|id| id.as_str()?.parse().ok())
}

/// The work of one attempt, as long as any of it is still there.
#[derive(Debug)]
pub(crate) struct Alive {
    job: JobId,
    ended: AtomicBool,
    of: Arc<Lingering>,
}

impl Alive {
    pub(crate) fn new(job: JobId, of: Arc<Lingering>) -> Self {
        Alive {
            job,
            ended: AtomicBool::new(false),
            of,
        }
    }

    /// The attempt has ended: what is left of it lingers.
    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            *lock(&self.of.here).entry(self.job).or_default() += 1;
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::SeqCst) {
            return;
        }
        let mut here = lock(&self.of.here);
        if let Some(count) = here.get_mut(&self.job) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.job);
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
