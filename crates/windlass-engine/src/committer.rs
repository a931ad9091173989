//! Writes the outcomes of attempts to the store, in batches.
//!
//! There is no batching timer: an idle committer settles an outcome as soon as it arrives. While
//! the store is busy writing one batch, further outcomes queue up and form the next batch. So the
//! batch size follows the load, and an idle worker has no extra latency.
//!
//! The queue is part of the [`Committer`], not of a task's stack: the watchdog can abort the loop
//! at any await, and [`SettleBatch`] puts outcomes without an answer back when it is dropped.
//!
//! Invariant: an outcome leaves the queue only when the store has accepted it, when the store says
//! that the lease is lost, or when the store has refused it for `outcome_retry_max`. In the last
//! case the lease expires and the sweeper ends the attempt as lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use windlass_core::{JobId, Report, Settlement, Timestamp};
use windlass_store::{SETTLE_MAX, Settled, StoreError};

use crate::attempt::RunningAttempt;
use crate::attempt_end::AttemptEnd;
use crate::engine::Engine;
use crate::failure_lines::FailureLines;
use crate::loop_backoff::LoopBackoff;
use crate::poison::lock;
use crate::registry::Registry;
use crate::saturate::to_usize;
use crate::slots::Slot;
use crate::watchdog::Pulse;

/// Settles the attempts of one worker.
pub(crate) struct Committer {
    engine: Arc<Engine>,
    /// While more outcomes than this wait for the store, slots stay taken.
    backlog_max: usize,
    /// The committer drops an outcome that the store still refuses this long after the handler
    /// returned.
    outcome_retry_max: Duration,
    registry: Arc<Registry>,
    outcomes: Mutex<OutcomeQueue>,
    arrived: Notify,
    emptied: Notify,
}

/// The outcomes that the store has not accepted yet.
#[derive(Default)]
struct OutcomeQueue {
    waiting: VecDeque<PendingOutcome>,
    /// Outcomes that the store refused. The committer retries each one alone, after a delay of its
    /// own, so that it does not hold up the others.
    deferred: Vec<PendingOutcome>,
    /// The number of outcomes in the batch that the store is working on.
    in_flight: usize,
    /// Slots of finished handlers that stay taken until the queue is shorter.
    parked_slots: Vec<Arc<Slot>>,
}

/// The outcome of one attempt, on its way to the store.
struct PendingOutcome {
    attempt: Arc<RunningAttempt>,
    report: Report,
    random: u64,
    /// How long the handler ran.
    ran: Duration,
    /// The elapsed time of the clock when the handler returned.
    returned: Duration,
    /// How often the store has refused this outcome.
    refused: u32,
    /// When to retry a refused outcome.
    retry_at: Timestamp,
}

/// The delay before the first retry of a refused outcome. It doubles up to [`DEFER_MAX`].
const DEFER_MIN: Duration = Duration::from_secs(1);
const DEFER_MAX: Duration = Duration::from_secs(60);

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
            outcomes: Mutex::default(),
            arrived: Notify::new(),
            emptied: Notify::new(),
        }
    }

    /// Queues the outcome of an attempt.
    pub(crate) fn push(&self, attempt: Arc<RunningAttempt>, report: Report) {
        let outcome = PendingOutcome {
            ran: attempt.ran(),
            attempt,
            report,
            random: self.engine.ids().bits(),
            returned: self.engine.clock().elapsed(),
            refused: 0,
            retry_at: Timestamp::MIN,
        };
        self.outcomes().waiting.push_back(outcome);
        self.arrived.notify_one();
    }

    /// Takes the slot of a handler that has returned. The slot becomes free at once, unless too
    /// many outcomes wait for the store.
    pub(crate) fn park_slot(&self, slot: Option<Arc<Slot>>) {
        let mut outcomes = self.outcomes();
        if outcomes.count() > self.backlog_max {
            outcomes.parked_slots.extend(slot);
        }
    }

    /// Returns how many outcomes the store has not accepted yet.
    pub(crate) fn backlog(&self) -> usize {
        self.outcomes().count()
    }

    /// Drops all outcomes, as if the process had been killed.
    pub(crate) fn clear(&self) {
        *self.outcomes() = OutcomeQueue::default();
    }

    /// Settles the waiting outcomes in one batch, then each refused outcome that is due on its own.
    /// Returns how many outcomes left the queue.
    ///
    /// Every batch reads the clock again. New outcomes are settled between two refused ones, so
    /// they do not wait for them.
    pub(crate) async fn pass(&self) -> Result<usize, StoreError> {
        let mut settled = self.settle(SettleBatch::waiting(self)).await?;
        let deferred = self.outcomes().deferred.len();
        for _ in 0..deferred {
            let Some(refused) = SettleBatch::next_deferred(self, self.engine.now()) else {
                break;
            };
            settled += self.settle(refused).await?;
            settled += self.settle(SettleBatch::waiting(self)).await?;
        }
        Ok(settled)
    }

    async fn settle(&self, mut batch: SettleBatch<'_>) -> Result<usize, StoreError> {
        if batch.outcomes.is_empty() {
            return Ok(0);
        }
        let ends = batch.outcomes.iter();
        let ends = ends.map(PendingOutcome::as_attempt_end).collect();
        let answers = match self.engine.settle(ends).await {
            Err(error) if is_refusal(&error) => {
                batch.refused(&error, self.engine.now());
                return Ok(0);
            }
            answers => answers?,
        };
        let now = self.engine.now();
        let mut count = batch.outcomes.len();
        let mut repeated = Vec::new();
        for (mut outcome, answer) in std::mem::take(&mut batch.outcomes)
            .into_iter()
            .zip(&answers)
        {
            match answer {
                Settled::Repeated => repeated.push(outcome),
                Settled::Refused { reason } => {
                    outcome.refused = outcome.refused.saturating_add(1);
                    if self.defer(&mut outcome, reason, now) {
                        count -= 1;
                        self.outcomes().deferred.push(outcome);
                    }
                }
                Settled::Done(_) => {
                    self.engine.log_settled(&outcome.attempt);
                    self.registry.settled(outcome.attempt.id());
                }
                Settled::LeaseLost => self.lose(&outcome),
            }
        }
        // If the lookup below fails, these go back into the queue and are settled again.
        batch.outcomes = repeated;
        for (outcome, settlement) in self.find_settlements(&batch.outcomes).await? {
            if let Some(settlement) = settlement {
                let (job, attempt) = (outcome.attempt.job(), outcome.attempt.id().attempt);
                self.engine
                    .emit_ended(job, attempt, &settlement, outcome.ran, now);
            }
            self.engine.log_settled(&outcome.attempt);
            self.registry.settled(outcome.attempt.id());
        }
        batch.outcomes.clear();
        Ok(count)
    }

    /// Looks up what happened after outcomes that the store had accepted before, in a call whose
    /// answer was lost. `None` where the job no longer shows it.
    async fn find_settlements<'e>(
        &self,
        outcomes: &'e [PendingOutcome],
    ) -> Result<Vec<(&'e PendingOutcome, Option<Settlement>)>, StoreError> {
        if outcomes.is_empty() {
            return Ok(Vec::new());
        }
        let store = self.engine.store();
        let ids: Vec<JobId> = outcomes
            .iter()
            .map(|outcome| outcome.attempt.job().id)
            .collect();
        let mut settlements = Vec::new();
        for (outcome, job) in outcomes.iter().zip(self.engine.readable(&ids).await?) {
            let attempt_id = outcome.attempt.id();
            let Some(job) = job else {
                settlements.push((outcome, None)); // the job was purged or cannot be read
                continue;
            };
            let later = job.attempt.saturating_sub(attempt_id.attempt);
            let limit = to_usize(later);
            let rows = store
                .attempts(attempt_id.job, limit.saturating_add(1))
                .await?;
            let row = rows
                .into_iter()
                .find(|row| row.attempt == attempt_id.attempt);
            settlements.push((outcome, row.and_then(|row| row.settlement(&job))));
        }
        Ok(settlements)
    }

    /// The store says that the attempt no longer holds its lease: its outcome does not count.
    fn lose(&self, outcome: &PendingOutcome) {
        let job = outcome.attempt.job();
        self.engine.job_log().lease_lost(job, self.engine.now());
        self.registry.settled(outcome.attempt.id());
    }

    /// Schedules the next try of a refused outcome. Returns false and drops the outcome if the
    /// store has refused it for too long.
    fn defer(&self, outcome: &mut PendingOutcome, reason: &str, now: Timestamp) -> bool {
        let attempt_id = outcome.attempt.id();
        let age = self
            .engine
            .clock()
            .elapsed()
            .saturating_sub(outcome.returned);
        let left = self.outcome_retry_max.saturating_sub(age);
        if left.is_zero() {
            error!(job.id = %attempt_id.job, attempt = attempt_id.attempt, reason, "gave up storing an outcome that the store refuses; the lease will expire and the attempt will count as lost");
            self.abandon(outcome);
            return false;
        }
        let doubled = 2_u32.saturating_pow(outcome.refused.saturating_sub(1));
        let wait = DEFER_MIN.saturating_mul(doubled).min(DEFER_MAX).min(left);
        outcome.retry_at = now.saturating_add(wait);
        warn!(job.id = %attempt_id.job, attempt = attempt_id.attempt, reason, ?wait, "the store refused an outcome; retrying");
        true
    }

    /// Drops an outcome and stops renewing the lease of its attempt.
    fn abandon(&self, outcome: &PendingOutcome) {
        self.registry.settled(outcome.attempt.id());
        if let Some(recorder) = self.engine.recorder() {
            recorder.outcome_refused(&outcome.attempt.job().queue);
        }
    }

    fn free_parked(&self) {
        let mut outcomes = self.outcomes();
        let parked = if outcomes.count() <= self.backlog_max {
            std::mem::take(&mut outcomes.parked_slots)
        } else {
            Vec::new()
        };
        let empty = outcomes.count() == 0;
        drop(outcomes);
        drop(parked);
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Settles outcomes until `stop`. A pass that is running at that moment is finished.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut backoff = LoopBackoff::new();
        let mut failures = FailureLines::default();
        loop {
            pulse.rest();
            let next = self.outcomes().next_at();
            if next != Some(Timestamp::MIN) {
                tokio::select! {
                    biased;
                    () = self.arrived.notified() => {}
                    () = clock.sleep_until(next.unwrap_or(Timestamp::MAX)) => {}
                    () = stop.cancelled() => return,
                }
            }
            pulse.busy(clock.now());
            let Err(error) = self.pass().await else {
                backoff.reset();
                continue;
            };
            let (waiting, wait) = (self.backlog(), backoff.next());
            if let Some(suppressed) = failures.admit(clock.elapsed()) {
                warn!(%error, waiting, ?wait, suppressed, "settle failed; keeping the outcomes and retrying");
            }
            pulse.rest();
            tokio::select! {
                biased;
                () = clock.sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Waits until the queue is empty.
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

    fn outcomes(&self) -> MutexGuard<'_, OutcomeQueue> {
        lock(&self.outcomes)
    }
}

impl PendingOutcome {
    fn as_attempt_end(&self) -> AttemptEnd<'_> {
        AttemptEnd {
            attempt_id: self.attempt.id(),
            job: self.attempt.job(),
            report: self.report.clone(),
            random: self.random,
            detail: self.attempt.detail(),
            ran: self.ran,
        }
    }
}

impl OutcomeQueue {
    /// The number of outcomes that the store has not accepted yet.
    fn count(&self) -> usize {
        self.waiting.len() + self.deferred.len() + self.in_flight
    }

    /// When the next outcome is due: now (`Timestamp::MIN`), at a later time, or `None` if the
    /// queue is empty.
    fn next_at(&self) -> Option<Timestamp> {
        if !self.waiting.is_empty() {
            return Some(Timestamp::MIN);
        }
        self.deferred.iter().map(|outcome| outcome.retry_at).min()
    }
}

/// Outcomes that the committer has sent to the store. Dropping the batch puts the outcomes that
/// are still in it back into the queue, so nothing is lost when a settle fails or is interrupted.
/// Then it frees slots if there is space for more outcomes.
struct SettleBatch<'a> {
    committer: &'a Committer,
    outcomes: Vec<PendingOutcome>,
    taken: usize,
}

impl<'a> SettleBatch<'a> {
    /// Takes the waiting outcomes, at most [`SETTLE_MAX`].
    fn waiting(committer: &'a Committer) -> Self {
        let mut queue = committer.outcomes();
        let count = queue.waiting.len().min(SETTLE_MAX);
        let outcomes: Vec<PendingOutcome> = queue.waiting.drain(..count).collect();
        queue.in_flight += count;
        drop(queue);
        SettleBatch {
            committer,
            taken: count,
            outcomes,
        }
    }

    /// Takes one refused outcome whose retry is due.
    fn next_deferred(committer: &'a Committer, now: Timestamp) -> Option<Self> {
        let mut queue = committer.outcomes();
        let due = queue
            .deferred
            .iter()
            .position(|outcome| outcome.retry_at <= now)?;
        let outcome = queue.deferred.swap_remove(due);
        queue.in_flight += 1;
        drop(queue);
        Some(SettleBatch {
            committer,
            taken: 1,
            outcomes: vec![outcome],
        })
    }

    /// Handles an error of the store that refuses the whole batch.
    ///
    /// In a batch of several outcomes, the error does not say which one is at fault: each of them
    /// is settled alone from now on. A single outcome waits for its next try, or is dropped if the
    /// store has refused it for too long.
    fn refused(&mut self, error: &StoreError, now: Timestamp) {
        for outcome in &mut self.outcomes {
            outcome.refused = outcome.refused.saturating_add(1);
        }
        let [outcome] = self.outcomes.as_mut_slice() else {
            return;
        };
        if !self.committer.defer(outcome, &error.to_string(), now) {
            self.outcomes.clear();
        }
    }
}

impl Drop for SettleBatch<'_> {
    fn drop(&mut self) {
        let mut queue = self.committer.outcomes();
        queue.in_flight = queue.in_flight.saturating_sub(self.taken);
        for outcome in self.outcomes.drain(..) {
            match outcome.refused {
                0 => queue.waiting.push_back(outcome),
                _ => queue.deferred.push(outcome),
            }
        }
        drop(queue);
        self.committer.free_parked();
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Committer({} waiting)", self.backlog())
    }
}

/// Whether the store rejects the content of the call. Otherwise the store itself is in trouble, and
/// any other call would fail too.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::Unavailable(_)
            | StoreError::Stopped(_)
            | StoreError::StorageFull(_)
            | StoreError::Indeterminate(_)
    )
}
