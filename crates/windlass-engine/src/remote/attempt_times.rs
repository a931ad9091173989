//! How long attempts of remote workers have run, by elapsed time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windlass_core::{Job, JobId, Timestamp, Uptime};
use windlass_store::AttemptId;

use crate::clock::Clock;

/// The times of at most 100,000 attempts are kept; of others they are taken from the wall clock.
const ATTEMPTS_MAX: usize = 100_000;

/// How long attempts have run, for as long as this process knows them.
#[derive(Debug)]
pub(super) struct AttemptTimes {
    clock: Arc<dyn Clock>,
    /// The wall clock and the elapsed time when this process began.
    up_since: (Timestamp, Duration),
    seen: Mutex<BTreeMap<(JobId, u32), Seen>>,
}

/// An attempt that had run for `ran` when the elapsed time was `at`.
#[derive(Debug, Clone, Copy)]
struct Seen {
    ran: Duration,
    at: Duration,
}

impl AttemptTimes {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        AttemptTimes {
            clock: Arc::clone(clock),
            up_since: (clock.now(), clock.elapsed()),
            seen: Mutex::default(),
        }
    }

    /// The elapsed time now.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Notes what a claim at `now` was given, when the elapsed time was `began`: its attempts begin
    /// then, unless the claim was answered before.
    pub(super) fn claimed(&self, jobs: &[Job], now: Timestamp, began: Duration) {
        for job in jobs {
            match job.started_at == Some(now) {
                true => {
                    let ran = self.clock.elapsed().saturating_sub(began);
                    self.note(job, ran);
                }
                false => {
                    self.ran(job);
                }
            }
        }
    }

    /// How long the running attempt of a job has run.
    pub(super) fn ran(&self, job: &Job) -> Duration {
        let (since, began) = self.up_since;
        let elapsed = self.clock.elapsed().saturating_sub(began);
        let now = self.clock.now();
        let unseen = Uptime { since, elapsed }.ran(job.started_at.unwrap_or(now), now);
        self.note(job, unseen)
    }

    /// An attempt is over.
    pub(super) fn forget(&self, of: AttemptId) {
        self.seen().remove(&(of.job, of.attempt));
    }

    /// How long an attempt has run; one that is new here has run for `unseen`.
    fn note(&self, job: &Job, unseen: Duration) -> Duration {
        let at = self.clock.elapsed();
        let mut all = self.seen();
        if all.len() >= ATTEMPTS_MAX {
            all.pop_first();
        }
        let seen = all
            .entry((job.id, job.attempt))
            .or_insert(Seen { ran: unseen, at });
        seen.ran.saturating_add(at.saturating_sub(seen.at))
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<(JobId, u32), Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
