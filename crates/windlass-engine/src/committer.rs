//! Settles how attempts ended, in groups.
//!
//! There is no timer: at rest an end is settled at once, and while the store writes, further ones gather. Invariant: an end
//! that was pushed leaves only when the store has taken it, or has said that the lease is lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{Outcome, Report, Settlement, Timestamp, Verdict};
use windlass_store::{AttemptReport, Expected, SETTLE_MAX, Settled, StoreError};

use crate::attempt::{PROGRESS, RunningAttempt};
use crate::engine::Engine;
use crate::event::{Event, JobEvent, JobRef};
use crate::registry::Registry;
use crate::slots::Slot;
use crate::watchdog::Pulse;

/// How ends are settled.
#[derive(Debug, Clone)]
pub(crate) struct CommitterConfig {
    /// From so many ends on that the store has not taken, slots stay taken. As many as the worker has slots.
    pub(crate) backlog_max: usize,
    /// The first wait after the store erred; it doubles up to `retry_max`. 50 ms.
    pub(crate) retry_min: Duration,
    /// The longest wait after the store erred. 1 s.
    pub(crate) retry_max: Duration,
}

impl Default for CommitterConfig {
    fn default() -> Self {
        CommitterConfig {
            backlog_max: 1000,
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(1),
        }
    }
}

/// Settles the ends of one worker's attempts.
pub(crate) struct Committer {
    engine: Arc<Engine>,
    config: CommitterConfig,
    registry: Arc<Registry>,
    ends: Mutex<Ends>,
    arrived: Notify,
    emptied: Notify,
    one_by_one: AtomicBool,
}

#[derive(Default)]
struct Ends {
    waiting: VecDeque<End>,
    /// In a group that the store is asked to take.
    asked: usize,
    /// Slots that stay taken until fewer ends wait.
    parked: Vec<Arc<Slot>>,
}

/// How one attempt ended.
struct End {
    attempt: Arc<RunningAttempt>,
    report: Report,
    random: u64,
    told_at: Timestamp,
}

impl Committer {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: CommitterConfig,
        registry: Arc<Registry>,
    ) -> Self {
        Committer {
            engine,
            config,
            registry,
            ends: Mutex::default(),
            arrived: Notify::new(),
            emptied: Notify::new(),
            one_by_one: AtomicBool::new(false),
        }
    }

    /// Takes how an attempt ended.
    pub(crate) fn push(&self, attempt: Arc<RunningAttempt>, report: Report) {
        let end = End {
            attempt,
            report,
            random: self.engine.ids().bits(),
            told_at: self.engine.now(),
        };
        self.ends().waiting.push_back(end);
        self.arrived.notify_one();
    }

    /// Takes the slot of a handler that is gone: it is free at once, unless too many ends wait already.
    pub(crate) fn park_slot(&self, slot: Option<Arc<Slot>>) {
        let mut ends = self.ends();
        if ends.waiting.len() + ends.asked > self.config.backlog_max {
            ends.parked.extend(slot);
        }
    }

    /// How many ends the store has not taken yet.
    pub(crate) fn backlog(&self) -> usize {
        let ends = self.ends();
        ends.waiting.len() + ends.asked
    }

    /// Forgets everything, as a process does that is killed.
    pub(crate) fn clear(&self) {
        *self.ends() = Ends::default();
    }

    /// Settles what waits, in one group; how many ends left.
    pub(crate) async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        if !self.one_by_one.load(Ordering::Relaxed) {
            return self.settle(SETTLE_MAX, now).await;
        }
        // The group failed: one bad end must not hold up the others.
        let mut settled = 0;
        let mut failed = None;
        let waiting = self.ends().waiting.len();
        for _ in 0..waiting {
            match self.settle(1, now).await {
                Ok(count) => settled += count,
                Err(error) if is_away(&error) => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => {
                self.one_by_one.store(false, Ordering::Relaxed);
                Ok(settled)
            }
        }
    }

    async fn settle(&self, most: usize, now: Timestamp) -> Result<usize, StoreError> {
        let mut group = Group::take(self, most);
        if group.ends.is_empty() {
            return Ok(0);
        }
        let reports = group.ends.iter().map(End::as_report).collect();
        let settled = self.engine.store().settle(reports, now).await;
        let settled = settled.inspect_err(|error| {
            let apart = !is_away(error);
            self.one_by_one.fetch_or(apart, Ordering::Relaxed);
        })?;
        let ends = std::mem::take(&mut group.ends);
        drop(group);
        let count = ends.len();
        for (end, answer) in ends.iter().zip(&settled) {
            self.tell(end, answer, now);
            self.registry.settled(end.attempt.id());
        }
        for end in ends.iter().filter(|end| end.attempt.told_progress()) {
            self.forget_progress(&end.attempt).await;
        }
        self.free_parked();
        Ok(count)
    }

    /// Tells what the store made of an end.
    fn tell(&self, end: &End, answer: &Settled, now: Timestamp) {
        let job = end.attempt.job();
        match answer {
            Settled::Done(settlement) => {
                if let Verdict::Waiting { run_at } = settlement.verdict {
                    self.engine.due_at(run_at, now);
                }
                let ran = end.told_at.since(job.started_at.unwrap_or(end.told_at));
                tell_settlement(&self.engine, now, settlement, ran, || JobRef::of(job));
            }
            Settled::Repeated => {}
            Settled::LeaseLost => {
                warn!(job.id = %job.id, attempt = job.attempt, "the lease was lost before the end was settled");
            }
        }
    }

    async fn forget_progress(&self, attempt: &RunningAttempt) {
        let store = self.engine.store();
        let name = attempt.job().id.to_string();
        let gone = store.remove_document(PROGRESS, &name, Expected::Anything);
        if let Err(error) = gone.await {
            info!(job.id = name, %error, "what a job told of its progress stays until the janitor comes");
        }
    }

    fn free_parked(&self) {
        let mut ends = self.ends();
        let parked = if ends.waiting.len() + ends.asked <= self.config.backlog_max {
            std::mem::take(&mut ends.parked)
        } else {
            Vec::new()
        };
        let empty = ends.waiting.is_empty() && ends.asked == 0;
        drop(ends);
        drop(parked);
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Settles until it is told to stop; what waits then is tried once more.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut wait = self.config.retry_min;
        loop {
            pulse.rest();
            if self.ends().waiting.is_empty() {
                tokio::select! {
                    () = self.arrived.notified() => {}
                    () = stop.cancelled() => return,
                }
            }
            let now = clock.now();
            pulse.busy(now);
            let Err(error) = self.pass(now).await else {
                wait = self.config.retry_min;
                continue;
            };
            let waiting = self.backlog();
            warn!(%error, waiting, ?wait, "settling failed, the outcomes are kept and tried again");
            let again_at = clock.now().saturating_add(wait);
            wait = (wait * 2).min(self.config.retry_max);
            pulse.rest();
            tokio::select! {
                () = clock.sleep_until(again_at) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Ends when nothing waits any more.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.backlog() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl End {
    fn as_report(&self) -> AttemptReport {
        AttemptReport {
            of: self.attempt.id(),
            report: self.report.clone(),
            random: self.random,
            detail: self.attempt.detail(),
        }
    }
}

/// Ends that the store is asked to take. Unless they are taken out, they go back: nothing is lost when the asking is cut off.
struct Group<'a> {
    committer: &'a Committer,
    ends: Vec<End>,
    taken: usize,
}

impl<'a> Group<'a> {
    fn take(committer: &'a Committer, most: usize) -> Self {
        let mut all = committer.ends();
        let count = all.waiting.len().min(most);
        let ends: Vec<End> = all.waiting.drain(..count).collect();
        all.asked += count;
        drop(all);
        Group {
            committer,
            taken: ends.len(),
            ends,
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let mut all = self.committer.ends();
        all.asked = all.asked.saturating_sub(self.taken);
        all.waiting.extend(self.ends.drain(..));
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Committer({} wait)", self.backlog())
    }
}

/// Whether the store takes nothing at all, so that asking for each end alone does not help.
fn is_away(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Stopped(_))
}

/// Tells how an attempt ended, and what becomes of its job.
pub(crate) fn tell_settlement(
    engine: &Engine,
    at: Timestamp,
    settlement: &Settlement,
    ran: Duration,
    job: impl Fn() -> JobRef,
) {
    let tell = |what: JobEvent| {
        engine.emit(|| Event::Job {
            at,
            job: job(),
            what,
        });
    };
    let error = || settlement.error.clone();
    match settlement.outcome {
        Outcome::Succeeded => tell(JobEvent::Succeeded { ran }),
        Outcome::Failed => tell(JobEvent::Failed {
            ran,
            error: error(),
        }),
        Outcome::TimedOut => tell(JobEvent::TimedOut { ran }),
        Outcome::Lost => tell(JobEvent::Lost),
        Outcome::Released => tell(JobEvent::Released),
        // What becomes of the job says it.
        Outcome::Snoozed | Outcome::Cancelled => {}
    }
    match (settlement.verdict, settlement.outcome) {
        (Verdict::Waiting { run_at }, Outcome::Snoozed) => {
            tell(JobEvent::Snoozed { until: run_at });
        }
        (Verdict::Waiting { run_at }, _) => {
            if let Some(delay) = settlement.delay {
                tell(JobEvent::Retried {
                    run_at,
                    delay,
                    failures: settlement.failures,
                });
            }
        }
        (Verdict::Dead(reason), _) => tell(JobEvent::Dead {
            reason,
            failures: settlement.failures,
        }),
        (Verdict::Cancelled, _) => tell(JobEvent::Cancelled),
        (Verdict::Succeeded, _) => {}
    }
}
