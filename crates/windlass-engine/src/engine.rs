//! What everything in one process shares: the store, the clock, ids, and the stream of events.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tracing::warn;
use windlass_core::{Job, JobId, State, Timestamp};
use windlass_store::{
    CHANGE_MAX, Change, Changed, Enqueue, EnqueueMode, Enqueued, Store, StoreError,
};

use crate::finish_waits::Awaited;
use crate::clock::Clock;
use crate::committer::is_refusal;
use crate::dispatcher::Dispatcher;
use crate::event::{Event, Events, JobEvent, JobRef, Observer, Subscription};
use crate::ids::Ids;
use crate::lingering_handlers::Lingering;
use crate::job_log::Narrator;
use crate::instrumented_store::Observed;
use crate::queue_settings::UnreadableSettings;
use crate::recorder::{Guarded, Recorder};
use crate::slots::Slots;
use crate::watchdog::{Health, Pulse};
use crate::write_health::WriteHealth;

/// So many events are kept for a reader, unless configured otherwise.
pub const EVENTS_KEPT: usize = 4096;

/// So many due times are remembered; later ones are found by looking.
const DUE_TIMES_MAX: usize = 10_000;
/// A due time that has passed is kept so long, for fetchers that are slow to look.
const DUE_TIMES_KEPT: Duration = Duration::from_secs(60);

/// One store with its clock, in one process. Clients and workers share it.
pub struct Engine {
    store: Arc<dyn Store>,
    writes: Arc<WriteHealth>,
    clock: Arc<dyn Clock>,
    ids: Ids,
    events: Events,
    due: Mutex<BTreeSet<Timestamp>>,
    due_changed: Notify,
    awaited: Awaited,
    dispatchers: Mutex<Vec<Weak<Dispatcher>>>,
    slots: Mutex<Vec<Weak<Slots>>>,
    lingering: Arc<Lingering>,
    loops: Mutex<BTreeMap<String, Arc<Pulse>>>,
    narrator: Narrator,
    unreadable_settings: UnreadableSettings,
}

impl Engine {
    /// An engine on a store.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, ids: Ids) -> Self {
        Engine::with_recorder(store, clock, ids, None)
    }

    /// The same, with figures going to a recorder.
    pub fn with_recorder(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        ids: Ids,
        recorder: Option<Arc<dyn Recorder>>,
    ) -> Self {
        let recorder = recorder.map(|recorder| Arc::new(Guarded(recorder)) as Arc<dyn Recorder>);
        let writes = Arc::new(WriteHealth::new());
        let store = Observed::new(
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
            awaited: Awaited::default(),
            dispatchers: Mutex::default(),
            slots: Mutex::default(),
            lingering: Arc::default(),
            loops: Mutex::default(),
            narrator: Narrator::default(),
            unreadable_settings: UnreadableSettings::default(),
        }
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Jobs as they are now, to say what happened to them. One that cannot be read is none: a loop
    /// that only reports must not stop at it.
    pub(crate) async fn readable(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        match self.store.get(ids).await {
            Err(error) if is_refusal(&error) => {
                warn!(%error, jobs = ids.len(), "jobs that ended cannot be read, no events are emitted for them");
                Ok(vec![None; ids.len()])
            }
            found => found,
        }
    }

    /// The queues whose settings cannot be read.
    pub(crate) fn unreadable_settings(&self) -> &UnreadableSettings {
        &self.unreadable_settings
    }

    /// Whether the store accepts writes.
    pub fn writes(&self) -> &WriteHealth {
        &self.writes
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Makes ids and random bits.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Listens to what happens from now on.
    pub fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }

    /// Shows every event from now on to an observer, until that is dropped.
    pub fn observe(&self, observer: &Arc<impl Observer + 'static>) {
        let observer: Arc<dyn Observer> = Arc::clone(observer) as Arc<dyn Observer>;
        self.events.observe(Arc::downgrade(&observer));
    }

    /// Where figures go.
    pub fn recorder(&self) -> Option<&Arc<dyn Recorder>> {
        self.events.recorder()
    }

    /// Writes the log of what happens to jobs and schedules.
    pub(crate) fn narrator(&self) -> &Narrator {
        &self.narrator
    }

    /// Tells what happened; an event that nobody listens to is not made.
    pub fn emit(&self, event: impl FnOnce() -> Event) {
        self.events.emit(event);
    }

    /// Tells what happened to a job.
    pub fn emit_job(&self, at: Timestamp, job: &JobRef, what: JobEvent) {
        self.events.emit(|| Event::Job {
            at,
            job: job.clone(),
            what,
        });
    }

    /// Stores jobs, and tells of those that are new. A step of which nobody knows is asked again by the ids of its jobs.
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
                *answer = Enqueued::Created(job.id); // its own duplicate: it was stored
            }
            match answer {
                Enqueued::Created(_) => self.enqueued(std::iter::once(job), now),
                Enqueued::Replaced(_) => self.due_at(job.run_at, now),
                Enqueued::Duplicate { .. } | Enqueued::QueueFull { .. } => {}
            }
        }
        Ok(answers)
    }

    /// The handlers that outlive their attempts.
    pub(crate) fn lingering(&self) -> &Arc<Lingering> {
        &self.lingering
    }

    /// Tells that jobs were stored, and remembers when they are due.
    pub fn enqueued<'a>(&self, jobs: impl Iterator<Item = &'a Job>, now: Timestamp) {
        for job in jobs {
            self.events.emit(|| Event::Job {
                at: now,
                job: JobRef::of(job),
                what: JobEvent::Enqueued,
            });
            self.due_at(job.run_at, now);
        }
    }

    /// Remembers that a job is due at `at`, so that a fetcher looks then. A hint only.
    pub fn due_at(&self, at: Timestamp, now: Timestamp) {
        if at <= now {
            return; // the store itself tells that something changed
        }
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The next time after `looked_at` that a job is known to be due. It may have come already: each fetcher asks for what
    /// came after its own last look.
    pub fn next_due(&self, looked_at: Timestamp) -> Option<Timestamp> {
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let later = (Bound::Excluded(looked_at), Bound::Unbounded);
        due.range(later).next().copied()
    }

    /// Ends when an earlier time becomes the next at which a job is known to be due. To be made before
    /// [`Engine::next_due`] is asked, so that no change is missed.
    pub fn due_changed(&self) -> Notified<'_> {
        self.due_changed.notified()
    }

    pub(crate) fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    pub(crate) fn add_dispatcher(&self, dispatcher: &Arc<Dispatcher>) {
        let mut all = self
            .dispatchers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(dispatcher));
    }

    pub(crate) fn add_slots(&self, slots: &Arc<Slots>) {
        let mut all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(slots));
    }

    /// Gives the recorder the slots of all workers in this process.
    pub fn record_slots(&self) {
        let Some(recorder) = self.recorder() else {
            return;
        };
        let all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut used, mut total) = (0, 0);
        for slots in all.iter().filter_map(Weak::upgrade) {
            used += u64::from(slots.used());
            total += u64::from(slots.total());
        }
        drop(all);
        recorder.slots(used, total);
    }

    /// Makes one change to jobs, in steps of up to [`CHANGE_MAX`], and emits what happened to them. Handlers of cancelled jobs
    /// in this process are told without waiting for a renewal.
    pub async fn change(
        &self,
        jobs: &[JobId],
        change: &Change,
    ) -> Result<Vec<Changed>, StoreError> {
        let mut answers = Vec::with_capacity(jobs.len());
        for part in jobs.chunks(CHANGE_MAX) {
            let now = self.now();
            let changed = self.store.change(part, change, now).await?;
            let done = part.iter().zip(&changed);
            match change {
                Change::Cancel => {
                    self.call_off(part);
                    let over = done.filter(|(_, now)| **now == Changed::Now(State::Cancelled));
                    self.announce_changed(over, &JobEvent::Cancelled, now)
                        .await?;
                }
                Change::Revive(revival) => {
                    self.due_at(revival.run_at.unwrap_or(now), now);
                    let waiting = done.filter(|(_, now)| matches!(now, Changed::Now(_)));
                    self.announce_changed(waiting, &JobEvent::Revived, now)
                        .await?;
                }
                Change::Edit(edit) => self.due_at(edit.run_at.unwrap_or(now), now),
                Change::RunNow | Change::Resolve | Change::Purge => {}
            }
            answers.extend(changed);
        }
        Ok(answers)
    }

    async fn announce_changed<'a>(
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

    fn call_off(&self, jobs: &[JobId]) {
        let all = self
            .dispatchers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for dispatcher in all.iter().filter_map(Weak::upgrade) {
            dispatcher.call_off(jobs);
        }
    }

    /// Lists a loop for [`Engine::health`] until what this answers is dropped.
    pub(crate) fn list_loop(self: &Arc<Self>, name: &str, pulse: &Arc<Pulse>) -> ListedLoop {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.insert(name.to_owned(), Arc::clone(pulse));
        ListedLoop(Arc::clone(self), name.to_owned())
    }

    /// How the loops of all workers of this process are.
    pub fn health(&self) -> Vec<Health> {
        let loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        let told = loops.iter().map(|(name, pulse)| pulse.health(name));
        told.collect()
    }
}

/// A loop that is listed.
pub(crate) struct ListedLoop(Arc<Engine>, String);

impl Drop for ListedLoop {
    fn drop(&mut self) {
        let mut loops = self.0.loops.lock().unwrap_or_else(PoisonError::into_inner);
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
