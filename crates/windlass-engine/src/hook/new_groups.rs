//! Failure groups that this process has just seen become new, until their report is enqueued.

use std::collections::BTreeMap;
use std::sync::Mutex;

use windlass_core::{Fingerprint, GroupKey, Job, JobId, Timestamp};

use crate::poison::lock;

/// The most groups to remember. The store shows groups without an earlier failure too.
const GROUPS_MAX: usize = 1000;

/// New failure groups. A group whose last failure was long ago counts as new again, but the store
/// keeps only the first failure of all, so the process that settles it remembers this one.
#[derive(Debug, Default)]
pub(crate) struct NewGroups(Mutex<BTreeMap<GroupKey, (Timestamp, JobId)>>);

impl NewGroups {
    /// Remembers that a job made a group new.
    pub(crate) fn add(&self, job: &Job, fingerprint: Fingerprint, now: Timestamp) {
        let mut groups = lock(&self.0);
        if groups.len() < GROUPS_MAX {
            let key = GroupKey {
                queue: job.queue.clone(),
                kind: job.kind.clone(),
                fingerprint,
            };
            groups.insert(key, (now, job.id));
        }
    }

    /// Returns the groups. They stay until [`NewGroups::remove`].
    pub(crate) fn list(&self) -> Vec<(GroupKey, (Timestamp, JobId))> {
        let groups = lock(&self.0);
        groups
            .iter()
            .map(|(key, seen)| (key.clone(), *seen))
            .collect()
    }

    /// Forgets groups that were listed, unless they became new again.
    pub(crate) fn remove(&self, listed: &[(GroupKey, (Timestamp, JobId))]) {
        let mut groups = lock(&self.0);
        for (key, seen) in listed {
            if groups.get(key) == Some(seen) {
                groups.remove(key);
            }
        }
    }
}
