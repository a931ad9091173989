//! Settles how attempts ended, in groups.
//!
//! There is no timer: at rest an end is settled at once, and while the store writes, further ones gather. Invariant: an end
//! that was pushed leaves only when the store has taken it or has said that the lease is lost, or when the store has refused
//! it for too long: then its lease expires, and the sweeper ends the attempt as lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use windlass_core::{JobId, Report, Settlement, Timestamp};
use windlass_store::{SETTLE_MAX, Settled, StoreError};

use crate::attempt::RunningAttempt;
use crate::attempt_end::AttemptEnd;
use crate::engine::Engine;
use crate::registry::Registry;
use crate::loop_backoff::RetryWait;
use crate::slots::Slot;
use crate::watchdog::Pulse;

/// Settles the ends of one worker's attempts.
pub(crate) struct Committer {
    engine: Arc<Engine>,
    /// From so many ends on that the store has not taken, slots stay taken.
    backlog_max: usize,
    /// An outcome that the store keeps refusing is dropped this long after the handler returned.
    outcome_retry_max: Duration,
    registry: Arc<Registry>,
    ends: Mutex<Ends>,
    arrived: Notify,
    emptied: Notify,
}

#[derive(Default)]
struct Ends {
    waiting: VecDeque<End>,
    /// What the store refused: each is asked alone, at its own time, so that it holds up no other.
    aside: Vec<End>,
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
    /// How long its handler ran.
    ran: Duration,
    /// When the handler returned, by the time that has passed.
    returned: Duration,
    /// How often the store refused it.
    refused: u32,
    /// After that, it is asked again from then on.
    again_at: Timestamp,
}

/// An end that was refused is asked again after this, which doubles up to [`ASIDE_MAX`].
const ASIDE_MIN: Duration = Duration::from_secs(1);
const ASIDE_MAX: Duration = Duration::from_secs(60);

impl Committer {
    pub(crate) fn new(
        engine: Arc<Engine>,
        backlog_max: usize,
        outcome_retry_max: Duration,
        registry: Arc<Registry>,
    ) -> Self {
        Committer {
            engine,
            backlog_max,
            outcome_retry_max,
            registry,
            ends: Mutex::default(),
            arrived: Notify::new(),
            emptied: Notify::new(),
        }
    }

    /// Takes how an attempt ended.
    pub(crate) fn push(&self, attempt: Arc<RunningAttempt>, report: Report) {
        let end = End {
            ran: attempt.ran(),
            attempt,
            report,
            random: self.engine.ids().bits(),
            returned: self.engine.clock().elapsed(),
            refused: 0,
            again_at: Timestamp::MIN,
        };
        self.ends().waiting.push_back(end);
        self.arrived.notify_one();
    }

    /// Takes the slot of a handler that is gone: it is free at once, unless too many ends wait already.
    pub(crate) fn park_slot(&self, slot: Option<Arc<Slot>>) {
        let mut ends = self.ends();
        if ends.count() > self.backlog_max {
            ends.parked.extend(slot);
        }
    }

    /// How many ends the store has not taken yet.
    pub(crate) fn backlog(&self) -> usize {
        self.ends().count()
    }

    /// Forgets everything, as a process does that is killed.
    pub(crate) fn clear(&self) {
        *self.ends() = Ends::default();
    }

    /// Settles what waits in one group, and alone what was refused before; how many ends left. Each step has its own instant,
    /// and ends that arrive meanwhile do not wait for those that were refused.
    pub(crate) async fn pass(&self) -> Result<usize, StoreError> {
        let mut settled = self.settle(Group::waiting(self)).await?;
        let aside = self.ends().aside.len();
        for _ in 0..aside {
            let Some(alone) = Group::aside(self, self.engine.now()) else {
                break;
            };
            settled += self.settle(alone).await?;
            settled += self.settle(Group::waiting(self)).await?;
        }
        Ok(settled)
    }

    async fn settle(&self, mut group: Group<'_>) -> Result<usize, StoreError> {
        if group.ends.is_empty() {
            return Ok(0);
        }
        let ends = group.ends.iter().map(End::as_attempt_end).collect();
        let answers = match self.engine.settle(ends).await {
            Err(error) if is_refusal(&error) => {
                group.set_aside(&error, self.engine.now());
                drop(group);
                self.free_parked();
                return Ok(0);
            }
            answers => answers?,
        };
        let now = self.engine.now();
        let mut count = group.ends.len();
        let mut repeated = Vec::new();
        for (mut end, answer) in std::mem::take(&mut group.ends).into_iter().zip(&answers) {
            match answer {
                Settled::Repeated => repeated.push(end),
                Settled::Refused { reason } => {
                    end.refused = end.refused.saturating_add(1);
                    if self.put_off(&mut end, reason, now) {
                        count -= 1;
                        self.ends().aside.push(end);
                    }
                }
                Settled::Done(_) => self.registry.settled(end.attempt.id()),
                Settled::LeaseLost => self.lose(&end),
            }
        }
        group.ends = repeated; // if it cannot be seen what became of them, they are asked again
        for (end, settlement) in self.look_after(&group.ends).await? {
            if let Some(settlement) = settlement {
                let (job, attempt) = (end.attempt.job(), end.attempt.id().attempt);
                self.engine
                    .announce_end(job, attempt, &settlement, end.ran, now);
            }
            self.registry.settled(end.attempt.id());
        }
        group.ends.clear();
        drop(group);
        self.free_parked();
        Ok(count)
    }

    /// What ends led to that the store had taken before its answer was lost, as far as the job
    /// still shows it.
    async fn look_after<'e>(
        &self,
        ends: &'e [End],
    ) -> Result<Vec<(&'e End, Option<Settlement>)>, StoreError> {
        let store = self.engine.store();
        let ids: Vec<JobId> = ends.iter().map(|end| end.attempt.job().id).collect();
        let mut seen = Vec::new();
        for (end, job) in ends.iter().zip(self.engine.readable(&ids).await?) {
            let of = end.attempt.id();
            let Some(job) = job else {
                seen.push((end, None)); // it is over and purged, or cannot be read
                continue;
            };
            let later = job.attempt.saturating_sub(of.attempt);
            let limit = usize::try_from(later).unwrap_or(usize::MAX);
            let rows = store.attempts(of.job, limit.saturating_add(1)).await?;
            let row = rows.into_iter().find(|row| row.attempt == of.attempt);
            seen.push((end, row.and_then(|row| row.settlement(&job))));
        }
        Ok(seen)
    }

    /// The attempt of an end had lost its lease: the end does not count.
    fn lose(&self, end: &End) {
        let job = end.attempt.job();
        self.engine.narrator().lease_lost(job, self.engine.now());
        self.registry.settled(end.attempt.id());
    }

    /// Sets when an end that the store refused is asked again; no when it has been refused for too
    /// long, and is dropped.
    fn put_off(&self, end: &mut End, reason: &str, now: Timestamp) -> bool {
        let of = end.attempt.id();
        let age = self.engine.clock().elapsed().saturating_sub(end.returned);
        let left = self.outcome_retry_max.saturating_sub(age);
        if left.is_zero() {
            error!(job.id = %of.job, attempt = of.attempt, reason, "gave up writing a refused outcome; the lease expires and the attempt counts as lost");
            self.abandon(end);
            return false;
        }
        let doubled = 2_u32.saturating_pow(end.refused.saturating_sub(1));
        let wait = ASIDE_MIN.saturating_mul(doubled).min(ASIDE_MAX).min(left);
        end.again_at = now.saturating_add(wait);
        warn!(job.id = %of.job, attempt = of.attempt, reason, ?wait, "the store refused an outcome, trying again");
        true
    }

    /// Forgets an end that the store does not take: its lease is no longer renewed.
    fn abandon(&self, end: &End) {
        self.registry.settled(end.attempt.id());
        if let Some(recorder) = self.engine.recorder() {
            recorder.outcome_refused(&end.attempt.job().queue);
        }
    }

    fn free_parked(&self) {
        let mut ends = self.ends();
        let parked = if ends.count() <= self.backlog_max {
            std::mem::take(&mut ends.parked)
        } else {
            Vec::new()
        };
        let empty = ends.count() == 0;
        drop(ends);
        drop(parked);
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Settles until it is told to stop; what waits then is tried once more.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut retry = RetryWait::new();
        loop {
            pulse.rest();
            let next = self.ends().next_at();
            if next != Some(Timestamp::MIN) {
                tokio::select! {
                    () = self.arrived.notified() => {}
                    () = clock.sleep_until(next.unwrap_or(Timestamp::MAX)) => {}
                    () = stop.cancelled() => return,
                }
            }
            pulse.busy(clock.now());
            let Err(error) = self.pass().await else {
                retry.reset();
                continue;
            };
            let (waiting, wait) = (self.backlog(), retry.next());
            warn!(%error, waiting, ?wait, "settling failed, the outcomes are kept and tried again");
            pulse.rest();
            tokio::select! {
                () = clock.sleep(wait) => {}
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
    fn as_attempt_end(&self) -> AttemptEnd<'_> {
        AttemptEnd {
            of: self.attempt.id(),
            job: self.attempt.job(),
            report: self.report.clone(),
            random: self.random,
            detail: self.attempt.detail(),
            ran: self.ran,
        }
    }
}

impl Ends {
    /// How many the store has not taken yet.
    fn count(&self) -> usize {
        self.waiting.len() + self.aside.len() + self.asked
    }

    /// When there is something to ask: at once, later, or not yet.
    fn next_at(&self) -> Option<Timestamp> {
        if !self.waiting.is_empty() {
            return Some(Timestamp::MIN);
        }
        self.aside.iter().map(|end| end.again_at).min()
    }
}

/// Ends that the store is asked to take. Those that are left in it go back: nothing is lost when the asking is cut off.
struct Group<'a> {
    committer: &'a Committer,
    ends: Vec<End>,
    taken: usize,
}

impl<'a> Group<'a> {
    /// What waits, as much as a step takes.
    fn waiting(committer: &'a Committer) -> Self {
        let mut all = committer.ends();
        let count = all.waiting.len().min(SETTLE_MAX);
        let ends: Vec<End> = all.waiting.drain(..count).collect();
        all.asked += count;
        drop(all);
        Group {
            committer,
            taken: count,
            ends,
        }
    }

    /// One that was refused, if it is time to ask again.
    fn aside(committer: &'a Committer, now: Timestamp) -> Option<Self> {
        let mut all = committer.ends();
        let due = all.aside.iter().position(|end| end.again_at <= now)?;
        let end = all.aside.swap_remove(due);
        all.asked += 1;
        drop(all);
        Some(Group {
            committer,
            taken: 1,
            ends: vec![end],
        })
    }

    /// The store refused it. Of many, no one knows which one it meant: each is asked alone. One alone waits for its time, and
    /// is dropped when it has been refused for too long.
    fn set_aside(&mut self, error: &StoreError, now: Timestamp) {
        for end in &mut self.ends {
            end.refused = end.refused.saturating_add(1);
        }
        let [end] = self.ends.as_mut_slice() else {
            return;
        };
        if !self.committer.put_off(end, &error.to_string(), now) {
            self.ends.clear();
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let mut all = self.committer.ends();
        all.asked = all.asked.saturating_sub(self.taken);
        for end in self.ends.drain(..) {
            match end.refused {
                0 => all.waiting.push_back(end),
                _ => all.aside.push(end),
            }
        }
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Committer({} wait)", self.backlog())
    }
}

/// Whether the store means what it was asked, and not its own condition: asking for others may help.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::Unavailable(_)
            | StoreError::Stopped(_)
            | StoreError::StorageFull(_)
            | StoreError::Indeterminate(_)
    )
}
