//! What all nodes of a simulation share: the event log and the true time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::Timestamp;
use windlass_store::AttemptId;

use super::tap::Tap;
use crate::history::{Entry, Event};

/// The node of events that belong to no node.
pub(crate) const NOBODY: u32 = u32::MAX;

/// The event log, the true time, and the nodes to wake.
#[derive(Debug)]
pub(crate) struct World {
    start: Instant,
    entries: Mutex<Vec<Entry>>,
    taps: Mutex<Vec<Arc<Tap>>>,
    /// Attempts that a restart of the store ended. The next sweep reports them.
    ended_by_restart: Mutex<BTreeSet<AttemptId>>,
}

/// When every simulation begins.
pub(crate) fn beginning() -> Timestamp {
    Timestamp::from_micros(1_767_268_800_000_000).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl World {
    /// A world whose time begins now. Needs a runtime with paused time.
    pub(crate) fn new() -> Arc<World> {
        Arc::new(World {
            start: Instant::now(),
            entries: Mutex::default(),
            taps: Mutex::default(),
            ended_by_restart: Mutex::default(),
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The true time.
    pub(crate) fn now(&self) -> Timestamp {
        beginning().saturating_add(self.elapsed())
    }

    pub(crate) fn record(&self, node: u32, event: Event) {
        let at = self.now();
        lock(&self.entries).push(Entry { at, node, event });
    }

    pub(crate) fn take_entries(&self) -> Vec<Entry> {
        std::mem::take(&mut *lock(&self.entries))
    }

    pub(crate) fn add_tap(&self, tap: Arc<Tap>) {
        lock(&self.taps).push(tap);
    }

    pub(crate) fn remove_tap(&self, tap: &Arc<Tap>) {
        lock(&self.taps).retain(|other| !Arc::ptr_eq(other, tap));
    }

    /// Remembers attempts that a restart of the store ended.
    pub(crate) fn end_by_restart(&self, attempts: impl Iterator<Item = AttemptId>) {
        lock(&self.ended_by_restart).extend(attempts);
    }

    /// Whether a sweep ended this attempt, and not a restart before it.
    pub(crate) fn is_swept(&self, attempt: AttemptId) -> bool {
        !lock(&self.ended_by_restart).contains(&attempt)
    }

    /// Notifies all nodes that jobs may have become claimable.
    pub(crate) fn wake_all(&self) {
        let taps = lock(&self.taps).clone();
        for tap in taps {
            tap.wake();
        }
    }

    /// Breaks the cycle between the world and its taps.
    pub(crate) fn end(&self) {
        lock(&self.taps).clear();
    }
}

/// Locks, also after a panic of another task: the data are only appended.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
