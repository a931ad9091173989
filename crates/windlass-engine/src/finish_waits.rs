//! Waits for jobs to finish. One of the waiting callers watches for all of them.
//!
//! An event reports a job that finishes in this process. A poll finds jobs that finish elsewhere:
//! it reads all awaited jobs together, often for young waits and less often for old ones. The
//! caller that holds the `watching` lock does both; when it leaves, another one takes over, so
//! there is no background task.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::warn;
use windlass_core::{Job, JobId, Timestamp};
use windlass_store::StoreError;

use crate::engine::Engine;
use crate::event::{Event, JobEvent, Received, Subscription};
use crate::failure_lines::FailureLines;
use crate::poison::lock;

/// The longest interval between two polls.
const POLL_MAX: Duration = Duration::from_secs(2);
/// The shortest interval between two polls.
const POLL_MIN: Duration = Duration::from_millis(100);
/// The interval is the age of the youngest wait divided by this.
const POLL_PART: u32 = 10;
/// Polls use at most one part in this many of the time.
const BUSY_PART: u32 = 10;
/// The number of jobs to read at once. Each may be large.
const READ_MAX: usize = 50;

/// The jobs that callers wait for.
#[derive(Debug, Default)]
pub(crate) struct FinishWaits {
    jobs: Mutex<BTreeMap<JobId, AwaitedJob>>,
    /// Held by the caller that watches. A successor continues with the events after those that its
    /// predecessor saw.
    watching: tokio::sync::Mutex<Option<Subscription>>,
}

#[derive(Debug)]
struct AwaitedJob {
    finished: Arc<Notify>,
    waiting: usize,
    since: Timestamp,
}

impl FinishWaits {
    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, AwaitedJob>> {
        lock(&self.jobs)
    }

    fn register(&self, id: JobId, now: Timestamp) -> FinishWait<'_> {
        let mut jobs = self.jobs();
        let awaited = jobs.entry(id).or_insert_with(|| AwaitedJob {
            finished: Arc::default(),
            waiting: 0,
            since: now,
        });
        awaited.waiting += 1;
        awaited.since = now;
        let finished = Arc::clone(&awaited.finished);
        FinishWait {
            waits: self,
            id,
            finished,
        }
    }

    fn wake(&self, id: JobId) {
        if let Some(awaited) = self.jobs().get(&id) {
            awaited.finished.notify_waiters();
        }
    }

    /// The delay before the next poll.
    fn poll_delay(&self, now: Timestamp) -> Duration {
        let youngest = self.jobs().values().map(|awaited| awaited.since).max();
        let waited = youngest.map_or(Duration::ZERO, |since| now.since(since));
        (waited / POLL_PART).clamp(POLL_MIN, POLL_MAX)
    }

    /// Watches on behalf of all callers until the future is dropped.
    async fn watch(&self, engine: &Engine) {
        let mut watching = self.watching.lock().await;
        let events = watching.get_or_insert_with(|| engine.subscribe());
        let (mut busy, mut failures) = (Duration::ZERO, FailureLines::default());
        loop {
            let poll_delay = self.poll_delay(engine.now()).max(busy * (BUSY_PART - 1));
            let poll = engine.clock().sleep(poll_delay);
            tokio::select! {
                biased;
                () = poll => {
                    let started = engine.clock().elapsed();
                    if let Err(error) = self.poll(engine).await
                        && let Some(suppressed) = failures.admit(engine.clock().elapsed())
                    {
                        warn!(%error, suppressed, "polling awaited jobs failed; retrying");
                    }
                    busy = engine.clock().elapsed().saturating_sub(started);
                }
                item = events.next() => match item {
                    Some(Received::Event(event)) => {
                        ended(&event).into_iter().for_each(|id| self.wake(id));
                    }
                    Some(Received::Missed(_)) => {} // the next poll finds the jobs of missed events
                    None => std::future::pending().await,
                },
            }
        }
    }

    /// Reads all awaited jobs, and wakes the callers of jobs that have finished or do not exist.
    async fn poll(&self, engine: &Engine) -> Result<(), StoreError> {
        let ids: Vec<JobId> = self.jobs().keys().copied().collect();
        for some in ids.chunks(READ_MAX) {
            let found = engine.store().get(some).await?;
            for (id, job) in some.iter().zip(found) {
                if job.is_none_or(|job| job.state().is_final()) {
                    self.wake(*id);
                }
            }
        }
        Ok(())
    }
}

/// The job that an event finishes, if any.
fn ended(event: &Event) -> Option<JobId> {
    match event {
        Event::Job {
            job,
            what: JobEvent::Succeeded { .. } | JobEvent::Dead { .. } | JobEvent::Cancelled,
            ..
        } => Some(job.id),
        _ => None,
    }
}

/// The wait of one caller. Dropping it ends the wait.
struct FinishWait<'a> {
    waits: &'a FinishWaits,
    id: JobId,
    finished: Arc<Notify>,
}

impl Drop for FinishWait<'_> {
    fn drop(&mut self) {
        let mut jobs = self.waits.jobs();
        if let Some(awaited) = jobs.get_mut(&self.id) {
            awaited.waiting -= 1;
            if awaited.waiting == 0 {
                jobs.remove(&self.id);
            }
        }
        // No one reads the events while no one waits.
        if jobs.is_empty()
            && let Ok(mut watching) = self.waits.watching.try_lock()
        {
            *watching = None;
        }
    }
}

impl Engine {
    /// Waits until a job has finished, but at most for `max_wait`. Returns the job as it is then, or
    /// `None` if it does not exist.
    pub async fn finished(&self, id: JobId, max_wait: Duration) -> Result<Option<Job>, StoreError> {
        let mut timeout = self.clock().sleep(max_wait);
        let entry = self.finish_waits().register(id, self.now());
        loop {
            let finished = entry.finished.notified();
            let found = self.store().get(&[id]).await?;
            let Some(job) = found.into_iter().next().flatten() else {
                return Ok(None);
            };
            if job.state().is_final() || max_wait.is_zero() {
                return Ok(Some(job));
            }
            tokio::select! {
                biased;
                () = &mut timeout => return Ok(Some(job)),
                () = finished => {}
                () = self.finish_waits().watch(self) => {}
            }
        }
    }
}
