//! Time that a test moves by hand: it works around every store, as nothing but the test lets it pass.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task;
use windlass_core::Timestamp;

use super::{Clock, Wait};

/// A clock that stands still until it is moved. Clones are the same clock.
#[derive(Clone)]
pub struct VirtualClock(Arc<Inside>);

struct Inside {
    face: Mutex<Face>,
    slept: Notify,
}

struct Face {
    start: Timestamp,
    now: Timestamp,
    sleepers: BTreeMap<(Timestamp, u64), Sleeper>,
    /// The tasks that were woken, each until it has gone on.
    woken: Vec<(task::Id, Weak<()>)>,
    count: u64,
}

/// Somebody who sleeps, and the task that does.
struct Sleeper {
    wake: oneshot::Sender<()>,
    task: Option<task::Id>,
    /// Gone when the sleeper has gone on, or gave up.
    asleep: Weak<()>,
}

impl VirtualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        VirtualClock(Arc::new(Inside {
            face: Mutex::new(Face {
                start,
                now: start,
                sleepers: BTreeMap::new(),
                woken: Vec::new(),
                count: 0,
            }),
            slept: Notify::new(),
        }))
    }

    /// Lets so much time pass: whoever sleeps until then or earlier wakes up.
    pub fn advance(&self, by: Duration) {
        let to = self.face().now.saturating_add(by);
        self.advance_to(to);
    }

    /// Lets time pass until `to`; a time that has passed already changes nothing.
    pub fn advance_to(&self, to: Timestamp) {
        let mut face = self.face();
        face.now = face.now.max(to);
        let later = face
            .sleepers
            .split_off(&(to.saturating_add(Duration::from_micros(1)), 0));
        for (_, sleeper) in std::mem::replace(&mut face.sleepers, later) {
            face.woken
                .extend(sleeper.task.map(|task| (task, sleeper.asleep)));
            let _ = sleeper.wake.send(()); // it may have given up
        }
    }

    /// When the first sleeper wants to wake up.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let mut face = self.face();
        face.sleepers.retain(|_, sleeper| !sleeper.wake.is_closed());
        face.sleepers.keys().next().map(|(at, _)| *at)
    }

    /// The tasks that sleep.
    pub(crate) fn sleepers(&self) -> HashSet<task::Id> {
        let mut face = self.face();
        face.sleepers.retain(|_, sleeper| !sleeper.wake.is_closed());
        face.sleepers.values().filter_map(|one| one.task).collect()
    }

    /// The tasks that were woken and have not gone on yet.
    pub(crate) fn waking(&self) -> HashSet<task::Id> {
        let mut face = self.face();
        face.woken.retain(|(_, asleep)| asleep.strong_count() > 0);
        face.woken.iter().map(|(task, _)| *task).collect()
    }

    /// Ends when somebody has begun to sleep.
    pub(crate) async fn wait_for_sleeper(&self) {
        self.0.slept.notified().await;
    }

    fn face(&self) -> MutexGuard<'_, Face> {
        self.0.face.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.face().now
    }

    fn sleep_until(&self, at: Timestamp) -> Wait {
        let mut face = self.face();
        if at <= face.now {
            return Box::pin(std::future::ready(()));
        }
        let (wake, woken) = oneshot::channel();
        let task = task::try_id();
        face.count += 1;
        let place = (at, face.count);
        let guard = Arc::new(());
        let asleep = Arc::downgrade(&guard);
        face.sleepers.insert(place, Sleeper { wake, task, asleep });
        self.0.slept.notify_one();
        Box::pin(async move {
            let _asleep = guard;
            let _ = woken.await; // the clock outlives its sleepers
        })
    }

    fn elapsed(&self) -> Duration {
        let face = self.face();
        face.now.since(face.start)
    }

    fn sleep(&self, time: Duration) -> Wait {
        self.sleep_until(self.now().saturating_add(time))
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualClock({})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_test_lets_time_pass() {
        let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let second = Duration::from_secs(1);
        let clock = VirtualClock::new(noon);
        let early = tokio::spawn(clock.sleep_until(noon.saturating_add(second)));
        let late = tokio::spawn(clock.sleep_until(noon.saturating_add(2 * second)));
        clock.sleep_until(noon).await;
        assert_eq!(clock.next_wake(), Some(noon.saturating_add(second)));
        clock.advance(second);
        early.await.unwrap();
        assert!(!late.is_finished());
        assert_eq!(clock.next_wake(), Some(noon.saturating_add(2 * second)));
        late.abort();
        assert!(late.await.is_err());
        assert_eq!(clock.next_wake(), None, "one that gave up is forgotten");
        clock.advance_to(noon);
        assert_eq!(clock.now(), noon.saturating_add(second), "never backwards");
    }
}
