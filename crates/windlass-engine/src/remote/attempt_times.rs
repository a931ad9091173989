//! How long the attempts of remote workers have run.
//!
//! Timeouts must not depend on jumps of the wall clock, so the first request of this process about
//! an attempt fixes how long it has run, and from then on the elapsed time counts. Only that first
//! value uses the wall clock, limited by how long this process has been up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use windlass_core::{Job, JobId, Timestamp, Uptime};
use windlass_store::AttemptId;

use crate::clock::Clock;
use crate::poison::lock;

/// The number of attempts to remember. For others, the running time follows from the wall clock
/// again.
const ATTEMPTS_MAX: usize = 100_000;

/// The running times of the attempts that this process knows.
#[derive(Debug)]
pub(super) struct AttemptTimes {
    clock: Arc<dyn Clock>,
    /// The wall-clock time and the elapsed time when this process started.
    up_since: (Timestamp, Duration),
    attempts: Mutex<BTreeMap<(JobId, u32), RunningTime>>,
}

/// An attempt that had run for `ran` when the elapsed time was `at`.
#[derive(Debug, Clone, Copy)]
struct RunningTime {
    ran: Duration,
    at: Duration,
}

impl AttemptTimes {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        AttemptTimes {
            clock: Arc::clone(clock),
            up_since: (clock.now(), clock.elapsed()),
            attempts: Mutex::default(),
        }
    }

    /// The current elapsed time.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Records the jobs of a claim that was sent at `now`, when the elapsed time was `started`. New
    /// attempts start then; a repeated claim may return attempts that started earlier.
    pub(super) fn claimed(&self, jobs: &[Job], now: Timestamp, started: Duration) {
        for job in jobs {
            if job.started_at == Some(now) {
                let ran = self.clock.elapsed().saturating_sub(started);
                self.note(job, ran);
            } else {
                self.ran(job);
            }
        }
    }

    /// How long the running attempt of a job has run.
    pub(super) fn ran(&self, job: &Job) -> Duration {
        let (since, started) = self.up_since;
        let elapsed = self.clock.elapsed().saturating_sub(started);
        let now = self.clock.now();
        let initial = Uptime { since, elapsed }.ran(job.started_at.unwrap_or(now), now);
        self.note(job, initial)
    }

    /// Forgets an attempt that has ended.
    pub(super) fn forget(&self, attempt_id: AttemptId) {
        self.attempts()
            .remove(&(attempt_id.job, attempt_id.attempt));
    }

    /// Returns how long an attempt has run. A new one has run for `initial`.
    fn note(&self, job: &Job, initial: Duration) -> Duration {
        let at = self.clock.elapsed();
        let mut all = self.attempts();
        if all.len() >= ATTEMPTS_MAX {
            all.pop_first();
        }
        let time = all
            .entry((job.id, job.attempt))
            .or_insert(RunningTime { ran: initial, at });
        time.ran.saturating_add(at.saturating_sub(time.at))
    }

    fn attempts(&self) -> MutexGuard<'_, BTreeMap<(JobId, u32), RunningTime>> {
        lock(&self.attempts)
    }
}
