//! A clock that tests move by hand.
//!
//! Only the test advances it, so it works with every store. (The paused time of the tokio runtime
//! does not: an idle runtime jumps ahead while a thread of the store still works.)

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task;
use windlass_core::Timestamp;

use super::{Clock, Wait};
use crate::poison::lock;

/// A clock that stands still until it is moved. Clones share the same time.
#[derive(Clone)]
pub struct VirtualClock(Arc<SharedClock>);

struct SharedClock {
    state: Mutex<ClockState>,
    sleep_started: Notify,
}

struct ClockState {
    start: Timestamp,
    now: Timestamp,
    sleepers: BTreeMap<(Timestamp, u64), Sleeper>,
    /// The tasks that were woken but have not continued yet.
    woken: Vec<(task::Id, Weak<()>)>,
    count: u64,
}

/// A wait for a time, and the task that waits.
struct Sleeper {
    wake: oneshot::Sender<()>,
    task: Option<task::Id>,
    /// Upgradable until the sleeper has continued or was dropped.
    asleep: Weak<()>,
}

impl VirtualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        VirtualClock(Arc::new(SharedClock {
            state: Mutex::new(ClockState {
                start,
                now: start,
                sleepers: BTreeMap::new(),
                woken: Vec::new(),
                count: 0,
            }),
            sleep_started: Notify::new(),
        }))
    }

    /// Advances the time, and wakes everything that sleeps until then or earlier.
    pub fn advance(&self, by: Duration) {
        let to = self.state().now.saturating_add(by);
        self.advance_to(to);
    }

    /// Advances the time to `to`. Does nothing if `to` is in the past.
    pub fn advance_to(&self, to: Timestamp) {
        let mut state = self.state();
        state.now = state.now.max(to);
        let later = state
            .sleepers
            .split_off(&(to.saturating_add(Duration::from_micros(1)), 0));
        for (_, sleeper) in std::mem::replace(&mut state.sleepers, later) {
            state
                .woken
                .extend(sleeper.task.map(|task| (task, sleeper.asleep)));
            let _ = sleeper.wake.send(()); // the sleeper may have been dropped
        }
    }

    /// When the first sleeper wakes up.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let mut state = self.state();
        state
            .sleepers
            .retain(|_, sleeper| !sleeper.wake.is_closed());
        state.sleepers.keys().next().map(|(at, _)| *at)
    }

    /// The tasks that sleep.
    pub(crate) fn sleepers(&self) -> HashSet<task::Id> {
        let mut state = self.state();
        state
            .sleepers
            .retain(|_, sleeper| !sleeper.wake.is_closed());
        state.sleepers.values().filter_map(|one| one.task).collect()
    }

    /// The tasks that were woken but have not continued yet.
    pub(crate) fn waking(&self) -> HashSet<task::Id> {
        let mut state = self.state();
        state.woken.retain(|(_, asleep)| asleep.strong_count() > 0);
        state.woken.iter().map(|(task, _)| *task).collect()
    }

    /// Waits until something begins to sleep.
    pub(crate) async fn wait_for_sleeper(&self) {
        self.0.sleep_started.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        lock(&self.0.state)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.state().now
    }

    fn sleep_until(&self, at: Timestamp) -> Wait {
        let mut state = self.state();
        if at <= state.now {
            return Box::pin(std::future::ready(()));
        }
        let (wake, woken) = oneshot::channel();
        let task = task::try_id();
        state.count += 1;
        let key = (at, state.count);
        let guard = Arc::new(());
        let asleep = Arc::downgrade(&guard);
        state.sleepers.insert(key, Sleeper { wake, task, asleep });
        self.0.sleep_started.notify_one();
        Box::pin(async move {
            let _asleep = guard;
            let _ = woken.await; // the clock outlives its sleepers
        })
    }

    fn elapsed(&self) -> Duration {
        let state = self.state();
        state.now.since(state.start)
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
        assert_eq!(clock.next_wake(), None, "a dropped sleeper is forgotten");
        clock.advance_to(noon);
        assert_eq!(clock.now(), noon.saturating_add(second), "never backwards");
    }
}
