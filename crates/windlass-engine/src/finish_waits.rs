//! Jobs whose end someone waits for: one of all that wait looks for all of them.
//!
//! What ends in this process is announced by its event. What ends elsewhere is found by a poll that
//! reads all awaited jobs together, often while a wait is young and less often as it gets older.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::warn;
use windlass_core::{Job, JobId, Timestamp};
use windlass_store::StoreError;

use crate::engine::Engine;
use crate::event::{Event, Heard, JobEvent, Subscription};

/// Awaited jobs are polled at least this often.
const POLL_MAX: Duration = Duration::from_secs(2);
/// And at most this often.
const POLL_MIN: Duration = Duration::from_millis(100);
/// A poll comes after this part of the time that the youngest wait has lasted.
const POLL_PART: u32 = 10;
/// Polls take at most this part of the time.
const BUSY_PART: u32 = 10;
/// This many jobs are read at once: each may be large.
const READ_MAX: usize = 50;

/// The jobs that someone waits for.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    jobs: Mutex<BTreeMap<JobId, Wanted>>,
    /// Held by the one who looks. It goes on with the events behind those that its predecessor saw.
    looking: tokio::sync::Mutex<Option<Subscription>>,
}

#[derive(Debug)]
struct Wanted {
    bell: Arc<Notify>,
    waiting: usize,
    since: Timestamp,
}

impl Awaited {
    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, Wanted>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: JobId, now: Timestamp) -> Entry<'_> {
        let mut jobs = self.jobs();
        let wanted = jobs.entry(id).or_insert_with(|| Wanted {
            bell: Arc::default(),
            waiting: 0,
            since: now,
        });
        wanted.waiting += 1;
        wanted.since = now;
        let bell = Arc::clone(&wanted.bell);
        Entry {
            awaited: self,
            id,
            bell,
        }
    }

    fn ring(&self, id: JobId) {
        if let Some(wanted) = self.jobs().get(&id) {
            wanted.bell.notify_waiters();
        }
    }

    /// How long to wait for the next poll.
    fn pause(&self, now: Timestamp) -> Duration {
        let youngest = self.jobs().values().map(|wanted| wanted.since).max();
        let waited = youngest.map_or(Duration::ZERO, |since| now.since(since));
        (waited / POLL_PART).clamp(POLL_MIN, POLL_MAX)
    }

    /// Looks for all, for as long as it is awaited.
    async fn look(&self, engine: &Engine) {
        let mut looking = self.looking.lock().await;
        let events = looking.get_or_insert_with(|| engine.subscribe());
        let mut busy = Duration::ZERO;
        loop {
            let pause = self.pause(engine.now()).max(busy * (BUSY_PART - 1));
            let poll = engine.clock().sleep(pause);
            tokio::select! {
                () = poll => {
                    let started = engine.clock().elapsed();
                    if let Err(error) = self.poll(engine).await {
                        warn!(%error, "looking at awaited jobs failed, trying again");
                    }
                    busy = engine.clock().elapsed().saturating_sub(started);
                }
                heard = events.next() => match heard {
                    Some(Heard::Event(event)) => {
                        ended(&event).into_iter().for_each(|id| self.ring(id));
                    }
                    Some(Heard::Missed(_)) => {} // the next poll finds what they said
                    None => std::future::pending().await,
                },
            }
        }
    }

    /// Reads all awaited jobs, and wakes those who wait for one that has finished or is not there.
    async fn poll(&self, engine: &Engine) -> Result<(), StoreError> {
        let ids: Vec<JobId> = self.jobs().keys().copied().collect();
        for some in ids.chunks(READ_MAX) {
            let found = engine.store().get(some).await?;
            for (id, job) in some.iter().zip(found) {
                if job.is_none_or(|job| job.state().is_final()) {
                    self.ring(*id);
                }
            }
        }
        Ok(())
    }
}

/// The job that an event ends.
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

/// One who waits; dropping it ends the wait.
struct Entry<'a> {
    awaited: &'a Awaited,
    id: JobId,
    bell: Arc<Notify>,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut jobs = self.awaited.jobs();
        if let Some(wanted) = jobs.get_mut(&self.id) {
            wanted.waiting -= 1;
            if wanted.waiting == 0 {
                jobs.remove(&self.id);
            }
        }
        // While no one waits, no one reads the events.
        if jobs.is_empty()
            && let Ok(mut looking) = self.awaited.looking.try_lock()
        {
            *looking = None;
        }
    }
}

impl Engine {
    /// Waits until a job has finished, for `most` at most; returns the job as it is then, none if
    /// there is no such job.
    pub async fn finished(&self, id: JobId, most: Duration) -> Result<Option<Job>, StoreError> {
        let mut over = self.clock().sleep(most);
        let entry = self.awaited().enter(id, self.now());
        loop {
            let rung = entry.bell.notified();
            let found = self.store().get(&[id]).await?;
            let Some(job) = found.into_iter().next().flatten() else {
                return Ok(None);
            };
            if job.state().is_final() || most.is_zero() {
                return Ok(Some(job));
            }
            tokio::select! {
                () = &mut over => return Ok(Some(job)),
                () = rung => {}
                () = self.awaited().look(self) => {}
            }
        }
    }
}
