//! The attempts that this worker has, from the claim until they are settled and their handlers have returned.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{self, AbortHandle};
use windlass_core::JobId;
use windlass_store::AttemptId;

use crate::attempt::RunningAttempt;
use crate::clock::VirtualClock;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    /// An attempt is over.
    changed: Notify,
    /// A handler is no longer there.
    gone: Notify,
    /// The next thing to do comes earlier than it did.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    attempts: HashMap<AttemptId, Entry>,
    /// When something is to be done about an attempt: its timeout, or the end of its patience. By the time that has passed:
    /// a wall clock that jumps must end nobody.
    alarms: BTreeSet<(Duration, AttemptId)>,
}

#[derive(Debug)]
struct Entry {
    attempt: Arc<RunningAttempt>,
    task: Option<AbortHandle>,
    alarm: Option<Duration>,
    /// Its handler was told to stop: the alarm cuts it off.
    told_to_stop: bool,
    /// How it ended was told to the committer, or is not to be told any more.
    reported: bool,
    /// The store knows how it ended.
    settled: bool,
    /// Its handler is no longer there.
    returned: bool,
}

/// What is to be done about an attempt whose alarm rang.
#[derive(Debug)]
pub(crate) enum Alarm {
    /// Its timeout is over.
    TimedOut(Arc<RunningAttempt>),
    /// Its handler was told to stop long enough ago.
    CutOff(Arc<RunningAttempt>, AbortHandle),
}

impl Registry {
    /// Adds an attempt; whether it was not there yet.
    #[must_use]
    pub(crate) fn add(&self, attempt: &Arc<RunningAttempt>) -> bool {
        let mut inner = self.inner();
        let of = attempt.id();
        if inner.attempts.contains_key(&of) {
            return false;
        }
        let alarm = attempt.ends_at();
        let sooner = alarm.is_some_and(|at| inner.next_alarm().is_none_or(|next| at < next));
        if let Some(at) = alarm {
            inner.alarms.insert((at, of));
        }
        inner.attempts.insert(
            of,
            Entry {
                attempt: Arc::clone(attempt),
                task: None,
                alarm,
                told_to_stop: false,
                reported: false,
                settled: false,
                returned: false,
            },
        );
        drop(inner);
        if sooner {
            self.sooner.notify_one();
        }
        true
    }

    /// Remembers the task of an attempt that was just added.
    pub(crate) fn set_task(&self, of: AttemptId, task: AbortHandle) {
        if let Some(entry) = self.inner().attempts.get_mut(&of) {
            entry.task = Some(task);
        }
    }

    /// Marks how an attempt ended as told; answers it if it was not told before.
    pub(crate) fn report(&self, of: AttemptId) -> Option<Arc<RunningAttempt>> {
        let mut inner = self.inner();
        let entry = inner.attempts.get_mut(&of)?;
        if entry.reported {
            return None;
        }
        entry.reported = true;
        Some(Arc::clone(&entry.attempt))
    }

    /// The handler of an attempt is no longer there.
    pub(crate) fn returned(&self, of: AttemptId) {
        self.finish(of, |entry| entry.returned = true);
        self.gone.notify_one();
    }

    /// Is told when a handler is no longer there.
    pub(crate) fn gone(&self) -> &Notify {
        &self.gone
    }

    /// The store knows how an attempt ended.
    pub(crate) fn settled(&self, of: AttemptId) {
        self.finish(of, |entry| entry.settled = true);
    }

    /// The lease of an attempt is lost: nothing is to be told about it any more. Answers it if that is news.
    pub(crate) fn lose(&self, of: AttemptId) -> Option<Arc<RunningAttempt>> {
        let mut news = None;
        self.finish(of, |entry| {
            if !entry.settled {
                news = Some(Arc::clone(&entry.attempt)).filter(|_| !entry.reported);
                entry.reported = true;
                entry.settled = true;
            }
        });
        news
    }

    fn finish(&self, of: AttemptId, mark: impl FnOnce(&mut Entry)) {
        let mut inner = self.inner();
        let Some(entry) = inner.attempts.get_mut(&of) else {
            return;
        };
        mark(entry);
        let (over, returned, alarm) =
            (entry.settled && entry.returned, entry.returned, entry.alarm);
        if returned && let Some(at) = alarm {
            inner.alarms.remove(&(at, of));
        }
        if over {
            inner.attempts.remove(&of);
        }
        drop(inner);
        if over {
            self.changed.notify_waiters();
        }
    }

    /// The handler was told to stop: at `at` it is cut off.
    pub(crate) fn abort_at(&self, of: AttemptId, at: Duration) {
        let mut inner = self.inner();
        let Some(entry) = inner.attempts.get_mut(&of).filter(|entry| !entry.returned) else {
            return;
        };
        entry.told_to_stop = true;
        let before = entry.alarm.replace(at);
        if let Some(before) = before {
            inner.alarms.remove(&(before, of));
        }
        inner.alarms.insert((at, of));
        drop(inner);
        self.sooner.notify_one();
    }

    /// What is to be done after so much time.
    pub(crate) fn ring(&self, elapsed: Duration) -> Vec<Alarm> {
        let mut inner = self.inner();
        let mut rung = Vec::new();
        while let Some((at, of)) = inner.alarms.first().copied()
            && at <= elapsed
        {
            inner.alarms.pop_first();
            let Some(entry) = inner.attempts.get_mut(&of) else {
                continue;
            };
            entry.alarm = None;
            let attempt = Arc::clone(&entry.attempt);
            if !entry.reported && !entry.told_to_stop {
                rung.push(Alarm::TimedOut(attempt));
            } else if let Some(task) = entry.task.clone() {
                rung.push(Alarm::CutOff(attempt, task));
            }
        }
        rung
    }

    /// When the next alarm rings.
    pub(crate) fn next_alarm(&self) -> Option<Duration> {
        self.inner().next_alarm()
    }

    /// The attempts whose leases are to be renewed: those whose end the store does not know yet.
    pub(crate) fn leased(&self) -> Vec<AttemptId> {
        let inner = self.inner();
        let leased = inner.attempts.iter().filter(|(_, entry)| !entry.settled);
        leased.map(|(of, _)| *of).collect()
    }

    /// The attempts whose end was not told yet.
    pub(crate) fn unreported(&self) -> Vec<Arc<RunningAttempt>> {
        let inner = self.inner();
        let open = inner.attempts.values().filter(|entry| !entry.reported);
        open.map(|entry| Arc::clone(&entry.attempt)).collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<RunningAttempt>> {
        let inner = self.inner();
        let all = inner.attempts.values();
        all.map(|entry| Arc::clone(&entry.attempt)).collect()
    }

    /// The attempts of these jobs whose handlers are still there.
    pub(crate) fn running(&self, jobs: &[JobId]) -> Vec<Arc<RunningAttempt>> {
        let inner = self.inner();
        let of_jobs = inner
            .attempts
            .values()
            .filter(|entry| !entry.returned && jobs.contains(&entry.attempt.job().id));
        of_jobs.map(|entry| Arc::clone(&entry.attempt)).collect()
    }

    /// Finds an attempt.
    pub(crate) fn get(&self, of: AttemptId) -> Option<Arc<RunningAttempt>> {
        let inner = self.inner();
        Some(Arc::clone(&inner.attempts.get(&of)?.attempt))
    }

    /// Cuts off every handler that is still there.
    pub(crate) fn abort_all(&self) {
        for entry in self.inner().attempts.values() {
            if let Some(task) = &entry.task {
                task.abort();
            }
        }
    }

    /// Whether a handler is still there.
    pub(crate) fn has_running(&self) -> bool {
        self.inner().attempts.values().any(|entry| !entry.returned)
    }

    /// How many handlers are still there.
    pub(crate) fn running_count(&self) -> usize {
        let inner = self.inner();
        let running = inner.attempts.values().filter(|entry| !entry.returned);
        running.count()
    }

    /// Whether every handler that is still there sleeps or waits to be told to stop, and none was
    /// just woken or told.
    pub(crate) fn all_idle(&self, clock: &VirtualClock) -> bool {
        let (sleepers, waking) = (clock.sleepers(), clock.waking());
        let is_idle = |entry: &Entry| {
            let task = entry.task.as_ref().map(AbortHandle::id);
            let is_in = |tasks: &HashSet<task::Id>| task.is_some_and(|task| tasks.contains(&task));
            let stop = entry.attempt.stop();
            let waits = is_in(&sleepers) || stop.is_awaited();
            waits && !is_in(&waking) && !stop.is_waking()
        };
        let inner = self.inner();
        let mut running = inner.attempts.values().filter(|entry| !entry.returned);
        running.all(is_idle)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inner().attempts.is_empty()
    }

    /// Forgets everything, as a process does that is killed.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner();
        inner.attempts.clear();
        inner.alarms.clear();
    }

    /// Ends when no attempt is left.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Is told when the next alarm rings earlier than it did.
    pub(crate) fn sooner(&self) -> &Notify {
        &self.sooner
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn next_alarm(&self) -> Option<Duration> {
        self.alarms.first().map(|(at, _)| *at)
    }
}
