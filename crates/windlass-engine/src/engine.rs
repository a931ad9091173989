//! What all parts of one process share: the store, the clock, ids, and the stream of events.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tracing::warn;
use windlass_core::{Job, JobId, State, Timestamp};
use windlass_store::{
    ActionStep, AttemptId, CHANGE_MAX, Change, Changed, Enqueue, EnqueueMode, Enqueued, Store,
    StoreError,
};

use crate::clock::Clock;
use crate::committer::is_refusal;
use crate::dispatcher::Dispatcher;
use crate::event::{Event, Events, JobEvent, JobRef, Observer, Subscription};
use crate::finish_waits::FinishWaits;
use crate::hook::NewGroups;
use crate::ids::Ids;
use crate::instrumented_store::InstrumentedStore;
use crate::job_log::JobLog;
use crate::lingering_handlers::LingeringHandlers;
use crate::poison::lock;
use crate::queue_settings::UnreadableSettings;
use crate::recorder::{PanicSafeRecorder, Recorder};
use crate::slots::Slots;
use crate::statistics::Collector;
use crate::watchdog::{Health, Pulse};
use crate::write_health::WriteHealth;

/// The default number of events that the stream buffers for a slow reader.
pub const EVENTS_KEPT: usize = 4096;

/// The number of due times to remember. Polls find the jobs of later ones.
const DUE_TIMES_MAX: usize = 10_000;
/// How long a due time that has passed is kept, for fetchers that have not looked yet.
const DUE_TIMES_KEPT: Duration = Duration::from_secs(60);

/// One store with its clock, in one process. All clients and workers of the process share it.
pub struct Engine {
    store: Arc<dyn Store>,
    writes: Arc<WriteHealth>,
    clock: Arc<dyn Clock>,
    ids: Ids,
    events: Events,
    due: Mutex<BTreeSet<Timestamp>>,
    due_changed: Notify,
    actions_changed: Notify,
    signals_changed: Notify,
    instance: String,
    finish_waits: FinishWaits,
    dispatchers: Mutex<Vec<Weak<Dispatcher>>>,
    slots: Mutex<Vec<Weak<Slots>>>,
    lingering: Arc<LingeringHandlers>,
    loops: Mutex<BTreeMap<String, Arc<Pulse>>>,
    job_log: JobLog,
    settled_logs: Mutex<Vec<AttemptId>>,
    collector: Collector,
    unreadable_settings: UnreadableSettings,
    new_groups: NewGroups,
}

impl Engine {
    /// Creates an engine on a store.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, ids: Ids) -> Self {
        Engine::with_recorder(store, clock, ids, None)
    }

    /// Creates an engine that sends measurements to a recorder.
    pub fn with_recorder(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        ids: Ids,
        recorder: Option<Arc<dyn Recorder>>,
    ) -> Self {
        let recorder =
            recorder.map(|recorder| Arc::new(PanicSafeRecorder(recorder)) as Arc<dyn Recorder>);
        let writes = Arc::new(WriteHealth::new());
        let store = InstrumentedStore::new(
            store,
            Arc::clone(&clock),
            recorder.clone(),
            Arc::clone(&writes),
        );
        Engine {
            store: Arc::new(store),
            writes,
            clock,
            ids,
            events: Events::new(EVENTS_KEPT, recorder),
            due: Mutex::default(),
            due_changed: Notify::new(),
            actions_changed: Notify::new(),
            signals_changed: Notify::new(),
            instance: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            finish_waits: FinishWaits::default(),
            dispatchers: Mutex::default(),
            slots: Mutex::default(),
            lingering: Arc::default(),
            loops: Mutex::default(),
            job_log: JobLog::default(),
            settled_logs: Mutex::default(),
            collector: Collector::default(),
            unreadable_settings: UnreadableSettings::default(),
            new_groups: NewGroups::default(),
        }
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Reads jobs to emit events about them. Returns `None` for a job that cannot be read: a loop
    /// must not stop because it cannot report.
    pub(crate) async fn readable(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        match self.store.get(ids).await {
            Err(error) if is_refusal(&error) => {
                warn!(%error, jobs = ids.len(), "reading ended jobs failed; no events are emitted for them");
                Ok(vec![None; ids.len()])
            }
            found => found,
        }
    }

    /// The queues whose settings cannot be read.
    pub(crate) fn unreadable_settings(&self) -> &UnreadableSettings {
        &self.unreadable_settings
    }

    /// The failure groups that became new in this process.
    pub(crate) fn new_groups(&self) -> &NewGroups {
        &self.new_groups
    }

    /// Whether the store accepts writes.
    pub fn writes(&self) -> &WriteHealth {
        &self.writes
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The generator of ids and random bits.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Subscribes to all events from now on.
    pub fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }

    /// Calls an observer for every event from now on, until the observer is dropped.
    pub fn observe(&self, observer: &Arc<impl Observer + 'static>) {
        let observer: Arc<dyn Observer> = Arc::clone(observer) as Arc<dyn Observer>;
        self.events.observe(Arc::downgrade(&observer));
    }

    /// The recorder of metrics, if there is one.
    pub fn recorder(&self) -> Option<&Arc<dyn Recorder>> {
        self.events.recorder()
    }

    /// The log of jobs and schedules.
    pub(crate) fn job_log(&self) -> &JobLog {
        &self.job_log
    }

    /// The settled attempts whose log documents are still to be removed.
    pub(crate) fn settled_logs(&self) -> MutexGuard<'_, Vec<AttemptId>> {
        lock(&self.settled_logs)
    }

    /// Counts what happens, for the statistics.
    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Emits an event. The closure runs only if someone listens.
    pub fn emit(&self, event: impl FnOnce() -> Event) {
        self.events.emit(event);
    }

    /// Emits an event about a job.
    pub fn emit_job(&self, at: Timestamp, job: &JobRef, what: JobEvent) {
        self.events.emit(|| Event::Job {
            at,
            job: job.clone(),
            what,
        });
    }

    /// Stores jobs and emits an event for each new one.
    ///
    /// If the store does not know whether it stored the jobs, the engine sends them again: the ids
    /// of the jobs make the second call safe.
    pub async fn enqueue(
        &self,
        jobs: Vec<Job>,
        mode: EnqueueMode,
    ) -> Result<Vec<Enqueued>, StoreError> {
        let now = self.now();
        let step = || Enqueue {
            jobs: jobs.clone(),
            mode,
        };
        let mut answers = self.store.enqueue(step(), now).await;
        if let Err(StoreError::Indeterminate(_)) = &answers {
            answers = self.store.enqueue(step(), now).await;
        }
        let mut answers = answers?;
        for (job, answer) in jobs.iter().zip(&mut answers) {
            if matches!(answer, Enqueued::Duplicate { id, .. } if *id == job.id) {
                *answer = Enqueued::Created(job.id); // duplicate of itself: the first call stored it
            }
            match answer {
                Enqueued::Created(_) => self.enqueued(std::iter::once(job), now),
                Enqueued::Replaced(_) => self.due_at(job.run_at, now),
                Enqueued::Duplicate { .. } | Enqueued::QueueFull { .. } => {}
            }
        }
        Ok(answers)
    }

    /// The handlers that still run although their attempts have ended.
    pub(crate) fn lingering(&self) -> &Arc<LingeringHandlers> {
        &self.lingering
    }

    /// Emits and counts that jobs were stored, and remembers when they are due.
    pub fn enqueued<'a>(&self, jobs: impl Iterator<Item = &'a Job>, now: Timestamp) {
        for job in jobs {
            self.collector
                .count(&job.queue, now, |queue| queue.enqueued += 1);
            self.events.emit(|| Event::Job {
                at: now,
                job: JobRef::of(job),
                what: JobEvent::Enqueued,
            });
            self.due_at(job.run_at, now);
        }
    }

    /// Remembers that a job is due at `at`, so that a fetcher looks at that time. Only a hint.
    pub fn due_at(&self, at: Timestamp, now: Timestamp) {
        if at <= now {
            return; // the store's change notification covers it
        }
        let mut due = lock(&self.due);
        while due
            .first()
            .is_some_and(|first| now.since(*first) > DUE_TIMES_KEPT)
        {
            due.pop_first();
        }
        let next = due.range(now..).next().copied();
        due.insert(at);
        if due.len() > DUE_TIMES_MAX {
            due.pop_last();
        }
        if next.is_none_or(|next| at < next) {
            drop(due);
            self.due_changed.notify_waiters();
        }
    }

    /// Returns the first due time after `looked_at`. It may be in the past: each fetcher passes the
    /// time of its own last look.
    pub fn next_due(&self, looked_at: Timestamp) -> Option<Timestamp> {
        let due = lock(&self.due);
        let later = (Bound::Excluded(looked_at), Bound::Unbounded);
        due.range(later).next().copied()
    }

    /// Completes when the next known due time moves to an earlier time. Create it before calling
    /// [`Engine::next_due`], so that no change is missed.
    pub fn due_changed(&self) -> Notified<'_> {
        self.due_changed.notified()
    }

    /// A name that no other engine has, of this process or another.
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// Completes when an action of this process was created or changed by a person.
    pub(crate) fn actions_changed(&self) -> &Notify {
        &self.actions_changed
    }

    /// Notified when this process has sent or withdrawn a signal to a worker.
    pub(crate) fn signals_changed(&self) -> &Notify {
        &self.signals_changed
    }

    pub(crate) fn finish_waits(&self) -> &FinishWaits {
        &self.finish_waits
    }

    pub(crate) fn add_dispatcher(&self, dispatcher: &Arc<Dispatcher>) {
        let mut all = lock(&self.dispatchers);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(dispatcher));
    }

    pub(crate) fn add_slots(&self, slots: &Arc<Slots>) {
        let mut all = lock(&self.slots);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(slots));
    }

    /// Reports the slots of all workers in this process to the recorder.
    pub fn record_slots(&self) {
        let Some(recorder) = self.recorder() else {
            return;
        };
        let all = lock(&self.slots);
        let (mut used, mut total) = (0, 0);
        for slots in all.iter().filter_map(Weak::upgrade) {
            used += u64::from(slots.used());
            total += u64::from(slots.total());
        }
        drop(all);
        recorder.slots(used, total);
    }

    /// Applies one change to jobs, in steps of up to [`CHANGE_MAX`], and emits what happened to
    /// them. Handlers of cancelled jobs in this process are asked to stop at once, without waiting
    /// for the next renewal.
    pub async fn change(
        &self,
        jobs: &[JobId],
        change: &Change,
    ) -> Result<Vec<Changed>, StoreError> {
        self.change_as(jobs, change, None).await
    }

    /// Like [`Engine::change`], as a step of a bulk action or replay.
    pub(crate) async fn change_as(
        &self,
        jobs: &[JobId],
        change: &Change,
        step: Option<&ActionStep>,
    ) -> Result<Vec<Changed>, StoreError> {
        let mut answers = Vec::with_capacity(jobs.len());
        for part in jobs.chunks(CHANGE_MAX) {
            let now = self.now();
            let changed = self.store.change(part, change, step, now).await?;
            let done = part.iter().zip(&changed);
            match change {
                Change::Cancel => {
                    self.cancel_handlers(part);
                    let cancelled = done.filter(|(_, now)| **now == Changed::Now(State::Cancelled));
                    self.emit_changes(cancelled, &JobEvent::Cancelled, now)
                        .await?;
                }
                Change::Revive(revival) => {
                    self.due_at(revival.run_at.unwrap_or(now), now);
                    let waiting = done.filter(|(_, now)| matches!(now, Changed::Now(_)));
                    self.emit_changes(waiting, &JobEvent::Revived, now).await?;
                }
                Change::Edit(edit) => self.due_at(edit.run_at.unwrap_or(now), now),
                Change::RunNow | Change::Patch(_) | Change::Resolve | Change::Purge => {}
            }
            answers.extend(changed);
        }
        Ok(answers)
    }

    async fn emit_changes<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a JobId, &'a Changed)>,
        what: &JobEvent,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let ids: Vec<JobId> = jobs.map(|(id, _)| *id).collect();
        if ids.is_empty() || !self.events.is_heard() {
            return Ok(());
        }
        for job in self.readable(&ids).await?.into_iter().flatten() {
            self.emit_job(now, &JobRef::of(&job), what.clone());
        }
        Ok(())
    }

    fn cancel_handlers(&self, jobs: &[JobId]) {
        let all = lock(&self.dispatchers);
        for dispatcher in all.iter().filter_map(Weak::upgrade) {
            dispatcher.cancel(jobs);
        }
    }

    /// Lists a loop in [`Engine::health`] until the returned guard is dropped.
    pub(crate) fn list_loop(self: &Arc<Self>, name: &str, pulse: &Arc<Pulse>) -> ListedLoop {
        let mut loops = lock(&self.loops);
        loops.insert(name.to_owned(), Arc::clone(pulse));
        ListedLoop(Arc::clone(self), name.to_owned())
    }

    /// The health of all loops of this process.
    pub fn health(&self) -> Vec<Health> {
        let loops = lock(&self.loops);
        let health = loops.iter().map(|(name, pulse)| pulse.health(name));
        health.collect()
    }
}

/// Removes a loop from the list of loops when it is dropped.
pub(crate) struct ListedLoop(Arc<Engine>, String);

impl Drop for ListedLoop {
    fn drop(&mut self) {
        let mut loops = lock(&self.0.loops);
        loops.remove(&self.1);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store)
            .field("clock", &self.clock)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}
