//! The attempts of one worker, from the claim until they are settled and their handlers have
//! returned.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{self, AbortHandle};
use windlass_core::JobId;
use windlass_store::AttemptId;

use crate::attempt::RunningAttempt;
use crate::clock::VirtualClock;
use crate::poison::lock;

/// All attempts of one worker.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<RegistryState>,
    /// Notified when an attempt leaves the registry.
    changed: Notify,
    /// Notified when a handler returns.
    handler_returned: Notify,
    /// Notified when the next alarm moves to an earlier time.
    alarm_moved_earlier: Notify,
}

#[derive(Debug, Default)]
struct RegistryState {
    /// Ordered, so that a simulation repeats exactly.
    attempts: BTreeMap<AttemptId, AttemptEntry>,
    /// When to act on an attempt: its timeout, or the end of its grace period. In elapsed time of
    /// the clock, so that a jump of the wall clock ends no handler.
    alarms: BTreeSet<(Duration, AttemptId)>,
}

#[derive(Debug)]
struct AttemptEntry {
    attempt: Arc<RunningAttempt>,
    task: Option<AbortHandle>,
    alarm: Option<Duration>,
    /// The handler was asked to stop: the next alarm aborts it.
    stop_requested: bool,
    /// The attempt has an outcome, or its outcome no longer counts.
    reported: bool,
    /// The store has the outcome.
    settled: bool,
    /// The handler has returned.
    returned: bool,
}

/// What to do about an attempt whose alarm is due.
#[derive(Debug)]
pub(crate) enum Alarm {
    /// The attempt has timed out.
    TimedOut(Arc<RunningAttempt>),
    /// The handler did not stop within its grace period.
    Abort(Arc<RunningAttempt>, AbortHandle),
}

impl Registry {
    /// Adds an attempt. Returns false if it is already there.
    #[must_use]
    pub(crate) fn add(&self, attempt: &Arc<RunningAttempt>) -> bool {
        let mut state = self.state();
        let attempt_id = attempt.id();
        if state.attempts.contains_key(&attempt_id) {
            return false;
        }
        let alarm = attempt.times_out_at();
        let alarm_moved_earlier =
            alarm.is_some_and(|at| state.next_alarm().is_none_or(|next| at < next));
        if let Some(at) = alarm {
            state.alarms.insert((at, attempt_id));
        }
        state.attempts.insert(
            attempt_id,
            AttemptEntry {
                attempt: Arc::clone(attempt),
                task: None,
                alarm,
                stop_requested: false,
                reported: false,
                settled: false,
                returned: false,
            },
        );
        drop(state);
        if alarm_moved_earlier {
            self.alarm_moved_earlier.notify_one();
        }
        true
    }

    /// Stores the task of an attempt that was just added.
    pub(crate) fn set_task(&self, attempt_id: AttemptId, task: AbortHandle) {
        if let Some(entry) = self.state().attempts.get_mut(&attempt_id) {
            entry.task = Some(task);
        }
    }

    /// Marks an attempt as reported. Returns the attempt if it had no outcome before.
    pub(crate) fn report(&self, attempt_id: AttemptId) -> Option<Arc<RunningAttempt>> {
        let mut state = self.state();
        let entry = state.attempts.get_mut(&attempt_id)?;
        if entry.reported {
            return None;
        }
        entry.reported = true;
        Some(Arc::clone(&entry.attempt))
    }

    /// Marks the handler of an attempt as returned.
    pub(crate) fn returned(&self, attempt_id: AttemptId) {
        self.finish(attempt_id, |entry| entry.returned = true);
        self.handler_returned.notify_one();
    }

    /// Notified when a handler returns.
    pub(crate) fn handler_returned(&self) -> &Notify {
        &self.handler_returned
    }

    /// Marks an attempt as settled.
    pub(crate) fn settled(&self, attempt_id: AttemptId) {
        self.finish(attempt_id, |entry| entry.settled = true);
    }

    /// Marks the lease of an attempt as lost, so that no outcome counts. Returns the attempt if it
    /// had no outcome before.
    pub(crate) fn lose(&self, attempt_id: AttemptId) -> Option<Arc<RunningAttempt>> {
        let mut newly_lost = None;
        self.finish(attempt_id, |entry| {
            if !entry.settled {
                newly_lost = Some(Arc::clone(&entry.attempt)).filter(|_| !entry.reported);
                entry.reported = true;
                entry.settled = true;
            }
        });
        newly_lost
    }

    fn finish(&self, attempt_id: AttemptId, mark: impl FnOnce(&mut AttemptEntry)) {
        let mut state = self.state();
        let Some(entry) = state.attempts.get_mut(&attempt_id) else {
            return;
        };
        mark(entry);
        let (done, returned, alarm) =
            (entry.settled && entry.returned, entry.returned, entry.alarm);
        if returned && let Some(at) = alarm {
            state.alarms.remove(&(at, attempt_id));
        }
        if done {
            state.attempts.remove(&attempt_id);
        }
        drop(state);
        if done {
            self.changed.notify_waiters();
        }
    }

    /// Marks a handler as asked to stop, and sets the alarm that aborts it.
    pub(crate) fn abort_at(&self, attempt_id: AttemptId, at: Duration) {
        let mut state = self.state();
        let Some(entry) = state
            .attempts
            .get_mut(&attempt_id)
            .filter(|entry| !entry.returned)
        else {
            return;
        };
        entry.stop_requested = true;
        let previous = entry.alarm.replace(at);
        if let Some(previous) = previous {
            state.alarms.remove(&(previous, attempt_id));
        }
        state.alarms.insert((at, attempt_id));
        drop(state);
        self.alarm_moved_earlier.notify_one();
    }

    /// Removes and returns the alarms that are due when the clock's elapsed time is `elapsed`.
    pub(crate) fn take_due_alarms(&self, elapsed: Duration) -> Vec<Alarm> {
        let mut state = self.state();
        let mut due = Vec::new();
        while let Some((at, attempt_id)) = state.alarms.first().copied()
            && at <= elapsed
        {
            state.alarms.pop_first();
            let Some(entry) = state.attempts.get_mut(&attempt_id) else {
                continue;
            };
            entry.alarm = None;
            let attempt = Arc::clone(&entry.attempt);
            if !entry.reported && !entry.stop_requested {
                due.push(Alarm::TimedOut(attempt));
            } else if let Some(task) = entry.task.clone() {
                due.push(Alarm::Abort(attempt, task));
            }
        }
        due
    }

    /// The elapsed time at which the next alarm is due.
    pub(crate) fn next_alarm(&self) -> Option<Duration> {
        self.state().next_alarm()
    }

    /// The attempts whose leases need renewal: those that the store has not settled.
    pub(crate) fn leased(&self) -> Vec<AttemptId> {
        let state = self.state();
        let leased = state.attempts.iter().filter(|(_, entry)| !entry.settled);
        leased.map(|(attempt_id, _)| *attempt_id).collect()
    }

    /// The attempts that have no outcome yet.
    pub(crate) fn unreported(&self) -> Vec<Arc<RunningAttempt>> {
        let state = self.state();
        let open = state.attempts.values().filter(|entry| !entry.reported);
        open.map(|entry| Arc::clone(&entry.attempt)).collect()
    }

    /// All attempts.
    pub(crate) fn all(&self) -> Vec<Arc<RunningAttempt>> {
        let state = self.state();
        let all = state.attempts.values();
        all.map(|entry| Arc::clone(&entry.attempt)).collect()
    }

    /// The attempts of these jobs whose handlers have not returned.
    pub(crate) fn running(&self, jobs: &[JobId]) -> Vec<Arc<RunningAttempt>> {
        let state = self.state();
        let of_jobs = state
            .attempts
            .values()
            .filter(|entry| !entry.returned && jobs.contains(&entry.attempt.job().id));
        of_jobs.map(|entry| Arc::clone(&entry.attempt)).collect()
    }

    /// The earlier attempts of the same job whose handlers have not returned.
    pub(crate) fn earlier(&self, attempt_id: AttemptId) -> Vec<AttemptId> {
        let first = AttemptId {
            attempt: 0,
            ..attempt_id
        };
        let state = self.state();
        let earlier = state.attempts.range(first..attempt_id);
        let running = earlier.filter(|(_, entry)| !entry.returned);
        running.map(|(attempt_id, _)| *attempt_id).collect()
    }

    /// Returns one attempt.
    pub(crate) fn get(&self, attempt_id: AttemptId) -> Option<Arc<RunningAttempt>> {
        let state = self.state();
        Some(Arc::clone(&state.attempts.get(&attempt_id)?.attempt))
    }

    /// Aborts every handler that has not returned.
    pub(crate) fn abort_all(&self) {
        for entry in self.state().attempts.values() {
            if let Some(task) = &entry.task {
                task.abort();
            }
        }
    }

    /// Whether a handler has not returned yet.
    pub(crate) fn has_running(&self) -> bool {
        self.state().attempts.values().any(|entry| !entry.returned)
    }

    /// The number of handlers that have not returned.
    pub(crate) fn running_count(&self) -> usize {
        let state = self.state();
        let running = state.attempts.values().filter(|entry| !entry.returned);
        running.count()
    }

    /// Whether every running handler sleeps or waits for its stop signal, and none was just woken.
    pub(crate) fn all_idle(&self, clock: &VirtualClock) -> bool {
        let (sleepers, waking) = (clock.sleepers(), clock.waking());
        let is_idle = |entry: &AttemptEntry| {
            let task = entry.task.as_ref().map(AbortHandle::id);
            let is_in = |tasks: &HashSet<task::Id>| task.is_some_and(|task| tasks.contains(&task));
            let stop = entry.attempt.stop();
            let waits = is_in(&sleepers) || stop.is_awaited();
            waits && !is_in(&waking) && !stop.is_waking()
        };
        let state = self.state();
        let mut running = state.attempts.values().filter(|entry| !entry.returned);
        running.all(is_idle)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().attempts.is_empty()
    }

    /// Drops all attempts, as if the process had been killed.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        state.attempts.clear();
        state.alarms.clear();
    }

    /// Waits until no attempt is left.
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

    /// Notified when the next alarm moves to an earlier time.
    pub(crate) fn alarm_moved_earlier(&self) -> &Notify {
        &self.alarm_moved_earlier
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.state)
    }
}

impl RegistryState {
    fn next_alarm(&self) -> Option<Duration> {
        self.alarms.first().map(|(at, _)| *at)
    }
}
